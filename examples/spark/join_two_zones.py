"""Analytics: join two zones by Spark. Data nodes send only the rows and columns that are needed.

ORDERS and CUSTOMERS are addresses of data nodes of two zones; RESULT is a directory for Parquet.
"""

import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from rezone.client import col
from rezone.transfer import datasource

spark = SparkSession.builder.appName("join-two-zones").getOrCreate()

orders = datasource.read_table(
    spark,
    os.environ["ORDERS"],
    columns=["customer", "amount"],
    filter=col("amount") >= 10.0,  # evaluated by the data nodes
)
customers = datasource.read_table(spark, os.environ["CUSTOMERS"], columns=["id", "country"])

by_country = (
    orders.join(customers, orders.customer == customers.id)
    .groupBy("country")
    .agg(sf.count("*").alias("orders"), sf.sum("amount").alias("amount"))
)
by_country.write.mode("overwrite").parquet(os.environ["RESULT"])
