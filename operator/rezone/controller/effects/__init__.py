"""What carries out the actions that a decision has asked for."""
