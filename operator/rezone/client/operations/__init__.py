"""What a user of a table asks for: reads, writes, lookups, transactions."""
