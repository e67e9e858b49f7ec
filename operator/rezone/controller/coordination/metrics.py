"""What the operator tells of itself on /metrics; all labels are bounded: kinds, verbs, states.

Names of zones, tasks and partitions are never labels: what is said of one object stands in its
status. Counters count from the start of the process, which ends with its Lease.

Concurrency: everything is called on the event loop; a scrape, which is answered on it as well,
reads the gauges then.
"""

import asyncio
import collections
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rezone.controller.work.keys import Kind, ObjectKey
from rezone.domain.model.resharding_view import RangePhase, ReshardingView
from rezone.resources.conditions import Condition, ConditionStatus, ConditionType, Reason
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, MigrationState
from rezone.resources.task import TERMINAL_TASK_STATES, TaskState

LAG_SECONDS = 0.5
LAG_KEPT = 60
"""How many measurements the loop lag is the longest of: half a minute's."""

PASS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_STATES: dict[Kind, tuple[str, ...]] = {
    Kind.TASK: tuple(TaskState),
    Kind.MIGRATION: tuple(MigrationState),
}
_ENDS: dict[Kind, frozenset[str]] = {
    Kind.TASK: frozenset(TERMINAL_TASK_STATES),
    Kind.MIGRATION: frozenset(TERMINAL_MIGRATION_STATES),
}
_NEW = "New"
_ALWAYS_TOLD = frozenset({Reason.QUORUM_LOST, Reason.NO_LEADER, Reason.UNDER_REPLICATED})
"""Reasons of zones that serve less than they should: alerts need them to be 0, not absent."""
_ALWAYS_DEGRADED = frozenset({Reason.NOT_REACHED, Reason.OPERATOR_CUT_OFF})
"""Those of Degraded that only the operator can tell: data nodes have metrics of all else."""


class OperatorMetrics:
    """The metrics of one coordinator."""

    def __init__(
        self,
        registry: CollectorRegistry = REGISTRY,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self.passes = Counter(
            "rezone_operator_reconciles",
            "Reconcile passes by kind and outcome (ok, error).",
            ["kind", "outcome"],
            registry=registry,
        )
        self.pass_seconds = Histogram(
            "rezone_operator_reconcile_seconds",
            "How long a reconcile pass takes.",
            ["kind"],
            buckets=PASS_SECONDS,
            registry=registry,
        )
        self.writes = Counter(
            "rezone_operator_api_writes",
            "Writes to the API server by kind, verb and outcome (ok, refused, unknown).",
            ["kind", "verb", "outcome"],
            registry=registry,
        )
        self.ended = Counter(
            "rezone_operator_tasks_completed",
            "Tasks and migrations that this process has brought to an end, by that end.",
            ["kind", "state"],
            registry=registry,
        )
        self.waiting = Gauge(
            "rezone_operator_queue_depth",
            "Objects that wait for a pass or are in one.",
            registry=registry,
        )
        self._begin_at_zero()
        self._lags: collections.deque[float] = collections.deque(maxlen=LAG_KEPT)
        lag = Gauge(
            "rezone_operator_loop_lag_seconds",
            "The longest delay of the event loop in the last half minute.",
            registry=registry,
        )
        lag.set_function(lambda: max(self._lags, default=0.0))
        staleness = Gauge(
            "rezone_operator_watch_staleness_seconds",
            "How long the oldest own write has not been seen by the watches; 0 when all were.",
            registry=registry,
        )
        staleness.set_function(self.watch_staleness)
        self._states: dict[ObjectKey, str] = {}
        self._not_ready: dict[ObjectKey, str] = {}
        self._unseen: dict[ObjectKey, tuple[int, float]] = {}
        registry.register(_StateCollector(self._states))
        self._degraded: dict[ObjectKey, str] = {}
        for name, meaning, counts, always in (
            ("not_ready", "Zones that are not Ready", lambda: self.not_ready, _ALWAYS_TOLD),
            ("degraded", "Zones that are Degraded", lambda: self.degraded, _ALWAYS_DEGRADED),
        ):
            full_name = f"rezone_operator_zones_{name}"
            registry.register(_ZonesCollector(full_name, f"{meaning}, by reason.", counts, always))
        self._resharding: dict[ObjectKey, ReshardingView] = {}
        registry.register(_ReshardingCollector(self._resharding))

    def _begin_at_zero(self) -> None:
        """Have each counter there from the start: a rate does not see the first of a new series."""
        for kind in Kind:
            for outcome in ("ok", "error"):
                self.passes.labels(kind, outcome)
        for kind, ends in _ENDS.items():
            for state in ends:
                self.ended.labels(kind, state)

    def note_pass(self, kind: Kind, seconds: float, *, failed: bool) -> None:
        """Count a pass."""
        self.passes.labels(kind, "error" if failed else "ok").inc()
        self.pass_seconds.labels(kind).observe(seconds)

    def note_write(self, kind: str, verb: str, outcome: str) -> None:
        """Count a write to the API server."""
        self.writes.labels(kind, verb, outcome).inc()

    def note_state(self, key: ObjectKey, state: str) -> None:
        """Note the state of a task or migration, and count it when it has just ended."""
        before = self._states.get(key)
        self._states[key] = state or _NEW
        ends = _ENDS[key.kind]
        # One that had ended when this process first saw it is no end of this process's.
        if before is not None and before not in ends and state in ends:
            self.ended.labels(key.kind, state).inc()
        if state in ends:
            self._resharding.pop(key, None)

    def note_resharding(self, key: ObjectKey, view: ReshardingView) -> None:
        """Note how far the re-sharding of a task is that has not ended."""
        self._resharding[key] = view

    def note_zone(self, key: ObjectKey, conditions: Iterable[Condition]) -> None:
        """Note why a zone is not Ready, and why it is Degraded; or that all is well."""
        self._not_ready.pop(key, None)
        self._degraded.pop(key, None)
        for condition in conditions:
            true = condition.status == ConditionStatus.TRUE
            if condition.type == ConditionType.READY and not true:
                self._not_ready[key] = condition.reason
            if condition.type == ConditionType.DEGRADED and true:
                self._degraded[key] = condition.reason

    @property
    def not_ready(self) -> collections.Counter[str]:
        """How many zones are not Ready, by reason."""
        return collections.Counter(self._not_ready.values())

    @property
    def degraded(self) -> collections.Counter[str]:
        """How many zones are Degraded, by reason."""
        return collections.Counter(self._degraded.values())

    def note_written(self, key: ObjectKey, version: str) -> None:
        """Expect the watches to tell of an object at this version."""
        self._unseen.setdefault(key, (int(version), self._monotonic()))

    def note_seen(self, key: ObjectKey, version: str) -> None:
        """Note that a watch has told of an object at this version."""
        expected = self._unseen.get(key)
        if expected is not None and int(version) >= expected[0]:
            del self._unseen[key]

    def forget(self, key: ObjectKey) -> None:
        """Forget an object that is gone."""
        self._states.pop(key, None)
        self._not_ready.pop(key, None)
        self._degraded.pop(key, None)
        self._unseen.pop(key, None)
        self._resharding.pop(key, None)

    def watch_staleness(self) -> float:
        """Return for how many seconds the oldest own write has not been seen."""
        now = self._monotonic()
        return max((now - since for _, since in self._unseen.values()), default=0.0)

    async def measure_lag(self) -> None:
        """Measure for ever how late the event loop wakes what is due."""
        while True:
            begun = self._monotonic()
            await asyncio.sleep(LAG_SECONDS)
            self._lags.append(max(0.0, self._monotonic() - begun - LAG_SECONDS))


class _ReshardingCollector(Collector):
    """How far the re-shardings of all zones together are; counted when asked, not in each pass."""

    def __init__(self, known: Mapping[ObjectKey, ReshardingView]) -> None:
        self._known = known

    def collect(self) -> Iterator[Metric]:
        """Yield a number for every phase, also for those that nothing is in."""
        known = list(self._known.values())
        ranges = GaugeMetricFamily(
            "rezone_operator_reshard_ranges",
            "Ranges that an old and a new partition share, by how far they are.",
            labels=["phase"],
        )
        phases: collections.Counter[RangePhase] = collections.Counter()
        for view in known:
            phases.update(view.phases)
        for phase in RangePhase:
            ranges.add_metric([phase], phases[phase])
        yield ranges
        partitions = GaugeMetricFamily(
            "rezone_operator_reshard_partitions",
            "Old partitions of zones that are re-sharded, by whether they are cut over.",
            labels=["state"],
        )
        cut_over = sum(len(view.cut_over) for view in known)
        partitions.add_metric(["CutOver"], cut_over)
        partitions.add_metric(["Open"], sum(len(view.sources) for view in known) - cut_over)
        yield partitions


class _StateCollector(Collector):
    """How many tasks and migrations are in each state."""

    def __init__(self, states: dict[ObjectKey, str]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """Yield a number for every state, also for those that nothing is in."""
        counts: collections.Counter[tuple[Any, str]] = collections.Counter(
            (key.kind, state) for key, state in self._states.items()
        )
        family = GaugeMetricFamily(
            "rezone_operator_objects",
            "Tasks and migrations by state.",
            labels=["kind", "state"],
        )
        for kind, states in _STATES.items():
            for state in (_NEW, *states):
                family.add_metric([kind, state], counts[kind, state])
        yield family


class _ZonesCollector(Collector):
    """How many zones have a condition that is bad, by the reason that it gives."""

    def __init__(
        self,
        name: str,
        meaning: str,
        counts: Callable[[], collections.Counter[str]],
        always: frozenset[Reason],
    ) -> None:
        self._name = name
        self._meaning = meaning
        self._counts = counts
        self._always = always

    def collect(self) -> Iterator[Metric]:
        """Yield a number for every reason that a zone has, or that alerts ask for."""
        counts = self._counts()
        family = GaugeMetricFamily(self._name, self._meaning, labels=["reason"])
        for reason in sorted(self._always | counts.keys()):
            family.add_metric([reason], counts[reason])
        yield family
