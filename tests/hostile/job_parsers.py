"""What clients read of data nodes and of who uses them, and jobs of files that others may write."""

from __future__ import annotations

import base64
import functools
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from node_parsers import CODEC
from pyiceberg.io.pyarrow import PyArrowFileIO

from hostile_bytes import Parser
from rezone.client.feed import token
from rezone.client.feed.rows import decoded, times_in
from rezone.transfer.bulk.digests import RangeDigests
from rezone.transfer.bulk.directory import Directory, note_in
from rezone.transfer.bulk.exported import ExportedPart, ExportManifest, ExportPlan
from rezone.transfer.bulk.fitting import RefusedRow
from rezone.transfer.bulk.parquet import ParquetUnit, read_unit
from rezone.transfer.bulk.sources import Files, FileUnit
from rezone.transfer.iceberg import loads
from rezone.transfer.load_job import LoadedUnit
from rezone.transfer.sink.staging import Staging
from rezone.transfer.sink.writers import _Noted
from rezone.transfer.source.options import decode_filter
from rezone.transfer.verify_job import SavedDigests
from rezone.wire.codec.changes import CHANGES_SCHEMA
from rezone.wire.codec.filters import FilterOp, FilterTerm
from rezone.wire.codec.keyspace import HASH_SPACE
from rezone.wire.codec.schema import TableSchema
from rezone.wire.copying import backfill_plan, plan
from rezone.wire.copying.backfill_plan import BackfillPlan, BackfillRange
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.errors import UNREADABLE, CorruptionError
from rezone.wire.layouts import Layout
from rezone.wire.messages import NOBODY_GAVE, CommitCount, RangeChanges
from rezone.wire.typed import from_msgpack

COPY = PartitionCopy(
    partition=1, source="a:1", source_id=1, targets=(CopyTarget(id=2, address="b:1"),), revision=4
)
MANY = [msgspec.structs.replace(COPY, partition=number) for number in range(100)]
BACKFILL = BackfillPlan(nodes={1: "a:1"}, ranges=(BackfillRange(5, 1),))
TERM = FilterTerm(FilterOp.EQUAL, "id", (1,))
DELETES = pa.table({"file_path": ["a", "b"], "pos": [1, 2]})
DEEP = b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
PACKED_DEEP = b"\x91" * 100_000
"""The same in msgpack: an array in an array."""

POSITION = token.RangePosition(0, HASH_SPACE, 5, NOBODY_GAVE)
TOKEN = token.encode_token("z", [POSITION]).encode()
TABLE = TableSchema()
PART = ExportedPart("part-00000-of-00001-as-of-5.parquet", 1, "0" * 32, 10, 10)
CHANGES = pa.RecordBatch.from_arrays(
    [
        pa.array([bytes(8) + b"\0a", bytes(8) + b"\0b"], pa.binary()),
        pa.array([0, 1], pa.uint8()),
        pa.array([b"\0" + b"\x01\0\0\0" + b"1", b""], pa.binary()),
        pa.array([1, 2], pa.uint64()),
        pa.array([3, 4], pa.uint64()),
    ],
    schema=CHANGES_SCHEMA,
)
CHANGES_MESSAGE = CHANGES.serialize().to_pybytes()
LATE = CHANGES.set_column(3, CHANGES_SCHEMA.field(3), pa.array([1 << 63, 2], pa.uint64()))
"""With a time that is none: it is past what a signed number holds."""
ROWS = pa.table({"key": pa.array([b"a"], pa.binary()), "value": pa.array([b"1"], pa.binary())})
REFUSED_BY_ARROW = (pa.ArrowException, OSError, ValueError)
"""What bulk jobs tell in a line (`transfer.bulk.job`)."""


def read_token(data: bytes) -> None:
    """Read a token of a change feed."""
    token.decode_token("z", data.decode(errors="replace"))


def read_signed_token(data: bytes) -> None:
    """Read a token whose checksum is right: whoever knows how can make one."""
    head = bytes([token._VERSION]) + zlib.crc32(data).to_bytes(4, "big")
    token.decode_token("z", base64.urlsafe_b64encode(head + data).decode())


def read_changes(data: bytes) -> None:
    """Read what a data node sends to a change feed."""
    decoded(CODEC, 0, data)


def read_counts(data: bytes) -> None:
    """Read what a data node sends to a feed of times."""
    times_in(from_msgpack(data, RangeChanges))


def read_digests(data: bytes) -> None:
    """Read digests that `--save` has written."""
    RangeDigests.load(note_in(data, SavedDigests).digests)


def read_text(read: Callable[[str], object], data: bytes) -> None:
    """Read bytes as a text."""
    read(data.decode(errors="replace"))


def read_file(read: Callable[[Path], object], data: bytes) -> None:
    """Read a file with these bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job" / "a"
        path.parent.mkdir()
        path.write_bytes(data)
        read(path)


def read_staged(path: Path) -> None:
    """Read what a task has staged."""
    for batch in Staging(str(path.parent.parent), "job").read("a"):
        batch.to_pylist()


def read_parquet(path: Path) -> None:
    """Read a row group of a Parquet file."""
    for batch in read_unit(Directory(str(path.parent)), ParquetUnit("a", 0, 1, 0, 1)):
        batch.to_pylist()


def read_deletes(path: Path) -> None:
    """Read which rows of a file an Iceberg table has deleted."""
    loads._of_positions(PyArrowFileIO(), str(path), "a")


def read_csv(path: Path) -> None:
    """Read a CSV file."""
    for _, batch in Files(str(path.parent)).read(FileUnit(0, "a", None), ROWS.schema):
        batch.to_pylist()


def note(kind: type[Any], sample: Any) -> Parser:
    """Return what reads a note of a job."""
    return Parser(
        lambda data: note_in(data, kind), (msgspec.json.encode(sample),), (ValueError,), (DEEP,)
    )


def written(write: Callable[[Any], object]) -> bytes:
    """Return what is written into a file."""
    sink = pa.BufferOutputStream()
    write(sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def write_stream(sink: Any) -> None:
    """Write rows as tasks stage them."""
    with pa.ipc.new_stream(sink, ROWS.schema) as stream:
        stream.write_table(ROWS)


VALUE = (ValueError,)
DELETES_FILE = written(lambda sink: pq.write_table(DELETES, sink))
PARSERS = {
    "tokens": Parser(read_token, (TOKEN,), (token.FeedTokenError,)),
    "signed tokens": Parser(
        read_signed_token,
        (base64.urlsafe_b64decode(TOKEN)[5:],),
        (token.FeedTokenError,),
        (b"\x95\xa1\xff\0\0\0\0", PACKED_DEEP),
    ),
    "changes": Parser(
        read_changes, (CHANGES_MESSAGE,), (CorruptionError,), (LATE.serialize().to_pybytes(),)
    ),
    "counts of changes": Parser(
        read_counts,
        (msgspec.msgpack.encode(RangeChanges(commits=(CommitCount(5, 3), CommitCount(9, 1)))),),
        (CorruptionError, *UNREADABLE),
        (msgspec.msgpack.encode(RangeChanges(commits=(CommitCount(5, 1 << 40),))), PACKED_DEEP),
    ),
    "plans of copies": Parser(
        functools.partial(read_text, plan.loads),
        (plan.dumps([COPY]).encode(), plan.dumps(MANY).encode()),
        VALUE,
        (DEEP,),
    ),
    "plans of backfills": Parser(
        functools.partial(read_text, backfill_plan.loads),
        (backfill_plan.dumps(BACKFILL).encode(),),
        VALUE,
        (DEEP,),
    ),
    "filters": Parser(
        functools.partial(read_text, decode_filter),
        (base64.b64encode(msgspec.msgpack.encode((TERM,))),),
        VALUE,
        (base64.b64encode(PACKED_DEEP),),
    ),
    "plans of exports": note(ExportPlan, ExportPlan("z", "u", 5, TABLE, 1)),
    "parts of exports": note(ExportedPart, PART),
    "manifests of exports": note(
        ExportManifest, ExportManifest("z", "u", 5, TABLE, 1, "0" * 32, 10, [PART])
    ),
    "layouts of loads": note(Layout, Layout(0, 4)),
    "units of loads": note(LoadedUnit, LoadedUnit(1, 1, [RefusedRow("a", 1, "b")])),
    "batches of streams": note(_Noted, _Noted("0" * 32, done=True, layouts=(Layout(0, 4),))),
    "saved digests": Parser(
        read_digests,
        (msgspec.json.encode(SavedDigests("z", "u", 5, TABLE, RangeDigests(4).dump())),),
        VALUE,
        (DEEP,),
    ),
    "staged rows": Parser(
        functools.partial(read_file, read_staged), (written(write_stream),), REFUSED_BY_ARROW
    ),
    "Parquet files": Parser(
        functools.partial(read_file, read_parquet),
        (written(lambda sink: pq.write_table(ROWS, sink)),),
        REFUSED_BY_ARROW,
    ),
    "deleted rows of Iceberg tables": Parser(
        functools.partial(read_file, read_deletes),
        (DELETES_FILE,),
        REFUSED_BY_ARROW,
        (DELETES_FILE[:196] + b"\0" + DELETES_FILE[197:],),
    ),
    "CSV files": Parser(
        functools.partial(read_file, read_csv), (b"key,value\na,1\n",), REFUSED_BY_ARROW
    ),
}
