"""How fast and how full the disk is."""
