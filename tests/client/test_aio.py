"""The client for asyncio: coroutines share requests, keep their order, and get their own errors."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from fake_cluster import FakeCluster, Fault

from rezone.client import ClientSettings
from rezone.client.aio import AsyncTableClient
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import InvalidRowError, RezoneError
from rezone.wire.messages import ReadRequest, WriteRequest, ZoneConfig

TABLE = TableSchema((Column("id", ColumnType.INT64), Column("owner", ColumnType.STRING)), ("id",))
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
CALLS = 200


@pytest.fixture
async def table() -> AsyncIterator[AsyncTableClient]:
    """Yield a client of a cluster."""
    with FakeCluster(CONFIG) as cluster:
        async with AsyncTableClient(cluster.bootstrap) as client:
            yield client


async def test_single_rows_are_awaited(table: AsyncTableClient) -> None:
    """What people write first; another row than asked for, or an error as None."""
    assert (await table.put(id=7, owner="ann")).rows == 1
    assert await table.get(7) == {"id": 7, "owner": "ann"}
    await table.write([{"id": n, "owner": "bob"} for n in range(3)])
    assert (await table.read([{"id": n} for n in range(9)])).num_rows == 4
    await table.delete(7)
    await table.delete([{"id": 0}, {"id": 1}])
    assert await table.get(7) is None
    assert (await table.read([])).num_rows == 0
    assert await table.run(lambda client: client.scan().num_rows) == 1
    with pytest.raises(InvalidRowError):
        await table.put(id="seven")
    with pytest.raises(InvalidRowError):
        await table.get(7, 8)


async def test_coroutines_share_requests_and_hold_no_threads() -> None:
    """Each coroutine would need a thread, and pay for a request."""
    requests = {ReadRequest: 0, WriteRequest: 0}
    begun, go_on = threading.Event(), threading.Event()

    def count(node: int, request: object) -> Fault:
        del node
        if isinstance(request, WriteRequest) and not begun.is_set():
            begun.set()
            go_on.wait(30)
        for kind in requests:
            requests[kind] += isinstance(request, kind)
        return Fault.NONE

    config = ZoneConfig(zone="z", zone_uid="u", partitions=1, table=TABLE)
    with FakeCluster(config) as cluster:
        cluster.faults = count
        async with AsyncTableClient(cluster.bootstrap, threads_max=2) as client:
            before = threading.active_count()
            puts = [asyncio.create_task(client.put(id=n, owner=str(n))) for n in range(CALLS)]
            await asyncio.to_thread(begun.wait, 30)
            assert threading.active_count() < before + 20
            go_on.set()
            await asyncio.gather(*puts)
            assert requests[WriteRequest] < CALLS
            found = await asyncio.gather(*(client.get(n) for n in range(CALLS)))
            assert [row and row["owner"] for row in found] == [str(n) for n in range(CALLS)]
            assert requests[ReadRequest] <= CALLS


async def test_calls_go_out_in_their_order(table: AsyncTableClient) -> None:
    """The last of two writes to a row that were begun one after the other would not stay."""
    for turn in range(20):
        await asyncio.gather(*(table.put(id=1, owner=f"{turn} {n}") for n in range(5)))
        assert await table.get(1) == {"id": 1, "owner": f"{turn} 4"}


async def test_reads_and_writes_go_on_while_the_zone_is_re_sharded() -> None:
    """A coroutine would get the error that sends a client to other partitions."""
    with FakeCluster(CONFIG) as cluster:
        async with AsyncTableClient(cluster.bootstrap) as client:
            await client.write([{"id": n, "owner": "ann"} for n in range(20)])
            cluster.begin_resharding(3)
            for partition in (0, 1):
                cluster.seal(partition)
                found = await asyncio.gather(*(client.get(n) for n in range(20)))
                assert all(row is not None for row in found)
                await asyncio.gather(*(client.put(id=n, owner="bob") for n in range(20)))
            cluster.finish()
            read = await client.read([{"id": n} for n in range(20)])
            assert read.column("owner").to_pylist() == ["bob"] * 20


async def test_a_closed_client_ends_what_is_under_way() -> None:
    """A coroutine would wait for ever."""
    with FakeCluster(CONFIG) as cluster:
        client = AsyncTableClient(cluster.bootstrap, settings=ClientSettings(timeout_seconds=60))
        await client.put(id=1, owner="ann")
        await client.close()
        with pytest.raises(RezoneError, match="closed"):
            await client.put(id=2, owner="ann")
