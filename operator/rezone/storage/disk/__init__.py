"""Files: directories, syncs, and how long those take."""
