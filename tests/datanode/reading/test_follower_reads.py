"""Reads that followers answer: how old they are, that they stay the same, and who answers none."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Client, Coordinator, SetClock, cluster, unchecked

from rezone.client import AgedRows, ClientSettings, TableClient
from rezone.datanode.replica.replica import Replica
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import ClosedTime, Entries, ReadRequest, ReadResult, ZoneConfig

P = 0
KEY = b"k"
SETTINGS = msgspec.structs.replace(FAST, lease_ms=300, apply_interval_ms=10)
OLD_SECONDS = 20.0
# Who waits too long asks the leader instead, by right: where that must not be, nobody gives up.
PATIENT = msgspec.structs.replace(SETTINGS, hold_ms_max=60_000)
PATIENT_CLIENT = ClientSettings(suspect_after_seconds=60, attempt_timeout_seconds=60)


def now() -> int:
    """Return the present time in microseconds."""
    return time.time_ns() // 1000


@contextmanager
def group(
    directory: Path, partitions: int = 1, *, patient: bool = False
) -> Iterator[tuple[Coordinator, TableClient]]:
    """Give partitions of three replicas, led by nodes 0, 1, ..., and the users' client."""
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=partitions)
    with cluster(directory, 3, settings=PATIENT if patient else SETTINGS, config=config) as c:
        for partition in range(partitions):
            c.create(partition, tuple((partition + i) % 3 for i in range(3)))
        settings = PATIENT_CLIENT if patient else ClientSettings()
        with TableClient([node.address for node in c.nodes.values()], settings=settings) as client:
            yield c, client


def values(answer: AgedRows) -> dict[bytes, bytes]:
    """Return an answer's rows."""
    rows = answer.rows.to_pydict()
    return dict(zip(rows["key"], rows["value"], strict=True))


def test_the_time_of_a_follower_goes_on_while_nothing_is_written(tmp_path: Path) -> None:
    """A follower of a partition at rest would be as old as the last write, for ever."""
    with group(tmp_path) as (c, client):
        client.write([{"key": KEY, "value": b"1"}])
        since = now()
        c.until_each("closed", (1, 2), lambda n: c.replica(n).positions.readable_time > since)
        assert Client(c).get(P, [KEY], as_of=since, node=1, retry=False) == {KEY: b"1"}
        assert c.replica(1).store.last_commit_time < since, "nothing was written for that"


def test_followers_answer_with_their_time_and_age_and_the_same_again(tmp_path: Path) -> None:
    """A report would change while it is read, and nobody could say of when it is."""
    with group(tmp_path, 3, patient=True) as (c, client):
        rows = [{"key": f"k{i}".encode(), "value": b"1"} for i in range(50)]
        client.write(rows)
        written = now()
        everywhere = itertools.product(range(3), range(3))
        c.until_each("up", everywhere, lambda at: c.replica(*at).positions.readable_time > written)
        keys = [{"key": row["key"]} for row in rows]
        answered = count_reads(c)
        answer = client.read_any(keys, max_staleness_seconds=OLD_SECONDS)
        assert set(values(answer).values()) == {b"1"}
        assert len(values(answer)) == 50
        assert written < answer.as_of <= now()
        assert 0 <= answer.age_seconds <= OLD_SECONDS
        for partition in range(3):
            leader = c.records[partition].leader
            assert not answered[leader, partition], "followers were asked"
        answered_at = time.monotonic()
        client.write([{"key": row["key"], "value": b"2"} for row in rows])
        later = time.monotonic()
        again = client.read_any(keys, as_of=answer.as_of)
        assert values(again) == values(answer)
        assert again.as_of == answer.as_of
        # Not more than is sure: the time that an answer may have been on its way counts, too.
        assert again.age_seconds >= later - answered_at
        assert set(client.read(keys, as_of=answer.as_of)["value"].to_pylist()) == {b"1"}


def test_a_read_that_waits_for_a_time_is_answered_when_the_leader_closes_it(tmp_path: Path) -> None:
    """A partition at rest would let each such read wait for as long as a read may."""
    with group(tmp_path, patient=True) as (c, _):
        replica = c.replica(1)
        heard, held = replica.closed_timestamp.heard, list[ClosedTime]()
        replica.closed_timestamp.heard = held.append  # type: ignore[method-assign, assignment]
        since = now()
        outcomes = ask_to_wait(c, replica, since)
        c.until("closed", lambda: held and held[-1].time > since)
        assert not outcomes
        heard(held[-1])
        c.until("answered", lambda: outcomes)
        assert outcomes == [None]


def test_a_read_that_waits_for_a_commit_is_answered_by_a_standby_that_has_applied_it(
    tmp_path: Path,
) -> None:
    """A standby has nothing left to do when it hears of a commit, and would not look who waits."""
    with group(tmp_path, patient=True) as (c, client):
        c.change(P, hot_standby_replica=1)
        replica = c.replica(1)
        replica.closed_timestamp.heard = lambda news: None  # type: ignore[method-assign]  # noqa: ARG005
        receive, held = replica.following.receive, list[Entries]()

        def take(entries: Entries, body: memoryview, **options: Any) -> None:
            if body:
                receive(entries, body, **options)
            else:
                held.append(entries)

        replica.following.receive = take  # type: ignore[method-assign]
        (written,) = client.write([{"key": KEY, "value": b"1"}])
        c.until("applied", lambda: replica.store.applied == 1)
        outcomes = ask_to_wait(c, replica, written.commit_time)
        c.until("committed", lambda: held and held[-1].committed_offset == 1)
        assert not outcomes
        receive(held[-1], memoryview(b""))
        c.until("answered", lambda: outcomes)
        assert outcomes == [None]


def ask_to_wait(c: Coordinator, replica: Replica, as_of: int) -> list[RezoneError | None]:
    """Ask for a time that is not there yet; return a list that gets the outcome.

    The job has looked when this returns: whatever answers later was woken by something else.
    """
    outcomes: list[RezoneError | None] = []
    steps = count_steps(replica)
    replica.reads.submit(as_of, outcomes.append)
    c.until("the job has looked", lambda: steps)
    return outcomes


def count_steps(replica: Replica) -> list[int]:
    """Return a list that gets an entry each time the job has looked at the reads that wait."""
    steps: list[int] = []
    step = replica.reads.step

    def noted() -> None:
        step()
        steps.append(1)

    replica.reads.step = noted  # type: ignore[method-assign]
    return steps


def count_reads(c: Coordinator) -> dict[tuple[int, int], list[int]]:
    """Return lists that get an entry for each read by key, by node and partition."""
    found: dict[tuple[int, int], list[int]] = {}
    for node in c.nodes:
        for partition in range(c.config.partitions):
            reads = c.replica(node, partition).reads
            asked = found[node, partition] = []
            submit = reads.submit

            def noted(*given: Any, asked: Any = asked, submit: Any = submit) -> None:
                asked.append(1)
                submit(*given)

            reads.submit = noted  # type: ignore[method-assign, assignment]
    return found


def test_a_follower_that_is_too_old_leaves_the_answer_to_the_leader(tmp_path: Path) -> None:
    """Who asks for at most so old rows would get older ones, or an error."""
    with group(tmp_path) as (c, client):
        client.write([{"key": KEY, "value": b"1"}])
        for node in (1, 2):
            c.replica(node).closed_timestamp.heard = lambda news: None  # type: ignore[method-assign]  # noqa: ARG005
        client.write([{"key": KEY, "value": b"2"}])
        since = now()
        answer = client.read_any([{"key": KEY}], max_staleness_seconds=0.0)
        assert values(answer) == {KEY: b"2"}
        assert answer.as_of >= since
        request = ReadRequest(opaque=1, partition=P, max_age_ms=0)
        with pytest.raises(NotReadyError, match="ask its leader"):
            ask(c, 1, request)
        assert ask(c, 0, msgspec.structs.replace(request, max_age_ms=None)).age_ms == 0


def ask(c: Coordinator, node: int, request: ReadRequest) -> ReadResult:
    """Ask one node for a key."""
    body = to_ipc(pa.record_batch([pa.array([KEY], pa.binary())], names=["key"]))
    client = Client(c)
    try:
        answer, _ = client._call(
            P,
            lambda opaque: msgspec.structs.replace(request, opaque=opaque),
            body,
            retry=False,
            address=c.nodes[node].address,
        )
    finally:
        client.close()
    assert isinstance(answer, ReadResult)
    return answer


def test_without_followers_the_leader_answers(tmp_path: Path) -> None:
    """A read that may be old would fail because a follower is down."""
    with group(tmp_path) as (c, client):
        client.write([{"key": KEY, "value": b"1"}])
        client.read([{"key": KEY}])
        for node in (1, 2):
            c.nodes[node].stop()
        answer = client.read_any([{"key": KEY}], max_staleness_seconds=OLD_SECONDS)
        assert values(answer) == {KEY: b"1"}


@pytest.mark.parametrize("planned", [True, False])
def test_no_later_leader_writes_at_or_below_a_closed_time(tmp_path: Path, *, planned: bool) -> None:
    """A follower's answer would not be the same when it is asked for again."""
    with group(tmp_path) as (c, client):
        client.write([{"key": KEY, "value": b"1"}])
        since = now()
        c.until("closed", lambda: c.replica(2).positions.readable_time > since)
        answered = c.replica(2).positions.readable_time
        c.replica(1).clock = unchecked(SetClock(-3_600_000_000))
        if planned:
            c.move(P, 1)
        else:
            c.nodes[0].stop()
            record = c.records[P]
            c.change(P, leader=1, isr=(1, 2), leader_epoch=record.leader_epoch + 1)
        (written,) = client.write([{"key": KEY, "value": b"2"}])
        assert written.commit_time > answered
        c.until("it hears", lambda: c.replica(2).positions.readable_time >= written.commit_time)
        old = client.read_any([{"key": KEY}], as_of=answered)
        assert values(old) == {KEY: b"1"}


def test_a_leader_whose_clock_goes_back_writes_nothing_at_a_closed_time(tmp_path: Path) -> None:
    """Its follower has answered as of that time, and would give other rows now."""
    with group(tmp_path) as (c, client):
        client.write([{"key": KEY, "value": b"1"}])
        since = now()
        c.until("closed", lambda: c.replica(1).positions.readable_time > since)
        answered = c.replica(1).positions.readable_time
        c.replica(0).clock = unchecked(SetClock(-3_600_000_000))
        (written,) = client.write([{"key": KEY, "value": b"2"}])
        assert written.commit_time > answered


def test_exactly_one_bound_is_asked_for(tmp_path: Path) -> None:
    """A caller who gives both would get one of them by chance."""
    del tmp_path
    client = TableClient(["127.0.0.1:1"])
    with pytest.raises(ValueError, match="either"):
        client.read_any([{"key": KEY}])
    with pytest.raises(ValueError, match="either"):
        client.read_any([{"key": KEY}], max_staleness_seconds=1.0, as_of=1)
    client.close()
