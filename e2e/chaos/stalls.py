"""Why a partition takes no write: looked at while that lasts, not guessed from logs afterwards.

A partition stalls when no client has had a write acknowledged for `STALLED_SECONDS`. Then its route
records, what each data node reports of itself and of its replicas, what the operator waits for, and
the last refusals that clients had are noted; again when the picture is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from e2e.chaos.history import Operation, Outcome
from e2e.chaos.world import PORT, World
from rezone.local.errors import ApiError
from rezone.wire.codec.keyspace import range_of
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import Layout, generation_of
from rezone.wire.messages import (
    LeaderAndIsr,
    NodeId,
    NodeReport,
    PartitionId,
    ReplicaReport,
    ReportRequest,
)
from rezone.wire.transport.flight import NodeClient

STALLED_SECONDS = 15.0
"""Longer than a failover takes here, so that what is noted is not on its way to be mended."""

_LOOK_SECONDS = 2.0
_ANSWER_SECONDS = 3.0
_TOLD_SECONDS = 60.0
"""A client tries for half of that before it is told anything."""

_RECENT = 5000
"""So many operations are looked through for what clients were told."""

_PICTURES_MAX = 4
_REFUSALS_MAX = 3
_CHARACTERS_MAX = 160
_LINE_CHARACTERS_MAX = 500


@dataclass
class Picture:
    """What was to be seen when a partition had taken no write for so many seconds, a line each."""

    seconds: float
    lines: list[str]


@dataclass
class Stall:
    """A time without an acknowledged write, in seconds; `pictures` that differ, in their order."""

    partition: int
    seconds: float
    pictures: list[Picture] = field(default_factory=list)

    def saw(self, picture: Picture) -> None:
        """Keep a picture, if it is news: the first says how it began, the last why it goes on."""
        if self.pictures and self.pictures[-1].lines == picture.lines:
            return
        self.pictures.append(picture)
        if len(self.pictures) > _PICTURES_MAX:
            del self.pictures[1]

    def lines(self) -> list[str]:
        """Return it for a person, a line each."""
        found = [f"p{self.partition} took no write for {self.seconds:.0f} s"]
        for picture in self.pictures:
            found.append(f"  after {picture.seconds:.0f} s:")
            found += [f"    {each[:_LINE_CHARACTERS_MAX]}" for each in picture.lines]
        return found


def refusals(operations: Sequence[Operation], partition: int, since: float) -> list[str]:
    """Return what became of writes of a partition that began since then, the most usual first."""
    told = Counter(
        each.error
        for each in operations
        if each.partition == partition
        and each.write
        and each.outcome is not Outcome.OK
        and each.call_ns >= since * 1e9
    )
    return [
        f"clients were told {count} times: {text[:_CHARACTERS_MAX]}"
        for text, count in told.most_common(_REFUSALS_MAX)
    ]


def serving(
    partition: int, partitions: int, records: Mapping[PartitionId, LeaderAndIsr]
) -> list[PartitionId]:
    """Return the partitions of all layouts there are that have rows of a measured one."""
    start, end = range_of(partition, partitions)
    counts = Counter(generation_of(each) for each in records)
    found: list[PartitionId] = []
    for generation, count in sorted(counts.items()):
        layout = Layout(generation, count)
        found += range(layout.partition_of(start), layout.partition_of(end - 1) + 1)
    return found


class Stalls:
    """Looks who stalls, from time to time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._read = len(world.histories.ended())
        self._last = [time.monotonic()] * world.partitions
        self._open: dict[int, Stall] = {}
        self.found: list[Stall] = []

    @contextlib.asynccontextmanager
    async def noted(self) -> AsyncIterator[Sequence[Stall]]:
        """Yield the stalls, which become more as it goes on."""
        looking = asyncio.create_task(self._look_on())
        try:
            yield self.found
        finally:
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

    async def _look_on(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        now, operations = time.monotonic(), self._world.histories.ended()
        for each in operations[self._read :]:
            if each.write and each.outcome is Outcome.OK:
                at = max(self._last[each.partition], each.return_ns / 1e9)
                self._last[each.partition] = at
        self._read = len(operations)
        silent = {partition: now - at for partition, at in enumerate(self._last)}
        stalled = {p: seconds for p, seconds in silent.items() if seconds >= STALLED_SECONDS}
        self._open = {p: stall for p, stall in self._open.items() if p in stalled}
        if not stalled:
            return
        seen = await self._pictures(stalled)
        for partition, seconds in stalled.items():
            told = refusals(operations[-_RECENT:], partition, now - _TOLD_SECONDS)
            self._note(partition, seconds, [*seen[partition], *told])

    def _note(self, partition: int, seconds: float, seen: Sequence[str]) -> None:
        stall = self._open.get(partition)
        if stall is None:
            stall = self._open[partition] = Stall(partition, seconds)
            self.found.append(stall)
        stall.seconds = seconds
        stall.saw(Picture(seconds, list(seen)))

    async def _pictures(self, partitions: Iterable[int]) -> dict[int, list[str]]:
        """Return what is to be seen of partitions; nothing of it waits long for what is down."""
        records, reports, waits = await asyncio.gather(
            self._records(), self._reports(), self._operator_waits()
        )
        if isinstance(records, str):
            return {partition: [records, *waits] for partition in partitions}
        return {
            partition: [
                *waits,
                *picture(serving(partition, self._world.partitions, records), records, reports),
            ]
            for partition in partitions
        }

    async def _records(self) -> dict[PartitionId, LeaderAndIsr] | str:
        try:
            return await asyncio.wait_for(self._world.records(), _ANSWER_SECONDS)
        except (ApiError, OSError, LookupError, TimeoutError) as error:
            return f"the API server gives no routes: {error}"

    async def _operator_waits(self) -> list[str]:
        try:
            return await asyncio.wait_for(self._world.waits(), _ANSWER_SECONDS)
        except (ApiError, OSError, LookupError, TimeoutError) as error:
            return [f"the API server does not say what the operator waits for: {error}"]

    async def _reports(self) -> dict[NodeId, NodeReport | str]:
        nodes = self._world.nodes()
        asked = (asyncio.to_thread(_report, f"{each.address}:{PORT}") for each in nodes.values())
        return dict(zip(nodes, await asyncio.gather(*asked), strict=True))


def _report(address: str) -> NodeReport | str:
    client = NodeClient(address)
    try:
        return client.call(ReportRequest(), NodeReport, timeout_seconds=_ANSWER_SECONDS)
    except RezoneError as error:
        return str(error)
    finally:
        client.close()


def picture(
    partitions: Sequence[PartitionId],
    records: Mapping[PartitionId, LeaderAndIsr],
    reports: Mapping[NodeId, NodeReport | str],
) -> list[str]:
    """Return what is to be seen of partitions and of their data nodes, a line each."""
    found = [f"partition {each}: {_fields(records[each])}" for each in partitions]
    for node, report in sorted(reports.items()):
        if isinstance(report, str):
            found.append(f"node {node} does not say: {report[:_CHARACTERS_MAX]}")
            continue
        found.append(f"node {node}: {_of_node(report)}")
        found += [
            f"  has {each.partition}: {_fields(each)}"
            for each in report.replicas
            if each.partition in partitions
        ]
    return found


def _of_node(report: NodeReport) -> str:
    said = [f"hears {list(report.hears or ())}"]
    said += ["leaves"] if report.leaving else []
    said += [f"disk {report.disk.name}: {report.disk_text}"] if report.disk_text else []
    said += [f"slow {report.slow_ms} ms"] if report.slow_ms else []
    said += [f"clock: {report.clock_text}"] if report.clock_text else []
    return ", ".join(said)


def _fields(said: LeaderAndIsr | ReplicaReport) -> str:
    """Return what is set of a message, without its defaults."""
    return " ".join(
        f"{name}={value}"
        for name, value in msgspec.to_builtins(said).items()
        if name not in {"partition", "version"}
    )
