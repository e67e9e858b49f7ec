"""Following the changes of a zone: positions, their tokens, and the feed that users read."""
