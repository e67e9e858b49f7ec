"""Connections to data nodes."""
