"""What data nodes report, and what they are told."""
