"""What an engine says of its indexes: up to where the log was followed, and in which of them."""

from collections.abc import Sequence

import msgspec

from rezone.storage.state.history import branch_at
from rezone.storage.state.meta import CopyMeta
from rezone.wire.codec.schema import IndexId

STATE_NAME = b"index"
"""The name under which it stands in the engine, beside the entries."""

StateChange = dict[bytes, bytes | None]


class IndexPart(msgspec.Struct, frozen=True, array_like=True):
    """One index: `at` is where the scan that builds or removes it goes on; None when it is over."""

    id: IndexId
    at: bytes | None = None


class IndexState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What stands beside the entries: up to where the log was followed, and in which indexes.

    `entries` and `entry_bytes` are counted, and may be a little off after a crash, or where
    versions were collected while an index was built. `gone` are indexes whose entries are being
    removed. `rebuilding`: all entries were dropped; the position counts for nothing until they are
    there again.
    """

    offset: int = 0
    commit_time: int = 0
    partition_uuid: str = ""
    entries: int = 0
    entry_bytes: int = 0
    kept: tuple[IndexPart, ...] = ()
    gone: tuple[IndexPart, ...] = ()
    rebuilding: bool = False

    def record(self) -> StateChange:
        """Return the named state for the engine."""
        return {STATE_NAME: msgspec.msgpack.encode(self)}

    @property
    def unbuilt(self) -> tuple[IndexPart, ...]:
        """The indexes that do not have all rows yet, those first that have the fewest."""
        found = [part for part in self.kept if part.at is not None]
        return tuple(sorted(found, key=lambda part: part.at or b""))


def state_of_copy(copy: CopyMeta, wanted: Sequence[IndexId]) -> IndexState:
    """Return the state after a copy of rows, where the table has the `wanted` indexes.

    One that has had all of the rows is built; for one that is newer, a scan begins.
    """
    begun = {*copy.indexes, *copy.indexes_left}
    return IndexState(
        offset=copy.offset,
        commit_time=copy.commit_time,
        partition_uuid=branch_at(copy.failover_log, copy.offset),
        kept=tuple(IndexPart(i, None if i in copy.indexes else b"") for i in wanted),
        gone=tuple(IndexPart(i, b"") for i in sorted(begun - {*wanted})),
    )
