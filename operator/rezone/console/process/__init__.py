"""The process of the console: its port for pages, deadlines of requests, its port for health."""
