"""Who runs when: jobs, sending, and copies that are throttled for clients."""
