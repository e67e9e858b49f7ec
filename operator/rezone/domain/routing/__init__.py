"""Route records: who leads each partition, who is in sync, and how a record may change."""
