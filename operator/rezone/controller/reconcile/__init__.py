"""The reconcile loops of the three kinds."""
