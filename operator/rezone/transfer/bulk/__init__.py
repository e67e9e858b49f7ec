"""What the bulk jobs share: verify, export and load a zone as one Spark job of many units."""
