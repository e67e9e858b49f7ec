"""The `rezone` command, also as the kubectl plugin `kubectl rezone`."""
