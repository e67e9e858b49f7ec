"""The machine of a RebalanceTask that re-shards a zone."""
