"""What a replica remembers apart from rows and log."""
