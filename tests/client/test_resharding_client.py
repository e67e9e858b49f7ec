"""The table client while its zone is re-sharded: each write once, each row read, none waits."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from fake_cluster import Entry, FakeCluster, FakeNode, Fault
from pyarrow import flight

from rezone.client import ClientSettings, OutcomeUnknownError, TableClient
from rezone.client.routing.placement import Placement
from rezone.client.routing.routes import RouteCache
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import ConflictError, ReshardedError
from rezone.wire.layouts import HashRange, Layout, Segment, generation_of, segments
from rezone.wire.messages import (
    LeaderAndIsr,
    Message,
    PartitionAssignment,
    RouteTable,
    ScanTicket,
    WriteRequest,
    ZoneConfig,
)

TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("counter", ColumnType.INT32)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE)
QUICK = ClientSettings(
    timeout_seconds=20,
    attempt_timeout_seconds=2,
    backoff_first_seconds=0.0005,
    backoff_max_seconds=0.005,
)


def rows_of(ids: Any, counter: int = 0) -> list[dict[str, int]]:
    """Return rows with these ids."""
    return [{"id": i, "counter": counter} for i in ids]


def counters(table: Any) -> dict[int, int]:
    """Return the counters of a table by id; each id once."""
    found = [(row["id"], row["counter"]) for row in table.to_pylist()]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two nodes, four partitions, no faults yet."""
    with FakeCluster(CONFIG) as made:
        yield made


def client_of(
    cluster: FakeCluster, name: str = "w", settings: ClientSettings = QUICK
) -> TableClient:
    """Return a client of the cluster with short pauses."""
    return TableClient(cluster.bootstrap, settings=settings, rng=random.Random(name))


# --- writes ---------------------------------------------------------------------------------


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("tells", [True, False])
def test_rows_are_written_and_read_from_the_first_seal_to_the_last(
    cluster: FakeCluster, *, tells: bool
) -> None:
    """A client would be refused for ever, or ask a partition that does not serve yet."""
    cluster.tells_seals = tells
    with client_of(cluster) as client:
        number = 0
        for count in (8, 3, 5, 1, 4):
            client.write(rows_of(range(200), number))
            old = Layout(cluster.config.generation, cluster.config.partitions)
            cluster.begin_resharding(count)
            for partition in random.Random(count).sample(list(old.ids), old.partitions):
                cluster.seal(partition)
                number += 1
                futures = [client.submit_write(rows_of(range(n, 200, 3), number)) for n in range(3)]
                assert sum(a.rows for f in futures for a in f.result(20)) == 200
                found = client.read([{"id": n} for n in range(0, 200, 7)])
                assert counters(found) == dict.fromkeys(range(0, 200, 7), number)
                assert counters(client.scan()) == dict.fromkeys(range(200), number)
            cluster.finish()
            assert counters(client.scan()) == dict.fromkeys(range(200), number)
        client.delete([{"id": n} for n in range(190)])
        assert client.scan().num_rows == 10


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("seals", [1, 2, 3])
def test_a_write_whose_answer_was_lost_at_the_seal_does_not_undo_anothers(
    cluster: FakeCluster, seals: int
) -> None:
    """Sent again under a new name, it would be applied twice, the second time over a newer row.

    After several seals the partition that it was applied in is over for long.
    """
    with client_of(cluster) as client:
        key = client.codec.encode_keys(_keys(client, [7])).to_pylist()[0]
        newer = client.codec.encode_values(_batch(client, 7, 99)).to_pylist()[0]
        cluster.begin_resharding(3)

        def faults(_node: FakeNode, request: Message) -> Fault:
            assert isinstance(request, WriteRequest)
            if request.partition in cluster.sealed or request.partition not in cluster.partitions:
                return Fault.NONE
            if len(request.original_ids) < seals:
                if request.original_ids:
                    cluster.go_over()
                    cluster.begin_resharding(5)
                return Fault.SEAL_AFTER
            if len(cluster.history) == 1:
                another = Entry(("another", 0), 0, 1, {key: newer})
                cluster.history.append((0, another))
                cluster.partitions[request.partition].append(another)
            return Fault.NONE

        cluster.faults = faults
        (ack,) = client.write(rows_of([7], 1))
        assert generation_of(ack.partition) == seals
        cluster.faults = lambda _n, _r: Fault.NONE
        assert counters(client.read([{"id": 7}])) == {7: 99}
        client.write(rows_of([7], 2))
        assert counters(client.read([{"id": 7}])) == {7: 2}


@pytest.mark.proves("B-08")
def test_parts_of_a_batch_that_meet_again_in_one_partition_are_not_taken_for_each_other() -> None:
    """A part not yet written would be answered for the one that was: an acknowledged loss."""
    with FakeCluster(ZoneConfig(zone="z", zone_uid="u", partitions=1, table=TABLE)) as cluster:
        cluster.begin_resharding(2)
        first, second = Layout(1, 2).ids
        sealed: list[int] = []

        def faults(_node: FakeNode, request: Message) -> Fault:
            assert isinstance(request, WriteRequest)
            if not sealed:
                sealed.append(request.partition)
                return Fault.SEAL_BEFORE
            if request.partition == first:
                return Fault.NONE
            if request.partition == second and not cluster.partitions[first].applied:
                return Fault.NOT_READY
            if request.partition == second and len(sealed) == 1:
                sealed.append(second)
                cluster.go_over()
                cluster.reshard(1)
            return Fault.NONE

        cluster.faults = faults
        with client_of(cluster) as client:
            acks = client.write(rows_of(range(50), 1))
            assert {a.partition for a in acks} == {first, *Layout(2, 1).ids}
            cluster.faults = lambda _n, _r: Fault.NONE
            assert counters(client.scan()) == dict.fromkeys(range(50), 1)
        written = [key for _, entry in cluster.history for key in entry.rows]
        assert len(written) == len(set(written)) == 50


@pytest.mark.proves("B-08")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_each_write_counts_once_and_in_order_whatever_fails_and_is_sealed(seed: int) -> None:
    """Lost, doubled or overtaken writes: each acknowledged row is applied once, as it was sent.

    Two writers write rising counters to rows of their own and to rows that both write, while
    partitions are sealed by chance in the midst of it, over several re-shardings.
    """
    rng = random.Random(seed)
    print("seed", seed)  # noqa: T201 - to repeat a failure
    with FakeCluster(CONFIG, nodes=3) as cluster:
        # The last of 300 writes waits for all others, on a busy machine for half a minute.
        hurried = dataclasses.replace(QUICK, attempt_timeout_seconds=0.1, timeout_seconds=150)
        writers = [client_of(cluster, f"w{w}", hurried) for w in range(2)]
        for writer in writers:
            writer.write(rows_of(range(60), 0))
        cluster.history.clear()
        cluster.faults = _any_fault(cluster, rng)
        sent: dict[tuple[int, int], None] = {}
        futures = []
        for number in range(1, 150):
            for index, writer in enumerate(writers):
                ids = [i for i in rng.sample(range(60), 12) if i < 20 or i % 2 == index]
                # A counter says who wrote it: odd ones the second writer.
                counter = 2 * number + index
                sent.update(dict.fromkeys((i, counter) for i in ids))
                futures.append(writer.submit_write(rows_of(ids, counter)))
        acknowledged = sum(ack.rows for future in futures for ack in future.result(150))
        cluster.faults = lambda _n, _r: Fault.NONE
        applied = _applied(cluster)
        assert acknowledged == len(sent)
        assert len(applied) == len(set(applied))
        assert set(applied) == set(sent)
        last = dict(applied)
        assert counters(writers[0].scan()) | last == counters(writers[1].scan())
        by_row: dict[tuple[int, int], int] = {}
        for row, counter in applied:
            assert counter > by_row.get((row, counter % 2), 0), "overtaken by a later write"
            by_row[row, counter % 2] = counter
        assert cluster.config.generation > 1
        for writer in writers:
            writer.close()


@pytest.mark.proves("B-08")
def test_a_scan_that_breaks_at_a_seal_goes_on_at_the_targets(cluster: FakeCluster) -> None:
    """Whoever reads for hours would begin again, or have the rows before the break twice."""
    broken: list[int] = []

    def seal_and_break(ticket: ScanTicket, number: int) -> None:
        if number == 1 and cluster.seal(ticket.partition):
            broken.append(ticket.partition)
            raise flight.FlightUnavailableError("broken for the test")

    with TableClient(cluster.bootstrap, settings=QUICK) as client:
        client.write(rows_of(range(1000)))
        cluster.begin_resharding(6)
        cluster.before_batch = seal_and_break
        found = [row for batch in client.stream() for row in batch["id"].to_pylist()]
    assert broken == [0, 1, 2, 3]
    assert sorted(found) == list(range(1000))


def test_a_refusal_that_teaches_nothing_is_not_repeated_in_a_loop(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with other layouts than all routes say would be asked thousands of times a second."""
    asked = 0

    def refuse(_partition: int, _hashes: list[int]) -> None:
        nonlocal asked
        asked += 1
        raise ReshardedError("of another time", partition=0, generation=9)

    settings = ClientSettings(
        timeout_seconds=0.5, backoff_first_seconds=0.02, backoff_max_seconds=0.02
    )
    with TableClient(cluster.bootstrap, settings=settings) as client:
        assert client.config.partitions == 4
        monkeypatch.setattr(cluster, "_refuse_others_rows", refuse)
        with pytest.raises(OutcomeUnknownError):
            client.write(rows_of([1]))
        with pytest.raises(ReshardedError):
            list(client.stream())
    assert asked <= 110


def test_rows_cut_for_a_zone_that_was_made_again_meanwhile_are_refused(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call would end with an error of ours, half of its rows sent and the others forgotten."""
    hurried = dataclasses.replace(QUICK, timeout_seconds=0.3)
    with client_of(cluster, settings=hurried) as client:
        row = next(n for n in range(99) if client.partition_of({"id": n}) == 3)
        take = client._budget.take

        def take_late(size: int) -> int:
            cluster.config = msgspec.structs.replace(
                cluster.config, zone_uid="another", partitions=2
            )
            client._dispatcher.fetch_routes()
            return take(size)

        monkeypatch.setattr(client._budget, "take", take_late)
        with pytest.raises(ConflictError, match="has no partition 3"):
            client.write(rows_of([row]))


def test_many_batches_that_wait_are_moved_in_their_order(cluster: FakeCluster) -> None:
    """The last call would not win: batches of a sealed partition are cut and put in other lanes."""
    cluster.begin_resharding(3)
    go = threading.Event()

    def hold_the_first(_node: FakeNode, request: Message) -> Fault:
        assert isinstance(request, WriteRequest)
        if request.partition < 4 and request.partition not in cluster.sealed:
            return Fault.SEAL_BEFORE if go.is_set() else Fault.NOT_READY
        return Fault.NONE

    cluster.faults = hold_the_first
    with client_of(cluster) as client:
        futures = [client.submit_write(rows_of(range(40), n)) for n in range(100)]
        go.set()
        futures += [client.submit_write(rows_of(range(40), n)) for n in range(100, 200)]
        assert sum(a.rows for f in futures for a in f.result(30)) == 200 * 40
        assert counters(client.scan()) == dict.fromkeys(range(40), 199)
    by_row: dict[int, int] = {}
    for row, counter in _applied(cluster):
        assert counter == by_row.get(row, -1) + 1
        by_row[row] = counter


# --- reads ----------------------------------------------------------------------------------


def test_ranges_read_by_a_plan_of_before_have_their_rows_once(cluster: FakeCluster) -> None:
    """Spark's tasks would read rows twice or not at all, when the zone is re-sharded meanwhile."""
    with client_of(cluster) as client, client_of(cluster, "x") as planner:
        client.write(rows_of(range(300)))
        plan = planner.segments()
        assert [one.partition for one in plan] == [0, 1, 2, 3]
        cluster.begin_resharding(6)
        for one in plan:
            cluster.seal(one.partition)
            assert sorted(_ids(client, plan)) == list(range(300))
            assert planner.segments() == segments(Layout(0, 4), Layout(1, 6), cluster.sealed)
        cluster.finish()
        cluster.reshard(3)
        assert sorted(_ids(client, plan)) == list(range(300))
        assert sorted(_ids(planner, planner.segments())) == list(range(300))


def test_a_partition_is_told_by_key_as_it_is_served(cluster: FakeCluster) -> None:
    """Who groups keys by partition would group them by one that is over."""
    with client_of(cluster) as client:
        where = client.partition_of({"id": 1})
        cluster.begin_resharding(16)
        cluster.seal(where)
        client.write(rows_of([1]))
        target = client.partition_of({"id": 1})
        assert target in Layout(1, 16).ids
        cluster.go_over()
        cluster.reshard(2)
        client.write(rows_of([1]))
        assert client.partition_of({"id": 1}) in Layout(2, 2).ids


# --- the route cache ------------------------------------------------------------------------


def _table(
    config: ZoneConfig, sealed: tuple[int, ...] = (), leaders: dict[int, int] | None = None
) -> RouteTable:
    records = dict.fromkeys(sealed, 1) | (leaders or {})
    return RouteTable(
        config=config,
        partitions=tuple(
            PartitionAssignment(
                partition=p,
                state=LeaderAndIsr(
                    leader=1, leader_epoch=epoch, isr=(1,), coordinator_epoch=1, sealed=p in sealed
                ),
            )
            for p, epoch in records.items()
        ),
        peers={1: "n:1"},
    )


def _config(partitions: int, generation: int = 0, following: int = 0, uid: str = "u") -> ZoneConfig:
    return ZoneConfig(
        zone="z",
        zone_uid=uid,
        partitions=partitions,
        generation=generation,
        next_partitions=following,
    )


def test_what_is_sealed_stays_sealed_until_the_next_generation() -> None:
    """A node that is behind would send clients back to a partition that refuses them."""
    routes = RouteCache(["n:1"])
    targets = Layout(1, 2)
    routes.merge(_table(_config(4, following=2), sealed=(1,), leaders={targets.ids[0]: 3}))
    for behind in (_table(_config(4)), _table(_config(4, following=3))):
        assert routes.merge(behind) == set()
        assert routes.placement == Placement(Layout(0, 4), targets, frozenset({1}))
    assert routes.leader(targets.ids[0]) is not None
    routes.merge(_table(_config(2, generation=1), leaders={targets.ids[0]: 3}))
    assert routes.placement == Placement(targets)
    assert routes.leader(1) is None
    assert routes.merge(_table(_config(4, following=2), sealed=(0, 1))) == set()
    assert routes.placement == Placement(targets)
    assert routes.range_of(1) == Layout(0, 4).range_of(1)
    assert isinstance(routes.refusal(1), ReshardedError)
    routes.merge(_table(_config(3, uid="another"), leaders={0: 1}))
    assert routes.placement == Placement(Layout(0, 3))
    assert routes.range_of(targets.ids[1]) is None


@pytest.mark.proves("RM-10")
def test_routes_of_before_a_move_take_no_leader_back() -> None:
    """A client would go to and fro between a new leader and nodes that have not heard of it."""
    routes = RouteCache(["n:1"])
    routes.merge(_table(_config(4), leaders={0: 3, 1: 3}))
    assert routes.merge(_table(_config(4), leaders={0: 2, 1: 4})) == {1}
    assert [found.epoch for p in (0, 1) if (found := routes.leader(p))] == [3, 4]


def test_a_refusal_names_the_layouts() -> None:
    """With routes of before a client would have to fetch them before it could go on."""
    routes = RouteCache(["n:1"])
    told = ReshardedError(
        "", partition=1, generation=0, partitions=4, next_partitions=2, next_generation=3
    )
    assert not routes.reshard(1, told)
    routes.merge(_table(_config(4), leaders={0: 1, 1: 1}))
    assert not routes.reshard(1, ReshardedError("", partition=1, generation=1, partitions=2))
    assert routes.reshard(1, told)
    assert routes.reshard(1, ReshardedError("said without details"))
    placement = routes.placement
    assert placement is not None
    quarter = 1 << 62
    assert placement.segments() == (
        Segment(0, quarter, 0),
        Segment(quarter, 2 * quarter, Layout(3, 2).ids[0]),
        Segment(2 * quarter, 3 * quarter, 2),
        Segment(3 * quarter, 4 * quarter, 3),
    )


# --- helpers --------------------------------------------------------------------------------


def _any_fault(cluster: FakeCluster, rng: random.Random) -> Callable[[FakeNode, Message], Fault]:
    """Return what goes wrong by chance, while one re-sharding follows the other."""
    kinds = [fault for fault in Fault if not fault.name.startswith("SWALLOW")]
    weights = [14 if fault is Fault.NONE else 1 for fault in kinds]

    def faults(_node: FakeNode, _request: Message) -> Fault:
        config = cluster.config
        if not config.next_partitions and rng.random() < 0.05:
            cluster.begin_resharding(rng.randint(1, 8))
        elif config.next_partitions and len(cluster.sealed) == config.partitions:
            cluster.finish()
        return rng.choices(kinds, weights)[0]

    return faults


def _keys(client: TableClient, ids: list[int]) -> Any:
    return pa.RecordBatch.from_pylist([{"id": i} for i in ids], schema=client.codec.key_schema)


def _batch(client: TableClient, row: int, counter: int) -> Any:
    return pa.RecordBatch.from_pylist(rows_of([row], counter), schema=client.codec.arrow_schema)


def _ids(client: TableClient, plan: tuple[Segment, ...]) -> list[int]:
    batches = [batch for one in plan for batch in client.stream(HashRange(one.start, one.end))]
    return [row for batch in batches for row in batch.column("id").to_pylist()]


def _applied(cluster: FakeCluster) -> list[tuple[int, int]]:
    """Return (id, counter) of every row written by a client, in the order it was applied."""
    found: list[tuple[int, int]] = []
    for _, entry in cluster.history:
        keys, values = list(entry.rows), list(entry.rows.values())
        decoded = cluster.codec.decode(keys, values).to_pylist()
        found += [(row["id"], row["counter"]) for row in decoded]
    return found
