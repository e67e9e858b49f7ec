"""A whole zone in one process: routes, assignment keys, tasks, migrations and a coordinator.

The decisions are the production code; what carries them out is simulated and checks, at each
step, what must always hold. A coordinator can be made to crash at any of its numbered points
(around every write and every act): it then forgets everything that is not persisted. Each run is
determined by its seed and the point of its crash.
"""

import dataclasses
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from simulated_replicas import Replicas

from rezone.domain.assignment import assignments
from rezone.domain.machines.statuses import Decision
from rezone.domain.migration import decide as migration
from rezone.domain.model import world
from rezone.domain.observed.copy_watch import CopyWatch
from rezone.domain.rebalance import decide as rebalance
from rezone.domain.rebalance.run import NoPlan, Planned
from rezone.domain.repair import repairs
from rezone.domain.routing import route_checks, routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import ConditionType
from rezone.resources.migration import (
    TERMINAL_MIGRATION_STATES,
    MigrationState,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.resources.task import (
    TERMINAL_TASK_STATES,
    PlanSummary,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
)
from rezone.resources.zone_status import Assignment, Assignments
from rezone.wire.messages import LeaderAndIsr

START = datetime(2026, 1, 1, tzinfo=UTC)
TICK = timedelta(seconds=0.5)
LEASE_SECONDS = 3.0
LOST_TICKS = 400


class Crash(Exception):  # noqa: N818 - it is an event of the simulation, not an error
    """The coordinator's process has died."""


@dataclasses.dataclass
class Stored:
    """An object of the API server: spec, and status as JSON."""

    spec: Any
    status: dict[str, Any] | None = None
    owner: str = ""
    writes: int = 0


class Zone:
    """The simulated zone; `tick` is one step of everything."""

    def __init__(self, seed: int, stable: Topology, nodes: int) -> None:
        self.rng = random.Random(seed)
        self.now = START
        self.ticks = 0
        self.epoch = 1
        # As after their creation: all replicas have opened them.
        self.routes = [_opened(nodes_) for nodes_ in stable]
        self.keys = assignments.first(Assignments(), stable, 1)
        self.replicas = Replicas(self.rng, nodes, self.routes)
        self.tasks: dict[str, Stored] = {}
        self.migrations: dict[str, Stored] = {}
        self.spark: dict[str, str] = {}
        self.spark_copies: dict[str, tuple[world.Copy, ...]] = {}
        self.spark_fails = 0.0
        self.admitted: set[int] = set()
        self.verified: set[tuple[int, int, int]] = set()
        self.mismatched: set[tuple[int, int, int]] = set()
        self.replica_floor = [len(nodes_) for nodes_ in stable]
        self.settings: dict[str, Any] = {}
        self.lost_ticks = LOST_TICKS
        self.watch = CopyWatch()
        self.copy_deadline_seconds = 600.0
        self.api_writes = 0
        self.points = 0
        self.crash_at = -1
        self.crash_chance = 0.0
        self.seen: dict[int, world.NodeView] = {}
        self.plan_target: Topology | None = None
        self.last_decision: Decision[Any] | None = None

    # --- what the coordinator sees ----------------------------------------------------------

    def view(self) -> world.ZoneView:
        """Observe the zone."""
        self._forget_dropped()
        cancel, pending = self.keys.cancel, self.keys.pending
        name = self._spark_name()
        settings: dict[str, Any] = {
            "paused": False,
            "manual_approval": False,
            "max_concurrent_migrations": 4,
            "max_migrations_per_node": 2,
            "max_concurrent_handovers": 0,
            "spark_threshold_bytes": 1 << 40,
        }
        return world.ZoneView(
            name="z",
            routes=RouteRecords(self.routes),
            nodes=self.seen or {n: self._node_view(n) for n in self.replicas.nodes},
            stable=_topology(self.keys.stable),
            pending=_topology(pending),
            pending_revision=pending.revision if pending else 0,
            planned=_topology(self.keys.planned),
            change=self.keys.change,
            cancel_revision=cancel.revision if cancel else None,
            coordinator_epoch=self.epoch,
            leader_lease_seconds=LEASE_SECONDS,
            min_in_sync=2,
            migrations=tuple(_migration_view(n, m) for n, m in self.migrations.items()),
            spark=world.SparkView(name=name, state=self.spark[name]) if name else None,
            verified=frozenset(self.verified),
            mismatched=frozenset(self.mismatched),
            stalled_copies=self.watch.stalled(
                self.now, deadline_seconds=self.copy_deadline_seconds
            ),
            avoided=self.watch.avoided(self.now),
            **(settings | self.settings),
        )

    def _forget_dropped(self) -> None:
        """Forget what was found of copies that no route has any more, as the coordinator does."""

        def is_out(key: tuple[int, int, int]) -> bool:
            return key[1] not in self.routes[key[0]].replicas

        def is_gone(key: tuple[int, int, int]) -> bool:
            node = self.seen.get(key[1])
            return node is not None and node.reachable and key[0] not in node.replicas

        self.verified = {key for key in self.verified if not is_out(key)}
        self.mismatched = {key for key in self.mismatched if not (is_out(key) and is_gone(key))}

    def _spark_name(self) -> str:
        return next(reversed(self.spark), "")

    def _node_view(self, number: int) -> world.NodeView:
        node = self.replicas.nodes[number]
        reports = {p: self.replicas.report(p, number) for p in node.replicas}
        since = None if node.since is None else START + node.since * TICK
        return world.NodeView(
            node=number,
            address=f"node-{number}:1",
            reachable=node.reachable,
            lost=node.lost,
            unreachable_since=since,
            replicas=reports if node.reachable else {},
        )

    # --- the coordinator ---------------------------------------------------------------------

    def point(self) -> None:
        """One of the points at which the coordinator may die."""
        self.points += 1
        if self.points == self.crash_at or self.rng.random() < self.crash_chance:
            raise Crash

    def tick(self) -> None:
        """One step: the coordinator visits everything once, then the data nodes work."""
        self.ticks += 1
        self.now += TICK
        # One observation a tick, as the monitor's reports are: acts of this tick are not in it.
        self.seen = {n: self._node_view(n) for n in self.replicas.nodes}
        self.watch.look(self.seen, self.now)
        try:
            self._change_routes(repairs.repairs(self.view(), self.now))
            for name in list(self.migrations):
                self._visit(self.migrations[name], name, self._decide_migration)
            self._ensure_task()
            for name in list(self.tasks):
                self._visit(self.tasks[name], name, self._decide_task)
        except Crash:
            self.epoch += 1
            self.verified.clear()
            self.mismatched.clear()
            self.watch = CopyWatch()
        for partition, record in enumerate(self.routes):
            for node in self.replicas.nodes:
                self.replicas.notify(node, partition, record)
        self._spark_tick()
        self.replicas.tick()
        self._node_tick()
        self.check()

    def _ensure_task(self) -> None:
        """Make the task of what is pending, as the zone's pass does for what was planned."""
        pending = self.keys.pending
        if pending is None:
            return
        asked = {task.spec.revision for task in self.tasks.values()}
        asked |= {(task.status or {}).get("revision", 0) for task in self.tasks.values()}
        if pending.revision not in asked:
            spec = RebalanceTaskSpec(zone_name="z", revision=pending.revision)
            self.tasks[f"z-{pending.revision}"] = Stored(spec=spec)

    def _visit(
        self,
        stored: Stored,
        name: str,
        decide: Callable[[Stored, str], Decision[Any]],
    ) -> None:
        decision = decide(stored, name)
        self.last_decision = decision
        if not decision.path and decision.wake_seconds is None:
            return
        self.point()
        body = decision.status.dump()
        if body != stored.status:
            stored.status = body
            stored.writes += 1
            self.api_writes += 1
            check_status(decision.status)
        self.point()
        for action in decision.actions:
            self.act(action, name)
            self.point()

    def _decide_migration(self, stored: Stored, name: str) -> Decision[Any]:
        old = None
        if stored.status is not None:
            old = RegionMigrationStatus.model_validate(stored.status)
        return migration.decide(stored.spec, old, self.view(), self.now, 1, name=name)

    def _decide_task(self, stored: Stored, name: str) -> Decision[Any]:
        old = None
        if stored.status is not None:
            old = RebalanceTaskStatus.model_validate(stored.status)
        return rebalance.decide(
            stored.spec, old, self.view(), self.now, 1, name=name, plan=self._plan
        )

    def _plan(self) -> Planned | NoPlan:
        target = self.plan_target or assignments.topology_of(self.keys.pending)
        assert target is not None, "a plan is asked for without anything to plan"
        summary = PlanSummary(hash="h1", moves=1, moves_lower_bound=1)
        return Planned(target, summary)

    def act(self, action: world.Action, owner: str) -> None:  # noqa: C901, PLR0912 - one case each
        """Carry out one action, as the controller does; a refusal changes nothing."""
        match action:
            case world.ChangeRoutes(changes=changes):
                self._change_routes(changes)
            case world.PullSnapshots(copies=copies):
                self.watch.asked(copies, self.now, streams=True)
                for copy in copies:
                    for node in copy.targets:
                        self.replicas.pull(copy.partition, node)
            case world.EnsureSparkApplication(name=name, copies=copies):
                if name not in self.spark:
                    self.spark[name], self.spark_copies[name] = "NEW", copies
            case world.AdmitCopies(admitted=admitted):
                self.admitted = {copy.partition for copy in admitted}
            case world.DeleteSparkApplication(name=name):
                self.spark.pop(name, None)
            case world.VerifyCopy():
                self._verify(action)
            case world.EnsureMigration():
                self._ensure_migration(action, owner)
            case world.CancelMigration(name=name):
                self.cancel(self.migrations[name])
            case world.StopReplica(partition=p, node=n, leader_epoch=e):
                assert n not in self.routes[p].replicas, f"p{p}: node {n} is stopped but routed"
                self.replicas.stop(p, n, e)
            case world.RequestTakeover():
                self.replicas.request_takeover(
                    action.partition, action.source, action.leader_epoch, action.next_epoch
                )
            case world.RequestUpgrade():
                self.replicas.request_upgrade(
                    action.partition, action.candidate, action.next_epoch, action.last_offset
                )
            case world.NotifyFailureDetector():
                pass
            case _:
                self._write_keys(action)

    def _write_keys(self, action: world.Action) -> None:
        keys: Any = assignments.SKIP
        match action:
            case world.WritePending(target=target, revision=revision):
                keys = assignments.request(self.keys, target, revision)
            case world.WriteStable(target=target, revision=revision):
                pending = assignments.topology_of(self.keys.pending)
                for partition, nodes in enumerate(target):
                    record = self.routes[partition]
                    if pending is None or nodes != pending[partition]:
                        continue  # its target failed: it stays where it was
                    if self._may_be_short(partition, nodes):
                        continue
                    assert set(nodes) <= set(record.isr), f"p{partition} not in sync but stable"
                    assert record.leader == nodes[0]
                keys = assignments.complete(self.keys, revision, target)
            case world.WriteCancel(revision=revision, old=old, new=new):
                _, keys = assignments.intend_cancel(self.keys, revision, old, new)
            case world.SettleLeader():
                keys = assignments.settle(self.keys, action)
            case world.ClearPending(revision=revision, ended=ended):
                keys = assignments.clear_pending(self.keys, revision, ended)
        if keys is not assignments.SKIP and keys != self.keys:
            self.keys = keys
            self.api_writes += 1
            assert assignments.violations(self.keys) == ()

    def _may_be_short(self, partition: int, nodes: tuple[int, ...]) -> bool:
        """Whether a node is lost, which the next plan replaces, or its copy fails for ever.

        One that has switched cannot go back without a copy: the zone goes on with what fails.
        """
        deadline = self.copy_deadline_seconds
        failed = {*self.watch.stalled(self.now, deadline_seconds=deadline)}
        failed |= {(p, node) for p, node, _ in self.mismatched}
        lost = {n for n, node in self.replicas.nodes.items() if node.lost}
        return any(node in lost or (partition, node) in failed for node in nodes)

    def _change_routes(self, changes: tuple[world.RouteChange, ...]) -> None:
        for change in changes:
            old = self.routes[change.partition]
            if old.partition_epoch != change.expected_epoch or change.state == old:
                continue
            assert route_checks.violations(change.state) == ()
            assert route_checks.regressions(old, change.state) == ()
            assert change.state.partition_epoch == old.partition_epoch + 1
            self.point()
            self.routes[change.partition] = change.state
            self.api_writes += 1
            self.point()

    def _verify(self, action: world.VerifyCopy) -> None:
        replica = self.replicas.nodes[action.target].replicas.get(action.partition)
        if replica is None or not self.replicas.nodes[action.target].reachable:
            return
        key = (action.partition, action.target, action.leader_epoch)
        (self.mismatched if replica.corrupt else self.verified).add(key)

    def _ensure_migration(self, action: world.EnsureMigration, owner: str) -> None:
        if action.name in self.migrations:
            return
        spec = RegionMigrationSpec(zone_name="z", partition=action.partition, target=action.target)
        self.migrations[action.name] = Stored(spec=spec, owner=owner)
        self.api_writes += 1
        running = [m for m in self.view().migrations if not m.terminal and m.owner_task]
        assert len(running) <= self.view().max_concurrent_migrations, "too many migrations"

    @staticmethod
    def cancel(stored: Stored) -> None:
        """Set spec.cancel, as a person or a task does."""
        stored.spec = stored.spec.model_copy(update={"cancel": True})

    # --- the world around ---------------------------------------------------------------------

    def _spark_tick(self) -> None:
        name = self._spark_name()
        state = self.spark.get(name, "")
        if state == "NEW":
            self.spark[name] = "RUNNING"
        if state != "RUNNING":
            return
        if self.rng.random() < self.spark_fails:
            self.spark[name] = "FAILED"
            return
        done = True
        for copy in self.spark_copies[name]:
            for node in copy.targets:
                if copy.partition in self.admitted:
                    self.replicas.copy_some(copy.partition, copy.source, node)
                replica = self.replicas.nodes[node].replicas.get(copy.partition)
                done &= replica is None or not replica.needs_snapshot
        if done:
            self.spark[name] = "COMPLETED"

    def _node_tick(self) -> None:
        for node in self.replicas.nodes.values():
            if node.reachable:
                node.since = None
            elif node.since is None:
                node.since = self.ticks
            elif not node.alive and self.ticks - node.since > self.lost_ticks:
                node.lost = True

    # --- what must always hold -----------------------------------------------------------------

    def check(self) -> None:
        """Assert what holds after each step, for every partition."""
        for partition, record in enumerate(self.routes):
            assert route_checks.violations(record) == ()
            held = len(record.replicas)
            assert held >= self.replica_floor[partition], f"p{partition} has {held} replicas"

    def settled(self) -> bool:
        """Whether every task and migration has ended, and no further task is due."""
        waits = self.keys.pending is not None and all(
            stored.spec.revision != self.keys.pending.revision for stored in self.tasks.values()
        )
        return not (waits and self.tasks) and all(
            stored.status is not None and stored.status.get("state") in ends
            for group, ends in (
                (self.tasks, TERMINAL_TASK_STATES),
                (self.migrations, TERMINAL_MIGRATION_STATES),
            )
            for stored in group.values()
        )

    def run(self, ticks_max: int) -> None:
        """Go on until everything has ended; AssertionError when it does not in time."""
        for _ in range(ticks_max):
            if self.settled():
                return
            self.tick()
        waits = {
            name: (stored.status or {}).get("state", "")
            + ": "
            + (stored.status or {}).get("waitingFor", "")
            for name, stored in (*self.tasks.items(), *self.migrations.items())
        }
        raise AssertionError(f"not settled after {ticks_max} ticks: {waits}")

    def ask(self, target: Topology, name: str = "t") -> None:
        """Make `target` pending, with the task that the operator would make for it (ZR-04)."""
        keys = assignments.request(self.keys, target, self.keys.change + 1)
        assert keys is not assignments.SKIP
        self.keys = keys
        spec = RebalanceTaskSpec(zone_name="z", revision=self.keys.change)
        self.tasks[name] = Stored(spec=spec)
        self.replica_floor = [
            min(floor, len(nodes)) for floor, nodes in zip(self.replica_floor, target, strict=True)
        ]

    def migrate(self, name: str, partition: int, target: int | None, **spec: Any) -> None:
        """Apply a RegionMigration by hand."""
        self.migrations[name] = Stored(
            spec=RegionMigrationSpec(zone_name="z", partition=partition, target=target, **spec)
        )

    def state(self, name: str) -> str:
        """Return the state of a task or migration."""
        stored = self.tasks.get(name) or self.migrations[name]
        return str((stored.status or {}).get("state", ""))


def _opened(nodes: tuple[int, ...]) -> LeaderAndIsr:
    record = routes.confirm(routes.initial(nodes, 1))
    assert isinstance(record, LeaderAndIsr)
    return record


def _topology(assignment: Assignment | None) -> Topology | None:
    return assignments.parse(assignment.replicas) if assignment is not None else None


def _migration_view(name: str, stored: Stored) -> world.MigrationView:
    state = str((stored.status or {}).get("state", ""))
    return world.MigrationView(
        name=name,
        partition=stored.spec.partition,
        target=stored.spec.target,
        state=state,
        terminal=state in TERMINAL_MIGRATION_STATES,
        succeeded=state == MigrationState.SUCCEEDED,
        owner_task=stored.owner,
    )


def check_status(status: RegionMigrationStatus | RebalanceTaskStatus) -> None:
    """Assert kstatus' rules: one meaning at a time, nothing left over after an end."""
    kinds = {c.type for c in status.conditions}
    assert ConditionType.SUCCEEDED in kinds
    assert not {ConditionType.RECONCILING, ConditionType.STALLED} <= kinds
    if status.finished_time is not None:
        assert ConditionType.RECONCILING not in kinds
        assert not status.waiting_for
    assert type(status).model_validate(status.dump()) == status, "a status must survive its JSON"
