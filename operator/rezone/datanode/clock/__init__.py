"""What time it is, how old rows are, and which timestamps may be given."""
