"""The node: its replicas, its links to others, its threads, and what it reports."""
