"""Stream: files that arrive in a directory become rows of a zone, each micro-batch once.

ORDERS is an address of a data node; INCOMING has Parquet files, CHECKPOINT and STAGING are
directories that are kept. It ends when all that is there was written.
"""

import os

from pyspark.sql import SparkSession

from rezone.transfer import datasource

spark = SparkSession.builder.appName("stream-into-zone").getOrCreate()
datasource.register(spark)

query = (
    spark.readStream.schema("id BIGINT, customer BIGINT, amount DOUBLE")
    .parquet(os.environ["INCOMING"])
    .writeStream.format("rezone")
    .options(bootstrap=os.environ["ORDERS"], stagingDirectory=os.environ["STAGING"])
    .option("checkpointLocation", os.environ["CHECKPOINT"])
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
