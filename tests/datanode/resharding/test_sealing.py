"""A partition ends by the seal in its log: what its leader says before and after, and who knows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from replica_cluster import FAST, Client, Coordinator, cluster
from resharding_kit import (
    HeldDisk,
    ask_to_seal,
    begin_to_seal,
    in_background,
    scan,
    seal,
    wait_sealed,
)

from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.write import NewEntry
from rezone.storage.log.entry import NO_BATCH, EntryKind, note_rows
from rezone.wire.errors import (
    ConflictError,
    NotEnoughReplicasError,
    NotReadyError,
    ReshardedError,
    StaleEpochError,
    TransactionEndedError,
)
from rezone.wire.messages import (
    RoutesRequest,
    RouteTable,
    Seal,
    SealState,
    TransactionOutcome,
    WriteResult,
    ZoneConfig,
)

P = 0
KEY = b"k"
ZONE = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1, next_partitions=2)


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Make the one partition of a zone that is to have two, on three nodes."""
    with cluster(tmp_path, config=ZONE) as made:
        made.create(P, (0, 1, 2))
        made.until("they follow", lambda: {1, 2} <= {*made.replica(0).leading.streams})
        yield made


@pytest.mark.proves("B-08")
def test_a_sealed_partition_sends_everybody_on_but_tells_its_past(c: Coordinator) -> None:
    """It would serve beside the new partitions, or a retried write be applied there again."""
    client = Client(c)
    written = client.put(P, {KEY: b"v"})
    sealed = seal(c, P)
    assert sealed > written.commit_time
    end = c.replica(0).store.log_end
    with pytest.raises(ReshardedError) as refused:
        client.put(P, {KEY: b"w"}, retry=False)
    told = refused.value.details
    assert (told["partition"], told["generation"]) == (P, 0)
    assert (told["partitions"], told["next_partitions"]) == (1, 2)
    for read in (
        lambda: client.get(P, [KEY], retry=False),
        lambda: client.get(P, [KEY], as_of=sealed + 1, retry=False),
        lambda: scan(c, 0, P),
        lambda: client.begin(P, retry=False),
    ):
        with pytest.raises(ReshardedError):
            read()
    again = client.send(P, 1, {KEY: b"v"})
    assert (again.end_offset, again.commit_time) == (written.end_offset, written.commit_time)
    c.until_each(
        "it has heard of the seal",
        (0, 1, 2),
        lambda n: c.replica(n).positions.readable_time >= sealed,
    )
    for node in (0, 1, 2):
        assert client.get(P, [KEY], as_of=sealed, node=node) == {KEY: b"v"}
        assert scan(c, node, P, as_of=sealed) == [KEY]
        routes = c.call(node, RoutesRequest(), RouteTable)
        assert [(a.partition, a.state.sealed) for a in routes.partitions] == [(P, True)]
    ask_to_seal(c, P)
    assert c.replica(0).store.log_end == end, "a repeat has appended something"
    leader = c.replica(0)

    def is_told() -> bool:
        leader.ask_leases()
        return leader.require_leadership().announced_time > sealed

    c.until("those that may lead were told a later time", is_told)
    assert c.replica(0).closed_timestamp.close() is None, "later times are of other partitions"
    assert not any(c.replica(node).is_needed for node in (0, 1, 2))


def test_only_the_leader_of_the_record_that_says_so_seals(c: Coordinator) -> None:
    """A late call would end a partition whose re-sharding was cancelled."""
    with pytest.raises(ConflictError, match="not authorised"):
        ask_to_seal(c, P)
    c.change(P, sealing=True)
    late = Seal(fence=c.fence(), partition=P, leader_epoch=c.records[P].leader_epoch)
    c.change(P, sealing=False, leader_epoch=2)  # as a seal is revoked
    with pytest.raises(StaleEpochError):
        c.call(0, late)
    disk = HeldDisk(c.replica(1))
    write, _ = in_background(lambda: Client(c).put(P, {KEY: b"v"}))
    c.until("it is appended", lambda: c.replica(0).store.log_end == 1)
    c.authorise(P, 1)
    c.takeover(P)
    c.change(P, sealing=True)
    with pytest.raises(ConflictError, match="takeover"):
        ask_to_seal(c, P)
    disk.let_go()
    write.join(20)
    c.until("node 1 leads", lambda: c.replica(1).leads)
    assert c.replica(1).store.seal is None


def test_a_seal_that_would_have_to_wait_for_somebody_is_not_begun(tmp_path: Path) -> None:
    """Writes of the range would wait with it, for as long as a node is away."""
    zone = msgspec.structs.replace(ZONE, min_in_sync_replicas=2)
    settings = msgspec.structs.replace(FAST, replica_lag_ms_max=60_000, replica_gone_ms_max=60_000)
    with cluster(tmp_path, config=zone, settings=settings) as c:
        c.create(P, (0, 1, 2))
        client = Client(c)
        client.put(P, {KEY: b"v"})
        c.change(P, sealing=True)
        c.nodes[2].stop()
        c.until("its stream ends", lambda: 2 not in c.replica(0).leading.streams)
        with pytest.raises(NotReadyError, match="no stream"):
            ask_to_seal(c, P)
        c.change(P, isr=(0,))
        with pytest.raises(NotEnoughReplicasError):
            ask_to_seal(c, P)
        c.change(P, isr=(0, 1))
        client.put(P, {KEY: b"w"})
        ask_to_seal(c, P)
        wait_sealed(c, P)


@pytest.mark.proves("B-08")
def test_until_the_seal_is_committed_nobody_is_sent_on(c: Coordinator) -> None:
    """A failover could undo a seal by which others serve already."""
    Client(c).put(P, {KEY: b"v"})
    disk = HeldDisk(c.replica(1))
    begin_to_seal(c, P)
    assert c.replica(0).store.seal is not None
    assert c.report(0, P).seal is SealState.UNKNOWN
    write, written = in_background(lambda: Client(c).put(P, {KEY: b"w"}, retry=False))
    read, seen = in_background(lambda: Client(c).get(P, [KEY], retry=False))
    c.until("the read waits", lambda: c.replica(0).reads.waits)
    c.until("the write is held", lambda: c.replica(0).intake.budget.used > 1024)
    assert (written, seen) == ([], [])
    routes = c.call(0, RoutesRequest(), RouteTable)
    assert not routes.partitions[0].state.sealed
    disk.let_go()
    for thread in (write, read):
        thread.join(20)
    assert isinstance(written[0], ReshardedError)
    assert isinstance(seen[0], ReshardedError)
    assert c.report(0, P).seal is SealState.SEALED


@pytest.mark.proves("B-08")
def test_what_was_on_its_way_is_acknowledged_before_the_seal(c: Coordinator) -> None:
    """A write that was appended would be answered as refused, and applied all the same."""
    disk = HeldDisk(c.replica(1))
    client = Client(c)
    write, written = in_background(lambda: client.put(P, {KEY: b"v"}, retry=False))
    c.until("it is appended", lambda: c.replica(0).store.log_end == 1)
    begin_to_seal(c, P)
    disk.let_go()
    write.join(20)
    assert isinstance(written[0], WriteResult)
    sealed = wait_sealed(c, P)
    assert client.get(P, [KEY], as_of=sealed) == {KEY: b"v"}


def test_open_transactions_are_aborted_and_their_ends_told(c: Coordinator) -> None:
    """A transaction would be committed here, or its rows be locked at nobody knows which side."""
    client = Client(c)
    open_one, done = client.begin(P), client.begin(P)
    open_one.put({b"a": b"1"})
    done.put({b"b": b"2"})
    assert done.commit().outcome is TransactionOutcome.COMMITTED
    sealed = seal(c, P)
    assert open_one.commit(retry=False).outcome is TransactionOutcome.ABORTED
    assert done.commit(retry=False).outcome is TransactionOutcome.COMMITTED
    with pytest.raises(TransactionEndedError):
        open_one.put({b"a": b"2"}, retry=False)
    assert client.get(P, [b"a", b"b"], as_of=sealed) == {b"b": b"2"}


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("planned", [True, False])
def test_the_next_leader_of_a_sealed_partition_is_sealed(c: Coordinator, *, planned: bool) -> None:
    """It would take writes into a range that others serve."""
    Client(c).put(P, {KEY: b"v"})
    seal(c, P)
    if planned:
        c.change(P, sealing=False, sealed=True)
        c.move(P, 1)
    else:
        c.nodes[0].stop()
        c.change(P, leader=1, isr=(1, 2), leader_epoch=2)
    wait_sealed(c, P)
    assert c.records[P].leader == 1
    with pytest.raises(ReshardedError):
        Client(c).put(P, {KEY: b"w"}, retry=False)
    # Authorized again it has nothing to do.
    c.change(P, sealing=True)
    ask_to_seal(c, P)


@pytest.mark.proves("B-08")
def test_a_seal_that_died_with_its_leader_is_none(tmp_path: Path) -> None:
    """The range would be served by nobody, or a cancel be taken for one that came too late."""
    settings = msgspec.structs.replace(FAST, replica_lag_ms_max=60_000, replica_gone_ms_max=60_000)
    with cluster(tmp_path, config=ZONE, settings=settings) as c:
        c.create(P, (0, 1, 2))
        c.until("they follow", lambda: {1, 2} <= {*c.replica(0).leading.streams})
        Client(c).put(P, {KEY: b"v"})
        # Node 2 has the seal in its log, node 1 has not: it was cut off before.
        c.node(1).links.unlink(P)
        c.until("node 1 is cut off", lambda: 1 not in c.replica(0).leading.streams)
        append_seal(c.replica(0))
        c.until("node 2 has it", lambda: c.replica(2).store.seal is not None)
        c.nodes[0].stop()
        c.nodes[2].stop()
        c.change(P, leader=1, isr=(1, 2), leader_epoch=2)
        c.until("node 1 leads", lambda: c.replica(1).leads)
        assert c.report(1, P).seal is SealState.UNKNOWN, "node 2 may have a seal, and lead later"
        c.nodes[2].start()
        c.wait_up(2)
        c.send(P, c.records[P])
        c.until("node 2 follows", lambda: c.report(1, P).seal is SealState.NONE)
        assert c.replica(2).store.seal is None
        c.settle()


def append_seal(partition: Replica) -> None:
    """Seal as a leader does whose follower has lost its stream in the same moment."""
    with partition.lock:
        entry = NewEntry(note_rows(), 0, NO_BATCH, EntryKind.SEAL)
        partition.intake.append_entry(entry, 0, lambda _: None)
    partition.wake()
