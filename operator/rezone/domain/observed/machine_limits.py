"""How many copies one Kubernetes node takes part in at once, over the data nodes of all zones.

A copy takes a slot at each Kubernetes node that it reads from or writes to, all at once or none,
and gives them back when it ends: nobody holds one slot while waiting for another. Who waits goes
by turn: repairs before moves, then the oldest. A later turn takes no slot that an earlier one
waits for, so the earliest turn waits for running copies only, which end by themselves: no two
zones can wait for each other.
"""

import collections
import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rezone.domain.model.world import Copy
from rezone.wire.messages import PartitionId

Machines = frozenset[str]
"""The Kubernetes nodes of a copy's source and targets."""


class Rank(enum.IntEnum):
    """What goes first; leaders that move without a copy take no slot."""

    REPAIR = 0
    MOVE = 1


@dataclasses.dataclass(frozen=True, order=True)
class Turn:
    """Who asks for copies; a lower one goes first. `name` is told to those who wait."""

    rank: Rank
    since: datetime
    name: str


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A copy that may run by its zone's own limits; `started`: it runs already."""

    copy: Copy
    machines: Machines
    started: bool = False


@dataclasses.dataclass(frozen=True)
class Used:
    """A copy that runs, or was just let begin, for `name`."""

    name: str
    machines: Machines


@dataclasses.dataclass(frozen=True)
class Admission:
    """The copies that may run now, and why the others may not, by partition."""

    admitted: tuple[Wanted, ...]
    refused: tuple[Wanted, ...]
    why: Mapping[PartitionId, str]


def admit(
    wanted: Sequence[Wanted],
    turn: Turn,
    *,
    running: Iterable[Used],
    waiting: Mapping[Turn, Sequence[Machines]],
    limit: int,
) -> Admission:
    """Return which of the wanted copies may run, in their order.

    `running` are all others, and `waiting` what other turns were refused. What runs already goes
    on whatever the limit: it is counted, not stopped.
    """
    used: collections.Counter[str] = collections.Counter()
    names: dict[str, str] = {}
    for other_copy in running:
        used.update(other_copy.machines)
        names.update(dict.fromkeys(other_copy.machines, other_copy.name))
    ahead: collections.Counter[str] = collections.Counter()
    first: dict[str, str] = {}
    for other in sorted(waiting):
        if other < turn:
            for machines in waiting[other]:
                ahead.update(machines)
                for machine in machines:
                    first.setdefault(machine, other.name)
    admitted: list[Wanted] = []
    refused: list[Wanted] = []
    why: dict[PartitionId, str] = {}
    for each in sorted(wanted, key=lambda w: not w.started):
        full = [m for m in sorted(each.machines) if used[m] >= limit]
        behind = [m for m in sorted(each.machines) if used[m] + ahead[m] >= limit]
        if each.started or not behind:
            used.update(each.machines)
            names.update(dict.fromkeys(each.machines, turn.name))
            admitted.append(each)
            continue
        refused.append(each)
        machine = (full or behind)[0]
        why[each.copy.partition] = (
            f"Kubernetes node {machine} takes part in {used[machine]} copies, {limit} at most, "
            f"such as for {names[machine]}"
            if full
            else f"{first[machine]} goes first on Kubernetes node {machine}"
        )
    return Admission(tuple(admitted), tuple(refused), why)
