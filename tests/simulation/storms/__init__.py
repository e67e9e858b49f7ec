"""Data nodes without an operator, in which everything breaks by a seed."""
