"""Which part of its range a replica serves: what it has taken over, and what it has sealed."""
