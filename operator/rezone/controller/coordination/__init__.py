"""What the leading process keeps in memory, of each zone and of all."""
