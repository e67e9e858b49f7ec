"""SparkApplications: copies of rebalances, jobs of persons, and what those have loaded."""
