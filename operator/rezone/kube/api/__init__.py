"""The API server by kind: requests, errors that say what to do, watches, names."""
