"""The machine of a RebalanceTask that moves partitions, and the copies that it asks for."""
