"""Brings the rows of one range of a re-sharding to all replicas of the new partition.

The leader of the new partition says what is next (`ClaimBackfill`); it is read from the leader of
the old one, as the new leader would, and taken by every replica past its log (`IngestVersions`).
After a unit of some 32 MiB, which all have on their disks by then, the leader counts it
(`CommitIngested`). All that is known stands in the partitions: whoever dies, another begins where
the last count was. See docs/decisions/0486.

Concurrency: one thread reads, one for each replica sends; a chunk is read while the one before is
taken.
"""

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec
import pyarrow as pa

from rezone.wire.codec.bodies import from_message
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import NotLeaderError, NotReadyError, RezoneError
from rezone.wire.messages import (
    Ack,
    BackfillClaim,
    BackfillVersions,
    ClaimBackfill,
    CommitIngested,
    IngestVersions,
    Message,
    NodeId,
    ReshardBackfill,
)
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.ratelimit import RateLimit
from rezone.wire.transport.tls import tls_from_environment

UNIT_BYTES: Final = 32 << 20
"""After how much all replicas make durable what they have taken, and it is counted."""

CHUNK_BYTES: Final = 4 << 20
"""The most that a source gives at a time."""

CALL_SECONDS: Final = 60.0
CLAIM_SECONDS: Final = 3.0
"""How often the leader hears that the job goes on; it waits for three times as long."""

PAUSE_SECONDS: Final = 0.25
PAUSE_SECONDS_MAX: Final = 16.0
PATIENCE_SECONDS: Final = 300.0
"""For how long a range may refuse rows until the task fails; its leader backfills it meanwhile."""

VERSIONS_SCHEMA: Final = pa.schema(
    [("row_id", pa.binary()), ("time", pa.uint64()), ("flag", pa.uint8()), ("value", pa.binary())]
)
"""How versions travel."""

Reply = TypeVar("Reply", bound=Message)
Reader = Callable[[BackfillClaim, bytes], BackfillVersions]
"""Reads the rows of a claim's range behind a row id, no more than a chunk."""


class RangeReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one task has brought of a range; `error` says why it has not all of its rows yet."""

    hash_range: BackfillRange
    rows: int = 0
    bytes: int = 0
    error: str = ""


class _Unit:
    """The chunks since the last count: up to where, and how much."""

    def __init__(self, claim: BackfillClaim) -> None:
        self.claim = claim
        self.reached = claim.after
        self.end = False
        self.rows = self.bytes = 0

    def request(self, hash_range: BackfillRange, came: BackfillVersions) -> IngestVersions:
        """Take a chunk into account; return what every replica is sent of it."""
        after, self.reached, self.end = self.reached, came.reached, came.end
        self.rows += from_message(came.versions, VERSIONS_SCHEMA).num_rows
        self.bytes += len(came.versions)
        return IngestVersions(
            target=hash_range.target,
            source=hash_range.source,
            begun=self.claim.begun,
            leader_epoch=self.claim.leader_epoch,
            after=after,
            reached=came.reached,
            end=came.end,
            versions=came.versions,
            durable=self.over,
        )

    @property
    def over(self) -> bool:
        """Whether it is to be counted now."""
        return self.end or self.bytes >= UNIT_BYTES


class RangeBackfill:
    """One task's work on a range; `nodes` are the data nodes' addresses by their ids.

    The rows are what `read` returns, by default those of the source.
    """

    def __init__(
        self,
        hash_range: BackfillRange,
        nodes: Mapping[NodeId, str],
        *,
        connect: Callable[[str], NodeClient] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        patience_seconds: float = PATIENCE_SECONDS,
        read: Reader | None = None,
    ) -> None:
        self._hash_range = hash_range
        self._nodes = nodes
        self._read = read or self._read_source
        self._connect = connect or functools.partial(NodeClient, tls=tls_from_environment())
        self._clock = clock
        self._sleep = sleep
        self._patience_seconds = patience_seconds
        self._clients: dict[NodeId, NodeClient] = {}
        self._leaders: dict[int, NodeId] = {}
        self._claimed_at = float("-inf")
        self._bytes_per_second_max = 0
        self._rate = RateLimit(lambda: self._bytes_per_second_max, clock=clock, sleep=sleep)
        self.rows = self.bytes = 0

    def run(self) -> RangeReceipt:
        """Bring all rows that the range lacks; RezoneError when it takes none for too long."""
        since, pause = self._clock(), PAUSE_SECONDS
        with ThreadPoolExecutor(thread_name_prefix="ingest") as pool, self._closing():
            while True:
                try:
                    claim = self._claim()
                    if claim.backfilled:
                        return RangeReceipt(
                            hash_range=self._hash_range, rows=self.rows, bytes=self.bytes
                        )
                    self._bring(claim, pool)
                except RezoneError:
                    if self._clock() - since > self._patience_seconds:
                        raise
                    # Its leader goes on by itself soon: longer pauses leave the range to it.
                    self._sleep(pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
                else:
                    since, pause = self._clock(), PAUSE_SECONDS

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            yield
        finally:
            for client in self._clients.values():
                client.close()

    # --- one unit --------------------------------------------------------------------------------

    def _bring(self, claim: BackfillClaim, pool: Executor) -> None:
        """Bring one unit to all replicas, and have it counted."""
        unit = _Unit(claim)
        taken: list[Future[Ack]] = []
        try:
            while not unit.over:
                came = self._read(claim, unit.reached)
                self._wait(taken)
                request = unit.request(self._hash_range, came)
                taken = [
                    pool.submit(self._call, node, request, Ack, CALL_SECONDS)
                    for node in claim.replicas
                ]
                self._rate.spend(len(came.versions), meanwhile=self._keep_claim)
                self._keep_claim()
        finally:
            self._wait(taken)
        self._commit(unit)
        self.rows += unit.rows
        self.bytes += unit.bytes

    @staticmethod
    def _wait(taken: Iterable[Future[Ack]]) -> None:
        """Wait for all, also where one has failed: none is to be under way afterwards."""
        errors = [error for each in taken if (error := each.exception()) is not None]
        if errors:
            raise errors[0]

    def _read_source(self, claim: BackfillClaim, after: bytes) -> BackfillVersions:
        request = ReshardBackfill(
            hash_range=claim.hash_range, after=after, bytes_max=CHUNK_BYTES, applied=claim.applied
        )
        return self._at_leader(self._hash_range.source, request, BackfillVersions)

    def _claim(self) -> BackfillClaim:
        hash_range = self._hash_range
        request = ClaimBackfill(target=hash_range.target, source=hash_range.source)
        claim = self._at_leader(hash_range.target, request, BackfillClaim)
        self._claimed_at = self._clock()
        self._bytes_per_second_max = claim.bytes_per_second_max
        return claim

    def _keep_claim(self) -> None:
        if self._clock() - self._claimed_at > CLAIM_SECONDS:
            self._claim()

    def _commit(self, unit: _Unit) -> None:
        request = CommitIngested(
            target=self._hash_range.target,
            source=self._hash_range.source,
            begun=unit.claim.begun,
            leader_epoch=unit.claim.leader_epoch,
            reached=unit.reached,
            end=unit.end,
            rows=unit.rows,
        )
        self._at_leader(self._hash_range.target, request, Ack)

    # --- calls -----------------------------------------------------------------------------------

    def _at_leader(self, partition: int, request: Message, reply: type[Reply]) -> Reply:
        """Call whoever leads a partition: the one that is known, the one it names, all others."""
        last: RezoneError | None = None
        known = self._leaders.get(partition)
        asked: set[NodeId] = set()
        turns = [*([known] if known is not None else []), *self._nodes]
        while turns:
            node = turns.pop(0)
            if node in asked or node not in self._nodes:
                continue
            asked.add(node)
            try:
                answer = self._call(node, request, reply, CALL_SECONDS)
            except NotLeaderError as error:
                last = last if isinstance(last, NotReadyError) else error
                turns.insert(0, int(error.details.get("leader", -1)))
            except RezoneError as error:
                # Of one that leads: it says why not now. Others know nothing of that.
                last = error if isinstance(error, NotReadyError) or last is None else last
                if node == known:
                    self._leaders.pop(partition, None)
            else:
                self._leaders[partition] = node
                return answer
        raise last if last is not None else NotReadyError(f"nobody leads partition {partition}")

    def _call(
        self, node: NodeId, request: Message, reply: type[Reply], timeout_seconds: float
    ) -> Reply:
        if node not in self._nodes:
            raise NotReadyError(f"the address of node {node} is not in the plan")
        if node not in self._clients:
            self._clients[node] = self._connect(self._nodes[node])
        return self._clients[node].call(request, reply, timeout_seconds=timeout_seconds)


def backfill_range(hash_range: BackfillRange, nodes: Mapping[NodeId, str]) -> RangeReceipt:
    """Bring the rows of a range, as a task does."""
    return RangeBackfill(hash_range, nodes).run()


def totals(receipts: Sequence[RangeReceipt]) -> tuple[int, int]:
    """Return rows and bytes of all receipts."""
    return sum(each.rows for each in receipts), sum(each.bytes for each in receipts)
