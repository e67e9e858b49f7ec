"""A data node's memory stays under limits that its settings name, and its metrics show both."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import Client, Coordinator, LocalNode, cluster, keys_in

from rezone.datanode.node.asked import Send
from rezone.datanode.node.data import ANSWER_BYTES, UNSENT_BYTES_MAX, DataChannel
from rezone.datanode.node.memory import MemoryCollector, SnapshotSlots
from rezone.datanode.node.node import DataNode
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.held import HeldBytes
from rezone.datanode.scheduling.requests import Request
from rezone.datanode.scheduling.unread import Unread as Reading
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.storage.budget import Tally
from rezone.storage.engines.rocks import RocksEngine
from rezone.storage.engines.rocks_settings import RocksResources, RocksSettings
from rezone.storage.snapshot.snapshot import SnapshotLimits
from rezone.storage.state.producers import PRODUCER_BYTES
from rezone.storage.store_config import StoreConfig
from rezone.storage.transactions.transactions import ENDED_BYTES
from rezone.wire.errors import NotReadyError, OverloadedError
from rezone.wire.messages import (
    ConnectionClosed,
    Message,
    SnapshotTicket,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient

MIB = 1 << 20
PARTITIONS = 4
SETTINGS = NodeSettings(
    answers_bytes_max=MIB,
    block_cache_bytes=MIB,
    write_buffers_bytes=4 * MIB,
    log_tails_bytes_max=MIB,
    snapshots_max=2,
    snapshot_wait_ms_max=50,
    # House-keeping by hand.
    trim_interval_ms=3_600_000,
)
STORE = StoreConfig(
    snapshot=SnapshotLimits(
        overwritten_bytes_max=MIB, early_bytes_max=MIB, queue_bytes_max=MIB, join_bytes_max=MIB
    )
)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Coordinator]:
    """Run one node with small limits and a few partitions."""
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=PARTITIONS)
    with cluster(tmp_path, 1, settings=SETTINGS, store_config=STORE, config=config) as c:
        for partition in range(PARTITIONS):
            c.create(partition, (0,))
        yield c


def node_of(c: Coordinator) -> DataNode:
    """Return the one node."""
    local = c.nodes[0]
    assert isinstance(local, LocalNode)
    assert local.node is not None
    return local.node


def used(c: Coordinator, part: str) -> int:
    """Return what the one node holds of a part of its memory."""
    node = node_of(c)
    return next(p.used for p in node.memory.parts(node) if p.name == part)


def fill(c: Coordinator, k: Client, partition: int, prefix: str) -> None:
    """Write a mebibyte to a partition and see it applied."""
    keys = keys_in(partition, PARTITIONS, 256, prefix)
    k.put(partition, {key: bytes(4096) for key in keys})
    store = node_of(c).find(partition).store
    c.until("applied", lambda: store.applied == store.log_end)


@pytest.mark.proves("SS-07")
def test_the_parts_stay_under_their_limits(one: Coordinator) -> None:
    """A node with many partitions would be killed for its memory in the middle of a rebalance."""
    node, k = node_of(one), Client(one)
    source = NodeClient(one.nodes[0].address)
    fill(one, k, 0, "first")
    tickets = [SnapshotTicket(partition=0, reader=f"r{i}", batch_bytes=65536) for i in range(2)]
    snapshots = [source.get(ticket) for ticket in tickets]
    for round_ in range(6):
        for partition in range(PARTITIONS):
            fill(one, k, partition, f"{round_}-")
            # What is asked for next waits, so that one slice may be on top.
            over = [p for p in node.memory.parts(node) if p.used > p.limit + MIB]
            assert over == []
    used = {part.name: part.used for part in node.memory.parts(node)}
    assert used["write_buffers"] > 0
    for metric in MemoryCollector(node).collect():
        assert {sample.labels["part"] for sample in metric.samples} == set(used)
    for snapshot in snapshots:
        snapshot.cancel()
    source.close()
    k.close()


def test_logs_share_the_memory_for_newest_entries(one: Coordinator) -> None:
    """Each of 256 logs would hold 4 MiB."""
    node, k = node_of(one), Client(one)
    share = SETTINGS.log_tails_bytes_max // PARTITIONS
    for number in range(8):
        for partition in range(PARTITIONS):
            keys = keys_in(partition, PARTITIONS, 64, f"{number}-")
            k.put(partition, {key: bytes(1024) for key in keys})
    tails = [partition.store.tail_bytes for partition in node.partitions()]
    assert all(0 < tail <= share for tail in tails)
    # Fewer logs have more each, at most what one may have.
    node.replicas.drop(node.find(3))
    node.replicas.drop(node.find(2))
    for number in range(16):
        keys = keys_in(0, PARTITIONS, 64, f"more {number}-")
        k.put(0, {key: bytes(1024) for key in keys})
    assert share < node.find(0).store.tail_bytes <= 2 * share
    k.close()


@contextlib.contextmanager
def limited(path: Path, **limits: int) -> Iterator[Coordinator]:
    """Run one node with two partitions and these limits."""
    settings = msgspec.structs.replace(SETTINGS, **limits)
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=2)
    with cluster(path, 1, settings=settings, config=config) as c:
        for partition in range(2):
            c.create(partition, (0,))
        yield c


def test_more_writers_than_a_node_may_remember_are_refused(tmp_path: Path) -> None:
    """Each partition would remember ten thousand, or forget one that will repeat its batch."""
    here, there = ({keys_in(p, 2, 1)[0]: b"v"} for p in range(2))
    with limited(tmp_path, producers_bytes_max=2 * 3 * PRODUCER_BYTES) as c:
        store = node_of(c).find(0).store
        writers = [Client(c) for _ in range(4)]
        for k in writers[:3]:
            k.put(0, here)
            c.until("applied", lambda: store.applied == store.log_end)
        with pytest.raises(OverloadedError, match="producers"):
            writers[3].put(0, here, retry=False)
        writers[0].put(0, here)
        writers[3].put(1, there)
        c.until("applied", lambda: used(c, "producers") == 4 * PRODUCER_BYTES)
        for k in writers:
            k.close()


def test_open_transactions_of_a_node_share_a_limit(tmp_path: Path) -> None:
    """Each of 256 partitions would hold 16 MiB of intents."""
    here, there = ({keys_in(p, 2, 1)[0]: b"x" * 12_000} for p in range(2))
    with limited(tmp_path, open_intents_bytes_node_max=20_000) as c:
        k = Client(c)
        first, second = k.begin(0), k.begin(1)
        first.put(here)
        assert used(c, "open_intents") > 12_000
        with pytest.raises(OverloadedError, match="of the node"):
            second.put(there, retry=False)
        first.commit()
        assert used(c, "open_intents") == 0
        second.sequence = 0
        second.put(there)
        node_of(c).replicas.drop(node_of(c).find(1))
        assert used(c, "open_intents") == 0, "a replica that is dropped keeps nothing open"
        k.close()


def test_ended_transactions_of_a_node_share_one_half_and_have_a_part_of_the_other(
    tmp_path: Path,
) -> None:
    """A node would hold five gigabytes of them; or one partition that rests would stop all."""
    with limited(tmp_path, ended_transactions_bytes_max=8 * ENDED_BYTES) as c:
        k = Client(c)
        rows = [{keys_in(p, 2, 1)[0]: b"v"} for p in range(2)]

        def commit(partition: int) -> None:
            transaction = k.begin(partition)
            transaction.put(rows[partition], retry=False)
            transaction.commit()

        for _ in range(4):
            commit(0)
        assert used(c, "ended_transactions") == 4 * ENDED_BYTES
        with pytest.raises(OverloadedError, match="others that are over"):
            commit(0)
        for _ in range(2):
            commit(1)
        with pytest.raises(OverloadedError, match="others that are over"):
            commit(1)
        node_of(c).replicas.drop(node_of(c).find(0))
        assert used(c, "ended_transactions") == 2 * ENDED_BYTES
        commit(1)
        k.close()


def test_waiting_reads_of_a_node_share_a_limit(tmp_path: Path) -> None:
    """Reads of large sets of keys would fill the memory while a partition has no leader."""
    with limited(tmp_path, reads_held_bytes_max=10_000, hold_ms_max=200) as c:
        node, later = node_of(c), time.time_ns() // 1000 + 3_600_000_000
        outcomes: list[object] = []
        node.find(0).reads.submit(later, outcomes.append, held_bytes=lambda: 6_000)
        with pytest.raises(OverloadedError, match="waiting reads"):
            node.find(1).reads.submit(later, outcomes.append, held_bytes=lambda: 6_000)
        assert used(c, "waiting_reads") == 6_000
        c.until("answered", lambda: outcomes)
        assert used(c, "waiting_reads") == 0


def test_engines_share_the_memory_for_rows_that_are_not_in_files(tmp_path: Path) -> None:
    """Unflushed rows would grow with the number of partitions, or quiet ones starve busy ones."""
    resources = RocksResources(block_cache_bytes=MIB, write_buffers_bytes=4 * MIB)
    settings = RocksSettings(resources=resources)
    quiet, *others = [RocksEngine(tmp_path / str(number), settings) for number in range(4)]

    def write(engine: RocksEngine, number: int) -> None:
        engine.make_room()
        key = number.to_bytes(24, "big")
        engine.apply([(key + i.to_bytes(8, "big"), bytes(4096)) for i in range(64)], (), {})

    for number in range(8):
        write(quiet, number)
    assert quiet.unflushed_bytes() >= 2 * MIB
    for number in range(64):
        write(others[number % 3], number)
        assert resources.unflushed_bytes <= 4 * MIB
    assert quiet.unflushed_bytes() < MIB
    for engine in (quiet, *others):
        engine.close()
    assert quiet.unflushed_bytes() == 0


def test_snapshots_wait_for_their_turn() -> None:
    """So many readers of snapshots as there are would take memory each."""
    stopping = threading.Event()
    slots = SnapshotSlots(2, 0.1, stopping)
    looks = iter([2, 1])
    assert slots.open(lambda: next(looks), lambda: "a snapshot") == "a snapshot"
    with pytest.raises(OverloadedError, match="2 snapshots"):
        slots.open(lambda: 2, lambda: "never")
    stopping.set()
    with pytest.raises(NotReadyError):
        slots.open(lambda: 2, lambda: "never")


@pytest.mark.parametrize("form", ["rows", "files"])
def test_a_node_counts_the_snapshots_that_are_read(one: Coordinator, form: str) -> None:
    """The limit on snapshots would hold for one form of them only."""
    node, k = node_of(one), Client(one)
    fill(one, k, 0, "a")
    store = node.find(0).store
    opens = (
        store.outgoing.open_files
        if form == "files"
        else functools.partial(store.outgoing.open_rows, "r")
    )
    sources = [opens() for _ in range(2)]
    # Of rows both read one scan.
    assert store.outgoing.readers == (2 if form == "files" else 1)
    ticket = SnapshotTicket(partition=0, reader="late")
    if form == "files":
        with pytest.raises(OverloadedError, match="2 snapshots"):
            NodeClient(one.nodes[0].address).get(ticket).read_all()
    for source in sources:
        source.close()
    assert store.outgoing.readers == 0
    assert NodeClient(one.nodes[0].address).get(ticket).read_all().num_rows == 256
    k.close()


class Unread:
    """A channel whose client asks a hundred times and takes no answer until `taken`."""

    waited_seconds = 0.0

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.taken = threading.Event()

    def receive(self) -> tuple[Message, memoryview] | None:
        """Return the next request."""
        self.received += 1
        return (
            (ConnectionClosed(reason="a request"), memoryview(b""))
            if self.received <= 100
            else None
        )

    def send(self, *answer: Any) -> None:
        """Wait as for a window that is full."""
        del answer
        self.taken.wait(30)
        self.sent += 1


class Echo(DataChannel):
    """Answers every request with so many bytes."""

    body = b""

    def _handle(self, message: Message, body: memoryview, send: Send | None = None) -> None:
        del body, send
        taken = Request(None, self._requests.begin())
        self._answer(message, taken, self.body)


class NoticingTally(Tally):
    """Tells when somebody waits."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.waited = threading.Event()

    def wait_for_room(self) -> None:
        """Wait."""
        self.waited.set()
        super().wait_for_room()


class NoticingCondition(threading.Condition):
    """Tells when somebody waits until something holds."""

    def __init__(self, lock: Any) -> None:
        super().__init__(lock)
        self.waited = threading.Event()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait."""
        self.waited.set()
        return super().wait_for(predicate, timeout)


class Silent(Echo):
    """Answers nothing."""

    def _handle(self, message: Message, body: memoryview, send: Send | None = None) -> None:
        del message, body, send
        self._requests.begin()


def echo(
    unread: Unread, tally: Tally, foreground: Foreground, body: bytes, kind: type[Echo] = Echo
) -> Echo:
    """Return a channel whose client takes no answers, each of which has this body."""

    def never(*_: Any) -> Any:
        raise AssertionError

    channel = kind(
        unread,  # type: ignore[arg-type]
        never,
        never,
        foreground,
        tally,
        check=lambda _: None,
        peer=Reading(SystemClock(), 10_000, threading.Event()).peer("", unread.taken.set),
        held=HeldBytes(NodeSettings()).connection(""),
    )
    channel.body = body
    return channel


def test_what_nobody_answers_ends_with_its_connection() -> None:
    """Asserts that a request without an answer is under way no longer than its connection.

    Copies would be throttled for ever, for clients that are gone.
    """
    foreground = Foreground(SystemClock(), lambda: 0)
    echo(Unread(), Tally(1 << 40), foreground, b"", Silent).run()
    assert foreground.under_way == 0


def test_one_connection_s_answers_have_a_limit_of_their_own() -> None:
    """A client that asks and does not listen would use up what all connections have together."""
    unread, tally = Unread(), Tally(1 << 40)
    channel = echo(unread, tally, Foreground(SystemClock(), lambda: 0), bytes(500_000))
    channel._few_unsent = waits = NoticingCondition(channel._counting)
    serving = threading.Thread(target=channel.run, daemon=True)
    serving.start()
    assert waits.waited.wait(30)
    # The one that reaches the limit is the last, and one is on its way to the client perhaps.
    assert unread.received <= UNSENT_BYTES_MAX // (500_000 + ANSWER_BYTES) + 2
    unread.taken.set()
    serving.join(30)
    assert not serving.is_alive()
    assert unread.sent == 100


@pytest.mark.parametrize("body", [bytes(33_000), bytes(40_000)])
def test_who_takes_no_answers_is_not_read_further(body: bytes) -> None:
    """A client that asks and does not listen would fill the node's memory with answers."""
    unread, tally = Unread(), NoticingTally(400_000)
    foreground = Foreground(SystemClock(), lambda: 0)
    channel = echo(unread, tally, foreground, body)
    serving = threading.Thread(target=channel.run, daemon=True)
    serving.start()
    assert tally.waited.wait(30)
    # Twelve fill the tally, and one is on its way to the client, which counts no more.
    assert unread.received <= 13
    assert tally.used < tally.limit + ANSWER_BYTES + len(body)
    unread.taken.set()
    serving.join(30)
    assert not serving.is_alive()
    assert unread.sent == 100
    assert tally.used == 0
    # An answer that comes when the client has gone counts no more.
    late = Request(None, channel._requests.begin())
    channel._answer(ConnectionClosed(reason="late"), late, bytes(1000))
    assert tally.used == 0
    assert foreground.under_way == 0
