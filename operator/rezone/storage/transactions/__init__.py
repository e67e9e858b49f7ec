"""Transactions on one partition: write intents, and how transactions end."""
