"""What a data node shows: health, readiness, metrics."""
