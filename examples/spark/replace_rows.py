"""Replace a zone's rows: those of Parquet files are written, and those that they lack deleted.

ORDERS is an address of a data node; INCOMING has all rows that there shall be, STAGING is a
directory that driver and executors reach. Readers see old and new rows while it runs. Where it has
not ended, run it again. What others write meanwhile stays.
"""

import os

from pyspark.sql import SparkSession

from rezone.client import TableClient
from rezone.transfer import datasource

spark = SparkSession.builder.appName("replace-rows").getOrCreate()
datasource.register(spark)
orders = os.environ["ORDERS"]

# Rows that are not there as of this time are somebody else's, and are not deleted.
with TableClient([orders]) as table:
    before = table.read_time(max_staleness_seconds=0).as_of  # now

staged = {"bootstrap": orders, "stagingDirectory": os.environ["STAGING"]}
new = spark.read.parquet(os.environ["INCOMING"])
new.write.format("rezone").mode("append").options(**staged).save()

old = datasource.read_table(spark, orders, columns=["id"], asOf=str(before))
gone = old.join(new, "id", "left_anti")
gone.write.format("rezone").mode("append").options(**staged, operation="delete").save()
