"""Leaders, followers, the streams between them, and leader transfers."""
