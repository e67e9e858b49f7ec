"""What reports, pods and SparkApplications say: health, readiness, maintenance."""
