"""Faults by the preloaded library: clocks that are off, syncs that are slow or fail."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.chaos.fault import Fault
from e2e.chaos.shim import Control


class Shimmed(Fault):
    """A setting of the library, in some processes, for as long as it lasts."""

    def __init__(self, controls: Sequence[Control], setting: str, value: int, count: str) -> None:
        self._controls = controls
        self._setting = setting
        self._value = value
        self._count = count
        self._before = [0] * len(controls)

    async def begin(self) -> None:
        """Set it."""
        self._before = [control.get(self._count) for control in self._controls]
        for control in self._controls:
            control.set(self._setting, self._value)

    async def heal(self) -> None:
        """Take it back."""
        for control in self._controls:
            control.set(self._setting, 0)

    async def bites(self) -> int:
        """Return how often that process met it which met it least."""
        return min(
            control.get(self._count) - before
            for control, before in zip(self._controls, self._before, strict=True)
        )


def clocks_off(controls: Sequence[Control], seconds: float) -> Shimmed:
    """Return the fault of clocks that are ahead by so many seconds, or behind."""
    return Shimmed(controls, "clock_offset_ns", int(seconds * 1e9), "clocks_moved")


def syncs_slow(controls: Sequence[Control], milliseconds: int) -> Shimmed:
    """Return the fault of disks whose every sync takes so much longer."""
    return Shimmed(controls, "sync_delay_ms", milliseconds, "syncs_delayed")


def syncs_fail(controls: Sequence[Control], error: int) -> Shimmed:
    """Return the fault of disks whose every sync fails with an error number."""
    return Shimmed(controls, "sync_errno", error, "syncs_failed")
