"""Calls that are made together: encoded in one go, each with its own rows, order and error."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fake_cluster import FakeCluster, Fault

from rezone.client import ClientSettings, PartitionWrite
from rezone.client.aio import AsyncTableClient
from rezone.client.operations.calls_together import Kind, OneCall
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.together import GROUP_CALLS_MAX, Cut
from rezone.wire.codec.keyspace import Hashes
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, RowLimits, TableSchema
from rezone.wire.errors import InvalidRowError, RezoneError
from rezone.wire.messages import ReadRequest, WriteRequest, ZoneConfig

TABLE = TableSchema((Column("id", ColumnType.INT64), Column("owner", ColumnType.STRING)), ("id",))
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=TABLE)
CODEC = RowCodec(TABLE, RowLimits(value_bytes_max=100))
PARTITIONS = 3


@pytest.fixture
async def counted() -> AsyncIterator[tuple[AsyncTableClient, dict[Any, int]]]:
    """Yield a client of a cluster that counts requests, and what it has counted."""
    requests: dict[Any, int] = {WriteRequest: 0, ReadRequest: 0}

    def count(node: int, request: object) -> Fault:
        del node
        for kind in requests:
            requests[kind] += isinstance(request, kind)
        return Fault.NONE

    with FakeCluster(CONFIG) as cluster:
        async with AsyncTableClient(cluster.bootstrap) as client:
            await client.put(id=0, owner="ann")
            cluster.faults = count
            yield client, requests


async def test_the_calls_of_a_turn_share_their_first_request(
    counted: tuple[AsyncTableClient, dict[Any, int]],
) -> None:
    """The first one would go alone, and the others wait for it."""
    table, requests = counted
    await asyncio.gather(*(table.put(id=n, owner=str(n)) for n in range(50)))
    found = await asyncio.gather(*(table.get(n) for n in range(60)))
    assert found == [{"id": n, "owner": str(n)} for n in range(50)] + [None] * 10
    assert requests == {WriteRequest: 1, ReadRequest: 1}


async def test_a_bad_row_is_refused_alone(
    counted: tuple[AsyncTableClient, dict[Any, int]],
) -> None:
    """All calls of the turn would be refused with it, or its coroutine get another one's error."""
    table, _ = counted
    calls = [table.put(id=n, owner="bob") for n in range(1, 9)]
    calls.insert(4, table.put(id="nine", owner="bob"))
    calls.append(table.put(id=10, nobody="bob"))
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(each, InvalidRowError) for each in ended] == [n in {4, 9} for n in range(10)]
    assert (await table.read([{"id": n} for n in range(11)])).num_rows == 9


async def test_what_is_no_row_ends_its_own_call_alone(
    counted: tuple[AsyncTableClient, dict[Any, int]],
) -> None:
    """All coroutines of the turn would wait for ever, or get its error."""
    table, _ = counted
    strange: list[Any] = [5, None, [5], {"id": 1}]
    calls: list[Any] = [table.write(rows) for rows in strange]
    calls += [table.read(keys) for keys in strange]
    ended = await asyncio.gather(*calls, table.put(id=2, owner="bob"), return_exceptions=True)
    assert [isinstance(each, Exception) for each in ended] == [True] * 8 + [False]
    assert await table.get(2) == {"id": 2, "owner": "bob"}


async def test_reads_of_a_named_producer_wait_for_no_thread() -> None:
    """A client that only reads would pay for a thread with each call: its producer never opens."""
    with FakeCluster(CONFIG) as cluster:
        async with AsyncTableClient(cluster.bootstrap, producer="reader") as table:
            assert await table.get(1) is None
            reads = [OneCall(Kind.READ, [{"id": 1}], print)]
            writes = [OneCall(Kind.WRITE, [{"id": 1, "owner": "ann"}], print)]
            assert table.table.together.is_prompt(reads)
            assert not table.table.together.is_prompt(writes)
            await table.put(id=1, owner="ann")
            assert table.table.together.is_prompt(writes)
            assert not table.table.together.is_prompt(writes * 5_000)


async def test_more_calls_than_have_room_all_end() -> None:
    """Who waits for room would hold back the requests whose answers make it."""
    config = ZoneConfig(zone="z", zone_uid="u", partitions=PARTITIONS, table=TABLE)
    settings = ClientSettings(open_requests_max=4, timeout_seconds=60)
    with FakeCluster(config) as cluster:
        async with AsyncTableClient(cluster.bootstrap, settings=settings) as table:
            await asyncio.gather(*(table.put(id=n, owner=str(n)) for n in range(200)))
            found = await asyncio.gather(*(table.get(n) for n in range(200)))
    assert [row and row["owner"] for row in found] == [str(n) for n in range(200)]


async def test_calls_of_many_rows_keep_their_place(
    counted: tuple[AsyncTableClient, dict[Any, int]],
) -> None:
    """A small write that was made behind a large one would be overwritten by it."""
    table, _ = counted
    for turn in range(5):
        many = [{"id": n, "owner": f"many {turn}"} for n in range(500)]
        await asyncio.gather(
            table.put(id=7, owner="before"),
            table.write(many),
            table.put(id=8, owner=f"behind {turn}"),
            table.delete(9),
        )
        found = await table.read([{"id": n} for n in (7, 8, 9)])
        rows = {row["id"]: row["owner"] for row in found.to_pylist()}
        assert rows == {7: f"many {turn}", 8: f"behind {turn}"}


async def test_a_cancelled_coroutine_takes_no_others_answer(
    counted: tuple[AsyncTableClient, dict[Any, int]],
) -> None:
    """The answers of a turn would be one off, or end with its error."""
    table, _ = counted
    tasks = [asyncio.create_task(table.put(id=n, owner=str(n))) for n in range(6)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in ended] == [
        n == 2 for n in range(6)
    ]
    assert await table.get(5) == {"id": 5, "owner": "5"}


async def test_calls_that_never_began_end_when_the_client_is_closed() -> None:
    """A coroutine whose call waits for a thread would wait for ever."""
    with FakeCluster(CONFIG) as cluster:
        table = AsyncTableClient(cluster.bootstrap)
        calls = [asyncio.create_task(table.put(id=n, owner="ann")) for n in range(3)]
        await asyncio.sleep(0)
        await table.close()
        for ended in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(ended, RezoneError | PartitionWrite)


# --- how rows are cut ----------------------------------------------------------------------------


def partitions_of(hashes: Hashes) -> Any:
    """Place rows by what their hash leaves."""
    return (hashes % np.uint64(PARTITIONS)).astype(np.int64)


def told(found: Any) -> Any:
    """Return what can be compared of parts: partition, rows, hashes, row ids."""
    if isinstance(found, Exception):
        return type(found)
    places = [part.places_by(CODEC) for part in found]
    return [
        (part.partition, part.rows.to_pylist(), place.hashes().tolist(), place.row_id_list())
        for part, place in zip(found, places, strict=True)
    ]


def rows_of(rng: random.Random, number: int) -> Any:
    """Return the rows of a call, in one of the forms that they are given in."""
    if rng.random() < 0.05:
        return rng.choice([[5], {"id": number}, [{"id": number, "owner": "ann"}] * 70])
    rows: list[dict[str, Any]] = [
        {"id": number * 100 + n, "owner": rng.choice(["ann", "", None])}
        for n in range(rng.choice([0, 1, 1, 1, 2, 5]))
    ]
    if rng.random() < 0.1:
        rows.append({"id": rng.choice([None, "x", 1 << 70]), "owner": "bob"})
        return rows
    if rng.random() < 0.1:
        rows.append({"id": number, "owner": "long" * 100})
        return rows
    form: Callable[[Any], Any] = rng.choice(
        [
            lambda made: made,
            lambda made: pa.RecordBatch.from_pylist(made, schema=CODEC.arrow_schema),
            lambda made: pa.Table.from_pylist(made, schema=CODEC.arrow_schema),
        ]
    )
    return form(rows)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("bytes_max", [1 << 20, 30])
def test_calls_are_cut_together_as_they_are_alone(seed: int, bytes_max: int) -> None:
    """A row would go to another partition, or a call be refused for another one's row."""
    rng = random.Random(seed)
    calls = [rows_of(rng, number) for number in range(rng.choice([1, 2, 40]))]
    cut = Cut(CODEC, partitions_of, bytes_max, keys=False)

    def alone(rows: Any) -> Any:
        try:
            return told(cut.alone(rows))
        except Exception as error:  # noqa: BLE001 - what is compared
            return told(error)

    assert [told(each) for each in cut.together(calls)] == [alone(rows) for rows in calls]


def test_many_calls_are_cut_in_pieces() -> None:
    """A bad row would send all of thousands of calls back to be cut one by one."""
    calls = [[{"id": n, "owner": "ann"}] for n in range(GROUP_CALLS_MAX + 1)]
    found = Cut(CODEC, partitions_of, 1 << 20, keys=False).together(calls)
    ids = [
        part.rows.column("id").to_pylist()
        for parts in found
        if isinstance(parts, list)
        for part in parts
    ]
    assert ids == [[n] for n in range(GROUP_CALLS_MAX + 1)]


# --- what waits for the end of calls --------------------------------------------------------------


def test_steps_wait_for_the_end_of_the_calls_and_keep_their_order() -> None:
    """A request would begin before all of its calls have come, or never."""
    gathering, ran = Gathering(), list[str]()
    gathering.begin(lambda: ran.append("at once"))
    with gathering.calls():
        gathering.begin(lambda: gathering.begin(lambda: ran.append("given by a step")))
        gathering.begin(lambda: ran.append("second"))
        assert ran == ["at once"]
    assert ran == ["at once", "second", "given by a step"]
    with gathering.calls():
        gathering.begin(lambda: ran.append("released"))
        gathering.release()
        assert ran[-1] == "released"
    gathering.release()
    assert ran.count("released") == 1


def test_steps_run_where_a_call_has_failed() -> None:
    """A lane that is marked as busy would send nothing any more."""
    gathering, ran = Gathering(), list[str]()

    def fail() -> None:
        with gathering.calls():
            gathering.begin(lambda: ran.append("begun"))
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        fail()
    assert ran == ["begun"]
