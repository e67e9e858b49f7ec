"""What the zones of one coordinator know of each other's copies, so that machines are not overrun.

Which copies run is told by the data nodes' reports, so a coordinator that has just begun knows it
as soon as it has looked at all zones; until then it lets no copy begin. What was let begin a moment
ago and is in no report yet, and who waits, is in memory alone: either is said again in each pass.

Concurrency: on the event loop; `admit` does not yield, so two passes never take the same slot.
"""

import asyncio
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.work.keys import ZoneKey
from rezone.domain.model.world import Copy
from rezone.domain.observed.machine_limits import Machines, Turn, Used, Wanted, admit
from rezone.wire.messages import NodeId, PartitionId

BEGUN_SECONDS = 15.0
"""How long a copy that was let begin counts without a report: Spark may begin it so late."""

WAITING_SECONDS = 10.0
"""How long a refusal counts; who still waits asks again sooner."""

_JUST_BEGUN = "the operator has just begun: it looks at the copies of all zones first"
UNSEEN_SECONDS_MAX = 30.0
"""How long a new coordinator lets no copy begin for a zone that it has not looked at."""


@dataclasses.dataclass
class _Asked:
    """What one owner was answered last, and when; `begun` has since when each copy may run."""

    at: float
    turn: Turn
    begun: Mapping[PartitionId, tuple[float, Machines]]
    waiting: Sequence[Machines]


class CopyBoard:
    """The slots of all machines; `limit` copies may run at each."""

    def __init__(self, limit: int, runtimes: Mapping[ZoneKey, ZoneRuntime]) -> None:
        self._limit = limit
        self._runtimes = runtimes
        self._asked: dict[tuple[ZoneKey, str], _Asked] = {}
        self._began = 0.0
        self._unseen: set[ZoneKey] | None = None

    def expect(self, zones: Collection[ZoneKey]) -> None:
        """Note which zones there are: no copy begins before each was looked at once."""
        self._began = asyncio.get_running_loop().time()
        self._unseen = set(zones)

    @property
    def knows_zones(self) -> bool:
        """Return whether it was told which zones there are."""
        return self._unseen is not None

    def admit(
        self, runtime: ZoneRuntime, owner: str, turn: Turn, copies: Sequence[Copy]
    ) -> tuple[Copy, ...]:
        """Return those of an owner's copies that may run; why not the others is kept for it."""
        now, places = asyncio.get_running_loop().time(), _places(runtime)
        running = _running(runtime)
        if self._is_new(now):
            others = {c.partition: _JUST_BEGUN for c in copies if c.partition not in running}
            runtime.note_refused(owner, now, others)
            return tuple(copy for copy in copies if copy.partition in running)
        asked = (runtime.key, owner)
        before = self._asked[asked].begun if asked in self._asked else {}
        begun = {p: b for p, b in before.items() if now - b[0] < BEGUN_SECONDS}
        wanted = [
            Wanted(
                copy,
                _machines(places, (copy.source, *copy.targets)),
                started=copy.partition in running or copy.partition in begun,
            )
            for copy in copies
        ]
        rest = {k: a for k, a in self._asked.items() if k != asked}
        answer = admit(
            wanted,
            turn,
            running=self._used(runtime, {c.partition for c in copies}, rest, now),
            waiting={a.turn: a.waiting for a in rest.values() if now - a.at < WAITING_SECONDS},
            limit=self._limit,
        )
        self._asked[asked] = _Asked(
            at=now,
            turn=turn,
            begun={
                w.copy.partition: begun.get(w.copy.partition, (now, w.machines))
                for w in answer.admitted
            },
            waiting=[w.machines for w in answer.refused],
        )
        runtime.note_refused(owner, now, answer.why)
        return tuple(w.copy for w in answer.admitted)

    def forget(self, key: ZoneKey) -> None:
        """Forget what a zone that is gone has asked for."""
        self._asked = {asked: a for asked, a in self._asked.items() if asked[0] != key}
        if self._unseen is not None:
            self._unseen.discard(key)

    def _is_new(self, now: float) -> bool:
        """Return whether a zone has not been looked at yet, whose copies are not known."""
        if self._unseen is None or now - self._began > UNSEEN_SECONDS_MAX:
            return self._unseen is None
        self._unseen -= {key for key, runtime in self._runtimes.items() if _is_heard(runtime)}
        return bool(self._unseen)

    def _used(
        self,
        own: ZoneRuntime,
        mine: Collection[PartitionId],
        asked: Mapping[tuple[ZoneKey, str], _Asked],
        now: float,
    ) -> Iterator[Used]:
        """Yield the copies of all zones that run or were just let begin, but not `mine`."""
        told = set()
        for key, runtime in self._runtimes.items():
            for partition, machines in _running(runtime).items():
                told.add((key, partition))
                if runtime is not own or partition not in mine:
                    yield Used(_name(runtime), machines)
        for (key, _), each in asked.items():
            for partition, (since, machines) in each.begun.items():
                if (key, partition) not in told and now - since < BEGUN_SECONDS:
                    yield Used(each.turn.name, machines)


def _is_heard(runtime: ZoneRuntime) -> bool:
    """Return whether a zone was looked at, and each of its data nodes has answered or is silent."""
    watched = runtime.monitor.nodes().values()
    return runtime.looked_at and all(
        w.node_state is not None or w.unreachable_since for w in watched
    )


def _name(runtime: ZoneRuntime) -> str:
    status = runtime.zone.status if runtime.zone is not None else None
    task = status.current_task if status is not None else ""
    zone = f"zone {runtime.key.namespace}/{runtime.key.name}"
    return f"task {task} of {zone}" if task else zone


def _places(runtime: ZoneRuntime) -> dict[NodeId, str]:
    status = runtime.zone.status if runtime.zone is not None else None
    return {n.id: n.node_name for n in status.data_nodes} if status is not None else {}


def _machines(places: Mapping[NodeId, str], nodes: Sequence[NodeId]) -> Machines:
    return frozenset(place for node in nodes if (place := places.get(node)))


def _running(runtime: ZoneRuntime) -> dict[PartitionId, Machines]:
    """Return the copies that a zone's data nodes say are under way, with their machines."""
    places = _places(runtime)
    found: dict[PartitionId, Machines] = {}
    for node, watched in runtime.monitor.nodes().items():
        if watched.node_state is None:
            continue
        for partition, report in watched.node_state.replicas.items():
            copy = report.copy
            if copy is not None and not copy.done and not copy.error:
                machines = _machines(places, (node, report.leader))
                found[partition] = found.get(partition, frozenset()) | machines
    return found
