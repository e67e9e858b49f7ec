"""Calls that share a request: each is applied once, and has its own answer or error."""

import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from fake_cluster import FakeCluster, FakeNode, Fault

from rezone.client import ClientSettings, OutcomeUnknownError, PartitionWrite, TableClient
from rezone.client.requests.calls import Budget
from rezone.client.requests.sharing import Content
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import (
    InvalidRowError,
    OverloadedError,
    ProducerFencedError,
    RezoneError,
    RowLockedError,
    VersionsExpiredError,
)
from rezone.wire.messages import Message, ProducerOpen, ReadRequest, WriteRequest, ZoneConfig

TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("name", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=TABLE)
PATIENT = ClientSettings(
    timeout_seconds=60,
    attempt_timeout_seconds=60,
    backoff_first_seconds=0.0005,
    backoff_max_seconds=0.005,
)
QUICK = dataclasses.replace(PATIENT, attempt_timeout_seconds=0.1)
WAIT_SECONDS = 30


class Gate:
    """Faults that hold the first write or read at its node; the ones after it get a script."""

    def __init__(self, *faults: Fault) -> None:
        self.held = threading.Event()
        self.open = threading.Event()
        self.requests: list[Message] = []
        self._faults = list(faults)

    def __call__(self, _node: FakeNode, request: Message) -> Fault:
        """Wait at the first request; return the fault of each later one."""
        if isinstance(request, ProducerOpen):
            return Fault.NONE
        self.requests.append(request)
        if len(self.requests) == 1:
            self.held.set()
            assert self.open.wait(WAIT_SECONDS)
            return Fault.NONE
        return self._faults.pop(0) if self._faults else Fault.NONE


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two nodes, one partition, no faults yet."""
    with FakeCluster(CONFIG) as made:
        yield made


def client_of(cluster: FakeCluster, settings: ClientSettings = PATIENT) -> TableClient:
    """Return a client that the caller closes."""
    return TableClient(cluster.bootstrap, settings=settings, rng=random.Random(1))


def row(number: int, name: str = "") -> list[dict[str, Any]]:
    """Return one row."""
    return [{"id": number, "name": name or f"n{number}"}]


def client_rows(cluster: FakeCluster, number: int) -> Any:
    """Return one row as a client has it."""
    table = pa.Table.from_pylist(row(number), cluster.codec.arrow_schema)
    return table.to_batches()[0]


def key(cluster: FakeCluster, number: int) -> bytes:
    """Return a key as a node has it."""
    codec = cluster.codec
    encoded: bytes = codec.encode_keys(
        codec.key_schema.empty_table()
        .from_pylist([{"id": number}], schema=codec.key_schema)
        .to_batches()[0]
    )[0].as_py()
    return encoded


def submitted_behind(
    cluster: FakeCluster, client: TableClient, gate: Gate, numbers: range
) -> list[Future[list[PartitionWrite]]]:
    """Write one row that is held, then these; return their futures once all are submitted."""
    client.open_producer()
    cluster.faults = gate
    first = client.submit_write(row(0))
    assert gate.held.wait(WAIT_SECONDS)
    futures = [client.submit_write(row(number)) for number in numbers]
    gate.open.set()
    first.result(WAIT_SECONDS)
    return futures


def sizes(cluster: FakeCluster) -> list[int]:
    """Return how many rows each applied request had."""
    return [rows for _, _, rows in cluster.partitions[0].applied]


def names(cluster: FakeCluster) -> dict[int, str]:
    """Return all rows."""
    with client_of(cluster) as client:
        return {one["id"]: one["name"] for one in client.scan().to_pylist()}


def test_writes_that_wait_share_the_next_request(cluster: FakeCluster) -> None:
    """One request for all of them: else each small write costs a whole one."""
    with client_of(cluster) as client:
        futures = submitted_behind(cluster, client, Gate(), range(1, 21))
        results = [one.result(WAIT_SECONDS) for one in futures]
    assert sizes(cluster) == [1, 20]
    assert [one.rows for result in results for one in result] == [1] * 20
    assert names(cluster) == {number: f"n{number}" for number in range(21)}


@pytest.mark.proves("PW-03")
def test_a_lone_writer_s_rows_go_at_once(cluster: FakeCluster) -> None:
    """Without company nothing waits: each call is a request of its own."""
    with client_of(cluster) as client:
        for number in range(5):
            client.write(row(number))
    assert sizes(cluster) == [1] * 5


@pytest.mark.proves("PW-04")
@pytest.mark.parametrize("limit", ["requests", "bytes"])
def test_a_full_queue_tells_the_caller_and_drops_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Each call counts, whatever request it will share: else a client's memory has no limit."""
    size = Content(client_rows(cluster, 0)).size
    limits = {"requests": {"open_requests_max": 5}, "bytes": {"open_bytes_max": 5 * size}}
    settings = dataclasses.replace(PATIENT, **limits[limit])
    begin = Budget.__init__

    def impatient(budget: Budget, settings: ClientSettings, *others: Callable[[], None]) -> None:
        begin(budget, dataclasses.replace(settings, timeout_seconds=0.0), *others)

    monkeypatch.setattr(Budget, "__init__", impatient)
    with client_of(cluster, settings) as client:
        gate = Gate()
        client.open_producer()
        cluster.faults = gate
        waiting = [client.submit_write(row(0))]
        assert gate.held.wait(WAIT_SECONDS)
        waiting += [client.submit_write(row(number)) for number in range(1, 5)]
        with pytest.raises(OverloadedError, match="nothing of this was sent"):
            client.write(row(5))
        gate.open.set()
        for each in waiting:
            each.result(WAIT_SECONDS)
        client.write(row(6))
    assert names(cluster).keys() == {0, 1, 2, 3, 4, 6}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (dataclasses.replace(PATIENT, shared_calls_max=8), [1, 8, 8, 4]),
        (dataclasses.replace(PATIENT, shared_calls_max=1), [1] * 21),
        (dataclasses.replace(PATIENT, shared_bytes_max=1), [1] * 21),
    ],
)
def test_requests_are_bounded(
    cluster: FakeCluster, settings: ClientSettings, expected: list[int]
) -> None:
    """By calls and by bytes: a request must not grow with the number of threads."""
    with client_of(cluster, settings) as client:
        for one in submitted_behind(cluster, client, Gate(), range(1, 21)):
            one.result(WAIT_SECONDS)
    assert sizes(cluster) == expected


def test_upserts_and_deletes_keep_their_order(cluster: FakeCluster) -> None:
    """They share no request, nor do two calls for one row: each has its version, in its turn."""
    gate = Gate()
    with client_of(cluster) as client:
        client.open_producer()
        cluster.faults = gate
        futures = [client.submit_write(row(1, "first"))]
        assert gate.held.wait(WAIT_SECONDS)
        futures += [
            client.submit_write(row(1, "second")),
            client.submit_write(row(1, "third")),
            client.submit_delete([{"id": 1}]),
            client.submit_delete([{"id": 2}]),
            client.submit_write(row(2, "last")),
        ]
        gate.open.set()
        for one in futures:
            one.result(WAIT_SECONDS)
    assert sizes(cluster) == [1, 1, 1, 2, 1]
    assert names(cluster) == {2: "last"}


@pytest.mark.parametrize("place", [1, 7, 20])
@pytest.mark.parametrize("error", [InvalidRowError("not this one"), RowLockedError("locked")])
def test_a_refused_call_fails_alone(cluster: FakeCluster, error: RezoneError, place: int) -> None:
    """Its companions are applied, once each; with it they would fail for another one's row."""
    cluster.refusals[key(cluster, place)] = error
    # An attempt that is under way at the deadline would hide the refusal behind a missing answer:
    # with these pauses there is none from 0.9 s on.
    settings = dataclasses.replace(
        PATIENT, timeout_seconds=1, backoff_first_seconds=0.3, backoff_max_seconds=10
    )
    with client_of(cluster, settings) as client:
        futures = submitted_behind(cluster, client, Gate(), range(1, 21))
        refused = futures.pop(place - 1)
        with pytest.raises((InvalidRowError, OutcomeUnknownError)) as caught:
            refused.result(WAIT_SECONDS)
        for one in futures:
            one.result(WAIT_SECONDS)
        cause = caught.value.__cause__ or caught.value
        assert isinstance(cause, type(error))
        client.write(row(99))
    assert sum(sizes(cluster)) == 21
    expected = {*range(21), 99} - {place}
    assert names(cluster) == {number: f"n{number}" for number in expected}


def test_a_locked_row_is_written_when_it_is_free(cluster: FakeCluster) -> None:
    """The call alone is repeated until then, and in its turn."""
    lock = key(cluster, 3)
    cluster.refusals[lock] = RowLockedError("locked")
    tried = threading.Event()
    gate = Gate()

    def faults(node: FakeNode, request: Message) -> Fault:
        fault = gate(node, request)
        if len(sizes(cluster)) >= 2 and gate.open.is_set() and sum(sizes(cluster)) == 3:
            tried.set()
            cluster.refusals.clear()
        return fault

    with client_of(cluster) as client:
        client.open_producer()
        cluster.faults = faults
        futures = [client.submit_write(row(0))]
        assert gate.held.wait(WAIT_SECONDS)
        futures += [client.submit_write(row(number)) for number in range(1, 6)]
        gate.open.set()
        for one in futures:
            one.result(WAIT_SECONDS)
    assert tried.is_set()
    assert sum(sizes(cluster)) == 6
    assert len(names(cluster)) == 6


@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.DELAY])
def test_a_shared_request_is_applied_once(cluster: FakeCluster, fault: Fault) -> None:
    """Each way to lose its answer ends in one application, the re-sharding of its zone included."""
    if fault in (Fault.SEAL_BEFORE, Fault.SEAL_AFTER):
        cluster.begin_resharding(2)
    with client_of(cluster, QUICK) as client:
        futures = submitted_behind(cluster, client, Gate(fault), range(1, 21))
        results = [one.result(WAIT_SECONDS) for one in futures]
        assert all(sum(one.rows for one in result) == 1 for result in results)
        written = [number for _, entry in cluster.history for number in entry.rows]
        assert len(written) == len(set(written)) == 21
        client.write(row(99))
    assert sum(len(one.data) for one in cluster.partitions.values()) >= 22


@pytest.mark.parametrize("seed", range(3))
def test_a_storm_of_shared_requests_applies_each_write_once(seed: int) -> None:
    """Threads write counters up while nodes break, move and lock rows: the last value stays."""
    rng = random.Random(seed)
    faults = [f for f in Fault if f not in (Fault.DELAY, Fault.SEAL_AFTER, Fault.SEAL_BEFORE)]
    with (
        FakeCluster(msgspec.structs.replace(CONFIG, partitions=2)) as cluster,
        client_of(cluster, QUICK) as client,
        ThreadPoolExecutor(8) as pool,
    ):

        def break_some(_node: FakeNode, request: Message) -> Fault:
            for number in range(8):
                cluster.refusals.pop(key(cluster, number), None)
            if isinstance(request, WriteRequest) and rng.random() < 0.3:
                locked = key(cluster, rng.randrange(8))
                cluster.refusals[locked] = RowLockedError("locked")
            return rng.choice(faults) if rng.random() < 0.2 else Fault.NONE

        client.open_producer()
        cluster.faults = break_some

        def count(number: int) -> None:
            for turn in range(12):
                client.write(row(number, f"turn {turn}"))
                assert client.read([{"id": number}]).column("name").to_pylist() == [f"turn {turn}"]

        list(pool.map(count, range(8), timeout=60))
        turns: dict[bytes, list[bytes | None]] = {}
        for _, entry in cluster.history:
            for written, value in entry.rows.items():
                turns.setdefault(written, []).append(value)
    assert len(turns) == 8
    assert all(len(values) == len(set(values)) == 12 for values in turns.values()), f"seed {seed}"


def test_a_fenced_producer_ends_all_calls_of_a_request(cluster: FakeCluster) -> None:
    """The error is about all of them; to ask for each alone would be for nothing."""
    cluster.refusals[key(cluster, 5)] = ProducerFencedError("opened again")
    gate = Gate()
    with client_of(cluster) as client:
        futures = submitted_behind(cluster, client, gate, range(1, 21))
        for one in futures:
            with pytest.raises(ProducerFencedError):
                one.result(WAIT_SECONDS)
    assert len(gate.requests) == 2


def read_behind(
    cluster: FakeCluster, client: TableClient, gate: Gate, numbers: list[int]
) -> list[Future[Any]]:
    """Read a key that is held, then these by a thread each, which wait for it together."""
    lane_waits = threading.Event()
    reads = client._reads._shared
    pool = ThreadPoolExecutor(len(numbers) + 1)
    cluster.faults = gate
    first = pool.submit(client.read, [{"id": 0}])
    assert gate.held.wait(WAIT_SECONDS)
    futures = [pool.submit(client.read, [{"id": number}]) for number in numbers]
    for _ in range(10_000):
        if len(reads._lanes[0].waiting) == len(numbers):
            break
        lane_waits.wait(0.001)
    gate.open.set()
    assert first.result(WAIT_SECONDS).num_rows == 1
    pool.shutdown(wait=True)
    return futures


def test_reads_that_wait_share_the_next_request(cluster: FakeCluster) -> None:
    """Each call gets its own rows, also of a key that others ask for, or that is not there."""
    numbers = [1, 2, 2, 3, 1000, 4]
    gate = Gate()
    with client_of(cluster) as client:
        client.write([one for number in range(5) for one in row(number)])
        found = [one.result() for one in read_behind(cluster, client, gate, numbers)]
        assert found[0].schema == client.codec.arrow_schema
    assert [table.to_pylist() for table in found] == [
        row(number) if number < 5 else [] for number in numbers
    ]
    assert len(gate.requests) == 2


@pytest.mark.parametrize(
    "fault",
    [Fault.BREAK_BEFORE, Fault.BREAK_AFTER, Fault.NO_HINT, Fault.MOVE_BEFORE, Fault.SEAL_BEFORE],
)
def test_a_shared_read_survives_faults(cluster: FakeCluster, fault: Fault) -> None:
    """Every call is answered: by a repeat, by the next leader, by who serves its key now."""
    if fault is Fault.SEAL_BEFORE:
        cluster.begin_resharding(2)
    with client_of(cluster, QUICK) as client:
        client.write([one for number in range(5) for one in row(number)])
        found = [one.result() for one in read_behind(cluster, client, Gate(fault), [1, 2, 3, 4])]
    assert [table.to_pylist() for table in found] == [row(number) for number in range(1, 5)]


def test_a_refused_read_fails_alone(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other calls of its request get their rows."""
    answer, lost = cluster._read, key(cluster, 2)

    def read(request: ReadRequest, keys: list[bytes]) -> tuple[Message, bytes]:
        if lost in keys:
            raise VersionsExpiredError("not this one")
        return answer(request, keys)

    monkeypatch.setattr(cluster, "_read", read)
    with client_of(cluster) as client:
        client.write([one for number in range(5) for one in row(number)])
        one, two, three = read_behind(cluster, client, Gate(), [1, 2, 3])
        assert one.result().to_pylist() == row(1)
        assert three.result().to_pylist() == row(3)
        with contextlib.suppress(TimeoutError), pytest.raises(VersionsExpiredError):
            two.result()
