"""The client's transactions against data nodes: one partition, all or nothing, whoever leads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from replica_cluster import Coordinator, LocalNode, ProcessNode, cluster, keys_in

from rezone.client import (
    ClientSettings,
    TableClient,
    Transaction,
    TransactionOutcomeUnknownError,
)
from rezone.datanode.node.data import DataChannel
from rezone.datanode.scheduling.requests import Request
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    TransactionConflictError,
    TransactionEndedError,
)
from rezone.wire.messages import Message, TransactionOutcome, TransactionResult, ZoneConfig

PARTITIONS = 2
HERE, THERE = keys_in(0, PARTITIONS, 8), keys_in(1, PARTITIONS, 2)
CONFIG = ZoneConfig(zone="t", zone_uid="u", partitions=PARTITIONS)


def key(name: bytes) -> dict[str, Any]:
    """Return a primary key."""
    return {"key": name}


def row(name: bytes, value: bytes) -> dict[str, Any]:
    """Return a row."""
    return {"key": name, "value": value}


def rows(table: Any) -> dict[bytes, bytes]:
    """Return what was read."""
    return dict(zip(*(table.column(name).to_pylist() for name in ("key", "value")), strict=True))


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Make two partitions on three nodes."""
    with cluster(tmp_path, config=CONFIG) as made:
        for partition in range(PARTITIONS):
            made.create(partition, (0, 1, 2))
        yield made


def table(c: Coordinator, **settings: Any) -> TableClient:
    """Return a client of the cluster."""
    return TableClient(list(c.peers.values()), settings=ClientSettings(**settings))


def test_a_block_commits_and_an_exception_in_it_aborts(c: Coordinator) -> None:
    """What was meant as one change would be visible by parts, or be kept after an error."""
    a, b, gone = HERE[:3]
    with table(c) as client, table(c) as other:
        client.write([row(a, b"1"), row(gone, b"1")])
        with client.transaction(key(a)) as tx:
            assert rows(tx.read([key(a), key(b)])) == {a: b"1"}
            tx.write([row(a, b"2"), row(b, b"2")])
            tx.delete([key(gone)])
            assert rows(tx.read([key(k) for k in (a, b, gone)])) == {a: b"2", b: b"2"}
            assert rows(other.read([key(k) for k in (a, b, gone)])) == {a: b"1", gone: b"1"}
        assert rows(other.read([key(k) for k in (a, b, gone)])) == {a: b"2", b: b"2"}
        assert client.transaction_outcome(tx.partition, tx.id) is TransactionOutcome.COMMITTED
        tx = client.transaction(key(a))
        with pytest.raises(ZeroDivisionError):
            _fail_in(tx, row(a, b"3"))
        assert tx.outcome() is TransactionOutcome.ABORTED
        other.write([row(b, b"4")])
        assert rows(client.read([key(a), key(b)])) == {a: b"2", b: b"4"}
        reading = client.transaction(key(a))
        assert rows(reading.read([])) == {}
        assert reading.commit() is None
        with pytest.raises(ConflictError, match="committed or aborted here"):
            reading.read([key(a)])


def _fail_in(tx: Transaction, written: dict[str, Any]) -> None:
    with tx:
        tx.write([written])
        _ = 1 / 0


def test_rows_of_other_partitions_are_refused_before_anything_is_sent(c: Coordinator) -> None:
    """A transaction would be atomic on one of its partitions only."""
    with table(c) as client, client.transaction(key(HERE[0])) as tx:
        assert (tx.partition, client.partition_of(key(THERE[0]))) == (0, 1)
        with pytest.raises(InvalidRowError, match="row 1 belongs to partition 1") as refused:
            tx.write([row(HERE[0], b"1"), row(THERE[0], b"1")])
        assert refused.value.details == {"row": 1, "partition": 1}
        for request in (tx.read, tx.delete):
            with pytest.raises(InvalidRowError):
                request([key(THERE[1])])
        tx.write([row(HERE[0], b"2")])
    with table(c) as client:
        assert rows(client.read([key(HERE[0]), key(THERE[0])])) == {HERE[0]: b"2"}


def test_after_a_conflict_only_a_new_transaction_helps(c: Coordinator) -> None:
    """A commit would apply what was left of a transaction after its write was refused."""
    a, b = HERE[:2]
    with table(c) as client, table(c) as other:
        tx = client.transaction(key(a))
        tx.write([row(b, b"mine")])
        other.write([row(a, b"theirs")])
        with pytest.raises(TransactionConflictError):
            tx.write([row(a, b"mine")])
        with pytest.raises(ConflictError, match="can only be aborted"):
            tx.commit()
        tx.abort()
        tx.abort()
        assert rows(other.read([key(a), key(b)])) == {a: b"theirs"}
        with client.transaction(key(a)) as tx:
            tx.write([row(a, b"mine")])
        assert rows(other.read([key(a)])) == {a: b"mine"}


def test_a_lost_answer_to_a_commit_is_said_and_can_be_asked_for(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user would take a commit for failed that has happened, and do it again."""
    send = DataChannel._answer

    def lose(self: DataChannel, message: Message, taken: Request, body: bytes = b"") -> None:
        if not isinstance(message, TransactionResult):
            send(self, message, taken, body)

    with table(c, timeout_seconds=2.0, attempt_timeout_seconds=0.5) as client:
        tx = client.transaction(key(HERE[0]))
        tx.write([row(HERE[0], b"1")])
        with monkeypatch.context() as patched:
            patched.setattr(DataChannel, "_answer", lose)
            with pytest.raises(TransactionOutcomeUnknownError) as unknown:
                tx.commit()
        asked = client.transaction_outcome(unknown.value.partition, unknown.value.transaction)
        assert asked is tx.outcome() is TransactionOutcome.COMMITTED


def test_large_writes_are_cut_and_commit_as_one(c: Coordinator) -> None:
    """A transaction could hold no more than one request does."""
    with table(c, request_bytes_max=10_000) as client:
        before = client.transaction(key(HERE[0])).read_time
        with client.transaction(key(HERE[0])) as tx:
            tx.write([row(name, b"x" * 4_000) for name in HERE])
            assert len(rows(tx.read([key(name) for name in HERE]))) == len(HERE)
        read = client.read([key(name) for name in HERE])
        assert len(rows(read)) == len(HERE)
        assert len(rows(client.read([key(name) for name in HERE], as_of=before))) == 0


def test_an_aborted_transaction_says_so_at_its_commit(c: Coordinator) -> None:
    """Who was too slow would believe that the rows are written."""
    with table(c) as client:
        tx = client.transaction(key(HERE[0]))
        tx.write([row(HERE[0], b"1")])
        assert client.transaction_outcome(tx.partition, tx.id) is TransactionOutcome.ABORTED
        with pytest.raises(TransactionEndedError, match="aborted") as ended:
            tx.commit()
        assert ended.value.details == {"outcome": "Aborted"}


def test_a_leader_that_hands_over_is_not_noticed(c: Coordinator) -> None:
    """A planned move would break the transactions that are open."""
    a, b = HERE[:2]
    with table(c) as client:
        tx = client.transaction(key(a))
        tx.write([row(a, b"1")])
        local = c.nodes[1]
        assert isinstance(local, LocalNode)
        assert local.node is not None
        c.move(0, 1)
        found = local.node.find(0)
        c.until("node 1 leads", lambda: found.leads)
        tx.write([row(b, b"1")])
        assert rows(tx.read([key(a), key(b)])) == {a: b"1", b: b"1"}
        committed = tx.commit()
        assert committed is not None
        assert committed.leader_epoch == 2


# --- real processes ---------------------------------------------------------------------------


def process(c: Coordinator, node: int) -> ProcessNode:
    """Return the node's process."""
    found = c.nodes[node]
    assert isinstance(found, ProcessNode)
    return found


def replace_leader(c: Coordinator, partition: int) -> None:
    """Kill the leader's process, and let the lowest other member of the set lead."""
    record = c.records[partition]
    process(c, record.leader).kill()
    left = tuple(n for n in record.isr if n != record.leader)
    c.change(partition, leader=left[0], isr=left, leader_epoch=record.leader_epoch + 1)


@pytest.mark.slow
@pytest.mark.parametrize("standby", [True, False])
def test_a_killed_leaders_transaction_is_committed_by_its_successor(
    tmp_path: Path, *, standby: bool
) -> None:
    """SIGKILL between write and commit would lose the transaction, or leave its rows locked."""
    a, b = HERE[:2]
    with cluster(tmp_path, 3, processes=True, config=CONFIG) as c:
        c.create(0, (0, 1, 2))
        if standby:
            c.change(0, hot_standby_replica=1)
        with table(c) as client, table(c) as other:
            client.write([row(a, b"0")])
            tx = client.transaction(key(a))
            tx.write([row(a, b"1"), row(b, b"1")])
            replace_leader(c, 0)
            tx.write([row(b, b"2")])
            assert rows(other.read([key(a), key(b)])) == {a: b"0"}
            committed = tx.commit()
            assert committed is not None
            assert committed.leader_epoch == 2
            assert rows(other.read([key(a), key(b)])) == {a: b"1", b: b"2"}


@pytest.mark.slow
@pytest.mark.proves("B-09")
def test_open_transactions_survive_sigkill_of_all_nodes(tmp_path: Path) -> None:
    """A power cut would commit by half, or forget who holds which rows."""
    a, b = HERE[:2]
    with cluster(tmp_path, 3, processes=True, config=CONFIG) as c:
        c.create(0, (0, 1, 2))
        with table(c) as client:
            tx, lost = client.transaction(key(a)), client.transaction(key(b))
            tx.write([row(a, b"1")])
            lost.write([row(b, b"1")])
            for node in c.nodes:
                process(c, node).kill()
            for node in c.nodes:
                process(c, node).start()
            tx.commit()
            lost.abort()
            assert rows(client.read([key(a), key(b)])) == {a: b"1"}


@pytest.mark.slow
def test_accounts_keep_their_sum_while_leaders_are_killed(tmp_path: Path) -> None:
    """A transfer would be applied by half, twice, or not though it was committed."""
    each = 100
    with cluster(tmp_path, 3, processes=True, config=CONFIG) as c:
        c.create(0, (0, 1, 2))
        c.watch()
        with table(c) as client:
            client.write([row(name, b"%d" % each) for name in HERE])
            bank = Bank(c, 3)
            for _ in range(2):
                bank.wait_for(15)
                killed = c.records[0].leader
                replace_leader(c, 0)
                bank.wait_for(15)
                process(c, killed).start()
                c.until("in sync again", lambda: c.isr(0) == {0, 1, 2})
            bank.stop()
            found = rows(client.read([key(name) for name in HERE]))
            assert {name: int(value) for name, value in found.items()} == {
                name: each + bank.moved[name] for name in HERE
            }


class Bank:
    """Transfers between accounts by several clients; knows of each what was committed."""

    def __init__(self, c: Coordinator, clients: int) -> None:
        self.moved = dict.fromkeys(HERE, 0)
        self._changed = threading.Condition()
        self._done = 0
        self._over = False
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(c, number)) for number in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        """Wait for more transfers."""
        with self._changed:
            goal = self._done + count
            assert self._changed.wait_for(lambda: self._errors or self._done >= goal, 30)
        assert not self._errors

    def stop(self) -> None:
        """End all clients; they must have had no error."""
        self._over = True
        for thread in self._threads:
            thread.join(40)
        assert not self._errors

    def _run(self, c: Coordinator, number: int) -> None:
        try:
            with table(c) as client:
                turn = number
                while not self._over:
                    turn += 1
                    source, target = HERE[turn % 8], HERE[(turn * 3 + number + 1) % 8]
                    if source != target and _transfer(client, source, target):
                        self._count(source, target)
        except BaseException as error:  # noqa: BLE001 - for the test's own thread to raise
            with self._changed:
                self._errors.append(error)
                self._changed.notify_all()

    def _count(self, source: bytes, target: bytes) -> None:
        with self._changed:
            self.moved[source] -= 1
            self.moved[target] += 1
            self._done += 1
            self._changed.notify_all()


def _transfer(client: TableClient, source: bytes, target: bytes) -> bool:
    """Move one from an account to another; whether it was committed."""
    try:
        with client.transaction(key(source)) as tx:
            found = rows(tx.read([key(source), key(target)]))
            tx.write([row(source, b"%d" % (int(found[source]) - 1))])
            tx.write([row(target, b"%d" % (int(found[target]) + 1))])
    except TransactionConflictError:
        return False
    return True
