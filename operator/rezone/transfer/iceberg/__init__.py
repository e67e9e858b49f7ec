"""Zones as tables of Iceberg catalogs: exports, and change feeds that are appended or merged.

Files are written by Spark's tasks, and committed by the driver with pyiceberg (the extra
`iceberg`): there is no Iceberg runtime for the Spark versions whose data sources in Python do what
a zone needs (docs/decisions/0490).
"""
