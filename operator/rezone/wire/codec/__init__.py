"""How rows, keys and index entries stand in bytes."""
