"""What a caller may ask of a data node, and which certificates it may have."""
