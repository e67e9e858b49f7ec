"""The data node: partitions with log and engine, replication, snapshots, takeover."""
