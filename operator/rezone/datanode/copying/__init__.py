"""Copies of a partition between nodes."""
