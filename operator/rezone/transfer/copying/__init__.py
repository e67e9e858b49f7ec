"""Rows from data node to data node: copies of partitions, and the backfill of re-shardings."""
