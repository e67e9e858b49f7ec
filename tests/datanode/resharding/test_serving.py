"""A new partition serves what it has taken over: part by part, and nothing too early."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from replica_cluster import FAST, Client, Coordinator, Transaction, cluster, keys_in, original_id
from resharding_kit import (
    HeldDisk,
    applying_nothing,
    in_background,
    scan,
    seal,
    take_over,
)

from rezone.wire.codec.keyspace import hash_key
from rezone.wire.errors import (
    ConflictError,
    NotReadyError,
    ReshardedError,
    TransactionConflictError,
)
from rezone.wire.layouts import Layout
from rezone.wire.messages import (
    OwnWrites,
    RoutesRequest,
    RouteTable,
    TransactionOutcome,
    WriteResult,
    ZoneConfig,
)

# Nodes do not pull by themselves: the tests decide what has come by when.
HURRIED = msgspec.structs.replace(FAST, hold_ms_max=100, reshard_threads=0)
PATIENT = msgspec.structs.replace(FAST, hold_ms_max=20_000, reshard_threads=0)
ONE, TWO = Layout(0, 1), Layout(0, 2)
A, B = TWO.ids
HEIR = Layout(1, 1).ids[0]
LOW, HIGH = Layout(1, 2).ids
IN_A, IN_B = keys_in(0, 2, 3), keys_in(1, 2, 3)
ROWS = dict.fromkeys(IN_A + IN_B, b"old")


def zone(old: int, new: int) -> ZoneConfig:
    """Return a zone in the middle of a re-sharding."""
    return ZoneConfig(zone="test", zone_uid="uid-test", partitions=old, next_partitions=new)


def make(c: Coordinator, old: Layout, new: Layout) -> None:
    """Make all partitions: the old ones are led by node 0, the new ones by node 1."""
    for partition in old.ids:
        c.create(partition, (0, 1, 2))
    for partition in new.ids:
        c.create(partition, (1, 2))
    c.until_each("it follows", new.ids, lambda p: 2 in c.replica(1, p).leading.streams)


def split(c: Coordinator) -> None:
    """Make a partition that becomes two."""
    make(c, ONE, Layout(1, 2))


@pytest.fixture
def merging(tmp_path: Path) -> Iterator[Coordinator]:
    """Make two partitions that become one, with rows in both."""
    with cluster(tmp_path, config=zone(2, 1), settings=HURRIED) as made:
        make(made, TWO, Layout(1, 1))
        client = Client(made)
        client.put(A, dict.fromkeys(IN_A, b"old"))
        client.put(B, dict.fromkeys(IN_B, b"old"))
        yield made


@pytest.mark.proves("B-08")
def test_nothing_is_served_before_the_source_s_seal_is_here(tmp_path: Path) -> None:
    """It would serve beside its source, or without the last of that one's rows."""
    with cluster(tmp_path, config=zone(1, 2), settings=HURRIED) as c:
        split(c)
        client = Client(c)
        written = client.put(0, ROWS).commit_time
        take_over(c, LOW)
        c.until("all is there", lambda: c.replica(1, LOW).positions.rows_time >= written)
        for ask in (
            lambda: client.get(LOW, IN_A, retry=False),
            lambda: client.get(LOW, IN_A, as_of=written, retry=False),
            lambda: client.put(LOW, {IN_A[0]: b"new"}, retry=False),
            lambda: scan(c, 1, LOW),
            lambda: scan(c, 2, LOW, as_of=written),
        ):
            with pytest.raises(NotReadyError):
                ask()
        sealed = seal(c, 0)
        take_over(c, LOW)
        c.until("it serves", lambda: client.get(LOW, IN_A) == dict.fromkeys(IN_A, b"old"))
        changed = client.put(LOW, {IN_A[0]: b"new"})
        assert changed.commit_time > sealed
        assert client.get(LOW, IN_A[:1]) == {IN_A[0]: b"new"}
        assert sorted(scan(c, 1, LOW)) == sorted(IN_A)
        c.until_each(
            "all is applied",
            (1, 2),
            lambda n: c.replica(n, LOW).positions.readable_time >= changed.commit_time,
        )
        for time in (written, sealed):
            for node in (1, 2):
                there = client.get(LOW, IN_A, as_of=time, node=node)
                assert there == client.get(0, IN_A, as_of=time) == dict.fromkeys(IN_A, b"old")
        with pytest.raises(NotReadyError):
            client.get(HIGH, IN_B, retry=False)


@pytest.mark.proves("B-08")
def test_who_comes_a_moment_too_early_waits_and_is_answered(tmp_path: Path) -> None:
    """Each cut-over would cost a client's pause, or be served by an uncommitted import."""
    with cluster(tmp_path, config=zone(1, 2), settings=PATIENT) as c:
        split(c)
        client = Client(c)
        client.put(0, ROWS)
        seal(c, 0)
        disk = HeldDisk(c.replica(2, LOW))
        take_over(c, LOW)
        target = c.replica(1, LOW)
        c.until("the seal is pulled", lambda: resharded(c, LOW, 0))
        write, written = in_background(lambda: Client(c).put(LOW, {IN_A[0]: b"new"}, retry=False))
        c.until("it is held", lambda: target.intake.budget.used > 0)
        read, seen = in_background(lambda: Client(c).get(LOW, IN_A[1:], retry=False))
        c.until("it waits", lambda: target.reads.waits)
        assert (written, seen) == ([], [])
        disk.let_go()
        for thread in (write, read):
            thread.join(20)
        assert seen == [dict.fromkeys(IN_A[1:], b"old")]
        assert isinstance(written[0], WriteResult)
        assert client.get(LOW, IN_A[:1]) == {IN_A[0]: b"new"}


def resharded(c: Coordinator, target: int, source: int) -> bool:
    """Whether the leader of a target has a source's seal in its log."""
    position = c.replica(c.records[target].leader, target).store.reshard_position(source)
    return position is not None and position.sealed_at > 0


@pytest.mark.proves("B-08")
def test_of_several_sources_each_range_is_served_by_itself(merging: Coordinator) -> None:
    """Rows of a source that goes on would be served by both, or those that are here by nobody."""
    c, client = merging, Client(merging)
    as_of = seal(c, A)
    take_over(c, HEIR)
    c.until("it serves", lambda: client.get(HEIR, IN_A) == dict.fromkeys(IN_A, b"old"))
    client.put(HEIR, {IN_A[0]: b"new"})
    end = c.replica(1, HEIR).store.log_end
    half = 1 << 63
    for ask in (
        lambda: client.get(HEIR, IN_B[:1], retry=False),
        lambda: client.put(HEIR, {IN_A[1]: b"new", IN_B[1]: b"new"}, retry=False),
        lambda: client.get(HEIR, [IN_A[0], IN_B[0]], as_of=as_of, retry=False),
        lambda: scan(c, 1, HEIR),
        lambda: scan(c, 1, HEIR, hash_start=half - 1),
    ):
        with pytest.raises(NotReadyError):
            ask()
    assert c.replica(1, HEIR).store.log_end == end, "a part of a batch was applied"
    assert sorted(scan(c, 1, HEIR, hash_end_inclusive=half - 1)) == sorted(IN_A)
    client.put(B, {IN_B[0]: b"new"})
    seal(c, B)
    take_over(c, HEIR)
    c.until("it serves", lambda: client.get(HEIR, IN_B[:1]) == {IN_B[0]: b"new"})
    assert sorted(scan(c, 1, HEIR)) == sorted(ROWS)


@pytest.mark.proves("B-08")
def test_the_next_leader_of_a_target_serves_what_it_finds_in_its_log(merging: Coordinator) -> None:
    """A failover after the cut-over would leave the range to nobody, or take over too much."""
    c, client = merging, Client(merging)
    seal(c, A)
    take_over(c, HEIR)
    client.put(HEIR, {IN_A[0]: b"new"})
    c.nodes[1].stop()
    c.change(HEIR, leader=2, isr=(2,), leader_epoch=2)
    after = Client(c)
    assert after.get(HEIR, IN_A[:2]) == {IN_A[0]: b"new", IN_A[1]: b"old"}
    after.put(HEIR, {IN_A[1]: b"new"})
    with pytest.raises(NotReadyError):
        after.put(HEIR, {IN_B[1]: b"new"}, retry=False)


@pytest.mark.proves("B-08")
def test_a_retried_write_is_answered_by_who_has_taken_it_over(tmp_path: Path) -> None:
    """A write whose answer was lost at the cut-over would undo what was written since."""
    with cluster(tmp_path, config=zone(1, 2), settings=PATIENT) as c:
        split(c)
        client, other = Client(c), Client(c)
        written = client.put(0, {IN_A[0]: b"lost"})
        other.put(0, {IN_A[0]: b"later"})
        seal(c, 0)
        disk = HeldDisk(c.replica(2, LOW))
        names = (original_id(0, 1, {IN_A[0]: b"lost"}),)
        retry, answered = in_background(
            lambda: Client(c, client.producer_id).send(
                LOW, 1, {IN_A[0]: b"lost"}, original_ids=names, retry=False
            )
        )
        c.until("it is held", lambda: c.replica(1, LOW).intake.budget.used > 0)
        take_over(c, LOW)
        disk.let_go()
        retry.join(20)
        assert isinstance(answered[0], WriteResult)
        assert answered[0].commit_time >= written.commit_time
        assert client.get(LOW, IN_A[:1]) == {IN_A[0]: b"later"}


@pytest.mark.proves("B-08")
def test_a_transaction_of_the_source_does_not_go_on_at_an_target(tmp_path: Path) -> None:
    """Its reads would miss rows that were acknowledged when it began, and its writes undo them."""
    with cluster(tmp_path, config=zone(1, 2), settings=HURRIED) as c:
        split(c)
        client = Client(c)
        client.put(0, {IN_A[0]: b"old"})
        begun = client.begin(0)
        client.put(0, {IN_A[0]: b"new"})
        seal(c, 0)
        take_over(c, LOW)
        c.until("it serves", lambda: client.get(LOW, IN_A[:1]) == {IN_A[0]: b"new"})
        late = Transaction(client, LOW, begun.times)
        for ask in (
            lambda: late.get(IN_A[1:2]),
            lambda: late.put({IN_A[1]: b"lost"}),
            lambda: scan(c, 1, LOW, own=OwnWrites(late.id, late.times, 0)),
        ):
            with pytest.raises(TransactionConflictError, match="sealed"):
                ask()
        again = client.begin(LOW)
        again.put({IN_A[1]: b"new"})
        seen = scan(c, 1, LOW, own=OwnWrites(again.id, again.times, 1))
        assert seen == sorted(IN_A[:2], key=hash_key)
        assert again.get(IN_A[:2]) == {IN_A[0]: b"new", IN_A[1]: b"new"}
        assert again.commit().outcome is TransactionOutcome.COMMITTED


@pytest.mark.proves("B-08")
def test_how_a_transaction_has_ended_is_known_at_an_target(tmp_path: Path) -> None:
    """A commit whose answer was lost would count as none, and be made a second time."""
    with cluster(tmp_path, config=zone(1, 2), settings=HURRIED) as c:
        split(c)
        client = Client(c)
        lost, open_one, nothing = (client.begin(0) for _ in range(3))
        lost.put({IN_A[0]: b"new"})
        open_one.put({IN_A[1]: b"new"})
        lost.commit()
        seal(c, 0)
        moved = [Transaction(client, LOW, t.times, t.id) for t in (lost, open_one, nothing)]
        with pytest.raises(NotReadyError):
            moved[2].end(begun_in=0, retry=False)
        take_over(c, LOW)
        ends = [transaction.end(begun_in=0).outcome for transaction in moved]
        committed, aborted, unknown = TransactionOutcome
        assert ends == [committed, aborted, unknown]


def test_who_asks_for_a_layout_that_is_over_is_told_so(tmp_path: Path) -> None:
    """A client that was away would be sent from node to node, or break a node's channel."""
    with cluster(tmp_path, config=zone(1, 2), settings=HURRIED) as c:
        c.create(0, (0, 1))
        for target in (LOW, HIGH):
            c.create(target, (1, 2))
        seal(c, 0)
        take_over(c, LOW)
        old = c.records[0]
        with pytest.raises(ConflictError, match="no layout"):
            c.send(Layout(2, 1).ids[0], old)
        c.config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=2, generation=1)
        c.configure()
        client = Client(c)
        for node in (0, 2):  # one that has the replica still, one that never had
            with pytest.raises(ReshardedError) as refused:
                client.get(0, IN_A, node=node, retry=False)
            told = refused.value.details
            assert (told["generation"], told["partitions"], told["next_partitions"]) == (1, 2, 0)
            with pytest.raises(ReshardedError):
                scan(c, node, 0)
            routes = c.call(node, RoutesRequest(), RouteTable)
            assert [a.partition for a in routes.partitions] == [LOW, HIGH]
        assert c.replica(0).positions.committed > 0, "it stands until it is told to stop"
        with pytest.raises(ConflictError, match="no layout"):
            c.send(0, msgspec.structs.replace(old, partition_epoch=99), 2)
        assert client.put(LOW, {IN_A[0]: b"new"}).commit_time > 0


@pytest.mark.proves("B-08")
def test_one_that_is_behind_answers_nothing_of_a_source_it_lacks(merging: Coordinator) -> None:
    """As of a time that it has by another source's entries it would have no rows of this one.

    Also when the old layout is gone by then.
    """
    c, client = merging, Client(merging)
    written = client.put(A, {IN_A[0]: b"last"}).commit_time
    sealed = seal(c, B)
    assert written < sealed
    take_over(c, HEIR, only=B)
    behind = c.replica(2, HEIR)
    c.until("one source is there", lambda: behind.positions.readable_time >= sealed)
    with applying_nothing(behind):
        seal(c, A)
        take_over(c, HEIR)
        c.until("its leader serves", lambda: client.get(HEIR, IN_A[:1]) == {IN_A[0]: b"last"})
        c.config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=1, generation=1)
        c.configure()
        with pytest.raises(NotReadyError):
            client.get(HEIR, IN_A[:1], as_of=sealed, node=2, retry=False)
    there = {IN_A[0]: b"last"}
    c.until("it is there", lambda: client.get(HEIR, IN_A[:1], as_of=sealed, node=2) == there)
