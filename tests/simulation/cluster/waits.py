"""Who waits for whom among the tasks and migrations that are stored: never in a circle.

What a migration waits for is asked of the rules that decide it (`assignment.claims`), so that the
graph is there at once, and not only when a wait has lasted long enough to be written into a status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rezone.controller.observing.observe import build_view, owner_task_of
from rezone.controller.reconcile.zone_tasks import task_name
from rezone.controller.work.keys import ZoneKey
from rezone.domain.assignment.claims import Rank, awaited_rebalance, claim_of, goes_first
from rezone.domain.model.world import ZoneView
from rezone.domain.routing.route_records import RouteRecords
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, RegionMigration
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTask, TaskState
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignments

if TYPE_CHECKING:
    from simulation.cluster.world import World

Waits = Mapping[str, Iterable[str]]
"""For each object the objects that it waits for."""

_ASKS = {"", TaskState.PLANNED, TaskState.APPROVED}
"""The states in which a task waits until no other rebalance is pending."""


def circle(waits: Waits) -> list[str]:
    """Return objects that wait for each other, in order; empty when there are none."""
    done: set[str] = set()
    path: list[str] = []

    def walk(name: str) -> list[str]:
        if name in path:
            return path[path.index(name) :]
        if name in done:
            return []
        path.append(name)
        found = next(filter(None, (walk(each) for each in waits.get(name, ()))), [])
        path.pop()
        done.add(name)
        return found

    return next(filter(None, (walk(name) for name in list(waits))), [])


def waits_of(world: World) -> Waits:
    """Return who waits for whom now."""
    if world.is_gone:
        return {}
    zone = world.zone()
    status = zone.status
    if status is None or status.assignments.stable is None:
        return {}
    found = [RegionMigration.parse(m) for m in world.server.all_of("RegionMigration")]
    migrations = [m for m in found if _state(m) not in TERMINAL_MIGRATION_STATES]
    stored = [RebalanceTask.parse(t) for t in world.server.all_of("RebalanceTask")]
    tasks = [t for t in stored if _state(t) not in TERMINAL_TASK_STATES]
    if not migrations:
        return {}
    view = _view(world, zone, migrations)
    holder = task_name(zone.metadata.name, tasks, status.assignments)
    waits = {m.name: _of_migration(view, m.name, holder) for m in view.migrations}
    for task in tasks:
        children = {m.metadata.name for m in migrations if owner_task_of(m) == task.metadata.name}
        waits[f"task {task.metadata.name}"] = children | _of_task(task, status.assignments, holder)
    return waits


def _state(each: RegionMigration | RebalanceTask) -> str:
    return each.status.state if each.status is not None else ""


def _view(world: World, zone: DistributionZone, migrations: list[RegionMigration]) -> ZoneView:
    key = ZoneKey(zone.metadata.namespace, zone.metadata.name)
    return build_view(
        zone,
        world.processes[-1].coordinator.runtime(key, zone.metadata.uid),
        routes=RouteRecords(()),
        migrations=migrations,
        spark=None,
        leader_lease_seconds=0.0,
    )


def _of_migration(view: ZoneView, name: str, holder: str) -> set[str]:
    own = next(m for m in view.migrations if m.name == name)
    claim = claim_of(own)
    if claim.rank is Rank.BEGUN:
        return set()
    first = {o.name for o in view.migrations if goes_first(o, claim, own.partition)}
    rebalance = {f"task {holder}"} if awaited_rebalance(view, own.partition, claim) else set()
    return first | rebalance


def _of_task(task: RebalanceTask, keys: Assignments, holder: str) -> set[str]:
    asks = _state(task) in _ASKS and keys.pending is not None
    return {f"task {holder}"} if asks and task.metadata.name != holder else set()
