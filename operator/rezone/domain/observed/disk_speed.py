"""When a disk counts as slow: by how long its syncs take, and only beside others that do well.

A number of its own says little: where all disks are slow, nobody gains by a leader that moves.
"""

from collections.abc import Iterable

SLOW_MS = 200
"""Syncs that take so long are felt by every write; a slow spinning disk takes a tenth of it."""

STALL_MS = 1_000
"""A sync that is under way for so long has stalled; longer ones are no worse in a comparison."""

_WORSE = 4


def does_well(sync_ms: int) -> bool:
    """Return whether a disk with such syncs had better be waited for than one that stalls."""
    return sync_ms * _WORSE <= STALL_MS


def is_slow(slow_ms: int, others_ms: Iterable[int]) -> bool:
    """Return whether syncs of `slow_ms` are slow beside the best of other disks; 0: unknown."""
    best = min((ms for ms in others_ms if ms), default=None)
    return slow_ms >= SLOW_MS and best is not None and best * _WORSE <= min(slow_ms, STALL_MS)
