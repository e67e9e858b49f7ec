"""Writes of one replica: rows, producers, transactions, and how fast."""
