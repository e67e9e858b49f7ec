"""Bulk data by Spark: the data source "rezone", and the jobs that SparkApplications run.

At the top is what others name by its path, of which the release may be another one: `datasource`
and `lookup`, which users import; the jobs, which the operator's SparkApplications name by their
files; `entrypoint`, which the Spark image starts; and `generated`, whose rows checks compute again.

Below is what these are made of. `source` reads zones for Spark, `sink` writes them, `copying` moves
rows between data nodes, `bulk` is what the jobs of persons share, and `iceberg` is tables of
Iceberg catalogs.
"""
