"""Rezone: partitioned, replicated tables on Kubernetes that are moved while they are in use."""
