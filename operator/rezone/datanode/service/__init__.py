"""The Flight server of a data node, and how it stops."""
