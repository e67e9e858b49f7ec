"""The PySpark job that verifies a zone: counts and digests by range as of one time (SP-07).

    verify_job.py --bootstrap orders.shop.svc:7400 --save s3://audit/before.json
    verify_job.py --bootstrap orders.shop.svc:7400 --with-digests s3://audit/before.json
    verify_job.py --bootstrap orders.shop.svc:7400 --with-bootstrap copy.shop.svc:7400
    verify_job.py --bootstrap orders.shop.svc:7400 --with-parquet s3://exports/orders/
    verify_job.py --bootstrap orders.shop.svc:7400 --replicas

It reads all rows, and changes nothing. The last line of the output is one JSON object; the exit
code is 0 when the rows are the same (or there was nothing to compare with), 1 when they differ,
2 when they could not be compared.

A zone is read as of one time: `--as-of`, or that of the digests or export of this same zone that it
is compared with, or now. That time must be within the zone's version retention.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from rezone.transfer.bulk import comparing, replicas
from rezone.transfer.bulk.comparing import LISTED_MAX
from rezone.transfer.bulk.digests import RangeDigests
from rezone.transfer.bulk.directory import Directory, note_in, split_name
from rezone.transfer.bulk.exported import manifest_of
from rezone.transfer.bulk.job import FAILED, add_zone_arguments, run_main, zone_options
from rezone.transfer.bulk.sides import ParquetSide, Side, ZoneSide, check_tables, now_of
from rezone.transfer.bulk.units import Runner
from rezone.wire.codec.schema import TableSchema
from rezone.wire.ranges import Count

RANGES = 4096


class SavedDigests(msgspec.Struct, rename="camel"):
    """What `--save` writes: a zone's rows as of a time, by range."""

    zone: str
    zone_uid: str
    as_of: Count
    table: TableSchema
    digests: list[tuple[Count, str]]


class Other(msgspec.Struct):
    """What the zone is compared with: digests that are there, or a side to read."""

    said: dict[str, Any]
    side: ParquetSide | ZoneSide | None = None
    digests: RangeDigests | None = None


def verify(given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    """Verify a zone; return the exit code and what the last line says."""
    begun = time.monotonic()
    code, said = (_verify_replicas if given.replicas else _verify_zone)(given, run)
    return code, {"job": "verify", **said, "seconds": round(time.monotonic() - begun, 3)}


def _verify_replicas(given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    if given.save:
        raise ValueError("--save is for the digests of a zone, not of its replicas")
    options = zone_options(given)
    with options.client() as client:
        config, held = client.config, replicas.held_in(client, given.ranges)
    as_of = given.as_of or now_of(options)
    said = replicas.verified(
        run, options, as_of=as_of, table=config.table, held=held, tasks=given.tasks
    )
    said["first"] = {"zone": config.zone, "asOf": as_of, **said["first"]}
    if not said["equal"]:
        return 1, said
    return FAILED if said["notCompared"] else 0, said


def _verify_zone(given: argparse.Namespace, run: Runner) -> tuple[int, dict[str, Any]]:
    options = zone_options(given)
    with options.client() as client:
        config = client.config
    saved = _saved(given.with_digests) if given.with_digests else None
    ranges = len(saved.digests) if saved else given.ranges
    as_of = given.as_of or _time_of_other(given, saved, config.zone_uid) or now_of(options)
    first = ZoneSide(options, as_of, config.table, given.tasks)
    other = _other(given, saved, config.table)
    sides: list[Side] = [first, *([other.side] if other and other.side else [])]
    found = comparing.digested(run, "reading", sides, config.table, ranges)
    if given.save:
        _save(
            given.save,
            SavedDigests(config.zone, config.zone_uid, as_of, config.table, found[0].dump()),
        )
    said = {
        "first": {"zone": config.zone, "asOf": as_of, **_totals(found[0])},
        "ranges": ranges,
    }
    equal = True
    if other is not None:
        theirs = other.digests or found[1]
        said |= {"other": {**other.said, **_totals(theirs)}}
        said |= _differences(run, sides, config.table, found[0], theirs)
        equal = bool(said["equal"])
    return 0 if equal else 1, said


def _differences(
    run: Runner,
    sides: Sequence[Side],
    table: TableSchema,
    first: RangeDigests,
    other: RangeDigests,
) -> dict[str, Any]:
    differing = first.differing(other)
    said: dict[str, Any] = {
        "equal": not differing,
        "differingRanges": len(differing),
        "differing": [
            {
                "hashes": comparing.bounds_of(index, first.ranges),
                "firstRows": int(first.rows[index]),
                "otherRows": int(other.rows[index]),
            }
            for index in differing[:LISTED_MAX]
        ],
    }
    chosen = comparing.to_narrow(first, other) if len(sides) > 1 else ()
    if chosen:
        narrowed = comparing.narrowed(run, sides, table, first.ranges, chosen)
        listed = narrowed.differences[:LISTED_MAX]
        keys = comparing.keys_of(table, listed)
        said |= {
            "narrowedRanges": len(chosen),
            "differingRows": len(narrowed.differences),
            "differences": [
                {"key": key, "is": each.kind} for key, each in zip(keys, listed, strict=True)
            ],
        }
    return said


def _totals(found: RangeDigests) -> dict[str, Any]:
    return {"rows": found.total_rows, "digest": found.digest}


def _saved(uri: str) -> SavedDigests:
    folder, name = split_name(uri)
    content = Directory(folder).noted(name)
    if content is None:
        raise ValueError(f"{uri} is not there")
    return note_in(content, SavedDigests)


def _save(uri: str, digests: SavedDigests) -> None:
    folder, name = split_name(uri)
    Directory(folder).note(name, msgspec.json.encode(digests))


def _time_of_other(
    given: argparse.Namespace, saved: SavedDigests | None, zone_uid: str
) -> int | None:
    """Return as of when the other is when it is of this very zone, else None."""
    if saved is not None:
        return saved.as_of if saved.zone_uid == zone_uid else None
    manifest = manifest_of(Directory(given.with_parquet)) if given.with_parquet else None
    return manifest.as_of if manifest is not None and manifest.zone_uid == zone_uid else None


def _other(
    given: argparse.Namespace, saved: SavedDigests | None, table: TableSchema
) -> Other | None:
    if saved is not None:
        check_tables(table, saved.table)
        said = {"digests": given.with_digests, "zone": saved.zone, "asOf": saved.as_of}
        return Other(said, digests=RangeDigests.load(saved.digests))
    if given.with_parquet:
        return Other({"parquet": given.with_parquet}, ParquetSide(given.with_parquet, table))
    if not given.with_bootstrap:
        return None
    options = zone_options(given, "with_")
    with options.client() as client:
        config = client.config
    check_tables(table, config.table)
    as_of = given.with_as_of or now_of(options)
    side = ZoneSide(options, as_of, table, given.tasks)
    return Other({"zone": config.zone, "asOf": as_of}, side)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and return its exit code."""
    parser = argparse.ArgumentParser(prog="verify_job", description="Verify a zone's rows.")
    add_zone_arguments(parser)
    parser.add_argument("--as-of", type=int, help="microseconds since 1970")
    parser.add_argument("--ranges", type=int, default=RANGES, help="how many ranges have digests")
    parser.add_argument("--tasks", type=int, default=32, help="how many tasks read at least")
    parser.add_argument("--save", help="a file for the digests")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--with-digests", help="a file that --save has written")
    other.add_argument("--with-parquet", help="a directory of Parquet files")
    other.add_argument("--with-bootstrap", help="data nodes of another zone")
    other.add_argument("--replicas", action="store_true", help="compare the zone's replicas")
    parser.add_argument("--with-zone", help="refuse another zone of another name")
    parser.add_argument("--with-tls-directory", help="the certificate for the other zone")
    parser.add_argument("--with-as-of", type=int, help="of the other zone")
    return run_main(parser, verify, arguments)


if __name__ == "__main__":
    from rezone.transfer import verify_job  # noqa: PLW0406

    sys.exit(verify_job.main())
