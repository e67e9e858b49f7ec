"""A run: each fault alone, then a storm, with what each cost and whether all was whole again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from e2e.chaos.cases import Case, in_storms
from e2e.chaos.fault import Fault
from e2e.chaos.history import Operation, Outcome, longest_gaps
from e2e.chaos.report import Row, line
from e2e.chaos.stalls import Stalls
from e2e.chaos.storm import Storm, plan
from e2e.chaos.world import World
from e2e.kind.command import say
from rezone.cli.demo.cluster import DemoError
from rezone.local.errors import ApiError

POLL_SECONDS = 0.25
STEADY_SECONDS = 4.0
"""For how long all has to be whole: what a fault has done is not known everywhere at once."""


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds.

    `served`: until every client writes again in all partitions. That waits for no copy and for no
    re-sharding, so it is much less than until nothing is left of a storm.
    """

    whole: float
    storm_whole: float
    served: float
    made: float = 240.0


class Healed(NamedTuple):
    """After how many seconds every client was `served`, and all `whole`; None for never.

    `missing`: what was not, when that was given up.
    """

    served: float | None
    whole: float | None
    missing: list[str]


async def until_whole(world: World, limit_seconds: float) -> Healed:
    """Return when all was whole, and stayed so; or what is not, when the time is over.

    Whole: the zone is Ready with all replicas in sync, no task, no migration and no pod that is
    not ready, and every client is served at every partition. Who has cancelled a re-sharding that
    the storm's end asks for does meanwhile what the zone tells them to do.
    """
    begun, known = time.monotonic(), len(world.histories.ended())
    since: float | None = None
    served: float | None = None
    while True:
        now = time.monotonic()
        unserved = _not_served(world, world.histories.ended()[known:], begun)
        if served is None and not unserved:
            served = now - begun
        await _asked_again(world)
        missing = unserved + await _missing(world)
        if missing:
            since = None
        elif since is None:
            since = now
        elif now - since >= STEADY_SECONDS:
            return Healed(served, since - begun, [])
        if now - begun > limit_seconds + (STEADY_SECONDS if since is not None else 0):
            return Healed(served, None, missing or ["it was whole for a moment only"])
        await asyncio.sleep(POLL_SECONDS)


async def _asked_again(world: World) -> None:
    with contextlib.suppress(ApiError, OSError, LookupError):
        await world.ask_again()


async def _missing(world: World) -> list[str]:
    try:
        return await world.not_whole()
    except (ApiError, OSError, LookupError) as error:
        return [f"the API server: {error}"]


def _not_served(world: World, operations: Sequence[Operation], since: float) -> list[str]:
    if not world.clients:
        return []
    served = {
        (each.client, each.partition)
        for each in operations
        if each.write and each.outcome is Outcome.OK and each.return_ns > since * 1e9
    }
    wanted = {(c + 1, p) for c in range(len(world.clients)) for p in range(world.partitions)}
    left = sorted(wanted - served)
    return [f"client {c} had no write acknowledged in partition {p} since" for c, p in left]


def served_too_late(served: float | None, limit_seconds: float) -> list[str]:
    """Return what is wrong with when clients were served; nothing when it was in time."""
    if served is None:
        return ["some client was not served at all again"]
    if served > limit_seconds:
        return [f"clients were served {served:.0f} s after the end, not within {limit_seconds:.0f}"]
    return []


class Run:
    """Plays one fault after the other, each from a whole zone to a whole zone, and storms."""

    def __init__(self, world: World, seed: int, limits: Limits) -> None:
        self._world = world
        self._seed = seed
        self._limits = limits
        self.rows: list[Row] = []

    async def alone(self, case: Case, when: str = "") -> None:
        """Play one fault; what it has cost is one more row. `when` tells repeated ones apart."""
        say(f"{case.name}{when}: {case.what}, {case.seconds:.0f} s")
        fault = await case.make(self._world, random.Random(f"{self._seed}:{case.name}{when}"))
        await fault.prepare()

        async def play() -> int:
            return await self._held(fault, case.seconds)

        await self._row(f"{case.name}{when}", case.what, play, self._limits.whole)

    async def storm(
        self,
        seconds: float,
        cases: Mapping[str, Case] | None = None,
        rng: random.Random | None = None,
        name: str = "storm",
    ) -> None:
        """Play a storm; it is one row. Without cases and numbers: the storm of the run's seed."""
        cases = in_storms() if cases is None else cases
        rng = random.Random(f"{self._seed}:storm") if rng is None else rng
        events = plan(rng, cases, seconds)
        say(f"{name}: {len(events)} faults and changes, {seconds:.0f} s")
        storm = Storm(self._world, cases, rng)

        async def play() -> int:
            await storm.play(events)
            return storm.bites

        what = f"{len(events)} faults and changes, seed {self._seed}"
        row = await self._row(name, what, play, self._limits.storm_whole)
        row.faults = dict(sorted(storm.bitten.items()))
        for idle in storm.idle:
            # Another fault has silenced whom it should have hit, such as an operator that is down.
            say(f"  {idle}")

    async def _row(
        self, name: str, what: str, play: Callable[[], Awaitable[int]], limit_seconds: float
    ) -> Row:
        await self._settled()
        restarts, before = await self._world.restarts(), await self._world.reasons()
        off_before = await self._world.times_off()
        begun = time.monotonic()
        async with Stalls(self._world).noted() as stalls:
            async with self._told() as told:
                bites = await play()
            end_seconds = time.monotonic()
            healed = await until_whole(self._world, limit_seconds)
        operations = self._world.histories.ended()
        begin, end = int(begun * 1e9), int(end_seconds * 1e9)
        row = Row(
            name=name,
            what=what,
            seconds=end_seconds - begun,
            bites=bites,
            gaps=longest_gaps(operations, self._world.partitions, begin, end),
            writes_per_second=rate(operations, begin, end),
            served_seconds=healed.served,
            whole_seconds=healed.whole,
            told=sorted(told - before),
            stalls=list(stalls),
            problems=[
                *healed.missing,
                *served_too_late(healed.served, self._limits.served),
                *(["the fault did nothing"] if bites == 0 else []),
            ],
        )
        if healed.whole is None:
            say("  all is killed now, so that what comes next has a whole zone")
            self._world.kill()
        else:
            row.restarts = await self._world.restarts() - restarts
            if not off_before:
                # What a clock has done once may last, and is told of the fault that did it.
                row.problems += await self._world.times_off()
        stalled = [text for each in row.stalls for text in each.lines()]
        for text in (line(row), *(f"  {each}" for each in (*stalled, *row.problems))):
            say(text)
        self.rows.append(row)
        return row

    @contextlib.asynccontextmanager
    async def _told(self) -> AsyncIterator[set[str]]:
        """Yield the reasons that the zone gives meanwhile; they become more as it goes on."""
        found: set[str] = set()

        async def listen() -> None:
            while True:
                with contextlib.suppress(ApiError, OSError):
                    found.update(await self._world.reasons())
                await asyncio.sleep(POLL_SECONDS)

        listening = asyncio.create_task(listen())
        try:
            yield found
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening

    async def _settled(self) -> None:
        found = await until_whole(self._world, self._limits.whole)
        if found.whole is None:
            raise DemoError(f"the zone is not whole before the fault: {found.missing}")

    async def _held(self, fault: Fault, seconds: float) -> int:
        try:
            await fault.begin()
            await asyncio.sleep(seconds)
            return await fault.bites()
        finally:
            await fault.heal()


def rate(operations: Sequence[Operation], begin_ns: int, end_ns: int) -> float:
    """Return the acknowledged writes per second between two times."""
    found = [
        each
        for each in operations
        if each.write and each.outcome is Outcome.OK and begin_ns <= each.return_ns <= end_ns
    ]
    return len(found) * 1e9 / max(end_ns - begin_ns, 1)
