"""What a leader of a new partition does to pull its sources (docs/decisions/0120, 0155).

A source is a partition of the layout before whose range overlaps. What is next for each is decided
by `core.reshard_stream`, which is pure; here it is done, and what has come is appended to the
partition's log; `reshard_pulls` sends the requests. The log alone says how far a reshard stream is:
all else here is of one leadership and begins again with the next. So what comes late, of a
leadership before, counts nothing, whoever leads by then.

Of each source there are two lanes: the backfill, and the source's log from the first moment on.
Each has a bounded number of appends that are not committed yet.

Concurrency: what others call is an `entry`; one request of a lane is under way at a time.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.core.reshard_stream import (
    AppendBackfill,
    AppendBegin,
    Appended,
    AppendStream,
    AskBackfill,
    AskBegin,
    AskStream,
    Backfilled,
    BackfillTurn,
    Begun,
    Came,
    Effect,
    Event,
    Followed,
    Lane,
    Refused,
    ReshardStreamState,
    Sees,
    Stage,
    StreamTurn,
    stage_of,
)
from rezone.datanode.resharding.reshard_source import is_broken
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.datanode.state.write_gap import WriteGap
from rezone.storage.log.entry import NO_BATCH, ROWS_SCHEMA, EntryKind, ProducerBatch, rows_batch
from rezone.storage.reshard.reshard_entries import (
    IngestMark,
    RangeEntry,
    Stand,
    backfill_entry,
    begin_entry,
    ingested_entry,
    position_after,
    reshard_entry,
)
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.storage.store import PartitionStore
from rezone.wire import layouts
from rezone.wire.codec.bodies import from_message
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    NotLeaderError,
    NotReadyError,
    RezoneError,
    error_from,
)
from rezone.wire.layouts import Layout, Overlap
from rezone.wire.messages import (
    BackfillClaim,
    BackfillVersions,
    BeginReshard,
    CatchUpEntry,
    CatchUpRange,
    NodeId,
    PartitionId,
    RangeCatchUp,
    ReshardBackfill,
    ReshardBegun,
    ReshardPosition,
    ReshardProgress,
    ReshardRange,
    StreamStart,
)

BACKFILL_WEIGHT: Final = 5.0
"""What taking rows in costs clients in all, as a multiple of the processor time of those threads.

The network, the disk, and writing and sorting the engine's files take about three times as much,
and the rest is by what writers keep in `benchmarks/moves/resharding.py` (decisions 0180, 0194).
"""

CLAIM_SECONDS: Final = 10.0
"""How long a leader backfills nothing by itself once a job reserved a range, or claimed rows."""

_NO_ROWS: Final = rows_batch([], [], [])
_KINDS: Final = frozenset(EntryKind)


class BackfillWork:
    """Which part of a replica's work backfills it: the rest follows logs, which nobody rests for.

    Measured by rows. Were all of it owed, writers that never pause would put the backfill off for
    ever.
    """

    def __init__(self, store: PartitionStore) -> None:
        self._store = store
        self._backfilled = self._rows = 0
        self._share = 1.0

    def share(self) -> float:
        """Return the part of what came since this was asked before; if nothing came, as before."""
        backfilled, rows = self._store.backfilled_rows, self._store.log_end
        if rows > self._rows:
            self._share = min(1.0, (backfilled - self._backfilled) / (rows - self._rows))
        self._backfilled, self._rows = backfilled, rows
        return self._share


class ReshardStream:
    """The reshard stream of one source in one leadership of the partition that pulls it."""

    def __init__(self, replica: ReplicaState, overlap: Overlap, leadership: Leadership) -> None:
        self.partition = replica
        self.runner = replica.runner
        self.overlap = overlap
        self.leadership = leadership
        self._core = ReshardStreamState()
        self.backfill, self.catch_up = self._core.backfill, self._core.stream
        self._gap = WriteGap()
        self._gap.begin(leadership.state.leader_epoch)
        self._told: tuple[object, ...] = ()
        self._claimed_until = float("-inf")
        self._was_claimed = False

    @property
    def source(self) -> int:
        """The source."""
        return self.overlap.old

    @property
    def position(self) -> ReshardPosition | None:
        """How far the log has pulled it; None before it has begun."""
        return self.partition.store.reshard_position(self.source)

    @property
    def leader_hint(self) -> tuple[int, NodeId]:
        """The latest epoch of the source that was heard of, and who leads in it."""
        return self._core.leader_hint

    # --- what to ask for -------------------------------------------------------------------------

    @entry
    def next_backfill(self, bytes_max: int) -> BeginReshard | ReshardBackfill | None:
        """Return the next request for rows; None when there is none to be made now."""
        if self.position is not None and (
            self.partition.clock.monotonic() < self._claimed_until or self._is_filled
        ):
            return None
        match self._step(BackfillTurn()):
            case AskBegin(epoch, keep_from):
                return BeginReshard(hash_range=self._hash_range(epoch, keep_from))
            case AskBackfill(epoch, keep_from, after, applied):
                hash_range = self._hash_range(epoch, keep_from)
                return ReshardBackfill(
                    hash_range=hash_range, after=after, bytes_max=bytes_max, applied=applied
                )
            case _:
                return None

    @entry
    def next_catch_up(self) -> CatchUpRange | None:
        """Return from where to read the source's log on; None when not now."""
        self._tell()
        match self._step(StreamTurn()):
            case AskStream(epoch, keep_from, offset, partition_uuid):
                return CatchUpRange(self._hash_range(epoch, keep_from), offset, partition_uuid)
            case _:
                return None

    @property
    def _is_filled(self) -> bool:
        """Whether a job brings its rows, which the source does not have."""
        return layouts.is_filled(self.partition.config, self.partition.partition_id)

    @property
    def backfilled(self) -> bool:
        """Whether all rows that were there before have come."""
        return stage_of(self.position) in {Stage.FOLLOWING, Stage.ENDED}

    @property
    def ended(self) -> bool:
        """Whether the source is sealed, and all of it is here."""
        return stage_of(self.position) is Stage.ENDED

    def _hash_range(self, leader_epoch: int, keep_from: int | None) -> ReshardRange:
        return ReshardRange(
            source=self.source,
            target=self.overlap.new,
            first_hash=self.overlap.start,
            last_hash=self.overlap.end - 1,
            leader_epoch=leader_epoch,
            keep_from=keep_from,
        )

    def _step(self, event: Event) -> Effect | None:
        return self._core.step(event, self._look(), self.partition.clock.monotonic())

    def _look(self) -> Sees:
        partition = self.partition
        store, committed = partition.store, partition.positions.committed
        # What is not committed may be gone with this leader, and be asked for again by the next.
        kept = store.applied_reshard(self.source) if store.applied <= committed else None
        return Sees(
            position=self.position,
            log_end=store.log_end,
            committed=committed,
            open=self._may_append(),
            yields=partition.clock.monotonic() < partition.backfill_after,
            kept=kept.offset if kept is not None else None,
            mark_rows=partition.settings.reshard_mark_rows,
        )

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

    @entry
    def begun(self, reply: ReshardBegun) -> None:
        """Begin with the position that the source has given."""
        if isinstance(self._step(Begun()), AppendBegin):
            begin = begin_entry(reply.position, reply.producers, reply.transactions, self._stand())
            self._append(begin, backfills=True)

    def backfilled_with(self, request: ReshardBackfill, reply: BackfillVersions) -> None:
        """Append the versions that were asked for, unless that was in another leadership.

        InvalidRowError when they are none.
        """
        batch = from_message(reply.versions, VERSIONS_SCHEMA)
        self._backfill(batch, Backfilled(request.after, reply.reached, batch.num_rows, reply.end))

    @entry
    def _backfill(self, batch: pa.RecordBatch, backfilled: Backfilled) -> None:
        before = self.position
        match self._step(backfilled):
            case AppendBackfill(after) if before is not None:
                self._append(backfill_entry(batch, before, after, self._stand()), backfills=True)
                self._tell()

    def caught_up(self, asked: CatchUpRange, catch_up: RangeCatchUp) -> None:
        """Append what the source's log has, unless it was asked for in another leadership."""
        if catch_up.error is not None:
            self.failed(self.catch_up, error_from(catch_up.error))
            return
        self._come(asked, catch_up, [_range_entry(entry) for entry in catch_up.entries])

    @entry
    def _come(self, asked: CatchUpRange, catch_up: RangeCatchUp, entries: list[RangeEntry]) -> None:
        ends = tuple(each.end_offset for each in entries)
        match self._step(Came(asked.offset, catch_up.reached, ends)):
            case AppendStream(mark):
                if mark and catch_up.reached is not None and self.position is not None:
                    entries = [_nothing_until(self.position, catch_up.reached)]
                self._gap.take(catch_up.stopped_ms, self.partition.clock.monotonic())
                self._append_entries(entries)
                self._step(Followed(catch_up.reached, catch_up.committed, catch_up.time))
                self._tell()

    def _append_entries(self, entries: Iterable[RangeEntry]) -> None:
        """Append entries; those that the log has already are left out."""
        position, stand = self.position, self._stand()
        raws: list[bytes] = []
        for each in entries:
            raw = reshard_entry(self.source, each, position, stand)
            if raw is None:
                continue
            raws.append(raw)
            position = position_after(self.source, each, position, stand)
            rows = each.rows.num_rows + 1
            time = max(stand.commit_time, each.commit_time)
            stand = Stand(stand.leader_epoch, stand.base_offset + rows, time + 1)
        if raws:
            self._append(b"".join(raws), backfills=False)

    def _stand(self) -> Stand:
        partition = self.partition
        return Stand(
            self.leadership.state.leader_epoch,
            partition.store.log_end,
            partition.write_clock.next_time(
                partition.clock.micros(), partition.store.last_commit_time
            ),
        )

    def _append(self, raw: bytes, *, backfills: bool) -> None:
        self._step(Appended(backfills, self.partition.append(raw)))
        self.partition.wake()

    @entry
    def failed(self, lane: Lane, error: RezoneError) -> None:
        """Note why a request was refused; it is made again after a pause."""
        leader = None
        if isinstance(error, NotLeaderError):
            leader = (int(error.details.get("epoch", -1)), int(error.details.get("leader", -1)))
        refused = Refused(lane is self.backfill, str(error), is_broken(error), leader)
        self._step(refused)
        self._tell()

    # --- rows that come past the log -------------------------------------------------------------

    @entry
    def reserve(self) -> None:
        """Backfill nothing for a while: a job has not come to this range yet.

        Nothing changes where a job has claimed rows in this leadership: whether it goes on is known
        by its claims. Nor where it could not claim any.
        """
        takes = self.position is None or self.partition.store.range_ingest.standing(self.source)
        if self._was_claimed or not takes or not self._may_append():
            return
        with contextlib.suppress(NotReadyError):
            self._require_all_in_sync()
            self._claimed_until = self.partition.clock.monotonic() + CLAIM_SECONDS

    @entry
    def claim(self) -> BackfillClaim:
        """Return what a job is to ingest, and backfill nothing for a while.

        NotReadyError while that cannot be: no reshard stream has begun, a replica is not in sync or
        has clients that come first, or the replica does not lead any more.
        """
        position, epoch = self.position, self.leadership.state.leader_epoch
        mark = self.partition.store.range_ingest.standing(self.source)
        if position is not None and not position.backfilling:
            start = StreamStart(position.offset, position.partition_uuid)
            hash_range = self._hash_range(epoch, None)
            return BackfillClaim(
                hash_range=hash_range, begun=start, leader_epoch=epoch, backfilled=True
            )
        asked = self._core.next_ingest(self._look())
        if asked is None or mark is None:
            raise NotReadyError(f"partition {self.overlap.new} takes no rows of {self.source} now")
        self._require_all_in_sync()
        self._claimed_until = self.partition.clock.monotonic() + CLAIM_SECONDS
        self._was_claimed = True
        config = self.partition.config
        rate, targets = config.copy_bytes_per_second_max, config.next_partitions
        return BackfillClaim(
            hash_range=self._hash_range(asked.leader_epoch, asked.keep_from),
            begun=mark.begun,
            leader_epoch=epoch,
            replicas=self.partition.record.replicas,
            # What is appended and not applied yet comes once more, or replicas would have to wait.
            after=min(asked.after, mark.reached),
            applied=asked.applied,
            bytes_per_second_max=max(1, rate // max(1, targets)) if rate else 0,
        )

    @entry
    def count_ingested(self, mark: IngestMark, leader_epoch: int, rows: int) -> None:
        """Append that all rows up to a mark have come to all replicas past the log.

        NotReadyError unless it leads in that epoch and all replicas are in sync; ConflictError when
        the rows are not on the disk here. A repeat changes nothing.
        """
        before = self.position
        if leader_epoch != self.leadership.state.leader_epoch:
            raise NotReadyError(f"partition {self.overlap.new} has another leader by now")
        if before is None or not before.backfilling:
            return
        if not mark.end and mark.reached <= before.backfilled_to:
            return
        self._require_all_in_sync()
        if not self.partition.store.range_ingest.has_durable(mark):
            raise ConflictError(f"not all rows of partition {self.source} were ingested here")
        reached = max(mark.reached, before.backfilled_to)
        match self._step(Backfilled(before.backfilled_to, reached, rows, mark.end)):
            case AppendBackfill(after):
                raw = ingested_entry(mark, before, after, self._stand())
                self._append(raw, backfills=True)
                self._tell()
            case _:
                raise NotReadyError(f"partition {self.overlap.new} takes no rows now")

    def _require_all_in_sync(self) -> None:
        """Refuse while a replica would have to be told by the log alone: it would need a copy."""
        replicas, in_sync = self.partition.record.replicas, self.leadership.state.isr
        if not {*replicas} <= {*in_sync} or self.leadership.proposal is not None:
            raise NotReadyError(f"not all replicas of partition {self.overlap.new} are in sync")

    # --- what is told ----------------------------------------------------------------------------

    def note_served(self) -> None:
        """Note once from when on the range is served; under the lock."""
        partition = self.partition
        if self._gap.is_open and partition.serving.has_source(self.source):
            self._gap.end(partition.clock.monotonic(), partition.clock.micros())

    def progress(self) -> ReshardProgress:
        """Return how far it is; under the lock."""
        position = self.position
        sealed_at = position.sealed_at if position is not None else 0
        self.note_served()  # who hears that it is served may not ask again
        sealed = self.partition.serving.has_source(self.source)
        return ReshardProgress(
            source=self.source,
            begun=position is not None,
            rows=position.rows if position is not None else 0,
            backfilled=position is not None and not position.backfilling,
            time=self._core.time(self.partition.positions.committed),
            lag_rows=0 if sealed_at else self._core.lag_rows,
            broken=self.backfill.broken or self.catch_up.broken,
            sealed=sealed,
            sealed_time=self.partition.store.last_commit_time if sealed else 0,
            error=self.backfill.error or self.catch_up.error,
            write_gap_ms=self._gap.milliseconds(self.leadership.state.leader_epoch),
        )

    def _tell(self) -> None:
        """Have what has changed reported: at once, but for how many rows have come.

        A lag counts when it doubles: a report that follows it row by row would never rest.
        """
        seen = self.progress()
        lag = -1 if seen.lag_rows is None else (seen.lag_rows // 512).bit_length()
        news = (seen.begun, seen.backfilled, seen.broken, seen.sealed, seen.error, lag)
        if news != self._told:
            self._told = news
            self.partition.touched(at_once=True)


def _nothing_until(position: ReshardPosition, reached: ReshardPosition) -> RangeEntry:
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


def _range_entry(entry: CatchUpEntry) -> RangeEntry:
    """Return an entry of another log; InvalidRowError when it is none."""
    if entry.kind not in _KINDS:
        raise InvalidRowError(f"{entry.kind} is no kind of entry")
    rows = from_message(entry.rows, ROWS_SCHEMA)
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


def lost_marks(replica: ReplicaState) -> tuple[PartitionId, ...]:
    """Return the sources whose rows a job cannot bring to a replica any more: it was copied.

    Only of a target that a job fills: any other one goes on through its log.
    """
    store = replica.store
    if not layouts.is_filled(replica.config, replica.partition_id) or store.meta.needs_snapshot:
        return ()
    pulled = (each for each in store.applied_reshards() if each.backfilling)
    return tuple(e.source for e in pulled if store.range_ingest.standing(e.source) is None)


class ReshardStreams:
    """All reshard streams of one partition, while it leads and the zone has a next layout."""

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._streams: tuple[ReshardStream, ...] = ()
        self._leadership: Leadership | None = None
        self._layouts: tuple[Layout, Layout] | None = None

    def streams(self) -> tuple[ReshardStream, ...]:
        """Return the streams of the present leadership; none where there is nothing to pull."""
        replica = self._replica
        old, new = layouts.layout_of(replica.config), layouts.next_layout_of(replica.config)
        if new is None or replica.partition_id not in new.ids:
            return ()
        return self._streams_between(old, new)

    @entry
    def _streams_between(self, old: Layout, new: Layout) -> tuple[ReshardStream, ...]:
        replica = self._replica
        leadership = None if replica.closed else replica.leadership
        if leadership is not self._leadership or self._layouts != (old, new):
            self._leadership, self._layouts = leadership, (old, new)
            overlaps = layouts.sources_of(replica.partition_id, old, new)
            self._streams = tuple(
                ReshardStream(replica, overlap, leadership)
                for overlap in overlaps
                if leadership is not None
            )
        return self._streams

    def stream(self, source: PartitionId) -> ReshardStream:
        """Return the stream from a source; NotLeaderError where nothing is pulled of it."""
        found = next((stream for stream in self.streams() if stream.source == source), None)
        if found is None:
            raise self._replica.not_leader()
        return found

    def note_served(self) -> None:
        """Note which ranges are served from now on; under the lock."""
        for stream in self._streams:
            stream.note_served()

    @entry
    def progress(self) -> tuple[ReshardProgress, ...]:
        """Return how far each reshard stream is."""
        return tuple(stream.progress() for stream in self.streams())
