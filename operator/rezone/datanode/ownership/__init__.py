"""How a partition ends: the seal of its log."""
