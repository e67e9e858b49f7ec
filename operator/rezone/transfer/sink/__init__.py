"""How rows of Spark's tasks reach a zone: staged until their job is sure, then submitted once."""
