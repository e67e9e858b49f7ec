"""Snapshots of a partition: rows or files of one moment, and digests of them."""
