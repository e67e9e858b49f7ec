"""The data node: replication of its partitions, takeover, reads and writes, control calls."""
