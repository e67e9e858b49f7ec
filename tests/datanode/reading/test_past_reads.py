"""Reads as of a time: the same whoever leads, and right or refused where a replica leaves."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import msgspec
import pytest
from replica_cluster import FAST, Client, Coordinator, SetClock, cluster, unchecked

from rezone.datanode.reading.read import readable
from rezone.datanode.reading.scan import scan_batches
from rezone.wire.errors import NotReadyError, RezoneError, VersionsExpiredError
from rezone.wire.messages import Ack, ScanTicket, StopReplica
from rezone.wire.transport.flight import NodeClient, from_flight_error

P = 0
KEY = b"k"
HOUR_MICROS = 3_600_000_000


def read_now(c: Coordinator) -> int:
    """Read at the present time, of the leader, before anything was written; return the time."""
    as_of = time.time_ns() // 1000
    assert Client(c).get(P, [KEY], as_of=as_of) == {}
    return as_of


@pytest.mark.parametrize("planned", [True, False])
def test_a_later_leader_whose_clock_is_late_writes_nothing_into_the_past(
    tmp_path: Path, *, planned: bool
) -> None:
    """A read as of a time would give other rows when it is made again."""
    with cluster(tmp_path, settings=msgspec.structs.replace(FAST, lease_ms=500)) as c:
        c.create(P, (0, 1))
        c.until("it follows", lambda: 1 in c.replica(0).leading.streams)
        c.replica(1).clock = unchecked(SetClock(-HOUR_MICROS))
        as_of = read_now(c)
        if planned:
            c.move(P, 1)
        else:
            record = c.records[P]
            c.change(P, leader=1, isr=(1,), leader_epoch=record.leader_epoch + 1)
        Client(c).put(P, {KEY: b"v"})
        assert Client(c).get(P, [KEY]) == {KEY: b"v"}
        assert Client(c).get(P, [KEY], as_of=as_of) == {}


def test_a_leader_that_is_alone_closes_no_time(tmp_path: Path) -> None:
    """It would answer for a time at which its successor may have written."""
    settings = msgspec.structs.replace(FAST, lease_ms=0, replica_lag_ms_max=60_000)
    with cluster(tmp_path, settings=settings) as c:
        c.create(P, (0, 1))
        written = Client(c).put(P, {KEY: b"v"}).commit_time
        c.nodes[1].stop()
        with pytest.raises(NotReadyError):
            Client(c).get(P, [KEY], as_of=time.time_ns() // 1000, retry=False)
        assert Client(c).get(P, [KEY], as_of=written) == {KEY: b"v"}


@pytest.mark.proves("ZR-08")
def test_a_read_that_waits_on_a_replica_that_leaves_ends_with_an_error(tmp_path: Path) -> None:
    """A read-only transaction would wait for ever, or read a replica that is being deleted."""
    settings = msgspec.structs.replace(FAST, hold_ms_max=60_000)
    with cluster(tmp_path, settings=settings) as c:
        c.create(P, (0, 1, 2))
        Client(c).put(P, {KEY: b"v"})
        partition = c.replica(2)
        outcome: list[RezoneError | dict[bytes, bytes]] = []

        def read() -> None:
            as_of = time.time_ns() // 1000 + HOUR_MICROS
            try:
                outcome.append(Client(c).get(P, [KEY], as_of=as_of, node=2, retry=False))
            except RezoneError as error:
                outcome.append(error)

        reading = threading.Thread(target=read)
        reading.start()
        c.until("it waits", lambda: partition.reads.waits)
        leave(c, 2)
        reading.join(20)
        assert isinstance(outcome[0], NotReadyError)
        with partition.lock, pytest.raises(RezoneError):
            assert readable(partition, None)()


@pytest.mark.proves("ZR-08")
def test_a_scan_under_way_on_a_replica_that_leaves_is_right_or_ends_with_an_error(
    tmp_path: Path,
) -> None:
    """A scan would end early as if that were all the rows, or give rows of another state."""
    rows = {f"k{i}".encode(): b"v" * 100 for i in range(5_000)}
    with cluster(tmp_path) as c:
        c.create(P, (0, 1, 2))
        as_of = Client(c).put(P, rows).commit_time
        c.until("applied", lambda: c.replica(2).positions.readable_time >= as_of)
        node = NodeClient(c.nodes[2].address)
        ticket = ScanTicket(partition=P, as_of=as_of, batch_rows=10)
        seen: dict[bytes, bytes] = {}
        ended: Exception | None = None
        stream = iter(node.get(ticket))
        try:
            next(stream)  # says of when the rows are
            first = next(stream).data
            seen.update(zip(first[0].to_pylist(), first[1].to_pylist(), strict=True))
            leave(c, 2)
            for chunk in stream:
                seen.update(zip(chunk.data[0].to_pylist(), chunk.data[1].to_pylist(), strict=True))
        except Exception as error:  # noqa: BLE001 - of whatever kind, it must be told as one of ours
            ended = from_flight_error(error)
        node.close()
        assert seen.items() <= rows.items()
        assert ended is not None or len(seen) == len(rows), "it ended early and said nothing"


@pytest.mark.proves("ZR-08")
def test_a_scan_whose_rows_are_dropped_meanwhile_ends_with_an_error(tmp_path: Path) -> None:
    """What a replica drops to copy it again would be taken for rows that there never were."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        as_of = Client(c).put(P, {b"%d" % i: b"v" for i in range(50)}).commit_time
        partition = c.replica(1)
        c.until("applied", lambda: partition.positions.readable_time >= as_of)
        ticket = ScanTicket(partition=P, as_of=as_of, batch_rows=10)
        scan = scan_batches(partition, ticket, c.node(1).zone.codec)
        next(scan)  # says of when the rows are
        assert next(scan)[0].num_rows == 10
        partition.need_snapshot()
        partition.store.reset()
        with pytest.raises(NotReadyError, match="copied again"):
            next(scan)


@pytest.mark.proves("ZR-08")
def test_a_scan_that_takes_longer_than_versions_are_kept_ends_with_an_error(
    tmp_path: Path,
) -> None:
    """Rows whose old versions were removed meanwhile would be missing in it."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        as_of = Client(c).put(P, {b"%d" % i: b"v" for i in range(50)}).commit_time
        partition = c.replica(0)
        ticket = ScanTicket(partition=P, as_of=as_of, batch_rows=10)
        scan = scan_batches(partition, ticket, c.node(0).zone.codec)
        next(scan)  # says of when the rows are
        assert next(scan)[0].num_rows == 10
        partition.clock = unchecked(SetClock(2 * HOUR_MICROS))
        with pytest.raises(VersionsExpiredError):
            next(scan)


def leave(c: Coordinator, node: int) -> None:
    """Take a replica out of its group and stop it."""
    record = c.records[P]
    stay = tuple(n for n in record.replicas if n != node)
    record = c.change(P, isr=stay, replicas=stay)
    stop = StopReplica(
        fence=c.fence(),
        partition=P,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
    )
    c.call(node, stop, Ack)
