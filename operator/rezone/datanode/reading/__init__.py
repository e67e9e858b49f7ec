"""Reads, scans and lookups of one replica."""
