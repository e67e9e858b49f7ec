"""Who runs when: jobs, sending, and copies that are throttled while clients are served."""
