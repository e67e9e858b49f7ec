"""A storm: faults and changes at times and places that a seed decides, several at once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from e2e.chaos.cases import Case
from e2e.chaos.fault import Fault
from e2e.chaos.world import World
from e2e.kind.command import say
from rezone.cli.demo.cluster import DemoError
from rezone.local.errors import ApiError

AT_ONCE_MAX = 2
SHORTEST_SECONDS = 4.0
PAUSE_SECONDS_MAX = 6.0
HEAL_SECONDS = 180.0


@dataclass(frozen=True)
class Event:
    """One case of a storm: when it begins, in seconds from the storm's beginning, and ends."""

    case: str
    begin: float
    end: float


def plan(rng: random.Random, cases: Mapping[str, Case], seconds: float) -> list[Event]:
    """Return what comes when, at most `AT_ONCE_MAX` at a time, all over in `seconds`."""
    names = sorted(cases)
    lines = [0.0] * AT_ONCE_MAX
    events: list[Event] = []
    while True:
        number = min(range(AT_ONCE_MAX), key=lambda each: lines[each])
        begin = lines[number] + rng.uniform(0, PAUSE_SECONDS_MAX)
        case = cases[rng.choice(names)]
        end = begin + rng.uniform(SHORTEST_SECONDS, max(case.seconds, SHORTEST_SECONDS))
        if end > seconds:
            return sorted(events, key=lambda event: event.begin)
        events.append(Event(case.name, begin, end))
        lines[number] = end


class Storm:
    """Plays the events of a plan; all is healed when it is over, or was cancelled.

    `bitten` counts the events that did something, by their case.
    """

    def __init__(self, world: World, cases: Mapping[str, Case], rng: random.Random) -> None:
        self._world = world
        self._cases = cases
        self._rng = rng
        self.bites = 0
        self.bitten: Counter[str] = Counter()
        self.idle: list[str] = []

    async def play(self, events: Sequence[Event]) -> None:
        """Play all events."""
        async with asyncio.TaskGroup() as group:
            for event in events:
                group.create_task(self._play(event))

    async def _play(self, event: Event) -> None:
        await asyncio.sleep(event.begin)
        try:
            fault = await self._cases[event.case].make(self._world, self._rng)
        except (LookupError, ApiError, OSError) as error:
            # Who should be hit is down already, or who tells is not there.
            say(f"  {event.begin:.0f} s: {event.case}: cannot be: {error}")
            return
        say(f"  {event.begin:.0f} s: {event.case} until {event.end:.0f} s")
        try:
            await fault.begin()
            await asyncio.sleep(event.end - event.begin)
            bites = await fault.bites()
        except (ApiError, DemoError, LookupError, OSError) as error:
            say(f"  {event.case}: {error}")
            return
        finally:
            await _heal(fault)
        self.bites += bites
        if bites:
            self.bitten[event.case] += 1
        else:
            self.idle.append(f"{event.case} at {event.begin:.0f} s did nothing")


async def _heal(fault: Fault) -> None:
    """Heal; a change is taken back by the API server, which may be away or refuse it at first."""
    deadline = time.monotonic() + HEAL_SECONDS
    while True:
        try:
            await fault.heal()
        except (ApiError, OSError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)
        else:
            return
