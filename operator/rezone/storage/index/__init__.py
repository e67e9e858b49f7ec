"""Secondary indexes of one partition: entries, state, lookups, and what keeps them up to date."""
