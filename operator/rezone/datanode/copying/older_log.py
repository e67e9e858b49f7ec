"""The log from before a copy: what named feeds need of it is brought after the copy (0502).

A copied replica's log begins with its snapshot. When all replicas of a partition were replaced by
copies, what a feed has not acknowledged would be gone. So a copy asks the other replicas for the
log before its own, file by file, the newest first, while it follows its leader and may be in sync
already; it reports `pulls_log` until nobody has more of it that a feed needs, and as long the
operator leaves the replicas in place that it replaces. After a restart it asks again.

What comes is below what is committed on both sides and of the same branch of history, so it is the
same at all replicas. The giver throttles itself beside clients, as a copy's source does.

Concurrency: one thread at a time calls `step`; the source runs in the Flight threads of the calls.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import structlog

from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.storage.log.entry import iter_entries
from rezone.storage.log.older_file import LogStand, OlderFile
from rezone.storage.state.history import branch_at
from rezone.wire.errors import ConflictError, CorruptionError, NotReadyError, RezoneError
from rezone.wire.messages import NodeId, OlderLog, PartitionId, ReadOlderLog

_log = structlog.get_logger(__name__)

PIECE_BYTES_MAX = 1 << 20
"""The most that one answer has, but for its last entry."""

AGAIN_SECONDS = 1.0
"""How long a replica waits that has not got an answer, before it asks again."""


class OlderLogSource:
    """What a node's replicas give of their logs; `find` raises UnknownPartitionError."""

    def __init__(self, find: Callable[[PartitionId], ReplicaState], foreground: Foreground) -> None:
        self._find = find
        self._foreground = foreground

    def read(self, request: ReadOlderLog) -> OlderLog:
        """Return the next piece of the file that ends at an offset, or has its last entry.

        NotReadyError where that is not known to be committed, ConflictError where it is of another
        history, SnapshotExpiredError when what was begun has been trimmed.
        """
        replica = self._find(request.partition)
        before = request.before
        _require_same(replica, before, request.partition_uuid)
        store, floor = replica.store, replica.log_floor
        if request.since is None and (floor is None or max(floor, store.log_start) >= before):
            return OlderLog(offset=before)
        begin = store.stand_before(before)
        since = begin.offset if request.since is None else request.since
        if not begin.offset <= since < before:
            raise ConflictError(f"{since} is not in the file at {begin.offset} before {before}")
        steps = CopySteps(self._foreground)
        size = steps.step_bytes(max(1, min(request.bytes_max, PIECE_BYTES_MAX)))
        entries = _cut(store.read(since, size), before)
        steps.throttle()
        return OlderLog(
            offset=begin.offset,
            commit_time=begin.commit_time,
            leader_epoch=begin.leader_epoch,
            entries=entries,
        )


@entry
def _require_same(replica: ReplicaState, before: int, partition_uuid: str) -> None:
    """Refuse unless what is below an offset is here, committed and of the same history."""
    store = replica.store
    if replica.closed or replica.failure or store.meta.needs_snapshot:
        raise NotReadyError(f"partition {replica.partition_id} has no log here yet; retry")
    if replica.positions.committed < before:
        raise NotReadyError(f"{before} is not known to be committed here yet; retry")
    if branch_at(store.meta.failover_log, before) != partition_uuid:
        raise ConflictError(f"what is below {before} is of another history here")


def _cut(entries: bytes, before: int) -> bytes:
    """Return the entries that end at `before` at the latest."""
    size = 0
    for each in iter_entries(entries):
        if each.header.end_offset > before:
            break
        size += each.header.length
    return entries[:size]


class _Wanted(NamedTuple):
    """What a replica asks others for: what is before its log, and whom."""

    start: int
    partition_uuid: str
    peers: tuple[NodeId, ...]


class _Pull:
    """How far one replica is."""

    def __init__(self, copies: int) -> None:
        self.copies = copies
        self.start = -1
        self.have_none: set[NodeId] = set()
        self.failed: set[NodeId] = set()
        self.file: OlderFile | None = None
        self.giver: NodeId | None = None
        self.not_before = float("-inf")

    def begin_at(self, start: int) -> None:
        """Ask all others what they have before this offset."""
        self.start = start
        self.have_none = set()
        self.drop()

    def wait(self, until: float) -> None:
        """Ask nobody before a time."""
        self.not_before = until

    def begin_file(self, file: OlderFile, giver: NodeId) -> None:
        """Have a file under way, which this node gives."""
        self.file, self.giver = file, giver

    def finish_file(self, file: OlderFile) -> None:
        """Put the file under way in."""
        file.finish()
        self.file, self.giver = None, None

    def drop(self) -> None:
        """Give up the file under way."""
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.drop()
        self.file, self.giver = None, None


class OlderLogPulls:
    """What a node's replicas pull; `ask` calls a node, with the answer's class that it expects."""

    def __init__(
        self,
        partitions: Callable[[], Sequence[ReplicaState]],
        ask: Callable[[NodeId, ReadOlderLog], OlderLog],
        monotonic: Callable[[], float],
    ) -> None:
        self._partitions = partitions
        self._ask = ask
        self._monotonic = monotonic
        self._pulls: dict[ReplicaState, _Pull] = {}

    def step(self) -> bool:
        """Make one request for each replica that wants one; whether there was any."""
        wanting = [each for each in self._partitions() if each.pulls_log]
        for gone in self._pulls.keys() - set(wanting):
            self._pulls.pop(gone).drop()
        asked = False
        for replica in wanting:
            pull = self._pulls.get(replica)
            if pull is None or pull.copies != replica.copies:
                if pull is not None:
                    pull.drop()
                pull = self._pulls[replica] = _Pull(replica.copies)
            if pull.not_before <= self._monotonic():
                asked = self._step(replica, pull) or asked
        return asked

    def _step(self, replica: ReplicaState, pull: _Pull) -> bool:
        wanted = _wanted(replica)
        if wanted is None:
            pull.wait(self._monotonic() + AGAIN_SECONDS)
            return False
        if wanted.start != pull.start:
            pull.begin_at(wanted.start)
        floor = replica.log_floor
        left = [node for node in wanted.peers if node not in pull.have_none]
        pull.failed.difference_update(left if pull.failed.issuperset(left) else ())
        if not left or floor is None or floor > wanted.start or not wanted.start:
            pull.drop()
            replica.log_pulled(pull.copies)
            return False
        giver = next(node for node in left if node not in pull.failed)
        if pull.giver != giver:
            pull.drop()
        try:
            self._pull(replica, pull, giver, wanted)
        except (RezoneError, OSError) as error:
            self._failed(replica, pull, giver, error)
        return True

    def _pull(self, replica: ReplicaState, pull: _Pull, giver: NodeId, wanted: _Wanted) -> None:
        """Ask for the next piece, and put the file in when it is whole."""
        since = pull.file.offset if pull.file is not None else None
        answer = self._ask(
            giver,
            ReadOlderLog(
                partition=replica.partition_id,
                before=wanted.start,
                partition_uuid=wanted.partition_uuid,
                since=since,
            ),
        )
        if answer.offset == wanted.start:
            pull.have_none.add(giver)
            pull.drop()
            return
        if not answer.entries or answer.offset > wanted.start:
            raise ConflictError(f"node {giver} gives nothing of the file at {answer.offset}")
        file = pull.file
        if file is None:
            begin = LogStand(answer.offset, answer.commit_time, answer.leader_epoch)
            file = replica.store.receive_older(begin)
            pull.begin_file(file, giver)
        file.add(answer.entries)
        if file.is_whole:
            pull.finish_file(file)
            _log.info("pulled log", partition=replica.partition_id, begin=answer.offset)

    def _failed(self, replica: ReplicaState, pull: _Pull, giver: NodeId, error: Exception) -> None:
        """Go on with another one, or a while later."""
        pull.drop()
        pull.failed.add(giver)
        pull.wait(self._monotonic() + AGAIN_SECONDS)
        if isinstance(error, ConflictError | CorruptionError):
            pull.have_none.add(giver)  # what it has is of no use here
        _log.warning(
            "cannot pull log", partition=replica.partition_id, giver=giver, error=str(error)
        )


@entry
def _wanted(replica: ReplicaState) -> _Wanted | None:
    """Return what a replica may ask others for now; None while its log is not known to be right.

    The in-sync ones are asked, the leader first: others may be gone for good. While it is alone in
    sync and not alone in the zone, it waits for others.
    """
    store = replica.store
    start = store.log_start
    if replica.closed or replica.failure or store.meta.needs_snapshot:
        return None
    if replica.positions.committed < start:
        return None
    record = replica.record
    others = {*record.isr} - {replica.node_id}
    if not others and {*record.replicas} - {replica.node_id}:
        return None
    peers = sorted(others, key=lambda node: (node != record.leader, node))
    return _Wanted(start, branch_at(store.meta.failover_log, start), tuple(peers))
