"""Writes of the route table: those that come together go out together, and each knows its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.nodes.monitor import NodeMonitor
from rezone.controller.work.keys import ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.model.world import RouteChange
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.kube.api.errors import UnavailableError

PARTITIONS = 64


class SlowTable:
    """A route store whose writes wait for the test; a partition in `refused` has another epoch."""

    retired: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.records = [routes.initial((0, 1, 2), 1) for _ in range(PARTITIONS)]
        self.writes: list[list[int]] = []
        self.refused: set[int] = set()
        self.error: Exception | None = None

    async def load(self) -> RouteRecords:
        """Return the table."""
        return RouteRecords(self.records)

    async def change(self, changes: Sequence[RouteChange]) -> frozenset[int]:
        """Carry out what is not refused."""
        self.writes.append(sorted(c.partition for c in changes))
        assert len(set(self.writes[-1])) == len(changes), "two changes of one partition"
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        made = frozenset(c.partition for c in changes) - self.refused
        for change in changes:
            if change.partition in made:
                self.records[change.partition] = change.state
        return made


@pytest.fixture
def table() -> Any:
    """Give a table."""
    return SlowTable()


@pytest.fixture
async def runtime() -> Any:
    """Give a zone's runtime without any data node."""
    executor = ThreadPoolExecutor(1)
    made = ZoneRuntime(
        ZoneKey("ns", "z"),
        "uid",
        1,
        executor=executor,
        settings=CoordinatorSettings(),
        monitor=NodeMonitor(executor, lambda _news: None, zone_uid="u", timeout_seconds=1.0),
    )
    assert made.has_met_data_nodes()
    yield made
    made.close()
    executor.shutdown()


def change(partition: int, by: int = 1) -> list[RouteChange]:
    """Return a change of one partition, the `by`th in a row."""
    before = routes.initial((0, 1, 2), 1)
    epoch = before.partition_epoch + by - 1
    state = msgspec.structs.replace(before, partition_epoch=epoch + 1)
    return [RouteChange(partition=partition, expected_epoch=epoch, state=state)]


async def parked() -> None:
    """Let everything run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


def ask(runtime: ZoneRuntime, table: Any, *wanted: list[RouteChange]) -> list[asyncio.Task[bool]]:
    """Ask for changes, each by a task of its own."""
    return [asyncio.create_task(runtime.change_routes(table, each)) for each in wanted]


async def test_changes_that_come_together_are_one_write(runtime: ZoneRuntime, table: Any) -> None:
    """Sixty moves at once would queue for sixty writes of the same ConfigMap."""
    asked = ask(runtime, table, *(change(p) for p in range(PARTITIONS)))
    await parked()
    table.gate.set()
    assert all(await asyncio.gather(*asked))
    assert [len(w) for w in table.writes] == [1, PARTITIONS - 1], "the first one waits for nobody"
    assert await runtime.routes(table) == RouteRecords(table.records)


async def test_a_second_change_of_a_partition_waits_for_the_first(
    runtime: ZoneRuntime, table: Any
) -> None:
    """It was decided on what the first one makes; in one write it would take its place."""
    asked = ask(runtime, table, change(3), change(3, by=2), change(4))
    await parked()
    table.gate.set()
    assert await asyncio.gather(*asked) == [True, True, True]
    assert table.writes == [[3], [3, 4]]


async def test_each_is_told_of_its_own(runtime: ZoneRuntime, table: Any) -> None:
    """One move's outdated change would stop all others, or be believed."""
    table.refused = {1}
    asked = ask(runtime, table, change(0), change(1), change(2))
    await parked()
    table.gate.set()
    assert await asyncio.gather(*asked) == [True, False, True]
    assert await runtime.routes(table) == RouteRecords(table.records), "the cache was thrown away"


async def test_an_error_is_everybodys(runtime: ZoneRuntime, table: Any) -> None:
    """One who waits in vain would hold its reconcile, and its slot in the queue, for ever."""
    table.error = UnavailableError("no connection")
    asked = ask(runtime, table, change(0), change(1))
    await parked()
    table.gate.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(each) for each in answers] == [UnavailableError] * 2


async def test_a_writer_that_is_cancelled_leaves_the_others_their_turn(
    runtime: ZoneRuntime, table: Any
) -> None:
    """A closing queue cancels its reconciles one by one; whoever is left must not wait for ever."""
    asked = ask(runtime, table, change(0), change(1), change(2))
    await parked()
    asked[0].cancel()
    asked[2].cancel()
    await parked()
    table.gate.set()
    assert await asked[1]
    assert table.writes[-1] == [1]
    await asyncio.gather(*asked, return_exceptions=True)
    assert not runtime._wanted


@pytest.mark.proves("NW-06")
async def test_nothing_is_written_before_data_nodes_have_been_heard(
    runtime: ZoneRuntime, table: Any
) -> None:
    """A task's first pass after a restore would give epochs out a second time."""
    runtime._met = False
    assert not await runtime.change_routes(table, change(0))
    assert not table.writes
