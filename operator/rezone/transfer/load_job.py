"""The PySpark job that fills a zone: from Parquet or CSV files, or with generated rows.

    load_job.py --bootstrap orders.shop.svc:7400 --generate 1000000
    load_job.py --bootstrap orders.shop.svc:7400 --parquet s3a://bucket/accounts/

Files are written through the data source "rezone". Their columns are matched by name and cast to
the zone's types; a missing or unknown column ends the job before anything is written, a value
that does not fit ends it with Spark's message. Rows already written stay: run it again.

Generated rows depend on their id alone, so that whoever checks a zone later can compute what
must be in it (`rezone.transfer.generated`).
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StructType

from rezone.transfer import datasource
from rezone.transfer.generated import AMOUNT_FACTOR, AMOUNT_MODULUS


class UnfitColumnsError(ValueError):
    """Raised when the columns of the source are not those of the zone; names them."""


def generated(spark: SparkSession, first: int, count: int, tasks: int) -> DataFrame:
    """Return the generated rows [first, first + count), made in `tasks` tasks."""
    text = "cast(id as string)"
    return spark.range(first, first + count, 1, tasks).selectExpr(
        "id",
        f"concat('name-', lpad({text}, 10, '0')) as name",
        f"(id * {AMOUNT_FACTOR} % {AMOUNT_MODULUS}) / 100.0D as amount",
        "timestampadd(microsecond, id % 1000 * 1000, timestampadd(second, id div 1000, "
        "timestamp_ntz'2023-11-14 22:13:20')) as updated",
        f"concat(sha2({text}, 512), left(sha2({text}, 224), 32)) as payload",
    )


def fit(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return the frame with exactly the zone's columns, in order and cast to its types.

    UnfitColumnsError when a column is missing or the zone has not. Casts follow Spark's ANSI
    rules: a value that does not fit fails the job, it never becomes null.
    """
    missing = [name for name in schema.fieldNames() if name not in frame.columns]
    unknown = [name for name in frame.columns if name not in schema.fieldNames()]
    if missing or unknown:
        raise UnfitColumnsError(
            f"the source has the columns {frame.columns}, the zone {schema.fieldNames()}: "
            f"missing {missing}, unknown {unknown}; rename or drop columns first",
        )
    return frame.select(
        [sf.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in schema]
    )


def load(frame: DataFrame, bootstrap: str, zone: str | None = None) -> None:
    """Write a frame whose columns fit into the zone; see the module for what a failure leaves."""
    writer = frame.write.format(datasource.FORMAT).mode("append").option("bootstrap", bootstrap)
    if zone:
        writer = writer.option("zone", zone)
    writer.save()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code: 0 loaded, 2 the columns do not fit."""
    given = _parser().parse_args(arguments)
    started = time.monotonic()
    spark = (
        SparkSession.builder.appName("rezone-load")
        .config("spark.sql.ansi.enabled", "true")
        .getOrCreate()
    )
    try:
        datasource.register(spark)
        options = {"bootstrap": given.bootstrap, **({"zone": given.zone} if given.zone else {})}
        schema = spark.read.format(datasource.FORMAT).options(**options).load().schema
        try:
            frame = fit(_source(spark, given), schema)
        except UnfitColumnsError as error:
            sys.stderr.write(f"load_job: {error}\n")
            return 2
        load(frame, given.bootstrap, given.zone)
    finally:
        if not given.keep_session:
            spark.stop()
    sys.stdout.write(json.dumps({"seconds": round(time.monotonic() - started, 3)}) + "\n")
    sys.stdout.flush()
    return 0


def _source(spark: SparkSession, given: argparse.Namespace) -> DataFrame:
    if given.parquet:
        return spark.read.parquet(given.parquet)
    if given.csv:
        return spark.read.option("header", "true").csv(given.csv)
    tasks = given.tasks or spark.sparkContext.defaultParallelism
    return generated(spark, given.first_id, given.generate, tasks)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="load_job", description="Load rows into a zone.")
    parser.add_argument("--bootstrap", required=True, help="host:port of data nodes, by commas")
    parser.add_argument("--zone", help="refuse to write to a zone of another name")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--parquet", help="path of Parquet files")
    source.add_argument("--csv", help="path of CSV files with a header")
    source.add_argument("--generate", type=int, help="how many rows to generate")
    parser.add_argument("--first-id", type=int, default=0, help="of generated rows")
    parser.add_argument("--tasks", type=int, default=0, help="how many tasks generate rows")
    parser.add_argument("--keep-session", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    from rezone.transfer import load_job  # noqa: PLW0406

    sys.exit(load_job.main())
