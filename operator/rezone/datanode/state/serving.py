"""Which part of its range a partition serves: all of it, but for what it still takes over.

While a zone is re-sharded a new partition (a target) has its rows from partitions of the layout
before, its sources, and serves each one's part of the range from when the reshard stream of that
one's seal is committed and applied here (docs/decisions/0120). Reads as of a time are right from
then on too, at any time: versions come with the times that they had at the source, and no other
will come.

Commit times go on rising from one side to the other, for the reshard stream of a seal has a time
not below the seal's. What a transaction reads is as of a time when it began, which must be after
the seals of the ranges that it has to do with: rows that were acknowledged by then may have later
times at the source.

A target whose rows a job brings serves nothing before the switch, and then nothing as of a time
before that (docs/decisions/0500).

When the layout before is gone a replica may still be behind what its leader had pulled of it. So it
goes on looking at the sources that it once had (`ZoneConfig.former_partitions`): by an entry of one
of them it could be readable as of a time at which it has no rows of another one.

Concurrency: under the partition's lock.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rezone.datanode.commit.positions import Positions
from rezone.datanode.core.reads import Served
from rezone.datanode.core.reshard_stream import is_granted
from rezone.storage.snapshot.digest import in_range
from rezone.storage.store import PartitionStore
from rezone.wire import layouts
from rezone.wire.errors import TransactionConflictError
from rezone.wire.layouts import HashRange, Overlap
from rezone.wire.messages import PartitionId, ZoneConfig


class Serving:
    """What one replica serves of its range; `zone` is asked for the zone's configuration.

    `leads` says whether it leads.
    """

    def __init__(
        self,
        store: PartitionStore,
        positions: Positions,
        zone: Callable[[], ZoneConfig],
        leads: Callable[[], bool],
    ) -> None:
        self._store = store
        self._positions = positions
        self._zone = zone
        self._leads = leads
        self._config: ZoneConfig | None = None
        self._overlaps: tuple[Overlap, ...] = ()

    def rows(self, row_ids: list[bytes]) -> Served:
        """Return the question whether these rows are served."""
        # Nearly always nothing is missing: then no array is made of them.
        return lambda: (
            not (missing := self._missing()) or not _touch(pa.array(row_ids, pa.binary()), missing)
        )

    def hashes(self, hashes: HashRange) -> Served:
        """Return the question whether a range is served."""
        return lambda: (
            not any(
                overlap.start < hashes.end and hashes.start < overlap.end
                for overlap in self._missing()
            )
        )

    @property
    def whole(self) -> bool:
        """Whether nothing is to be taken over, or nothing any more."""
        return not self._missing()

    def has_rows(self, row_ids: Any) -> bool:
        """Return whether rows, an Arrow array of row ids, are served."""
        return not _touch(row_ids, self._missing())

    def has_source(self, source: PartitionId) -> bool:
        """Return whether all is here of what a source has, and how its transactions ended."""
        position = self._store.reshard_position(source)
        done = min(self._store.applied, self._positions.committed)
        return is_granted(position, done)

    def require_since(self, row_ids: Any, read_time: int) -> None:
        """Refuse rows to a transaction that reads as of a time before they came here."""
        self._require_not_overwritten(read_time)
        for overlap, sealed in self._sealed_after(read_time):
            if _touch(row_ids, [overlap]):
                raise _of_another_time(overlap, sealed, read_time)

    def require_range_since(self, hashes: HashRange, read_time: int) -> None:
        """Refuse a range to a transaction that reads as of a time before a part of it came here."""
        self._require_not_overwritten(read_time)
        for overlap, sealed in self._sealed_after(read_time):
            if overlap.start < hashes.end and hashes.start < overlap.end:
                raise _of_another_time(overlap, sealed, read_time)

    def _require_not_overwritten(self, read_time: int) -> None:
        partition = self._store.meta.partition
        if read_time < layouts.readable_from(self._zone(), partition):
            raise TransactionConflictError(
                f"the transaction reads as of {read_time}, before the zone was overwritten; begin "
                "a new one"
            )

    def _sealed_after(self, read_time: int) -> Iterator[tuple[Overlap, int]]:
        for overlap in self._all():
            position = self._store.reshard_position(overlap.old)
            sealed = position.commit_time if position is not None else 0
            if read_time < sealed:
                yield overlap, sealed

    def _missing(self) -> list[Overlap]:
        """Return the ranges that are not served yet."""
        if layouts.is_filled(self._zone(), self._store.meta.partition):
            return list(self._all())
        missing = [overlap for overlap in self._all() if not self.has_source(overlap.old)]
        if missing and layouts.next_layout_of(self._zone()) is None and self._leads():
            # What the log of a leader lacks nobody has: only an unclean election can have lost it.
            return [overlap for overlap in missing if self._is_to_be_applied(overlap.old)]
        return missing

    def _is_to_be_applied(self, source: PartitionId) -> bool:
        position = self._store.reshard_position(source)
        return position is not None and position.sealed_at > 0

    def _all(self) -> tuple[Overlap, ...]:
        """Return the ranges that come, or came, from partitions of the layout before."""
        config = self._zone()
        if config is not self._config:
            self._config, self._overlaps = config, _overlaps_of(config, self._store.meta.partition)
        return self._overlaps


def _overlaps_of(config: ZoneConfig, partition: PartitionId) -> tuple[Overlap, ...]:
    current = layouts.layout_of(config)
    former, new = layouts.former_layout_of(config), layouts.next_layout_of(config)
    if new is not None and partition in new.ids:
        return tuple(layouts.sources_of(partition, current, new))
    if former is not None and partition in current.ids:
        return tuple(layouts.sources_of(partition, former, current))
    return ()


def _of_another_time(overlap: Overlap, sealed: int, read_time: int) -> TransactionConflictError:
    return TransactionConflictError(
        f"the transaction reads as of {read_time}, before partition {overlap.old} was sealed at "
        f"{sealed}; begin a new one",
        sealed=sealed,
    )


def _touch(row_ids: Any, overlaps: list[Overlap]) -> bool:
    """Return whether one of the rows is in one of these ranges."""
    ranges = (HashRange(overlap.start, overlap.end) for overlap in overlaps)
    return any(pc.any(in_range(row_ids, hashes)).as_py() for hashes in ranges)
