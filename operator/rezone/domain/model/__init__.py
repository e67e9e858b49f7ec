"""What one observation of a zone holds, and the actions that decisions ask for."""
