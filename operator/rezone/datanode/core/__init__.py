"""What a replica decides: pure steps from events to effects, which others carry out."""
