"""Copies of a partition: the half that sends, and the half that receives."""
