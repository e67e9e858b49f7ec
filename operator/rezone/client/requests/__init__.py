"""One request on its way: sent to whoever leads, again, or elsewhere."""
