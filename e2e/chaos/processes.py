"""Faults of processes: killed, and stopped for a while."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from e2e.chaos.fault import Fault
from rezone.local.processes import ProcessId


class Killed(Fault):
    """Processes are killed with SIGKILL; whoever runs them starts them again."""

    def __init__(self, processes: Sequence[ProcessId]) -> None:
        self._processes = processes
        self._hit = 0

    async def begin(self) -> None:
        """Kill them."""
        self._hit = sum(each.signal(signal.SIGKILL) for each in self._processes)

    async def heal(self) -> None:
        """Do nothing: what is dead stays dead."""

    async def bites(self) -> int:
        """Return how many were killed."""
        return self._hit


class Stopped(Fault):
    """Processes that do not run, as if the machine had no time for them."""

    def __init__(self, processes: Sequence[ProcessId]) -> None:
        self._processes = processes
        self._stopped: list[ProcessId] = []

    async def begin(self) -> None:
        """Stop them."""
        self._stopped = [each for each in self._processes if each.signal(signal.SIGSTOP)]

    async def heal(self) -> None:
        """Let them go on."""
        for each in self._stopped:
            each.signal(signal.SIGCONT)

    async def bites(self) -> int:
        """Return how many were stopped."""
        return len(self._stopped)
