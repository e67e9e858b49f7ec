"""What a whole zone is asked for, what breaks meanwhile, and how it is run."""
