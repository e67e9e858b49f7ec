"""One replica, put together from its parts."""
