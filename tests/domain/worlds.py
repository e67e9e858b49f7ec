"""Small worlds for table tests: one observation, built from what differs from the usual."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from rezone.domain.assignment import assignments
from rezone.domain.machines.machine import Table
from rezone.domain.model.world import MigrationView, NodeView, SparkView, ZoneView
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import Topology
from rezone.wire.layouts import generation_of, id_of, index_of
from rezone.wire.messages import LeaderAndIsr, PartitionId, ReplicaReport, Role, TakeoverState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LEASE_SECONDS = 5.0
OLD: Topology = ((0, 1, 2), (1, 2, 0))
NEW: Topology = ((1, 2, 3), (1, 2, 0))


def record(**changes: Any) -> LeaderAndIsr:
    """Return partition 0's usual route: node 0 leads nodes 0, 1 and 2."""
    usual = LeaderAndIsr(
        leader=0,
        leader_epoch=4,
        isr=(0, 1, 2),
        replicas=(0, 1, 2),
        coordinator_epoch=1,
        partition_epoch=9,
    )
    return msgspec.structs.replace(usual, **changes)


def report(partition: int, node: int, route: LeaderAndIsr, **changes: Any) -> ReplicaReport:
    """Return what a healthy replica says that knows the route and has all rows."""
    usual = ReplicaReport(
        partition=partition,
        role=Role.LEADER if route.leader == node else Role.FOLLOWER,
        leader=route.leader,
        leader_epoch=route.leader_epoch,
        partition_epoch=route.partition_epoch,
        log_end_offset=100,
        kv_applied_offset=100,
        bytes_estimate=1000,
    )
    return msgspec.structs.replace(usual, **changes)


@dataclasses.dataclass
class World:
    """A mutable description of one observation.

    `targets` are the records of the layout after that of `routes`, which is of `generation`. Nodes
    of `hears` say whom they hear; they answer, and have for `answer_seconds`.
    """

    routes: list[LeaderAndIsr] = dataclasses.field(
        default_factory=lambda: [record(), record(leader=1)],
    )
    generation: int = 0
    targets: list[LeaderAndIsr] = dataclasses.field(default_factory=list)
    nodes: int = 5
    silent: dict[int, float] = dataclasses.field(default_factory=dict)
    hears: dict[int, set[int]] = dataclasses.field(default_factory=dict)
    answer_seconds: float = 60.0
    lost: set[int] = dataclasses.field(default_factory=set)
    draining: set[int] = dataclasses.field(default_factory=set)
    leaving: set[int] = dataclasses.field(default_factory=set)
    maintenance: set[int] = dataclasses.field(default_factory=set)
    domains: dict[int, str] = dataclasses.field(default_factory=dict)
    served: dict[int, int] = dataclasses.field(default_factory=dict)
    reports: dict[tuple[int, int], dict[str, Any] | None] = dataclasses.field(default_factory=dict)
    migrations: list[MigrationView] = dataclasses.field(default_factory=list)
    taken_names: dict[str, str] = dataclasses.field(default_factory=dict)
    spark: SparkView | None = None
    verified: set[tuple[int, int, int]] = dataclasses.field(default_factory=set)
    mismatched: set[tuple[int, int, int]] = dataclasses.field(default_factory=set)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def reported(self, partition: int, node: int, **changes: Any) -> None:
        """Change what a node reports of a replica."""
        self.reports[partition, node] = {**(self.reports.get((partition, node)) or {}), **changes}

    @property
    def records(self) -> RouteRecords:
        """All records by partition id."""
        table = RouteRecords(self.routes, self.generation)
        return table.with_next(self.targets, self.generation + 1) if self.targets else table

    def view(self) -> ZoneView:
        """Return the observation; `reports` of None means that the node has no such replica."""
        settings: dict[str, Any] = {
            "stable": OLD,
            "pending": None,
            "pending_revision": 0,
            "planned": None,
            "change": 1,
            "cancel_revision": None,
            "paused": False,
            "manual_approval": False,
            "max_concurrent_migrations": 8,
            "max_migrations_per_node": 4,
            "max_concurrent_handovers": 0,
            "spark_threshold_bytes": 1 << 20,
            "min_in_sync": 2,
        }
        return ZoneView(
            name="z",
            routes=self.records,
            nodes={n: self._node(n) for n in range(self.nodes)},
            coordinator_epoch=2,
            leader_lease_seconds=LEASE_SECONDS,
            migrations=tuple(self.migrations),
            taken_names=dict(self.taken_names),
            spark=self.spark,
            verified=frozenset(self.verified),
            mismatched=frozenset(self.mismatched),
            **(settings | self.settings),
        )

    def _node(self, node: int) -> NodeView:
        silent = self.silent.get(node)
        hears = self.hears.get(node) if silent is None else None
        replicas = {}
        for partition, route in self.records.items():
            changes = self.reports.get((partition, node), {})
            there = node in route.replicas or (partition, node) in self.reports
            if there and changes is not None:
                replicas[partition] = report(partition, node, route, **changes)
        return NodeView(
            node=node,
            address=f"node-{node}:1",
            reachable=silent is None,
            lost=node in self.lost,
            draining=node in self.draining,
            leaving=node in self.leaving,
            maintenance=node in self.maintenance,
            failure_domain=self.domains.get(node, ""),
            served_percent=self.served.get(node),
            hears=frozenset(hears) if hears is not None else None,
            fresh=hears is not None,
            answers_since=NOW - timedelta(seconds=self.answer_seconds) if hears else None,
            unreachable_since=None if silent is None else NOW - timedelta(seconds=silent),
            replicas={} if silent is not None else replicas,
        )

    def pend(self, target: Topology = NEW, revision: int = 2) -> "World":
        """Make an assignment pending."""
        self.settings |= {"pending": target, "pending_revision": revision, "change": revision}
        return self

    def authorize(self, node: int = 1, epoch: int = 5) -> "World":
        """Authorize a takeover of partition 0."""
        self.routes[0] = msgspec.structs.replace(self.routes[0], next_leader=node, next_epoch=epoch)
        return self

    def takes_over(self, node: int = 1, epoch: int = 5) -> "World":
        """Let a node report that it leads partition 0, whatever the route says."""
        self.reports[0, node] = {
            "role": Role.LEADER,
            "leader": node,
            "leader_epoch": epoch,
            "takeover": TakeoverState.ACTIVE,
            "takeover_epoch": epoch,
        }
        return self


def of_generation(view: ZoneView, generation: int) -> ZoneView:
    """Return the same observation of a later layout: every partition has another id."""

    def named(partition: PartitionId) -> PartitionId:
        return id_of(generation, partition)

    def of_node(node: NodeView) -> NodeView:
        replicas = {
            named(p): msgspec.structs.replace(said, partition=named(p))
            for p, said in node.replicas.items()
        }
        return dataclasses.replace(node, replicas=replicas)

    return dataclasses.replace(
        view,
        routes=RouteRecords(view.routes.of(0), generation),
        generation=generation,
        pending_generation=generation,
        nodes={number: of_node(node) for number, node in view.nodes.items()},
        migrations=tuple(
            dataclasses.replace(each, partition=named(each.partition)) for each in view.migrations
        ),
        verified=frozenset((named(p), node, epoch) for p, node, epoch in view.verified),
        mismatched=frozenset((named(p), node, epoch) for p, node, epoch in view.mismatched),
    )


def by_index(acted: Any, generation: int) -> Any:
    """Return an action, or what is in one, with partitions by index; all are of a generation."""
    if isinstance(acted, tuple):
        return tuple(by_index(each, generation) for each in acted)
    if not dataclasses.is_dataclass(acted) or isinstance(acted, type):
        return acted
    fields = {f.name: getattr(acted, f.name) for f in dataclasses.fields(acted)}
    changes = {name: by_index(value, generation) for name, value in fields.items()}
    if "partition" in fields:
        assert generation_of(fields["partition"]) == generation, acted
        changes["partition"] = index_of(fields["partition"])
    return dataclasses.replace(acted, **changes)


def child(name: str, partition: int = 0, state: str = "Succeeded", **changes: Any) -> MigrationView:
    """Return a migration of the task "t"."""
    usual: dict[str, Any] = {
        "name": name,
        "partition": partition,
        "target": 1,
        "state": state,
        "terminal": state in {"Succeeded", "Failed", "RolledBack"},
        "succeeded": state == "Succeeded",
        "owner_task": "t",
    }
    return MigrationView(**(usual | changes))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Collect the edges that machines walk along, as (state, event)."""
    walked: list[tuple[str, str]] = []
    follow = Table.follow

    def spy(table: Table, source: str, event: str) -> str:
        walked.append((str(source), str(event)))
        return follow(table, source, event)

    monkeypatch.setattr(Table, "follow", spy)
    return walked


def text(topology: Topology) -> str:
    """Return a topology as a status holds it."""
    return assignments.compact(topology)
