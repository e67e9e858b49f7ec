"""The one wire of all parts: messages, errors, row format and Flight plumbing."""
