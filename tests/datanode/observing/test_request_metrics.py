"""Rate, errors, duration and saturation of a data node, as Prometheus reads them (OB-01)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pyarrow import flight
from replica_cluster import Client, Coordinator, cluster

import rezone.wire.errors as wire_errors
from rezone.datanode.observing.health import registry_of
from rezone.datanode.observing.limits import limits_of
from rezone.datanode.observing.load import client_load
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.scheduling.requests import Operation, Result, result_of_code
from rezone.datanode.settings import SystemClock
from rezone.wire.errors import InvalidRowError, NotReadyError, RezoneError, UnknownPartitionError
from rezone.wire.messages import IndexTicket, RoutesRequest, RouteTable, ScanTicket

pytestmark = pytest.mark.proves("OB-01")
P = 0
Samples = dict[tuple[str, tuple[str, ...]], float]


@pytest.fixture
def c(tmp_path: Path) -> Iterator[Coordinator]:
    """Make a partition on one node."""
    with cluster(tmp_path, 1) as made:
        made.create(P, (0,))
        yield made


def scraped(c: Coordinator) -> Samples:
    """Return the samples of node 0 by name and label values.

    A request is counted just after its answer is sent, which the client may have read by then.
    """
    c.until("all is counted", lambda: c.node(0).foreground.under_way == 0)
    text = generate_latest(registry_of(c.node(0))).decode()
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counted(samples: Samples, operation: Operation, result: Result = Result.OK) -> float:
    """Return how many requests of an operation had a result."""
    return samples["rezone_data_node_requests_total", (operation, result)]


@pytest.mark.proves("OB-04")
def test_the_page_of_load_has_what_rates_are_made_of(c: Coordinator) -> None:
    """`rezone top` would show a zone at rest while clients read and write."""
    client = Client(c)
    before = client_load(c.node(0))
    client.put(P, {b"a": b"1"})
    client.get(P, [b"a"])
    c.until("all is counted", lambda: c.node(0).foreground.under_way == 0)
    after = client_load(c.node(0))
    assert after.process_id == before.process_id
    assert after.seconds > before.seconds
    assert len(after.reads.ok) == len(after.bounds_micros) + 1
    assert sum(after.writes.ok) - sum(before.writes.ok) == 1
    assert sum(after.reads.ok) - sum(before.reads.ok) == 1
    assert (after.reads.failed, after.writes.failed) == (before.reads.failed, before.writes.failed)


def test_each_operation_of_a_client_is_counted_and_timed(c: Coordinator) -> None:
    """An operation that no metric shows could fail for all users, and dashboards stay green."""
    client = Client(c)
    before = scraped(c)
    client.put(P, {b"a": b"1"})
    client.open(P)
    client.get(P, [b"a"])
    as_of = client.put(P, {b"b": b"1"}).commit_time
    client.get(P, [b"a"], as_of=as_of)
    committed, aborted = client.begin(P), client.begin(P)
    committed.put({b"c": b"1"})
    committed.commit()
    aborted.end(commit=False)
    c.client(0).get(ScanTicket(partition=P)).read_all()
    c.call(0, RoutesRequest(), RouteTable)
    after = scraped(c)
    expected = {
        Operation.WRITE: 2,
        Operation.PRODUCER_OPEN: 1,
        Operation.READ: 1,
        Operation.SNAPSHOT_READ: 1,
        Operation.TRANSACTION_BEGIN: 2,
        Operation.TRANSACTION_WRITE: 1,
        Operation.TRANSACTION_COMMIT: 1,
        Operation.TRANSACTION_ABORT: 1,
        Operation.SCAN: 1,
        Operation.LOOKUP: 0,
        Operation.ROUTES: 1,
    }
    for operation, count in expected.items():
        assert counted(after, operation) - counted(before, operation) == count, operation
        timed = after["rezone_data_node_request_seconds_count", (operation,)]
        assert timed == counted(after, operation), operation
        if count:
            assert after["rezone_data_node_request_seconds_sum", (operation,)] > 0, operation


def test_each_error_has_a_class_and_no_duration(c: Coordinator) -> None:
    """Refusals, which take no time, would hide that what is served takes long."""
    client = Client(c)
    with pytest.raises(InvalidRowError):
        client.send(P, 1, {}, retry=False)
    with pytest.raises(UnknownPartitionError):
        client.get(99, [b"a"], node=0, retry=False)
    with pytest.raises((RezoneError, flight.FlightError)):
        c.client(0).get(ScanTicket(partition=99)).read_all()
    with pytest.raises((RezoneError, flight.FlightError)):
        c.client(0).get(IndexTicket(P, "none", start=b"", end=b"\xff", limit=1)).read_all()
    found = scraped(c)
    assert counted(found, Operation.WRITE, Result.REFUSED) == 1
    assert counted(found, Operation.READ, Result.REDIRECTED) == 1
    assert counted(found, Operation.SCAN, Result.REDIRECTED) == 1
    assert counted(found, Operation.LOOKUP, Result.REFUSED) == 1
    for operation in Operation:
        assert found["rezone_data_node_request_seconds_count", (operation,)] == 0


def test_a_commit_that_another_one_has_ended_is_a_conflict(c: Coordinator) -> None:
    """Commits that abort would count as served."""
    client = Client(c)
    transaction = client.begin(P)
    transaction.put({b"a": b"1"})
    transaction.end(commit=False)
    transaction.commit()
    assert counted(scraped(c), Operation.TRANSACTION_COMMIT, Result.CONFLICT) == 1


def test_every_error_of_the_wire_has_a_class_of_its_own_choice() -> None:
    """A new error would count as a fault of the node, and wake somebody up."""
    codes = {
        kind.code: result_of_code(kind.code)
        for kind in vars(wire_errors).values()
        if isinstance(kind, type) and issubclass(kind, RezoneError)
    }
    failed = {code for code, result in codes.items() if result is Result.FAILED}
    assert failed == {"Internal", "Corruption"}
    assert result_of_code("of another version") is Result.FAILED


def test_a_stream_counts_once_and_without_the_pauses_of_its_reader() -> None:
    """A client that reads slowly would make the node look slow."""
    time = HandTime()
    foreground = Foreground(time, lambda: 0)

    def rows(*, fails: bool) -> Iterator[int]:
        for row in range(3):
            time.now += 0.01
            yield row
        if fails:
            raise NotReadyError("not any more")

    for _ in foreground.serving(rows(fails=False), Operation.SCAN):
        time.now += 60
    with pytest.raises(NotReadyError):
        list(foreground.serving(rows(fails=True), Operation.SCAN))
    left = foreground.serving(rows(fails=False), Operation.SCAN)
    next(left)
    left.close()  # type: ignore[attr-defined]
    counts = foreground.requests[Operation.SCAN]
    assert {result: n for result, n in counts.results.items() if n} == {
        Result.OK: 1,
        Result.UNAVAILABLE: 1,
        Result.CANCELLED: 1,
    }
    assert counts.seconds == pytest.approx(0.03)
    assert foreground.under_way == 0


class HandTime(SystemClock):
    """A monotonic clock that is moved by hand."""

    now = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


def test_saturation_shows_every_limit_and_what_fills_it(c: Coordinator) -> None:
    """A limit would be reached without a warning before the first refusal."""
    node = c.node(0)
    Client(c).put(P, {b"a": b"1"})
    limits = {limit.name: limit for limit in limits_of(node)}
    assert len(limits) == len(limits_of(node)), "two limits of one name"
    for name in ("connections", "file_descriptors", "disk"):
        assert 0 < limits[name].saturation < 1, name
    replica = c.replica(0)
    replica.intake.budget.take(replica.settings.pending_bytes_partition_max // 2)
    node.waiting_reads.take(node.settings.reads_held_bytes_max)
    transaction = Client(c).begin(P)
    transaction.put({b"b": b"1"})
    found = scraped(c)
    assert set(limits) == {
        labels[0] for name, labels in found if name == "rezone_data_node_saturation_ratio"
    }

    def full(limit: str) -> float:
        return found["rezone_data_node_saturation_ratio", (limit,)]

    assert full("partition_pending_writes") == pytest.approx(0.5, abs=0.01)
    assert full("memory_waiting_reads") == 1
    assert full("partition_open_transactions") == 1 / node.settings.transactions_open_max
    replica.intake.budget.give(replica.settings.pending_bytes_partition_max // 2)
    node.waiting_reads.give(node.settings.reads_held_bytes_max)
