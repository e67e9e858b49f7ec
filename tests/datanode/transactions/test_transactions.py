"""Transactions on one partition: what they see, whom they exclude, how they end and go on."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from replica_cluster import (
    FAST,
    Client,
    Coordinator,
    LocalNode,
    Transaction,
    batch_of,
    cluster,
)

from rezone.datanode.observing.transactionmetrics import TransactionCollector
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    LimitExceededError,
    NotReadyError,
    OverloadedError,
    RowLockedError,
    TransactionConflictError,
    TransactionEndedError,
)
from rezone.wire.messages import TransactionOutcome, TransactionTimes, ZoneConfig

P = 0
COMMITTED, ABORTED, UNKNOWN = TransactionOutcome


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Make a partition on three nodes, led by the first."""
    with cluster(tmp_path) as made:
        made.create(P, (0, 1, 2))
        made.until("they follow", lambda: {1, 2} <= {*made.replica(0).leading.streams})
        yield made


def move(c: Coordinator, *, planned: bool) -> None:
    """Have node 1 lead, by a takeover, or because the coordinator has given node 0 up."""
    if planned:
        c.move(P, 1)
        c.until("node 1 leads", lambda: c.replica(1).leads)
        c.settle()
    else:
        record = c.records[P]
        c.nodes[0].stop()
        c.change(P, leader=1, isr=(1, 2), leader_epoch=record.leader_epoch + 1)


def test_a_transaction_sees_one_moment_and_itself_and_shows_all_at_once(c: Coordinator) -> None:
    """Others would see parts of it, or it would see what others have written since it began."""
    client, other = Client(c), Client(c)
    client.put(P, {b"a": b"1", b"b": b"1", b"c": b"1"})
    tx = client.begin(P)
    other.put(P, {b"c": b"2"})
    tx.put({b"a": b"3", b"d": b"3"})
    tx.delete([b"b"])
    everything = [b"a", b"b", b"c", b"d"]
    before = other.get(P, everything)
    assert before == {b"a": b"1", b"b": b"1", b"c": b"2"}
    assert tx.get(everything) == {b"a": b"3", b"c": b"1", b"d": b"3"}
    now = time.time_ns() // 1000
    assert other.get(P, everything, as_of=now) == before
    result = tx.commit()
    assert result.outcome is COMMITTED
    assert result.commit_time > now, "what was read as of a time would change"
    assert other.get(P, everything, as_of=now) == before
    assert other.get(P, everything) == {b"a": b"3", b"c": b"2", b"d": b"3"}
    assert other.get(P, everything, as_of=result.commit_time - 1) == before


def test_the_first_writer_of_a_row_wins(c: Coordinator) -> None:
    """Of two transactions that read a row and write it, one would overwrite the other unseen."""
    client, other = Client(c), Client(c)
    client.put(P, {b"a": b"1", b"b": b"1"})
    tx, rival, late = client.begin(P), other.begin(P), other.begin(P)
    tx.put({b"a": b"2"})
    with pytest.raises(TransactionConflictError, match=r"has written one of them") as conflict:
        rival.put({b"b": b"9", b"a": b"9"})
    with pytest.raises(RowLockedError) as locked:
        other.send(P, 1, {b"x": b"9", b"a": b"9"}, retry=False)
    told = f"{conflict.value.info()} {locked.value.info()}".replace("-", "")
    assert uuid.UUID(tx.id).hex not in told, "who knows the id can commit it and read its rows"
    assert other.get(P, [b"x", b"b"]) == {b"b": b"1"}, "a refused write was applied in part"
    tx.commit()
    with pytest.raises(TransactionConflictError, match="was written at"):
        late.put({b"a": b"9"})
    again = other.begin(P)
    assert again.get([b"a"]) == {b"a": b"2"}
    again.put({b"a": b"3"})
    assert again.commit().outcome is COMMITTED
    assert client.get(P, [b"a"]) == {b"a": b"3"}
    assert c.replica(0).transacting.conflicts == 2


def test_a_plain_write_that_is_not_applied_yet_counts_too(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction would overwrite, unseen, what was written just before its own write."""
    client = Client(c)
    client.put(P, {b"a": b"1"})
    tx = client.begin(P)
    leader = c.replica(0)
    held, store_apply = threading.Event(), leader.store.apply_to
    monkeypatch.setattr(leader.store, "apply_to", lambda to: held.wait(10) and store_apply(to))
    writing = threading.Thread(target=Client(c).put, args=(P, {b"a": b"2"}))
    end = leader.store.log_end
    writing.start()
    c.until("the write is in the log", lambda: leader.store.log_end > end)
    with pytest.raises(TransactionConflictError):
        tx.put({b"a": b"3"}, retry=False)
    tx.sequence -= 1
    held.set()
    writing.join()
    tx.put({b"b": b"3"})
    assert tx.commit().outcome is COMMITTED
    assert client.get(P, [b"a", b"b"]) == {b"a": b"2", b"b": b"3"}


def test_a_plain_write_waits_for_the_transaction_by_its_clients_repeats(c: Coordinator) -> None:
    """It would be lost in the commit, or fail though the row is free a moment later."""
    client, other = Client(c), Client(c)
    tx = client.begin(P)
    tx.put({b"a": b"1"})
    writing = threading.Thread(target=other.put, args=(P, {b"a": b"2"}))
    writing.start()
    c.until("it was refused", lambda: c.replica(0).producing.locked)
    tx.commit()
    writing.join()
    assert client.get(P, [b"a"]) == {b"a": b"2"}


def test_an_abort_leaves_nothing_and_frees_the_rows(c: Coordinator) -> None:
    """A row would stay locked, or a read would find what was given up."""
    client = Client(c)
    tx = client.begin(P)
    tx.put({b"a": b"1"})
    tx.put({b"b": b"1"})
    assert tx.end().outcome is ABORTED
    with pytest.raises(TransactionEndedError) as ended:
        tx.put({b"c": b"1"})
    assert ended.value.details == {"outcome": ABORTED.value}
    with pytest.raises(TransactionEndedError):
        tx.get([b"a"])
    assert client.get(P, [b"a", b"b", b"c"]) == {}
    client.put(P, {b"a": b"2"})
    assert client.get(P, [b"a"]) == {b"a": b"2"}


@pytest.mark.proves("ZR-13")
def test_every_request_twice_is_once_and_each_end_has_its_answer(c: Coordinator) -> None:
    """A retried commit would fail, or one after an abort would be taken for done."""
    client = Client(c)
    tx = client.begin(P)
    first = tx.put({b"a": b"1"})
    assert tx.send(1, batch_of({b"a": b"other"})) == msgspec.structs.replace(
        first, opaque=client._opaque
    )
    with pytest.raises(ConflictError):
        tx.send(3, batch_of({b"a": b"3"}))
    tx.sequence += 1
    with pytest.raises(ConflictError):
        tx.commit()
    tx.sequence -= 1
    committed = tx.commit()
    again, asked = tx.commit(), tx.end()
    assert (again.outcome, asked.outcome) == (COMMITTED, COMMITTED)
    assert committed.end_offset == again.end_offset == asked.end_offset
    with pytest.raises(TransactionEndedError):
        tx.send(1, batch_of({b"a": b"late"}))
    aborted = client.begin(P)
    aborted.put({b"b": b"1"})
    assert [aborted.end().outcome, aborted.commit().outcome] == [ABORTED, ABORTED]
    never = client.begin(P)
    assert never.end().outcome is UNKNOWN
    never.sequence = 1
    assert never.commit().outcome is UNKNOWN
    with pytest.raises(TransactionEndedError):
        never.send(2, batch_of({b"c": b"1"}))
    never.id = "no uuid"
    with pytest.raises(InvalidRowError):
        never.end()
    assert client.get(P, [b"a", b"b", b"c"]) == {b"a": b"1"}


@pytest.mark.parametrize("planned", [True, False])
@pytest.mark.parametrize("ends", [COMMITTED, ABORTED])
def test_an_open_transaction_goes_on_at_the_next_leader(
    c: Coordinator, ends: TransactionOutcome, *, planned: bool
) -> None:
    """With its leader its writes would be lost or become visible, or its rows be free."""
    client, other = Client(c), Client(c)
    client.put(P, {b"a": b"0", b"b": b"0"})
    tx = client.begin(P)
    tx.put({b"a": b"1"})
    first = tx.put({b"b": b"1"})
    move(c, planned=planned)
    assert tx.get([b"a", b"b"]) == {b"a": b"1", b"b": b"1"}
    assert other.get(P, [b"a", b"b"]) == {b"a": b"0", b"b": b"0"}
    with pytest.raises(RowLockedError):
        other.send(P, 1, {b"a": b"9"}, retry=False)
    assert tx.send(2, batch_of({b"b": b"1"})).end_offset == first.end_offset
    tx.put({b"c": b"1"})
    assert (tx.commit() if ends is COMMITTED else tx.end()).outcome is ends
    assert tx.end().outcome is ends
    rows = other.get(P, [b"a", b"b", b"c"])
    if ends is COMMITTED:
        assert rows == {b"a": b"1", b"b": b"1", b"c": b"1"}
    else:
        assert rows == {b"a": b"0", b"b": b"0"}


@pytest.mark.parametrize("planned", [True, False])
def test_the_next_leader_tells_how_a_transaction_has_ended(
    c: Coordinator, *, planned: bool
) -> None:
    """A client whose commit had no answer would never know, or commit twice."""
    client = Client(c)
    tx = client.begin(P)
    tx.put({b"a": b"1"})
    done = tx.commit()
    move(c, planned=planned)
    again = tx.commit()
    assert (again.outcome, again.end_offset) == (COMMITTED, done.end_offset)
    assert tx.end().commit_time == done.commit_time


@pytest.mark.parametrize("moves", ["by plan", "by failure", "not at all"])
def test_an_old_transaction_is_aborted_by_whoever_leads(tmp_path: Path, moves: str) -> None:
    """Rows of a client that has died would stay locked for ever."""
    leader = 0 if moves == "not at all" else 1
    settings = msgspec.structs.replace(FAST, transaction_ms_max=1_500)
    with cluster(tmp_path, settings=settings) as c:
        c.create(P, (0, 1, 2))
        c.until("they follow", lambda: {1, 2} <= {*c.replica(0).leading.streams})
        client = Client(c)
        tx, reader = client.begin(P), client.begin(P)
        tx.put({b"a": b"1"})
        if leader:
            move(c, planned=moves == "by plan")
        client.put(P, {b"a": b"2"})  # refused until then
        with pytest.raises(TransactionEndedError):
            tx.put({b"b": b"1"})
        assert tx.commit().outcome is ABORTED
        assert client.get(P, [b"a", b"b"]) == {b"a": b"2"}
        with pytest.raises(TransactionEndedError, match="older than 1500 ms"):
            reader.get([b"a"])
        with pytest.raises(TransactionEndedError):
            reader.put({b"c": b"1"})
        assert c.replica(leader).transacting.expired == 1


def test_an_old_transaction_is_aborted_though_nothing_else_happens(tmp_path: Path) -> None:
    """A leader that nobody writes to would keep its predecessor's transactions for ever."""
    settings = msgspec.structs.replace(FAST, transaction_ms_max=1_000, lease_ms=0)
    with cluster(tmp_path, 2, settings=settings) as c:
        c.create(P, (0, 1))
        Client(c).begin(P).put({b"a": b"1"})
        last = c.replica(1)
        c.until("all is told", lambda: last.positions.committed == last.store.log_end > 0)
        c.nodes[0].stop()
        c.change(P, leader=1, isr=(1,), replicas=(1,), leader_epoch=2)
        c.until("it is aborted", lambda: not last.store.has_open_transactions)
        assert last.transacting.expired == 1


def test_a_leader_that_is_alone_does_not_say_that_a_transaction_is_unknown(tmp_path: Path) -> None:
    """A client would do again what was committed under the next leader."""
    settings = msgspec.structs.replace(FAST, lease_ms=0, replica_lag_ms_max=60_000)
    with cluster(tmp_path, 2, settings=settings) as c:
        c.create(P, (0, 1))
        tx = Client(c).begin(P)
        assert tx.end().outcome is UNKNOWN
        c.nodes[1].stop()
        with pytest.raises(NotReadyError):
            tx.end(retry=False)


def test_a_leader_that_is_alone_does_not_refuse_for_good_what_it_does_not_know(
    tmp_path: Path,
) -> None:
    """A client would give a transaction up whose writes the next leader has acknowledged."""
    settings = msgspec.structs.replace(FAST, lease_ms=0, replica_lag_ms_max=60_000)
    with cluster(tmp_path, 2, settings=settings) as c:
        c.create(P, (0, 1))
        tx = Client(c).begin(P)
        tx.put({b"a": b"1"})
        tx.sequence += 2  # as if two more writes had gone to another leader
        with pytest.raises(ConflictError, match="cannot follow"):
            tx.end(commit=True, retry=False)
        c.nodes[1].stop()
        with pytest.raises(NotReadyError):
            tx.end(commit=True, retry=False)


@pytest.mark.parametrize("times", [(6, 5), (1 << 62, 5)])  # below 0: test_message_ranges
def test_times_that_no_leader_has_given_are_refused(c: Coordinator, times: tuple[int, int]) -> None:
    """A client of another version would break its channel off, and be told nothing."""
    tx = Client(c).begin(P)
    tx.times = TransactionTimes(*times)
    with pytest.raises(InvalidRowError, match="no transaction reads at"):
        tx.put({b"a": b"1"})


def test_a_first_write_that_comes_before_its_time_waits(c: Coordinator) -> None:
    """Under a leader whose clock is late, a forgotten transaction could be opened again."""
    tx = Client(c).begin(P)
    tx.times = TransactionTimes(tx.times.read_time, tx.times.begun + 3_600_000_000)
    with pytest.raises(NotReadyError, match="clock"):
        tx.put({b"a": b"1"}, retry=False)


def test_limits_on_what_is_open_are_told_and_counted(tmp_path: Path) -> None:
    """Open transactions would fill the memory of every replica."""
    settings = msgspec.structs.replace(
        FAST,
        transactions_open_max=2,
        transaction_bytes_max=20_000,
        open_intents_bytes_max=30_000,
    )
    with cluster(tmp_path, 1, settings=settings) as c:
        c.create(P, (0,))
        client = Client(c)
        tx, other, third = (client.begin(P) for _ in range(3))
        tx.put({b"a": b"x" * 15_000})
        with pytest.raises(LimitExceededError, match="20000"):
            tx.put({b"b": b"x" * 6_000})
        with pytest.raises(OverloadedError, match="30000"):
            other.put({b"c": b"x" * 15_000}, retry=False)
        other.send(1, batch_of({b"c": b"1"}))
        with pytest.raises(OverloadedError, match="open transactions"):
            third.put({b"d": b"1"}, retry=False)
        assert (c.replica(0).transacting.over_limit, c.replica(0).producing.locked) == (3, 0)
        registry = CollectorRegistry()
        local = c.nodes[0]
        assert isinstance(local, LocalNode)
        assert local.node is not None
        registry.register(TransactionCollector(local.node))
        shown = generate_latest(registry).decode()
        assert "rezone_data_node_open_transactions 2.0" in shown
        assert "rezone_data_node_transactions_refused_total 3.0" in shown
        tx.sequence = 1
        assert tx.commit().outcome is COMMITTED
        third.send(1, batch_of({b"d": b"1"}))


@pytest.mark.proves("ZR-08")
def test_a_read_only_transaction_ends_right_where_its_leader_goes(c: Coordinator) -> None:
    """It would see rows of two moments when its reads are answered by two leaders."""
    client, other = Client(c), Client(c)
    client.put(P, {b"a": b"1", b"b": b"1"})
    tx = client.begin(P)
    assert tx.get([b"a"]) == {b"a": b"1"}
    other.put(P, {b"a": b"2", b"b": b"2"})
    move(c, planned=False)
    other.put(P, {b"b": b"3"})
    assert tx.get([b"a", b"b"]) == {b"a": b"1", b"b": b"1"}


def test_accounts_keep_their_sum_while_leaders_change(c: Coordinator) -> None:
    """A transfer would happen by half, twice, or not at all though it was answered."""
    accounts = [b"acc%d" % k for k in range(6)]
    Client(c).put(P, dict.fromkeys(accounts, b"100"))
    done, stop, problems = [0, 0, 0], threading.Event(), []

    def transfer(number: int) -> None:
        client, turn = Client(c), 0
        while not stop.is_set():
            turn += 1
            source, target = accounts[(turn + number) % 6], accounts[(turn * 2 + number + 1) % 6]
            if source != target and _moved(client.begin(P), source, target):
                done[number] += 1

    def watch() -> None:
        client = Client(c)
        while not stop.is_set():
            rows = client.get(P, accounts)
            if sum(map(int, rows.values())) != 600:
                problems.append(rows)

    threads = [threading.Thread(target=transfer, args=(n,)) for n in range(3)]
    threads.append(threading.Thread(target=watch))
    for thread in threads:
        thread.start()
    try:
        for leader in (1, 2, 0):
            wanted = sum(done) + 5
            c.until_each("transfers", [wanted], lambda count: sum(done) >= count)
            c.move(P, leader)
            c.until_each("leads", [leader], lambda node: c.replica(node).leads)
            c.settle()
        c.until("all make progress", lambda: min(done) >= 5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not problems
    assert sum(map(int, Client(c).get(P, accounts).values())) == 600


def _moved(tx: Transaction, source: bytes, target: bytes) -> bool:
    rows = tx.get([source, target])
    rows = {source: b"%d" % (int(rows[source]) - 1), target: b"%d" % (int(rows[target]) + 1)}
    try:
        tx.put(rows)
    except TransactionConflictError:
        tx.end()
        return False
    return tx.commit().outcome is COMMITTED


def test_a_transaction_is_no_older_than_what_is_kept_of_versions(tmp_path: Path) -> None:
    """It would read as of a time whose versions are collected."""
    config = ZoneConfig(zone="t", zone_uid="u", partitions=1, version_retention_seconds=1)
    with cluster(tmp_path, 1, config=config) as c:
        c.create(P, (0,))
        tx = Client(c).begin(P)
        c.until("it is old", lambda: time.time_ns() // 1000 > tx.times.begun + 1_000_000)
        with pytest.raises(TransactionEndedError):
            tx.get([b"a"])
