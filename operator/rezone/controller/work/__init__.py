"""What the reconcile loops work on: keys, the keyed queue, settings."""
