"""The operator process: watches, the Lease, health, start and end."""
