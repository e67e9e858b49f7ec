"""What a reconcile observes before it decides."""
