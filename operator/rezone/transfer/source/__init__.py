"""What Spark reads of a zone: options, types, filters that data nodes evaluate, the change feed."""
