"""Storms in which many writes wait for a partition's job: all that they prove holds for groups."""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest

from rezone.datanode.commit.insync import Outcome, PendingWrite
from rezone.datanode.writing.arrivals import Arrival, Arrivals, EntryGroup
from rezone.datanode.writing.change import Change
from rezone.datanode.writing.write import WriteIntake
from rezone.wire.messages import WriteRequest, WriteResult
from simulation.clients.producing import NamedCopyStorm, NamedCutOver
from simulation.scenarios.runs import seeds
from simulation.storms.data_plane import DataPlane


class _Wake:
    """How the writes that a job took at once have ended so far."""

    def __init__(self, counts: collections.Counter[str]) -> None:
        self._counts = counts
        self._ended: set[bool] = set()

    def watched(self, arrival: Arrival) -> Arrival:
        """Return the same write, whose end is noted."""

        def reply(outcome: Outcome) -> None:
            self._ended.add(isinstance(outcome, WriteResult))
            self._counts["refused in part"] += len(self._ended) > 1
            arrival.reply(outcome)

        return arrival._replace(reply=reply)


def _is_plain(_: WriteIntake, request: Change) -> bool:
    """Have every plain write wait while the job is at work, not only those behind others."""
    return isinstance(request, WriteRequest) and request.transaction is None


def watched(kind: Callable[[int], DataPlane]) -> Callable[[int], DataPlane]:
    """Return the same runs, which count what becomes of writes that share a wake."""

    def run(seed: int) -> DataPlane:
        made = kind(seed)
        take, take_group = Arrivals.take, EntryGroup.take

        def noted(arrivals: Arrivals) -> list[Arrival]:
            taken = take(arrivals)
            if len(taken) < 2:
                return taken
            made.counts["in one wake"] += 1
            wake = _Wake(made.counts)
            return [wake.watched(each) for each in taken]

        def noted_group(group: EntryGroup) -> tuple[bytes, list[PendingWrite]]:
            raw, writes = take_group(group)
            made.counts["in one append"] += len(writes) > 1
            return raw, writes

        finish = made.run

        def run() -> None:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(WriteIntake, "shares", _is_plain)
                patch.setattr(Arrivals, "take", noted)
                patch.setattr(EntryGroup, "take", noted_group)
                finish()

        made.run = run  # type: ignore[method-assign]
        return made

    return run


KINDS = (watched(NamedCutOver), watched(NamedCopyStorm))


def storm(seed: int) -> collections.Counter[str]:
    """Run a re-sharding by an even seed, copies by an odd one; returns what has happened."""
    run = KINDS[seed % 2](seed)
    run.run()
    return run.counts


@pytest.mark.parametrize("seed", seeds()[::10])
def test_what_holds_for_writes_holds_for_groups(seed: int) -> None:
    """A seed of either kind ends as without groups: `make seeds` runs many of them.

    Some order of failovers, seals or takeovers of names would be lost within a group alone.
    """
    assert storm(seed)["in one append"] > 0
