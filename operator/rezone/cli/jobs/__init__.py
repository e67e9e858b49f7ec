"""`rezone verify`, `export`, `load` and `job`: bulk jobs as SparkApplications."""
