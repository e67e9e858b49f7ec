"""What a fault is: it begins, it heals, and it can say how often it bit."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import random
from collections.abc import Sequence


class Fault(abc.ABC):
    """One fault; faults that hold at once are told apart by being different objects."""

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Bring about what it needs; the zone may be disturbed by that, and is whole after it."""

    @abc.abstractmethod
    async def begin(self) -> None:
        """Let it begin."""

    @abc.abstractmethod
    async def heal(self) -> None:
        """Let it end; without effect where it has not begun, or has ended."""

    @abc.abstractmethod
    async def bites(self) -> int:
        """Return how often it has done something; 0 is a fault that tests nothing."""


class Flapping(Fault):
    """Another fault that comes and goes."""

    def __init__(self, fault: Fault, rng: random.Random, shortest: float, longest: float) -> None:
        self._fault = fault
        self._rng = rng
        self._seconds = (shortest, longest)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Begin to flap."""
        self._task = asyncio.create_task(self._flap())

    async def heal(self) -> None:
        """Come to rest, healed."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        await self._fault.heal()

    async def bites(self) -> int:
        """Return how often the other fault bit."""
        return await self._fault.bites()

    async def _flap(self) -> None:
        while True:
            await self._fault.begin()
            await asyncio.sleep(self._rng.uniform(*self._seconds))
            await self._fault.heal()
            await asyncio.sleep(self._rng.uniform(*self._seconds))


class Together(Fault):
    """Several faults as one; each of them has to bite."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = faults

    async def prepare(self) -> None:
        """Prepare all."""
        for fault in self._faults:
            await fault.prepare()

    async def begin(self) -> None:
        """Let all begin."""
        for fault in self._faults:
            await fault.begin()

    async def heal(self) -> None:
        """Let all end."""
        for fault in self._faults:
            await fault.heal()

    async def bites(self) -> int:
        """Return how often that one bit which bit least."""
        return min([await fault.bites() for fault in self._faults])
