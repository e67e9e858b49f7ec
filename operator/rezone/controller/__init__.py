"""The coordinator: Kopf watches wake a keyed queue, reconcile loops decide and act."""
