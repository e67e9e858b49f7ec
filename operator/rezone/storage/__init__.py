"""One partition on its disk: log, engine, what is known of both; copies out and in; indexes."""
