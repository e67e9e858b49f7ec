"""The PySpark job that exports a zone as of one time to Parquet files (SP-06).

    export_job.py --bootstrap orders.shop.svc:7400 --to s3://exports/orders/

The rows of each even range of key hashes make one file, in the order of their row ids. A file is
there whole or not at all, and the manifest once all are. A job that dies goes on when it is run
again with the same directory: it keeps the time that it has begun with, and the files that are
whole. A task that runs twice writes the same file. So what is there in the end are the zone's rows
as of that time, each once.

With `--iceberg` these files become the content of an Iceberg table, by one commit that is not made
again when the job is.

The time must stay within the zone's version retention until the last part is read. The last line of
the output is one JSON object; the exit code is 0 when the export is whole, else 2.
"""

import argparse
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rezone.transfer.bulk.digests import RangeDigests, RowDigests, hashes_of
from rezone.transfer.bulk.directory import HIDDEN, Directory, note_in
from rezone.transfer.bulk.exported import (
    MANIFEST,
    PARTS_MAX,
    PLAN,
    ExportedPart,
    ExportManifest,
    ExportPlan,
    check_plan,
    part_name,
)
from rezone.transfer.bulk.job import add_zone_arguments, run_main, zone_options
from rezone.transfer.bulk.progress import Counted, Phase, unit
from rezone.transfer.bulk.sides import now_of
from rezone.transfer.bulk.units import Runner
from rezone.transfer.iceberg.exports import check_table, publish
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.rows import RowCodec
from rezone.wire.messages import ZoneConfig

GROUP_ROWS_MAX = 65_536
GROUP_BYTES_MAX = 64 << 20
"""A row group ends where it has so many rows, or rows of so many bytes: that is in memory."""


def export(given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    """Export a zone; return the exit code and what the last line says."""
    begun = time.monotonic()
    options, directory = zone_options(given), Directory(given.to)
    with options.client() as client:
        config = client.config
        partitions = len(client.segments())
    if given.iceberg:
        check_table(given.iceberg, config.zone_uid)
    done = directory.noted(MANIFEST)
    if done is not None:
        manifest = note_in(done, ExportManifest)
        _check(manifest, config, given)
    else:
        plan = _planned(given, directory, options, config, given.parts or max(partitions, 8))
        manifest = _exported(run, directory, options, plan)
    directory.remove(HIDDEN)
    published = {}
    if given.iceberg:
        snapshot = publish(given.iceberg, directory, manifest)
        published = {"table": given.iceberg, "snapshot": str(snapshot)}
    return 0, {
        "job": "export",
        "zone": manifest.zone,
        "asOf": manifest.as_of,
        "rows": manifest.rows,
        "digest": manifest.digest,
        "files": len(manifest.parts),
        "fileBytes": manifest.file_bytes,
        "again": done is not None,
        **published,
        "seconds": round(time.monotonic() - begun, 3),
    }


def _planned(
    given: argparse.Namespace,
    directory: Directory,
    options: SourceOptions,
    config: ZoneConfig,
    parts: int,
) -> ExportPlan:
    """Return the plan in the directory, or write one. ValueError when it is another's."""
    content = directory.noted(PLAN)
    if content is None:
        if found := directory.found():
            raise ValueError(f"{given.to} is not empty: it has {found[0].name}")
        if not 1 <= parts <= PARTS_MAX:
            raise ValueError(f"{parts} files are not 1 to {PARTS_MAX}")
        as_of = given.as_of or now_of(options)
        plan = ExportPlan(config.zone, config.zone_uid, as_of, config.table, parts)
        directory.note(PLAN, msgspec.json.encode(plan))
        content = directory.noted(PLAN) or b""  # of who was later, where two began
    plan = note_in(content, ExportPlan)
    _check(plan, config, given)
    return plan


def _check(
    found: ExportPlan | ExportManifest, config: ZoneConfig, given: argparse.Namespace
) -> None:
    if found.zone_uid != config.zone_uid:
        raise ValueError(f"{given.to} has an export of another zone, {found.zone!r}")
    if given.as_of not in (None, found.as_of):
        raise ValueError(f"{given.to} has an export as of {found.as_of}, not {given.as_of}")


def _exported(
    run: Runner, directory: Directory, options: SourceOptions, plan: ExportPlan
) -> ExportManifest:
    done = {part.name: part for part in _parts_done(directory, plan)}
    names = [part_name(index, plan) for index in range(plan.parts)]
    left = [index for index, name in enumerate(names) if name not in done]
    task = functools.partial(export_part, directory.uri, options, plan)
    phase = Phase("export", "writing", plan.parts, before=len(done))
    done |= {part.name: part for part in run(phase, left, task)}
    parts = [done[name] for name in names]
    found = RangeDigests.load([(part.rows, part.digest) for part in parts])
    manifest = ExportManifest(
        zone=plan.zone,
        zone_uid=plan.zone_uid,
        as_of=plan.as_of,
        table=plan.table,
        rows=found.total_rows,
        digest=found.digest,
        file_bytes=sum(part.file_bytes for part in parts),
        parts=parts,
    )
    check_plan(directory, plan)
    _check_files(directory, names)
    directory.note(MANIFEST, msgspec.json.encode(manifest))
    return manifest


def _check_files(directory: Directory, names: list[str]) -> None:
    """Raise ValueError when a reader of all files would read others than these."""
    if others := {file.name for file in directory.found()} - set(names):
        raise ValueError(
            f"{directory.uri} has {min(others)}, which is not of this export: "
            "delete it and run the job again"
        )


def _parts_done(directory: Directory, plan: ExportPlan) -> Iterator[ExportedPart]:
    for index in range(plan.parts):
        content = directory.noted(_receipt(part_name(index, plan)))
        if content is not None:
            part = note_in(content, ExportedPart)
            if directory.size(part.name) == part.file_bytes:
                yield part


def _receipt(name: str) -> str:
    return f"{HIDDEN}/parts/{name}.json"


def export_part(
    uri: str, options: SourceOptions, plan: ExportPlan, index: int
) -> tuple[ExportedPart, Counted]:
    """Write the file of one part, and the receipt that it is whole. Raises ValueError.

    Only as long as the directory's plan is this one: of two jobs that begin at once, one goes on.
    """
    directory, codec = Directory(uri), RowCodec(plan.table)
    name, counted = part_name(index, plan), RangeDigests(1)
    about = {"rezone.zone": plan.zone, "rezone.as_of": str(plan.as_of)}
    schema = codec.arrow_schema.with_metadata(about)
    with options.client() as client, directory.written(name) as stream:
        with pq.ParquetWriter(stream, schema, compression="zstd") as writer:
            found = client.stream_any(hashes_of(index, plan.parts), as_of=plan.as_of).rows
            for group in grouped(codec, found):
                counted.add(RowDigests(codec, group))
                writer.write_batch(group.cast(schema), row_group_size=GROUP_ROWS_MAX)
        check_plan(directory, plan)
    size = directory.size(name) or 0
    part = ExportedPart(name, counted.total_rows, counted.digest, size, counted.bytes)
    directory.note(_receipt(name), msgspec.json.encode(part))
    return part, unit(part.rows, part.row_bytes)


def grouped(codec: RowCodec, batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the rows of batches in groups whose ends depend on the rows alone.

    However a stream was cut, and on whatever replica it went on, the file is the same to the byte.
    """
    waiting: list[Any] = []
    rows = size = 0
    for batch in batches:
        ends = np.cumsum(codec.row_sizes(batch, delete=False))
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            fit = int(np.searchsorted(ends, before + GROUP_BYTES_MAX - size, side="right"))
            end = min(max(fit, start + (0 if waiting else 1)), start + GROUP_ROWS_MAX - rows)
            end = min(end, batch.num_rows)
            if end > start:
                waiting.append(batch.slice(start, end - start))
                rows, size = rows + end - start, size + int(ends[end - 1]) - before
                start = end
            if start < batch.num_rows:
                yield _joined(waiting)
                waiting, rows, size = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(batches: list[Any]) -> Any:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="export_job", description="Export a zone to Parquet or Iceberg."
    )
    add_zone_arguments(parser)
    parser.add_argument("--to", required=True, help="a directory, empty or of the same export")
    parser.add_argument("--as-of", type=int, help="microseconds since 1970")
    parser.add_argument(
        "--parts", type=int, help="how many files; default: as many as partitions, at least 8"
    )
    parser.add_argument(
        "--iceberg", metavar="CATALOG.NAMESPACE.TABLE", help="make the files this table's content"
    )
    return run_main(parser, export, arguments)


if __name__ == "__main__":
    from rezone.transfer import export_job  # noqa: PLW0406

    sys.exit(export_job.main())
