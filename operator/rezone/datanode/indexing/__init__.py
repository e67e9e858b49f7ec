"""Secondary indexes of one replica."""
