"""The assignment keys of a zone, and replicas that are beside or short of them."""
