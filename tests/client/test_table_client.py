"""The table client against nodes that break: what is acknowledged is applied, and once."""

import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from fake_cluster import FakeCluster, FakeNode, Fault

from rezone.client import ClientSettings, OutcomeUnknownError, TableClient, col
from rezone.client.connections.connection import Connection
from rezone.client.requests.request import Outcome, Request
from rezone.client.requests.suspects import Suspects
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.codec.schema import Column, ColumnType, RowLimits, TableSchema
from rezone.wire.errors import (
    InvalidRowError,
    NotLeaderError,
    OverloadedError,
    ProducerFencedError,
    RezoneError,
)
from rezone.wire.messages import Message, ReadRequest, SelectTicket, WriteRequest, ZoneConfig

TABLE = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("name", ColumnType.STRING),
        Column("counter", ColumnType.INT32),
    ),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE)
QUICK = ClientSettings(
    timeout_seconds=20,
    attempt_timeout_seconds=0.1,
    backoff_first_seconds=0.0005,
    backoff_max_seconds=0.005,
)


# No attempt ends by time: for tests that count requests, which a loaded machine would repeat.
PATIENT = ClientSettings(
    timeout_seconds=60,
    attempt_timeout_seconds=60,
    backoff_first_seconds=0.0005,
    backoff_max_seconds=0.005,
)


def rows_of(ids: range | list[int], counter: int = 0) -> list[dict[str, Any]]:
    """Return rows with these ids."""
    return [{"id": i, "name": f"n{i}", "counter": counter} for i in ids]


class Script:
    """Faults by the number of the request, then none."""

    def __init__(self, *faults: Fault) -> None:
        self.faults = list(faults)
        self.seen: list[tuple[int, Message]] = []

    def __call__(self, node: FakeNode, request: Message) -> Fault:
        """Return the next fault."""
        self.seen.append((node.node, request))
        return self.faults.pop(0) if self.faults else Fault.NONE


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two nodes, four partitions, no faults yet."""
    with FakeCluster(CONFIG) as made:
        yield made


@pytest.fixture
def client(cluster: FakeCluster) -> Iterator[TableClient]:
    """Yield a client of the cluster with short pauses."""
    with TableClient(cluster.bootstrap, settings=QUICK, rng=random.Random(1)) as made:
        yield made


def test_write_read_scan_delete(cluster: FakeCluster, client: TableClient) -> None:
    """The plain path: all rows reach their partitions and come back typed."""
    acks = client.write(rows_of(range(500)))
    assert sum(a.rows for a in acks) == 500
    assert {a.partition for a in acks} == {0, 1, 2, 3}
    assert all(p.offset == a.end_offset for a in acks for p in [cluster.partitions[a.partition]])
    table = client.scan()
    assert table.schema == client.codec.arrow_schema
    assert sorted(table.to_pylist(), key=lambda r: r["id"]) == rows_of(range(500))
    found = client.read([{"id": 7}, {"id": 499}, {"id": 10_000}])
    assert sorted(found.column("id").to_pylist()) == [7, 499]
    client.delete([{"id": i} for i in range(490)])
    assert client.scan().num_rows == 10
    assert client.write([]) == []
    assert client.read([]).num_rows == 0


def test_tables_batches_and_other_widths_are_taken(client: TableClient) -> None:
    """Users bring what pandas and Spark give them: other column order, int64, large strings."""
    table = pa.table(
        {
            "counter": pa.array([1, 2], pa.int64()),
            "name": pa.array(["a", "b"], pa.large_string()),
            "id": pa.array([1, 2], pa.int32()),
        }
    )
    client.write(table)
    assert client.scan().num_rows == 2
    for bad, match in (
        (table.set_column(0, "counter", pa.array([1, 2**40])), "'counter' is int64"),
        (table.drop_columns(["name"]), "has the columns|have the columns"),
        ([{"id": 1, "nope": 2}], "nope"),
        ([{"id": None, "name": "", "counter": 1}], "'id' is null in row 0"),
    ):
        with pytest.raises(InvalidRowError, match=match):
            client.write(bad)


@pytest.mark.parametrize("connected", [False, True])
@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.write(rows_of([1])),
        lambda client: client.delete([{"id": 1}]),
        lambda client: client.read([{"id": 1}]),
        lambda client: client.scan(),
        lambda client: client.lookup("by_name", ("a",)),
        lambda client: client.transaction({"id": 1}).__enter__(),
    ],
    ids=["write", "delete", "read", "scan", "lookup", "transaction"],
)
def test_a_closed_client_says_so_at_once(
    cluster: FakeCluster, ask: Callable[[TableClient], Any], *, connected: bool
) -> None:
    """A thread that still asks would keep a processor busy for as long as a request may take."""
    settings = dataclasses.replace(QUICK, timeout_seconds=3600)
    client = TableClient(cluster.bootstrap, settings=settings, rng=random.Random(1))
    if connected:
        client.scan()
    client.close()
    with pytest.raises(RezoneError, match=r"^the client is closed$"):
        ask(client)


@pytest.mark.proves("RM-10")
def test_a_stale_route_is_corrected_by_the_first_answer(cluster: FakeCluster) -> None:
    """RM-10: with a hint, one more hop and no fetch of routes; else writers stall at a move."""
    with TableClient(cluster.bootstrap, settings=PATIENT, rng=random.Random(1)) as client:
        client.write(rows_of(range(100)))
        asked = cluster.routes_asked
        for partition in range(4):
            cluster.move(partition)
        script = Script()
        cluster.faults = script
        client.write(rows_of(range(100), 1))
        assert len(script.seen) == 8
        assert cluster.routes_asked == asked
        assert client.scan().column("counter").to_pylist() == [1] * 100


def test_a_request_that_new_routes_have_freed_is_answered_once(cluster: FakeCluster) -> None:
    """Its place in the row of pauses would have it ended again, with an error, by `close`."""
    moved: list[int] = []

    def move_once(_node: FakeNode, request: Message) -> Fault:
        assert isinstance(request, ReadRequest)
        if moved:
            return Fault.NONE
        moved.append(request.partition)
        cluster.move(request.partition)
        return Fault.NO_HINT

    settings = dataclasses.replace(PATIENT, backoff_first_seconds=50, backoff_max_seconds=50)
    with TableClient(cluster.bootstrap, settings=settings, rng=random.Random(1)) as client:
        client.write(rows_of(range(10)))
        cluster.faults = move_once
        outcomes: list[Outcome] = []
        answered = threading.Event()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            answered.set()

        request = Request(
            partition=1,
            message=lambda opaque: ReadRequest(opaque=opaque, partition=1),
            body=to_ipc(pa.RecordBatch.from_pylist([], schema=client.codec.key_schema)),
            done=done,
        )
        client._dispatcher.submit(request)
        assert answered.wait(30)
    assert moved == [1]
    assert len(outcomes) == 1


def test_without_a_hint_the_routes_are_fetched(cluster: FakeCluster, client: TableClient) -> None:
    """A node that does not know the new leader must not end the write."""
    client.write(rows_of([1]))
    asked = cluster.routes_asked
    for partition in range(4):
        cluster.move(partition)
    cluster.faults = Script(Fault.NO_HINT)
    client.write(rows_of([1], 1))
    assert cluster.routes_asked > asked


@pytest.mark.parametrize(
    "fault",
    [f for f in Fault if f is not Fault.DELAY],
)
def test_one_fault_applies_a_write_once(
    cluster: FakeCluster, client: TableClient, fault: Fault
) -> None:
    """Each way to lose an answer ends in one application and an acknowledgement."""
    cluster.faults = Script(fault)
    acks = client.write(rows_of([1]))
    state = cluster.partitions[acks[0].partition]
    producer = (client.open_producer().producer_id, acks[0].partition)
    assert state.applied == [(producer, 1, 1)]
    client.write(rows_of([1], 1))
    assert state.applied == [(producer, 1, 1), (producer, 2, 1)]


def test_a_dead_node_is_left_for_the_new_leader(cluster: FakeCluster) -> None:
    """A refused connection must lead to fresh routes from a peer, not to the deadline."""
    cluster.nodes[1].shutdown()
    for partition in range(4):
        cluster.move(partition, 1)
    with TableClient(cluster.bootstrap, settings=QUICK) as client:
        waiting = client.submit_write(rows_of(range(50)))
        asked = threading.Event()

        def faults(_node: FakeNode, _request: Message) -> Fault:
            asked.set()
            return Fault.NONE

        cluster.faults = faults
        for partition in range(4):
            cluster.move(partition, 2)
        assert sum(a.rows for a in waiting.result(20)) == 50
        assert asked.is_set()


@pytest.mark.parametrize("seed", range(4))
def test_a_silent_leader_is_left_before_its_attempt_ends(seed: int) -> None:
    """A frozen machine refuses nothing: writes would stand still until each attempt is given up."""
    settings = dataclasses.replace(PATIENT, routes_timeout_seconds=60, suspect_after_seconds=0.05)
    asked = threading.Event()

    def faults(node: FakeNode, _request: Message) -> Fault:
        if node.node not in node.cluster.frozen:
            return Fault.NONE
        asked.set()
        return Fault.SWALLOW_BEFORE

    with FakeCluster(CONFIG, nodes=3, faults=faults) as cluster:
        for partition in range(4):
            cluster.move(partition, 1)
        rng = random.Random(seed)
        with TableClient(cluster.bootstrap, settings=settings, rng=rng) as client:
            client.write(rows_of(range(50)))
            cluster.frozen.add(1)
            waiting = client.submit_write(rows_of(range(50), 1))
            assert asked.wait(20)
            for partition in range(4):
                cluster.move(partition, 2)
            assert sum(ack.rows for ack in waiting.result(20)) == 50
            cluster.thawed.set()


def test_who_answers_others_is_not_suspected() -> None:
    """A client of a busy node would ask for routes all the time."""
    suspects = Suspects(1.0)
    node = SimpleNamespace(address="a:1", received=3)
    request = Request(partition=7, message=lambda _: None, body=b"", done=lambda _: None)  # type: ignore[arg-type, return-value]
    request.connection, request.frames_seen = cast("Connection", node), 3
    suspects.look([request], 0.9)
    assert not suspects
    node.received = 4
    for now in (1.5, 2.4):
        suspects.look([request], now)
        assert not suspects, now
    suspects.look([request], 2.5)
    assert suspects.take() == (7,)
    suspects.look([request], 3.4)
    assert not suspects, "asked a moment ago"
    suspects.look([request], 3.5)
    assert suspects.take() == (7,)
    assert suspects.silent_last(["a:1", "b:1", "c:1"]) == ["b:1", "c:1", "a:1"]


def test_refused_rows_end_the_call_and_leave_no_gap(cluster: FakeCluster) -> None:
    """InvalidRow from the node: nothing applied, and the number is used by the next batch."""
    with TableClient(cluster.bootstrap, settings=QUICK) as client:
        client.write(rows_of([1]))
        tight = RowLimits(value_bytes_max=20)
        codec_before = cluster.codec
        cluster.codec = type(codec_before)(TABLE, tight)
        with pytest.raises(InvalidRowError, match="value of row 0"):
            client.write([{"id": 1, "name": "x" * 50, "counter": 0}])
        cluster.codec = codec_before
        client.write(rows_of([1], 3))
        assert client.read([{"id": 1}]).to_pylist() == rows_of([1], 3)


def test_the_deadline_says_that_the_outcome_is_unknown(cluster: FakeCluster) -> None:
    """A write that was sent and never answered is neither applied nor failed (rule 14)."""
    settings = ClientSettings(
        timeout_seconds=0.2, attempt_timeout_seconds=0.05, backoff_max_seconds=0.005
    )
    with TableClient(cluster.bootstrap, settings=settings) as client:
        cluster.faults = lambda _n, r: (
            Fault.SWALLOW_AFTER if isinstance(r, WriteRequest) else Fault.NONE
        )
        with pytest.raises(OutcomeUnknownError):
            client.write(rows_of([1], 1))
        cluster.faults = lambda _n, _r: Fault.NONE
        client.write(rows_of([1], 2))
        assert client.read([{"id": 1}]).to_pylist() == rows_of([1], 2)


def test_no_answering_node_is_an_error_in_time() -> None:
    """A client without a cluster must say so, not hang."""
    settings = ClientSettings(timeout_seconds=0.2, routes_timeout_seconds=0.1)
    with (
        TableClient(["127.0.0.1:1"], settings=settings) as client,
        pytest.raises(RezoneError, match="none of"),
    ):
        client.write(rows_of([1]))


def test_batches_of_a_partition_go_one_at_a_time_in_order(cluster: FakeCluster) -> None:
    """Two in flight could be applied out of order after a retry; the last call must win."""
    script = Script()
    cluster.faults = script
    limits = RowLimits(batch_rows_max=10)
    cluster.config = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE, limits=limits)
    with TableClient(cluster.bootstrap, settings=PATIENT) as client:
        futures = [client.submit_write(rows_of(range(50), n)) for n in range(20)]
        for future in futures:
            future.result(20)
        assert client.scan().column("counter").to_pylist() == [19] * 50
    for partition in range(4):
        numbers = [
            r.sequence
            for _, r in script.seen
            if isinstance(r, WriteRequest) and r.partition == partition
        ]
        assert numbers == list(range(1, len(numbers) + 1))


def test_the_queue_is_bounded(cluster: FakeCluster) -> None:
    """A stalled zone must slow its writers, not fill their memory."""
    settings = ClientSettings(timeout_seconds=0.2, open_requests_max=3)
    cluster.faults = lambda _n, _r: Fault.SWALLOW_BEFORE
    with TableClient(cluster.bootstrap, settings=settings) as client:
        futures = [client.submit_write(rows_of([n])) for n in range(5)]
        errors = [f.exception(20) for f in futures]
    assert any(isinstance(e, (OverloadedError, OutcomeUnknownError)) for e in errors)
    assert all(e is not None for e in errors)


def test_acks_are_told_by_partition(cluster: FakeCluster) -> None:
    """Measuring the write gap of a move needs the time of each acknowledgement."""
    acks: list[tuple[int, float]] = []
    with TableClient(
        cluster.bootstrap, settings=QUICK, on_ack=lambda p, t: acks.append((p, t))
    ) as client:
        client.write(rows_of(range(100)))
    assert sorted(p for p, _ in acks) == [0, 1, 2, 3]


def test_closing_ends_what_is_open(cluster: FakeCluster) -> None:
    """A future that is never completed hangs its caller for ever."""
    cluster.faults = lambda _n, _r: Fault.SWALLOW_BEFORE
    client = TableClient(cluster.bootstrap)
    futures = [client.submit_write(rows_of([n])) for n in range(100)]
    client.close()
    assert all(isinstance(f.exception(5), (RezoneError, OutcomeUnknownError)) for f in futures)
    with pytest.raises(RezoneError):
        client.write(rows_of([1]))


def test_scan_follows_a_moved_leader(cluster: FakeCluster, client: TableClient) -> None:
    """A scan on a stale route is corrected as a write is."""
    client.write(rows_of(range(300)))
    for partition in range(4):
        cluster.move(partition)
    assert client.scan().num_rows == 300
    with pytest.raises(NotLeaderError):
        cluster.nodes[1].cluster._refuse_follower(cluster.nodes[1], 0, hint=False)


@pytest.mark.proves("SP-02")
def test_partitions_that_have_keys_of_a_filter_are_asked_at_the_same_time(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows by key would take as many round trips as the zone has partitions."""
    all_are_asked = threading.Barrier(CONFIG.partitions)
    select = cluster.select

    def wait_and_select(node: FakeNode, ticket: SelectTicket) -> Any:
        all_are_asked.wait(PATIENT.timeout_seconds)
        return select(node, ticket)

    with TableClient(cluster.bootstrap, settings=PATIENT) as client:
        client.write(rows_of(range(100)))
        monkeypatch.setattr(cluster, "select", wait_and_select)
        found = client.scan(filter=col("id").is_in(range(60, 120)))
    assert sorted(found.column("id").to_pylist()) == list(range(60, 100))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_exactly_once_under_any_mix_of_faults(seed: int) -> None:
    """Lost and doubled writes: every acknowledged batch is applied once, in order, whatever fails.

    Each key is written by rising counters of one writer; the last acknowledged one must stand,
    and the nodes refuse (by assertion) a gap or a repeated old number.
    """
    rng = random.Random(seed)
    print("seed", seed)  # noqa: T201 - to repeat a failure
    kinds = [f for f in Fault if not f.name.startswith("SWALLOW")]
    weights = [12 if f is Fault.NONE else 1 for f in kinds]

    fired: set[Fault] = set()

    def faults(_node: FakeNode, _request: Message) -> Fault:
        # One attempt in 200 waits for its time-out; more would only make the test slow.
        if rng.random() < 0.005:
            return rng.choice([Fault.SWALLOW_BEFORE, Fault.SWALLOW_AFTER])
        fault = rng.choices(kinds, weights)[0]
        fired.add(fault)
        return fault

    with FakeCluster(CONFIG, nodes=3, faults=faults) as cluster:
        writers = [
            TableClient(cluster.bootstrap, settings=QUICK, rng=random.Random(w)) for w in range(2)
        ]
        futures = []
        expected = {}
        for number in range(60):
            for index, writer in enumerate(writers):
                ids = [2 * i + index for i in rng.sample(range(40), 10)]
                expected.update(dict.fromkeys(ids, number))
                futures.append((index, writer.submit_write(rows_of(ids, number))))
        acked: dict[tuple[int, int], int] = {}
        for index, future in futures:
            for ack in future.result(60):
                where = (index, ack.partition)
                acked[where] = acked.get(where, 0) + ack.rows
        assert fired == set(kinds)
        cluster.faults = lambda _n, _r: Fault.NONE
        table = writers[0].scan()
        got = dict(
            zip(table.column("id").to_pylist(), table.column("counter").to_pylist(), strict=True)
        )
        assert got == expected
        for partition, state in cluster.partitions.items():
            assert len({(w, s) for w, s, _ in state.applied}) == len(state.applied)
            for index, writer in enumerate(writers):
                producer = (writer.open_producer().producer_id, partition)
                rows = sum(count for p, _, count in state.applied if p == producer)
                assert rows == acked.get((index, partition), 0)
        for writer in writers:
            writer.close()


def test_reads_are_tried_again_too(cluster: FakeCluster, client: TableClient) -> None:
    """A read during a move is moved along, not failed."""
    client.write(rows_of([1]))
    for fault in (Fault.BREAK_BEFORE, Fault.NOT_READY, Fault.NO_HINT, Fault.SWALLOW_BEFORE):
        script = Script(fault)
        cluster.faults = script
        assert client.read([{"id": 1}]).num_rows == 1
        assert all(isinstance(r, ReadRequest) for _, r in script.seen)
        assert len(script.seen) >= 2


@pytest.mark.proves("PW-01")
@pytest.mark.parametrize("fault", [f for f in Fault if f is not Fault.DELAY])
def test_a_name_is_opened_whatever_happens_to_the_answer(
    cluster: FakeCluster, fault: Fault
) -> None:
    """An opening whose answer is lost is repeated, and the first write goes out with its epoch.

    A client would write under an epoch that another one has, or never begin.
    """
    cluster.faults = Script(fault)
    with TableClient(cluster.bootstrap, producer="loader", settings=QUICK) as client:
        (ack,) = client.write(rows_of([1]))
        opened = client.open_producer()
        assert opened.producer_epoch == 1, "a repeat gets the same epoch"
        state = cluster.partitions[ack.partition]
        assert state.producers[opened.producer_id, ack.partition][:2] == (opened.producer_epoch, 1)


@pytest.mark.proves("PW-01")
def test_a_name_that_others_have_opened_is_opened_behind_them(cluster: FakeCluster) -> None:
    """Each client that opens a name gets the next epoch, however many have opened it before.

    A client that knows of no epoch yet would be refused, or share the one of another.
    """
    for epoch in (1, 2, 3):
        with TableClient(cluster.bootstrap, producer="loader", settings=QUICK) as client:
            assert client.open_producer().producer_epoch == epoch


@pytest.mark.proves("PW-01")
def test_a_fence_behind_a_lost_answer_leaves_the_outcome_unknown(cluster: FakeCluster) -> None:
    """A write that was applied before its producer was fenced is not called refused.

    Its caller would write it again elsewhere, though it is there.
    """
    tries: list[WriteRequest] = []

    def faults(_node: FakeNode, request: Message) -> Fault:
        if not isinstance(request, WriteRequest):
            return Fault.NONE
        tries.append(request)
        if len(tries) == 1:
            return Fault.SWALLOW_AFTER
        # Meanwhile another client has written there.
        state = cluster.partitions[request.partition]
        state.producers[request.producer_id, request.partition] = (2, 1, state.offset)
        return Fault.NONE

    cluster.faults = faults
    with TableClient(cluster.bootstrap, producer="loader", settings=QUICK) as client:
        with pytest.raises(OutcomeUnknownError) as said:
            client.write(rows_of([1], 1))
        assert isinstance(said.value.__cause__, ProducerFencedError)
        with pytest.raises(ProducerFencedError):
            client.delete([{"id": 1}])
        assert len(tries) == 2
        assert client.read([{"id": 1}]).to_pylist() == rows_of([1], 1)
