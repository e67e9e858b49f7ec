"""A whole simulated zone: objects, pods, lives of the operator, and what must hold."""
