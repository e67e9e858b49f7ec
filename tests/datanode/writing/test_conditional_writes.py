"""Compare-and-set of single rows against data nodes: exactly once, whoever leads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from replica_cluster import Coordinator, cluster

from rezone.client import (
    ClientSettings,
    TableClient,
    Transaction,
    TransactionCommit,
    TransactionOutcomeUnknownError,
    VersionMismatchError,
)
from rezone.datanode.node.data import DataChannel
from rezone.datanode.scheduling.requests import Request
from rezone.wire.errors import InvalidRowError, TransactionConflictError
from rezone.wire.messages import Message, TransactionOutcome, TransactionResult

P = 0
COUNTERS = 4
TURNS = 5


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Make a partition on two nodes."""
    with cluster(tmp_path, 2) as made:
        made.create(P, (0, 1))
        yield made


def table(c: Coordinator, **settings: Any) -> TableClient:
    """Return a client of the cluster."""
    return TableClient(list(c.peers.values()), settings=ClientSettings(**settings))


def value(client: TableClient, key: bytes = b"a") -> bytes | None:
    """Return a row's value."""
    row = client.get(key)
    return row["value"] if row is not None else None


def test_a_row_is_written_only_at_its_version(c: Coordinator) -> None:
    """A write by an old version would undo what another client has written since."""
    with table(c) as client:
        made = client.put(key=b"a", value=b"1", if_absent=True)
        with pytest.raises(VersionMismatchError) as there:
            client.put(key=b"a", value=b"x", if_absent=True)
        assert there.value.row == {"key": b"a", "value": b"1"}
        second = client.put(key=b"a", value=b"2", if_version=made.commit_time)
        with pytest.raises(VersionMismatchError, match="its version is") as newer:
            client.put(key=b"a", value=b"x", if_version=made.commit_time)
        assert newer.value.version == second.commit_time
        assert newer.value.row == {"key": b"a", "value": b"2"}
        third = client.put(key=b"a", value=b"3", if_version=newer.value.version)
        seen = client.get_version(b"a")
        assert seen.row == {"key": b"a", "value": b"3"}
        assert seen.version >= third.commit_time
        plain = client.put(key=b"a", value=b"4")
        with pytest.raises(VersionMismatchError) as old:
            client.delete(b"a", if_version=seen.version)
        assert old.value.version == plain.commit_time
        assert value(client) == b"4"


def test_a_row_that_is_gone_has_no_version(c: Coordinator) -> None:
    """A write by the version of a deleted row would bring it back."""
    with table(c) as client:
        made = client.put(key=b"a", value=b"1")
        assert client.delete(b"a", if_version=made.commit_time)[0].rows == 1
        assert client.get_version(b"a").row is None
        with pytest.raises(VersionMismatchError, match="not there") as gone:
            client.put(key=b"a", value=b"x", if_version=client.get_version(b"a").version)
        assert (gone.value.row, gone.value.version) == (None, None)
        assert client.put(key=b"a", value=b"2", if_absent=True).rows == 1
        assert value(client) == b"2"


def test_wrong_conditions_and_keys_are_refused(c: Coordinator) -> None:
    """A condition without a key, or two at a time, would write another row, or none."""
    with table(c) as client:
        with pytest.raises(InvalidRowError, match="primary key"):
            client.put(value=b"1", if_absent=True)
        with pytest.raises(InvalidRowError, match="2 values"):
            client.delete(b"a", b"b", if_version=1)
        with pytest.raises(ValueError, match="either"):
            client.put(key=b"a", value=b"1", if_absent=True, if_version=1)


@pytest.mark.timeout(180)
def test_counters_lose_no_step_while_the_leader_moves(c: Coordinator) -> None:
    """Two clients would both write the next number, and one step would be lost or made twice."""
    with table(c) as client:
        client.put(key=b"n", value=b"0")

        def count() -> int:
            tried = 0
            for _ in range(TURNS):
                while True:
                    tried += 1
                    row, version = client.get_version(b"n")
                    assert row is not None
                    after = b"%d" % (int(row["value"]) + 1)
                    try:
                        client.put(key=b"n", value=after, if_version=version)
                    except (VersionMismatchError, TransactionConflictError):
                        continue
                    break
            return tried

        with ThreadPoolExecutor(COUNTERS) as pool:
            counting = [pool.submit(count) for _ in range(COUNTERS)]
            c.move(P, 1)
            for one in counting:
                assert one.result() >= TURNS
        assert value(client, b"n") == b"%d" % (COUNTERS * TURNS)


def test_a_lost_answer_changes_nothing(c: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write whose answer is lost would be refused at its repeat: by its own row."""
    send, lost = DataChannel._answer, threading.Semaphore(2)

    def lose(self: DataChannel, message: Message, taken: Request, body: bytes = b"") -> None:
        if not (isinstance(message, TransactionResult) and lost.acquire(blocking=False)):
            send(self, message, taken, body)

    with table(c, attempt_timeout_seconds=1.0) as client:
        made = client.put(key=b"a", value=b"1")
        monkeypatch.setattr(DataChannel, "_answer", lose)
        again = client.put(key=b"a", value=b"2", if_version=made.commit_time)
        assert client.put(key=b"a", value=b"3", if_version=again.commit_time).rows == 1


@pytest.mark.parametrize("arrives", [True, False])
def test_an_unanswered_commit_is_found_out(
    c: Coordinator, monkeypatch: pytest.MonkeyPatch, *, arrives: bool
) -> None:
    """The caller would be told that the outcome is unknown, though the partition knows it."""
    commit = Transaction.commit

    def unanswered(self: Transaction) -> TransactionCommit | None:
        lost = not unknown
        done = commit(self) if arrives or not lost else None
        if lost:
            unknown.append(self.id)
            raise TransactionOutcomeUnknownError(
                "no answer", partition=self.partition, transaction=self.id
            )
        return done

    unknown: list[str] = []
    with table(c) as client:
        client.put(key=b"a", value=b"1")
        version = client.get_version(b"a").version
        monkeypatch.setattr(Transaction, "commit", unanswered)
        written = client.put(key=b"a", value=b"2", if_version=version)
        assert value(client) == b"2"
        outcome = client.transaction_outcome(P, unknown[0])
        assert outcome is (TransactionOutcome.COMMITTED if arrives else TransactionOutcome.ABORTED)
        with pytest.raises(VersionMismatchError) as old:
            client.put(key=b"a", value=b"3", if_version=version)
        assert old.value.version == written.commit_time
