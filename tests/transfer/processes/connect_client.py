"""What a client of Spark Connect does with a zone; run as a program, as a process has one session.

Arguments: the server's address, a data node's, a directory. The last line of its output is JSON.
"""

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

from rezone.client import col
from rezone.transfer import datasource
from rezone.transfer.lookup import lookup


def stream(spark: Any, options: dict[str, str], directory: str) -> None:
    """Copy the changes of the zone into it by other ids, up to what is there now.

    Again where Spark has given a Python worker its 10 s, which on a busy machine may not be enough.
    """
    changes = spark.readStream.format("rezone-changes").options(
        bootstrap=options["bootstrap"], startFrom="snapshot"
    )
    copied = changes.load().where("id < 1000").selectExpr("id + 1000 as id", "_operation as value")
    writer = copied.writeStream.format("rezone").options(**options)
    writer = writer.option("checkpointLocation", f"{directory}/checkpoint")
    for attempt in range(5):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except Exception as error:
            if "connect back" not in str(error) or attempt == 4:
                raise
        else:
            return


def main(server: str, bootstrap: str, directory: str) -> None:
    """Write, read with filters, look up, and stream."""
    spark = SparkSession.builder.remote(server).getOrCreate()
    datasource.register(spark, push_filters=True)
    options = {"bootstrap": bootstrap, "stagingDirectory": f"{directory}/staging"}
    rows = spark.range(200).selectExpr("id", "concat('v', id % 10) as value")
    rows.write.format("rezone").mode("append").options(**options).save()
    frame = spark.read.format("rezone").option("bootstrap", bootstrap).load()
    found = {
        "pushed": frame.where("value = 'v3'").count(),
        "table": datasource.read_table(spark, bootstrap, filter=col("id") < 5).count(),
        "lookup": lookup(spark.range(195, 205), bootstrap, on="id").count(),
    }
    stream(spark, options, directory)
    found["stream"] = datasource.read_table(spark, bootstrap, filter=col("id") >= 1000).count()
    spark.stop()
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
