"""Simulated data nodes: the real replicas, on disks and networks that break."""
