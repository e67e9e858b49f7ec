"""CDC: an Iceberg table that has the rows of a zone, and follows their changes.

ORDERS is an address of a data node, TABLE is CATALOG.NAMESPACE.TABLE of a catalog that pyiceberg
knows, CHECKPOINT a directory that is kept. It ends when all that is there was merged; run it again,
or leave the trigger out, and it goes on.
"""

import os

from pyspark.sql import SparkSession

from rezone.transfer import datasource
from rezone.transfer.iceberg.changes import merge_changes

spark = SparkSession.builder.appName("cdc-to-iceberg").getOrCreate()
datasource.register(spark)

changes = spark.readStream.format("rezone-changes").options(
    bootstrap=os.environ["ORDERS"],
    startFrom="snapshot",  # all rows first, then what has changed since
)
query = (
    changes.load()
    .writeStream.foreachBatch(merge_changes(os.environ["TABLE"], key=["id"]))
    .option("checkpointLocation", os.environ["CHECKPOINT"])
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
