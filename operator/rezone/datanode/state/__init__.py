"""What the parts of a replica share: its state, and what they may ask of it and of its node."""
