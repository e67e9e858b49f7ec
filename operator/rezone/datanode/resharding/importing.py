"""What a leader of a new partition does to import its sources (docs/decisions/0120, 0155).

A source is a partition of the layout before whose range overlaps. What is next for each is decided
here, and what has come is appended to the partition's log; `import_pulls` sends the requests. The
log alone says how far an import is: all else here is of one leadership and begins again with the
next. So what comes late, of a leadership before, counts nothing, whoever leads by then.

Of each source there are two lanes: the fill, and the source's log from the first moment on. Each
has a bounded number of appends that are not committed yet.

Concurrency: everything takes the partition's lock; one request of a lane is under way at a time.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

import msgspec
import pyarrow as pa

from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.resharding.import_source import is_broken
from rezone.datanode.state.replica_state import ReplicaState
from rezone.storage.log.entry import NO_BATCH, ROWS_SCHEMA, EntryKind, ProducerBatch, rows_batch
from rezone.storage.reshard.imports import (
    RangeEntry,
    Stand,
    begin_entry,
    fill_entry,
    import_entry,
    position_after,
)
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.storage.store import PartitionStore
from rezone.wire import layouts
from rezone.wire.errors import NotLeaderError, RezoneError, error_from
from rezone.wire.layouts import Layout, Overlap
from rezone.wire.messages import (
    BeginImport,
    FilledVersions,
    FillImport,
    ImportBegun,
    ImportedPart,
    ImportPosition,
    ImportProgress,
    ImportTail,
    NodeId,
    TailedPart,
    TailEntry,
)

UNCOMMITTED_MAX: Final = 2
"""How many appends of a lane may wait to be committed: one is on its way while one is fetched."""

FILL_WEIGHT: Final = 5.0
"""What taking rows in costs clients in all, as a multiple of the processor time of those threads.

The network, the disk, and writing and sorting the engine's files take about three times as much,
and the rest is by what writers keep in `benchmarks/resharding.py` (decisions 0180, 0194).
"""

_RETRY_SECONDS: Final = 0.1
_RETRY_BROKEN_SECONDS: Final = 1.0
_NO_ROWS: Final = rows_batch([], [], [])


class FillWork:
    """Which part of a replica's work fills it: the rest follows logs, which nobody rests for.

    Measured by rows. Were all of it owed, writers that never pause would put the fill off for ever.
    """

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._filled = self._rows = 0
        self._share = 1.0

    def share(self) -> float:
        """Return the part of what came since this was asked before; if nothing came, as before."""
        filled, rows = self._store.filled_rows, self._store.log_end
        if rows > self._rows:
            self._share = min(1.0, (filled - self._filled) / (rows - self._rows))
        self._filled, self._rows = filled, rows
        return self._share


class Lane:
    """What is on its way of one source: the ends of appends, and why it does not go on."""

    def __init__(self) -> None:
        self.error = ""
        self.broken = False
        self.retry_at = float("-inf")
        self._ends: deque[int] = deque()

    def appended(self, end_offset: int) -> None:
        """Note where an append ends."""
        self._ends.append(end_offset)

    def may_ask(self, now: float, committed: int) -> bool:
        """Whether it is time for another request."""
        while self._ends and self._ends[0] <= committed:
            self._ends.popleft()
        return now >= self.retry_at and len(self._ends) < UNCOMMITTED_MAX

    def works(self) -> None:
        """Note that it was answered."""
        self.error, self.broken = "", False

    def fails(self, error: RezoneError, retry_at: float) -> None:
        """Note why it was refused, and when to ask again."""
        self.error, self.broken = str(error), is_broken(error)
        self.retry_at = retry_at


class ImportPart:
    """The import of one source in one leadership of the partition that imports it."""

    def __init__(self, replica: ReplicaState, overlap: Overlap, leadership: Leadership) -> None:
        self.partition = replica
        self.overlap = overlap
        self.leadership = leadership
        self.fill = Lane()
        self.tail = Lane()
        self.reached: ImportPosition | None = None
        self.lag_rows: int | None = None
        self._time = 0
        self._next_time = (0, 0)
        self.leader_hint: tuple[int, NodeId] = (-1, -1)
        self._told: tuple[object, ...] = ()

    @property
    def source(self) -> int:
        """The source."""
        return self.overlap.old

    @property
    def position(self) -> ImportPosition | None:
        """How far the log has imported it; None before it has begun."""
        return self.partition.store.import_position(self.source)

    # --- what to ask for -------------------------------------------------------------------------

    def next_fill(self, bytes_max: int) -> BeginImport | FillImport | None:
        """Return the next request for rows; None when there is none to be made now."""
        partition = self.partition
        with partition.lock:
            position = self.position
            if position is not None and not position.filling:
                return None
            if not self._may_ask(self.fill) or self._gives_way():
                return None
            if position is None:
                return BeginImport(part=self._part(None))
            return FillImport(
                part=self._part(position),
                after=position.filled_to,
                bytes_max=bytes_max,
                # From there on the log is followed: what the source lacks below comes by nothing.
                applied=position.offset,
            )

    def next_tail(self) -> TailedPart | None:
        """Return from where to read the source's log on; None when not now."""
        partition = self.partition
        with partition.lock:
            position = self.position
            self._tell()
            if position is None or position.sealed_at or not self._may_ask(self.tail):
                return None
            at = self.reached or position
            return TailedPart(self._part(position), at.offset, at.partition_uuid)

    @property
    def filled(self) -> bool:
        """Whether all rows that were there before have come."""
        position = self.position
        return position is not None and not position.filling

    @property
    def ended(self) -> bool:
        """Whether the source is sealed, and all of it is here."""
        position = self.position
        return position is not None and position.sealed_at > 0 and not position.filling

    def _part(self, position: ImportPosition | None) -> ImportedPart:
        epochs = [at.leader_epoch for at in (position, self.reached) if at is not None]
        # What is not committed may be gone with this leader, and be asked for again by the next.
        store, committed = self.partition.store, self.partition.positions.committed
        kept = store.applied_import(self.source) if store.applied <= committed else None
        return ImportedPart(
            source=self.source,
            target=self.overlap.new,
            first_hash=self.overlap.start,
            last_hash=self.overlap.end - 1,
            leader_epoch=max(epochs, default=0),
            keep_from=kept.offset if kept is not None else None,
        )

    def _may_ask(self, lane: Lane) -> bool:
        partition = self.partition
        now = partition.clock.monotonic()
        return self._may_append() and lane.may_ask(now, partition.positions.committed)

    def _gives_way(self) -> bool:
        """Whether a follower's node has clients that come before more rows."""
        return self.partition.clock.monotonic() < self.partition.fill_after

    def _may_append(self) -> bool:
        """Whether the partition still leads, and is to take rows now."""
        partition = self.partition
        stands = partition.leadership is self.leadership
        if not stands or partition.closed or partition.failure or not partition.clock.gives:
            return False
        if partition.transfer.blocks_writes or partition.transfer.eager:
            return False
        try:
            self.leadership.require_open()
            self.leadership.require_enough(partition.config.min_in_sync_replicas)
        except RezoneError:
            return False
        return True

    # --- what has come ---------------------------------------------------------------------------

    def begun(self, reply: ImportBegun) -> None:
        """Begin with the position that the source has given."""
        with self.partition.lock:
            self.fill.works()
            if self.position is None and self._may_append():
                begin = begin_entry(
                    reply.position, reply.producers, reply.transactions, self._stand()
                )
                self._append(self.fill, begin)

    def filled_with(self, request: FillImport, reply: FilledVersions) -> None:
        """Append the versions that were asked for, unless that was in another leadership."""
        batch = pa.ipc.read_record_batch(pa.py_buffer(reply.versions), VERSIONS_SCHEMA)
        with self.partition.lock:
            self.fill.works()
            before = self.position
            if before is None or not before.filling or before.filled_to != request.after:
                return
            if not self._may_append():
                return
            after = msgspec.structs.replace(
                before,
                filling=not reply.end,
                filled_to=reply.reached,
                rows=before.rows + batch.num_rows,
            )
            self._append(self.fill, fill_entry(batch, before, after, self._stand()))
            self._tell()

    def tailed(self, asked: TailedPart, tail: ImportTail) -> None:
        """Append what the source's log has, unless it was asked for in another leadership."""
        if tail.error is not None:
            self.failed(self.tail, error_from(tail.error))
            return
        partition = self.partition
        entries = [_range_entry(entry) for entry in tail.entries]
        with partition.lock:
            at = self.reached or self.position
            if at is None or at.offset != asked.offset or not self._may_append():
                return
            self.tail.works()
            self._import(entries, tail.reached)
            reached = tail.reached or at
            self.reached = tail.reached or self.reached
            self.lag_rows = max(0, tail.committed - reached.offset)
            self._settle_time()
            if self._next_time[0] <= partition.positions.committed:
                time = tail.time if not self.lag_rows else reached.commit_time
                self._next_time = (partition.store.log_end, time)
            self._tell()

    def _settle_time(self) -> None:
        """Take over a time that the source has told, once what came with it is committed."""
        end, time = self._next_time
        if end <= self.partition.positions.committed:
            self._time = max(self._time, time)

    def _import(self, entries: Iterable[RangeEntry], reached: ImportPosition | None) -> None:
        """Append entries, and where the log has had nothing for long, how far that is."""
        position, stand = self.position, self._stand()
        raws: list[bytes] = []
        for entry in entries:
            raw = import_entry(self.source, entry, position, stand)
            if raw is None:
                continue
            raws.append(raw)
            position = position_after(self.source, entry, position, stand)
            rows = entry.rows.num_rows + 1
            time = max(stand.commit_time, entry.commit_time)
            stand = Stand(stand.leader_epoch, stand.base_offset + rows, time + 1)
        assert position is not None, "an import has begun"  # noqa: S101 - invariant
        if not raws and reached is not None:
            apart = reached.offset - position.offset
            if apart >= self.partition.settings.import_mark_rows:
                mark = import_entry(self.source, _nothing_until(position, reached), position, stand)
                raws += [mark] if mark is not None else []
        if raws:
            self._append(self.tail, b"".join(raws))

    def _stand(self) -> Stand:
        partition = self.partition
        return Stand(
            self.leadership.state.leader_epoch,
            partition.store.log_end,
            partition.write_clock.next_time(
                partition.clock.micros(), partition.store.last_commit_time
            ),
        )

    def _append(self, lane: Lane, raw: bytes) -> None:
        lane.appended(self.partition.append(raw))
        self.partition.wake()

    def failed(self, lane: Lane, error: RezoneError) -> None:
        """Note why a request was refused; it is made again after a pause."""
        with self.partition.lock:
            pause = _RETRY_BROKEN_SECONDS if is_broken(error) else _RETRY_SECONDS
            if isinstance(error, NotLeaderError):
                hint = (int(error.details.get("epoch", -1)), int(error.details.get("leader", -1)))
                if hint > self.leader_hint:
                    self.leader_hint, pause = hint, 0.0
            lane.fails(error, self.partition.clock.monotonic() + pause)
            if lane is self.tail:
                self.lag_rows = None
            self._tell()

    # --- what is told ----------------------------------------------------------------------------

    def progress(self) -> ImportProgress:
        """Return how far it is; under the lock."""
        self._settle_time()
        position = self.position
        sealed_at = position.sealed_at if position is not None else 0
        return ImportProgress(
            source=self.source,
            begun=position is not None,
            rows=position.rows if position is not None else 0,
            filled=position is not None and not position.filling,
            time=self._time,
            lag_rows=0 if sealed_at else self.lag_rows,
            broken=self.fill.broken or self.tail.broken,
            sealed=self.partition.serving.has_source(self.source),
            error=self.fill.error or self.tail.error,
        )

    def _tell(self) -> None:
        """Have what has changed reported: at once, but for how many rows have come.

        A lag counts when it doubles: a report that follows it row by row would never rest.
        """
        seen = self.progress()
        lag = -1 if seen.lag_rows is None else (seen.lag_rows // 512).bit_length()
        news = (seen.begun, seen.filled, seen.broken, seen.sealed, seen.error, lag)
        if news != self._told:
            self._told = news
            self.partition.touched(at_once=True)


def _nothing_until(position: ImportPosition, reached: ImportPosition) -> RangeEntry:
    """Return an entry that says that the log has had nothing for the range."""
    return RangeEntry(
        rows=_NO_ROWS,
        kind=EntryKind.PLAIN,
        batch=NO_BATCH,
        base_offset=position.offset,
        end_offset=reached.offset,
        commit_time=reached.commit_time,
        branch=reached.partition_uuid,
        leader_epoch=reached.leader_epoch,
    )


def _range_entry(entry: TailEntry) -> RangeEntry:
    rows = pa.ipc.read_record_batch(pa.py_buffer(entry.rows), ROWS_SCHEMA)
    batch = ProducerBatch(
        entry.producer_id,
        entry.sequence,
        entry.producer_epoch,
        entry.sent_to,
        entry.digest,
        entry.opens,
    )
    return RangeEntry(
        rows,
        EntryKind(entry.kind),
        batch,
        entry.base_offset,
        entry.end_offset,
        entry.commit_time,
        entry.branch,
        entry.leader_epoch,
    )


class ImportDuties:
    """All imports of one partition, while it leads and the zone has a next layout."""

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica
        self._parts: tuple[ImportPart, ...] = ()
        self._leadership: Leadership | None = None
        self._layouts: tuple[Layout, Layout] | None = None

    def parts(self) -> tuple[ImportPart, ...]:
        """Return the parts of the present leadership; none where there is nothing to import."""
        replica = self._replica
        old, new = layouts.layout_of(replica.config), layouts.next_layout_of(replica.config)
        if new is None or replica.partition_id not in new.ids:
            return ()
        with replica.lock:
            leadership = None if replica.closed else replica.leadership
            if leadership is not self._leadership or self._layouts != (old, new):
                self._leadership, self._layouts = leadership, (old, new)
                overlaps = layouts.sources_of(replica.partition_id, old, new)
                self._parts = tuple(
                    ImportPart(replica, overlap, leadership)
                    for overlap in overlaps
                    if leadership is not None
                )
            return self._parts

    def progress(self) -> tuple[ImportProgress, ...]:
        """Return how far each import is; under the lock."""
        return tuple(part.progress() for part in self.parts())
