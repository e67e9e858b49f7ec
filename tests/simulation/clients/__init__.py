"""Storms with clients of other kinds: producers, transactions, followers of changes."""
