"""What replicas of two layouts do for each other."""
