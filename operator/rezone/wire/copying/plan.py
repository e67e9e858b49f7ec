"""The plan of a bulk copy: what the coordinator hands to the Spark job that carries it out.

A plan is a JSON list with one object per partition. It travels as a file (a mounted ConfigMap)
or as an argument; big ones as base64 of gzip, which `loads` recognises by itself.
"""

import base64
import gzip
import io
import zlib
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from rezone.wire.errors import UNREADABLE
from rezone.wire.messages import NodeId, PartitionId
from rezone.wire.typed import from_json

T = TypeVar("T")

PLAN_BYTES_MAX = 64 << 20
_GZIP_BASE64 = "H4sI"
_PACK_OVER_BYTES = 4096


class CopyTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver: its node id and its "host:port"."""

    id: NodeId
    address: str


def target_name(target: CopyTarget) -> str:
    """Return how receipts name a receiver: "id@host:port"."""
    return f"{target.id}@{target.address}"


class PartitionCopy(msgspec.Struct, frozen=True, kw_only=True):
    """One partition to copy: from one source, read once, to all targets (SS-06).

    `revision` is that of the trigger that wants it; receivers that know a newer one refuse.
    """

    partition: PartitionId
    source: str
    source_id: NodeId
    targets: tuple[CopyTarget, ...]
    revision: int


def dumps(plan: Sequence[PartitionCopy]) -> str:
    """Return the plan as text: JSON, or base64 of gzipped JSON when it is big."""
    return packed(msgspec.json.encode(list(plan)))


def packed(data: bytes) -> str:
    """Return a plan's JSON as text: itself, or base64 of it gzipped when it is big."""
    if len(data) <= _PACK_OVER_BYTES:
        return data.decode()
    # mtime 0: the same plan gives the same text, which makes its ConfigMap comparable.
    return base64.b64encode(gzip.compress(data, mtime=0)).decode()


def decoded(text: str, kind: type[T], what: str, *, strict: bool = True) -> T:
    """Return what a plan's text says.

    Raises ValueError, which says that it is not `what`, when it is another text.
    """
    try:
        return from_json(_unpacked(text), kind, strict=strict)
    except (*UNREADABLE, OSError, EOFError) as error:
        raise ValueError(f"not a {what}: {error}") from error


def _unpacked(text: str) -> bytes:
    """Return the JSON in a plan's text; ValueError, OSError or EOFError when there is none.

    Raises ValueError when it is too large, and takes no more memory than twice the limit for it.
    """
    data = text.strip().encode()
    if text.lstrip().startswith(_GZIP_BASE64):
        packed_bytes = io.BytesIO(base64.b64decode(data, validate=True))
        with gzip.GzipFile(fileobj=packed_bytes) as file:
            # No more than it may have: a few bytes can be gigabytes.
            try:
                data = file.read(PLAN_BYTES_MAX + 1)
            except zlib.error as error:
                raise ValueError(f"the plan is damaged: {error}") from error
    if len(data) > PLAN_BYTES_MAX:
        raise ValueError(f"the plan has more than {PLAN_BYTES_MAX} bytes, which is the limit")
    return data


def loads(text: str) -> list[PartitionCopy]:
    """Return the plan in `text`; ValueError says what is wrong with it."""
    plan = decoded(text, list[PartitionCopy], "copy plan")
    partitions = [copy.partition for copy in plan]
    if len(set(partitions)) != len(partitions):
        raise ValueError("not a copy plan: a partition stands in it twice")
    for copy in plan:
        if not copy.targets:
            raise ValueError(f"not a copy plan: partition {copy.partition} has no targets")
    return plan
