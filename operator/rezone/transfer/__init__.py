"""Bulk data: the PySpark jobs, the node-to-node copy, and the Spark data source "rezone"."""
