"""Replace a zone's rows by those of Parquet files, by one switch.

ORDERS is an address of a data node; INCOMING has all rows that there shall be, STAGING is a
directory that driver and executors reach. Readers see the old rows until the switch, and the new
ones after it. Where it has not ended, run it again with the same NAME and rows: it goes on. What
others write meanwhile stays.
"""

import os

from pyspark.sql import SparkSession

from rezone.transfer import datasource

spark = SparkSession.builder.appName("replace-rows").getOrCreate()
datasource.register(spark)
new = spark.read.parquet(os.environ["INCOMING"])
new.write.format("rezone").mode("overwrite").options(
    bootstrap=os.environ["ORDERS"],
    stagingDirectory=os.environ["STAGING"],
    overwriteName=os.environ["NAME"],
).save()
