"""State machines as tables: states, edges, commands, and the status that they persist."""
