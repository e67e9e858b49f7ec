"""How many migrations may run: per zone and per node, source and target both counted (B-03)."""

import collections

from rezone.domain.machines.migration_table import NOT_BEGUN
from rezone.domain.model.world import MigrationView, ZoneView
from rezone.wire.messages import NodeId


class Slots:
    """The places that running migrations leave free, taken one by one within a pass.

    A task's children count from their creation, because the task's pass decided on them. One that
    a person applied counts from its start, because it waits for a slot itself.
    """

    def __init__(self, view: ZoneView, *, without: str = "") -> None:
        self._zone = view.max_concurrent_migrations
        self._node = view.max_migrations_per_node
        self._used: collections.Counter[NodeId] = collections.Counter()
        self._running = 0
        for migration in view.migrations:
            if migration.name != without and _is_running(migration):
                self._running += 1
                self._used.update(_nodes(migration, view))

    def take(self, *nodes: NodeId) -> bool:
        """Take a slot for a migration between these nodes, if zone and nodes have one left."""
        if self._running >= self._zone or any(self._used[n] >= self._node for n in nodes):
            return False
        self._running += 1
        self._used.update(nodes)
        return True

    @property
    def full(self) -> bool:
        """Return whether the zone has no slot left for any migration."""
        return self._running >= self._zone


def _is_running(migration: MigrationView) -> bool:
    if migration.terminal:
        return False
    return bool(migration.owner_task) or migration.state not in NOT_BEGUN


def _nodes(migration: MigrationView, view: ZoneView) -> set[NodeId]:
    source = migration.source
    if source is None and migration.partition in view.routes:
        source = view.routes[migration.partition].leader
    return {n for n in (source, migration.target) if n is not None}
