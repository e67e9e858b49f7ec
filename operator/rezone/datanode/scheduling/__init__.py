"""Who runs when: jobs, sending, and copies that give way to clients."""
