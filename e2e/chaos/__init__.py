"""Faults under a zone in use, on real processes of the one-machine cluster: `make chaos`."""
