"""Who is in sync, what is committed, and what fences it."""
