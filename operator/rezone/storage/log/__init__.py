"""The log of one partition, and the journals of small records."""
