"""Plans: the assignment with the fewest moves that a set of nodes allows."""
