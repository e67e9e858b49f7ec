"""The PySpark job that fills a zone: from files, Iceberg tables, or with generated rows (SP-06).

    load_job.py --bootstrap orders.shop.svc:7400 --parquet s3://in/orders/ --state s3://in/loads/
    load_job.py --bootstrap orders.shop.svc:7400 --iceberg lake.shop.orders --state s3://in/loads/
    load_job.py --bootstrap orders.shop.svc:7400 --generate 1000000

Files are cut into units. The rows of each are put into the order in which data nodes store them,
a run at a time (`bulk.sorting`). A unit is the same requests whoever writes it, so one that is
repeated, by Spark at the same time or by a later run, is known to the data nodes and writes nothing
twice (`client.operations.sequenced`). The state directory has what that needs: the layouts of
partitions that units were written to. What is done is noted there, too, so a job whose driver died
goes on when it is run again. Another load is one of other files (their names,
sizes or times have changed) or of another `--name`.

Of an Iceberg table a snapshot is loaded: that of `--snapshot`, or the newest when the load begins.
A load that has not ended goes on with its own.

With `--overwrite` the rows become all rows of the zone, by one switch, when the zone takes each of
them (`sink.zone_overwrite`). The state directory has the staged rows until then.

Columns are matched by name and cast where no value changes; a missing or unknown column ends the
job before anything is written. Rows that the zone does not take are left out and told by file and
row. The last line of the output is one JSON object; the exit code is 0 when all rows are loaded, 1
when some were refused, 2 when the job failed.

Generated rows depend on their id alone, so that whoever checks a zone later can compute what
must be in it (`rezone.transfer.generated`). They are written through the data source "rezone".
"""

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import xxhash

from rezone.transfer.bulk.directory import Directory, note_in
from rezone.transfer.bulk.fitting import FittingRows, RefusedRow
from rezone.transfer.bulk.job import add_zone_arguments, run_main, zone_options
from rezone.transfer.bulk.progress import Counted, Phase, unit
from rezone.transfer.bulk.sorting import runs
from rezone.transfer.bulk.sources import LoadUnit, Reader, Source, source_of
from rezone.transfer.bulk.units import Runner
from rezone.transfer.generated import AMOUNT_FACTOR, AMOUNT_MODULUS
from rezone.transfer.iceberg import loads
from rezone.transfer.sink.staged_units import UnitStaging
from rezone.transfer.sink.submitting import SequencedRows
from rezone.transfer.sink.zone_overwrite import ZoneOverwrite
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.rows import RowCodec
from rezone.wire.layouts import Layout
from rezone.wire.messages import ZoneConfig

LISTED_MAX = 100
LAYOUTS = "layouts"
SNAPSHOT = "snapshot.txt"


class LoadedUnit(msgspec.Struct, frozen=True):
    """What has become of a unit that is done."""

    rows: int
    bytes: int
    refused: list[RefusedRow]


class Wanted(NamedTuple):
    """What each unit is told: the zone, how to read, and where what is done is noted.

    `slices`: the layout in which the load began.
    """

    options: SourceOptions
    reader: Reader
    state: str
    load_id: str
    slices: Layout
    refused_max: int


class Load(NamedTuple):
    """What is to be loaded, by an id that is the same each time.

    `table`: what the last line says of an Iceberg table. `unfinished`: the folder that says which
    snapshot of it a load is of that has not ended.
    """

    options: SourceOptions
    zone: str
    load_id: str
    source: Source
    table: dict[str, str]
    state: Directory
    unfinished: str


def load(given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    """Load files into a zone; return the exit code and what the last line says."""
    begun = time.monotonic()
    if not given.state:
        raise ValueError("--state is missing: a directory that says later what is loaded")
    options = zone_options(given)
    with options.client() as client:
        config, schema = client.config, client.codec.arrow_schema
        serving = client.serving_layouts()
    state = Directory(given.state)
    unfinished = _unfinished(config, given)
    source, table = _source(given, state, unfinished, schema)
    load_id = _load_id(config, source, given)
    planned = Load(options, config.zone, load_id, source, table, state, unfinished)
    if given.overwrite:
        code, said = _overwrite(given, planned, run)
    else:
        code, said = _write(given, planned, serving, run)
    state.remove(unfinished)
    return code, {**said, "seconds": round(time.monotonic() - begun, 3)}


def _write(
    given: argparse.Namespace, planned: Load, serving: tuple[Layout, ...], run: Runner
) -> tuple[int, dict[str, Any]]:
    """Write all units, each once, over what the zone has."""
    state, load_id, units = planned.state, planned.load_id, planned.source.units
    done = {each.name for each in state.found(load_id)}
    left = [each for each in units if _note(load_id, each.number) not in done]
    slices = min(_noted_layouts(state, load_id, serving))
    wanted = Wanted(
        planned.options, planned.source.reader, given.state, load_id, slices, given.refused_max
    )
    before = len(units) - len(left)
    task = functools.partial(load_unit, wanted)
    run(Phase("load", "writing", len(units), before=before), left, task)
    loaded = (_loaded(state, _note(load_id, each.number)) for each in units)
    total = _sum([each for each in loaded if each])
    return 1 if total.refused else 0, _said(planned, total, before, rowsSent="sorted runs")


def _overwrite(given: argparse.Namespace, planned: Load, run: Runner) -> tuple[int, dict[str, Any]]:
    """Make the rows of all units those of the zone, by one switch (decision 0500).

    When the zone refuses one of them, nothing is switched. What is done is noted, as of a load.
    """
    state, note = planned.state, f"{planned.load_id}/overwritten.json"
    options = dataclasses.replace(planned.options, staging=given.state)
    overwrite = ZoneOverwrite(options, planned.load_id, named=True)
    is_done, units = overwrite.check(), planned.source.units
    if is_done and (total := _loaded(state, note)) is not None:
        return 0, _said(planned, total, len(units), overwritten=True)
    staging = UnitStaging(options, overwrite, planned.source.reader, given.refused_max)
    try:
        staged = run(Phase("load", "staging", len(units)), units, staging.stage)
        total = _sum([LoadedUnit(each.file.rows, each.bytes, each.refused) for each in staged])
        if total.refused:
            return 1, _said(planned, total, 0, overwritten=False)
        overwrite.finish([each.file for each in staged])
    finally:
        overwrite.forget()
    state.note(note, msgspec.json.encode(total))
    return 0, _said(planned, total, 0, overwritten=True)


def _sum(loaded: Sequence[LoadedUnit]) -> LoadedUnit:
    """Return what has become of several units together."""
    return LoadedUnit(
        sum(each.rows for each in loaded),
        sum(each.bytes for each in loaded),
        [row for each in loaded for row in each.refused],
    )


def _said(planned: Load, total: LoadedUnit, before: int, **more: Any) -> dict[str, Any]:
    """Return what the last line says; `before`: how many units were done by an earlier run."""
    return {
        "job": "load",
        "zone": planned.zone,
        "load": planned.load_id,
        **more,
        **planned.table,
        "files": planned.source.files,
        "units": len(planned.source.units),
        "unitsBefore": before,
        "rows": total.rows,
        "bytes": total.bytes,
        "refusedRows": len(total.refused),
        "refused": [msgspec.to_builtins(row) for row in total.refused[:LISTED_MAX]],
    }


def _load_id(config: ZoneConfig, source: Source, given: argparse.Namespace) -> str:
    """Return what names this load of these files into this zone, the same each time."""
    return _digest(config.zone_uid, *_asked(given), *source.identity)


def _asked(given: argparse.Namespace) -> list[str]:
    """Return what makes another load of the same rows."""
    return [given.name or "", *(["overwrite"] if given.overwrite else [])]


def _digest(*what: object) -> str:
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(what))


def _unfinished(config: ZoneConfig, given: argparse.Namespace) -> str:
    """Return the folder that says which snapshot a load is of that has not ended."""
    return f"unfinished-{_digest(config.zone_uid, *_asked(given), given.iceberg)}"


def _source(
    given: argparse.Namespace, state: Directory, unfinished: str, schema: Any
) -> tuple[Source, dict[str, str]]:
    """Return what is loaded, and what the last line says of its table. Raises ValueError."""
    if not given.iceberg:
        if given.snapshot:
            raise ValueError("--snapshot is one of a table: name it with --iceberg")
        kind, uri = ("parquet", given.parquet) if given.parquet else ("csv", given.csv)
        return source_of(uri, kind, schema), {}
    noted = state.noted(f"{unfinished}/{SNAPSHOT}")
    source, snapshot = loads.source_of(given.iceberg, given.snapshot or int(noted or 0), schema)
    state.note(f"{unfinished}/{SNAPSHOT}", str(snapshot).encode())
    return source, {"table": given.iceberg, "snapshot": str(snapshot)}


def _note(load_id: str, index: int) -> str:
    return f"{load_id}/unit-{index:06}.json"


def _noted_layouts(state: Directory, load_id: str, serving: tuple[Layout, ...]) -> Iterator[Layout]:
    """Note layouts, then yield all that are noted: a file each, so that many may note at a time."""
    folder = f"{load_id}/{LAYOUTS}"
    for each in serving:
        state.note(f"{folder}/{each.generation}.json", msgspec.json.encode(each))
    for file in state.found(folder):
        content = state.noted(file.name)
        if content is not None:
            yield note_in(content, Layout)


def _loaded(state: Directory, note: str) -> LoadedUnit | None:
    content = state.noted(note)
    return note_in(content, LoadedUnit) if content is not None else None


def load_unit(wanted: Wanted, part: LoadUnit) -> tuple[None, Counted]:
    """Write a unit once, and note that it is done. Raises TooManyRefusedError."""
    state, load_id = Directory(wanted.state), wanted.load_id
    note = _note(load_id, part.number)
    if (done := _loaded(state, note)) is None:
        rows = size = 0
        with wanted.options.client() as client:
            codec: RowCodec = client.codec
            sequenced = SequencedRows(
                client,
                f"load-runs/{load_id}/{part.number}",
                functools.partial(_noted_layouts, state, load_id),
                slices=wanted.slices,
            )
            found = FittingRows(wanted.reader, part, codec, wanted.refused_max)
            for run in runs(codec, found.batches()):
                sequenced.write(run)
                rows += run.num_rows
                size += int(codec.row_sizes(run, delete=False).sum())
        done = LoadedUnit(rows, size, found.refused)
        state.note(note, msgspec.json.encode(done))
    return None, unit(done.rows, done.bytes)


def generated(spark: Any, first: int, count: int, tasks: int) -> Any:
    """Return the generated rows [first, first + count) as a DataFrame, made in `tasks` tasks."""
    text = "cast(id as string)"
    return spark.range(first, first + count, 1, tasks).selectExpr(
        "id",
        f"concat('name-', lpad({text}, 10, '0')) as name",
        f"(id * {AMOUNT_FACTOR} % {AMOUNT_MODULUS}) / 100.0D as amount",
        "timestampadd(microsecond, id % 1000 * 1000, timestampadd(second, id div 1000, "
        "timestamp_ntz'2023-11-14 22:13:20')) as updated",
        f"concat(sha2({text}, 512), left(sha2({text}, 224), 32)) as payload",
    )


def _generate(given: argparse.Namespace) -> int:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only this needs Spark's SQL

    from rezone.transfer import datasource  # noqa: PLC0415 - imports it, too

    started = time.monotonic()
    spark = SparkSession.builder.appName("rezone-load").getOrCreate()
    try:
        datasource.register(spark)
        tasks = given.tasks or spark.sparkContext.defaultParallelism
        frame = generated(spark, given.first_id, given.generate, tasks)
        options = {"bootstrap": given.bootstrap, **({"zone": given.zone} if given.zone else {})}
        frame.write.format(datasource.FORMAT).mode("append").options(**options).save()
    finally:
        if not given.keep_context:
            spark.stop()
    sys.stdout.write(json.dumps({"seconds": round(time.monotonic() - started, 3)}) + "\n")
    sys.stdout.flush()
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.generate is not None:
        return _generate(given)
    return run_main(parser, load, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="load_job", description="Load rows into a zone.")
    add_zone_arguments(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--parquet", help="a Parquet file, or a directory of them")
    source.add_argument("--csv", help="a CSV file with a header, or a directory of them")
    source.add_argument(
        "--iceberg", metavar="CATALOG.NAMESPACE.TABLE", help="a table, by default its newest rows"
    )
    source.add_argument("--generate", type=int, help="how many rows to generate")
    parser.add_argument("--snapshot", type=int, help="the id of an older snapshot of the table")
    parser.add_argument("--state", help="a directory for what is done, of files")
    parser.add_argument(
        "--overwrite", action="store_true", help="replace all rows of the zone, by one switch"
    )
    parser.add_argument("--name", help="loads the same files again under another name")
    parser.add_argument(
        "--refused-max", type=int, default=1000, help="fail when a unit has more bad rows"
    )
    parser.add_argument("--first-id", type=int, default=0, help="of generated rows")
    parser.add_argument("--tasks", type=int, default=0, help="how many tasks generate rows")
    return parser


if __name__ == "__main__":
    from rezone.transfer import load_job  # noqa: PLW0406

    sys.exit(load_job.main())
