"""What the tests of re-sharding at data nodes share: zones that pull, writers, seals."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from replica_cluster import FAST, Client, Coordinator, keys_in

from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.reshard_streams import ReshardStream
from rezone.storage.log.entry import iter_entries
from rezone.storage.reshard.range_changes import range_entries
from rezone.storage.reshard.reshard_entries import Stand, reshard_entry
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.layouts import (
    HashRange,
    Layout,
    Overlap,
    layout_of,
    next_layout_of,
    overlaps,
    sources_of,
)
from rezone.wire.messages import (
    BeginReshard,
    DigestReply,
    DigestRequest,
    ReshardProgress,
    ScanTicket,
    Seal,
    SealState,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient, from_flight_error

WAIT_SECONDS = 20
PAUSE_SECONDS = 0.005
"""Between two rounds of writes, so that nodes that start have a processor."""
SMALL = msgspec.structs.replace(
    FAST, reshard_chunk_bytes=2_000, reshard_poll_ms=100, reshard_linger_ms=2, reshard_mark_rows=200
)


def ask_to_seal(c: Coordinator, partition: int) -> None:
    """Ask the leader of the record, once."""
    record = c.records[partition]
    epoch = record.leader_epoch
    c.call(record.leader, Seal(fence=c.fence(), partition=partition, leader_epoch=epoch))


def begin_to_seal(c: Coordinator, partition: int) -> None:
    """Seal a partition as the operator does: authorized, and asked until it has begun."""
    c.change(partition, sealing=True)

    def begun() -> bool:
        try:
            ask_to_seal(c, partition)
        except NotReadyError:
            return False
        return True

    c.until("it begins to seal", begun)


def wait_sealed(c: Coordinator, partition: int) -> int:
    """Wait until the leader says that it has sealed; return the seal's time."""
    leader = c.records[partition].leader
    c.until("it is sealed", lambda: c.report(leader, partition).seal is SealState.SEALED)
    mark = c.replica(leader, partition).store.seal
    assert mark is not None
    return mark.commit_time


def seal(c: Coordinator, partition: int) -> int:
    """Seal a partition to the end; return the seal's time."""
    begin_to_seal(c, partition)
    return wait_sealed(c, partition)


def take_over(c: Coordinator, target: int, *, only: int | None = None) -> None:
    """Have a target's leader append all that its sources, or one of them, have committed."""
    new = next_layout_of(c.config)
    assert new is not None
    leader = c.replica(c.records[target].leader, target)
    for hash_range in sources_of(target, layout_of(c.config), new):
        if only not in {None, hash_range.old}:
            continue
        source = c.replica(c.records[hash_range.old].leader, hash_range.old)
        _append(leader, source, hash_range.old, HashRange(hash_range.start, hash_range.end))
    leader.wake()


def _append(target: Replica, source: Replica, number: int, hashes: HashRange) -> None:
    with target.lock:
        position = target.store.reshard_position(number)
        data = source.store.read(position.offset if position is not None else 0, 1 << 20)
        committed = (
            entry
            for entry in iter_entries(data)
            if entry.header.end_offset <= source.positions.committed
        )
        for entry in range_entries(committed, hashes, source.store.meta.failover_log):
            time = max(target.clock.micros(), target.store.last_commit_time + 1)
            stand = Stand(target.leader_epoch, target.store.log_end, time)
            raw = reshard_entry(number, entry, target.store.reshard_position(number), stand)
            if raw is not None:
                target.append(raw)


@contextlib.contextmanager
def applying_nothing(partition: Replica) -> Iterator[None]:
    """Let what a replica has committed wait to be applied; meanwhile nobody may write there."""
    store = partition.store

    def put_off(offset: int) -> int:
        del offset
        return store.applied

    store.apply_to = put_off  # type: ignore[method-assign]
    try:
        yield
    finally:
        del store.apply_to
        partition.wake()


class HeldDisk:
    """A replica's disk, on which nothing more is synced until `let_go`; so nothing is acknowledged.

    A sync that is under way is not held up: wait for `holds` where that matters.
    """

    def __init__(self, partition: Replica) -> None:
        self._go, self._came = threading.Event(), threading.Event()
        self._sync = partition.store.sync
        partition.store.sync = self._wait  # type: ignore[method-assign]

    @property
    def holds(self) -> bool:
        """Whether a sync waits: the partition's job, which is the only one, goes no further."""
        return self._came.is_set()

    def let_go(self) -> None:
        """Sync what waits, and whatever comes."""
        self._go.set()

    def _wait(self) -> int:
        self._came.set()
        assert self._go.wait(WAIT_SECONDS)
        return self._sync()


def in_background(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Call something in a thread of its own; its result or RezoneError is put into the list."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(act())
        except RezoneError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def scan(c: Coordinator, node: int, partition: int, **options: Any) -> list[bytes]:
    """Return the keys of a scan; `options` are the ticket's."""
    ticket = ScanTicket(partition=partition, **options)
    with contextlib.closing(NodeClient(c.nodes[node].address)) as client:
        stream = client.get(ticket)
        try:
            chunks = [chunk.data for chunk in stream]
        except Exception as error:
            raise from_flight_error(error) from error
    return [key for batch in chunks for key in batch[0].to_pylist()]


def zone(partitions: int, **changes: object) -> ZoneConfig:
    """Return a zone of so many partitions."""
    return ZoneConfig(zone="test", zone_uid="uid-test", partitions=partitions, **changes)  # type: ignore[arg-type]


def create_old(c: Coordinator) -> None:
    """Make the partitions of the layout that there is, led by one node after the other."""
    for index, partition in enumerate(layout_of(c.config).ids):
        c.create(partition, placed(c, index))


def reshard(c: Coordinator, partitions: int) -> Layout:
    """Tell the nodes of the next layout, and make its partitions."""
    c.config = msgspec.structs.replace(c.config, next_partitions=partitions)
    c.configure()
    new = next_layout_of(c.config)
    assert new is not None
    for index, partition in enumerate(new.ids):
        c.create(partition, placed(c, index + 1))
    return new


def cut_over(c: Coordinator) -> None:
    """Seal what is left of the old layout and go over to the next one."""
    for partition in layout_of(c.config).ids:
        if not c.records[partition].sealing:
            seal(c, partition)
    new = next_layout_of(c.config)
    assert new is not None
    c.config = msgspec.structs.replace(
        c.config, generation=new.generation, partitions=new.partitions, next_partitions=0
    )
    c.configure()


def placed(c: Coordinator, index: int) -> tuple[int, ...]:
    """Return all nodes, the leader first."""
    nodes = sorted(c.nodes)
    turn = index % len(nodes)
    return tuple(nodes[turn:] + nodes[:turn])


def overlaps_of(c: Coordinator) -> tuple[Overlap, ...]:
    """Return all pairs of an old and a new partition."""
    new = next_layout_of(c.config)
    assert new is not None
    return overlaps(layout_of(c.config), new)


def progress(c: Coordinator, overlap: Overlap) -> ReshardProgress:
    """Return how far a range is pulled, by the report of whoever leads; NotReadyError else."""
    for node in c.nodes:
        try:
            found = c.report(node, overlap.new)
        except NotReadyError:
            continue
        for each in found.reshard_progress:
            if each.source == overlap.old:
                return each
    raise NotReadyError(f"nobody pulls {overlap}")


def set_copy_rate(c: Coordinator, bytes_per_second: int) -> None:
    """Set how fast rows may be brought; 0 for any rate."""
    c.config = msgspec.structs.replace(c.config, copy_bytes_per_second_max=bytes_per_second)
    c.configure()


def leave_backfills_to_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have data nodes of this process begin ranges, and backfill nothing by themselves.

    On a busy machine they would have all rows before a job begins.
    """
    own = ReshardStream.next_backfill
    monkeypatch.setattr(
        ReshardStream,
        "next_backfill",
        lambda stream, size: own(stream, size) if stream.position is None else None,
    )


def resharded(c: Coordinator, overlap: Overlap, since: int = 0) -> bool:
    """Whether a range is backfilled, and has all that was committed up to a time."""
    found = progress(c, overlap)
    return found.backfilled and found.lag_rows == 0 and found.time >= since


def require_equal(c: Coordinator, last_times: dict[int, int]) -> int:
    """Compare each range at both sides as of one time that both have reached; return the rows."""
    rows = 0
    for overlap in overlaps_of(c):
        wanted = functools.partial(resharded, c, overlap, last_times.get(overlap.old, 0))
        c.until(f"{overlap} is pulled", wanted)
        as_of = progress(c, overlap).time
        here, there = (
            c.until(
                f"{overlap} can be digested", functools.partial(digest, c, side, overlap, as_of)
            )
            for side in (overlap.new, overlap.old)
        )
        assert (here.digests, here.rows) == (there.digests, there.rows)
        rows += sum(here.rows)
    return rows


def digest(c: Coordinator, partition: int, overlap: Overlap, as_of: int) -> DigestReply:
    """Digest a range at one of its sides."""
    request = DigestRequest(
        partition=partition, as_of=as_of, ranges=4, hashes=(overlap.start, overlap.end - 1)
    )
    reply: DigestReply = c.call(c.records[partition].leader, request, DigestReply)
    return reply


class Writing:
    """A client of each partition that writes, overwrites and deletes until it is stopped."""

    def __init__(self, c: Coordinator, seed: int) -> None:
        self._c = c
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self.rows: dict[int, dict[bytes, bytes]] = {}
        self.last_times: dict[int, int] = {}
        self.written = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            self._write_on()
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failure = error

    def _write_on(self) -> None:
        old = layout_of(self._c.config)
        clients = {p: Client(self._c) for p in old.ids}
        keys = {p: keys_in(p, old.partitions, 300) for p in old.ids}
        while not self._stop.wait(PAUSE_SECONDS):
            for partition, client in clients.items():
                some = self._rng.sample(keys[partition], 8)
                rows = self.rows.setdefault(partition, {})
                client.sequence += 1
                if self._rng.random() < 0.2:
                    result = client.send(
                        partition, client.sequence, dict.fromkeys(some, b""), delete=True
                    )
                    for key in some:
                        rows.pop(key, None)
                else:
                    new = {key: b"%d" % self._rng.randrange(1 << 60) for key in some}
                    result = client.send(partition, client.sequence, new)
                    rows.update(new)
                self.last_times[partition] = result.commit_time
                self.written += 1

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and raise what has gone wrong."""
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    @property
    def count(self) -> int:
        """How many rows there are."""
        return sum(map(len, self.rows.values()))


@contextlib.contextmanager
def writing(c: Coordinator, seed: int = 1) -> Iterator[Writing]:
    """Write meanwhile."""
    writer = Writing(c, seed)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def backfill_old(c: Coordinator, rows: int = 400) -> None:
    """Have rows in each old partition before anything is pulled."""
    client, old = Client(c), layout_of(c.config)
    for partition in old.ids:
        keys = keys_in(partition, old.partitions, rows, prefix="early")
        for at in range(0, rows, 50):
            client.put(partition, dict.fromkeys(keys[at : at + 50], b"early" * 5))


def stream_to_backfill(c: Coordinator, leader: Replica) -> ReshardStream:
    """Return the one range that a new partition pulls, once it may be backfilled."""
    c.until(
        "it may begin", lambda: leader.reshard_streams.streams()[0].next_backfill(100) is not None
    )
    (stream,) = leader.reshard_streams.streams()
    return stream


def begin_by_hand(c: Coordinator, leader: Replica) -> ReshardStream:
    """Begin the one range that a new partition pulls."""
    stream = stream_to_backfill(c, leader)
    begin = stream.next_backfill(1_000)
    assert isinstance(begin, BeginReshard)
    stream.begun(c.node(0).reshard_source.begin(begin))
    return stream


def backfill_by_hand(c: Coordinator, stream: ReshardStream, node: int = 0) -> None:
    """Begin a range, and backfill it from a node."""
    source = c.node(node).reshard_source
    while not stream.backfilled:
        request = c.until("it may be asked", functools.partial(stream.next_backfill, 1_000))
        if isinstance(request, BeginReshard):
            stream.begun(source.begin(request))
        else:
            stream.backfilled_with(request, source.backfill(request))
