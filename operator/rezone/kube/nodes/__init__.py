"""Data nodes as pods: built, observed, with their volumes."""
