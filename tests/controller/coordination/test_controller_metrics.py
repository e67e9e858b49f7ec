"""What the operator says of itself: each metric moves by what it is named for, and only then."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from rezone.controller.coordination import metrics as subject
from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.metrics import OperatorMetrics
from rezone.controller.process.wakes import Wakes
from rezone.controller.work.keys import Kind, ObjectKey, ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.model.resharding_view import RangeView, ReshardingView, SourceView, TargetView
from rezone.domain.routing import routes
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import ConflictWriteError, UnknownOutcomeError
from rezone.resources.conditions import Condition, ConditionType, Reason, condition_of
from rezone.resources.migration import MigrationState
from rezone.resources.task import TaskState
from rezone.wire.layouts import Overlap
from standing_clock import StandingClock

ZONE = ZoneKey("ns", "z").object_key
TASK = ObjectKey(Kind.TASK, "ns", "t")
MIGRATION = ObjectKey(Kind.MIGRATION, "ns", "m")


@pytest.fixture
def clock() -> StandingClock[float]:
    """Give a clock."""
    return StandingClock(100.0)


@pytest.fixture
def registry() -> CollectorRegistry:
    """Give a registry of the test's own."""
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry, clock: StandingClock[float]) -> OperatorMetrics:
    """Give the metrics of a new coordinator."""
    return OperatorMetrics(registry, clock)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """Return a sample as it would be scraped."""
    return registry.get_sample_value(f"rezone_operator_{name}", labels)


async def test_passes_are_counted_and_timed_with_their_outcome(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """A loop that fails for ever would look like one that works."""
    coordinator = _coordinator(metrics)

    async def fail(_key: ObjectKey) -> float | None:
        raise ValueError("a bug")

    async def work(_key: ObjectKey) -> float | None:
        return None

    coordinator.register(Kind.ZONE, work)
    coordinator.register(Kind.TASK, fail)
    await coordinator._reconcile(ZONE)
    with pytest.raises(ValueError, match="a bug"):
        await coordinator._reconcile(TASK)
    assert value(registry, "reconciles_total", kind="DistributionZone", outcome="ok") == 1
    assert value(registry, "reconciles_total", kind="RebalanceTask", outcome="error") == 1
    assert value(registry, "reconcile_seconds_count", kind="RebalanceTask") == 1
    await coordinator.close()


def test_failures_are_counted_from_zero(registry: CollectorRegistry) -> None:
    """The first failure makes a new series, of which `rate` and `increase` see no growth."""
    OperatorMetrics(registry)
    for kind in ("RebalanceTask", "RegionMigration"):
        assert value(registry, "tasks_completed_total", kind=kind, state="Failed") == 0
        assert value(registry, "reconciles_total", kind=kind, outcome="error") == 0


async def test_queue_depth_is_what_waits_or_runs(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """An operator that cannot keep up would be seen by its users first."""
    coordinator = _coordinator(metrics)
    gate = asyncio.Event()

    async def wait(_key: ObjectKey) -> float | None:
        await gate.wait()
        return None

    coordinator.register(Kind.TASK, wait)
    for number in range(20):
        coordinator.queue.put(ObjectKey(Kind.TASK, "ns", f"t{number}"))
    assert value(registry, "queue_depth") == 20
    gate.set()
    await asyncio.gather(*coordinator.queue._running.values())
    assert value(registry, "queue_depth") == 0
    await coordinator.close()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (ConflictWriteError("changed"), "refused"),
        (UnknownOutcomeError("no answer"), "unknown"),
    ],
)
async def test_writes_are_counted_by_kind_verb_and_outcome(
    registry: CollectorRegistry, metrics: OperatorMetrics, error: Exception | None, outcome: str
) -> None:
    """What a rebalance costs the API server could not be told from what a loop does in vain."""
    client: Any = object()
    kube = Kube(client)
    kube.on_write = metrics.note_write

    async def answer() -> int:
        if error is not None:
            raise error
        return 1

    if error is None:
        assert await kube._send(answer(), "Pod ns/p", verb="create") == 1
        assert await kube._send(answer(), "Pod ns/p") == 1, "a read"
    else:
        with pytest.raises(type(error)):
            await kube._send(answer(), "Pod ns/p", verb="create")
    assert value(registry, "api_writes_total", kind="Pod", verb="create", outcome=outcome) == 1
    assert len(_samples(registry, "rezone_operator_api_writes_total")) == 1


def test_objects_are_counted_by_state_and_forgotten(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """A task that nobody approves, or that is stuck, could not be alerted on."""
    metrics.note_state(TASK, "")
    assert value(registry, "objects", kind="RebalanceTask", state="New") == 1
    metrics.note_state(TASK, TaskState.TRANSFERRING)
    assert value(registry, "objects", kind="RebalanceTask", state="New") == 0
    assert value(registry, "objects", kind="RebalanceTask", state="Transferring") == 1
    metrics.forget(TASK)
    assert value(registry, "objects", kind="RebalanceTask", state="Transferring") == 0


def test_ends_are_counted_once_and_only_those_of_this_process(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """After a restart every old migration would count as moved again."""
    metrics.note_state(TASK, TaskState.SUCCEEDED)
    assert value(registry, "tasks_completed_total", kind="RebalanceTask", state="Succeeded") == 0
    metrics.note_state(MIGRATION, MigrationState.OPEN_CANDIDATE)
    for _ in range(2):
        metrics.note_state(MIGRATION, MigrationState.FAILED)
    assert value(registry, "tasks_completed_total", kind="RegionMigration", state="Failed") == 1


def test_how_far_re_shardings_are_is_told_until_they_end(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """Nobody could be alerted that rows cannot be imported, or see how long it still takes."""
    assert value(registry, "reshard_ranges", phase="Broken") == 0, "an alert needs a value"
    ranges = (
        RangeView(overlap=Overlap(0, 1, 0, 16384), backfilled=True, verified=True, sealed=True),
        RangeView(overlap=Overlap(1, 2, 1, 16384), backfilled=True, verified=True),
        RangeView(overlap=Overlap(2, 3, 1, 16384), backfilled=True),
        RangeView(overlap=Overlap(3, 4, 2, 16384)),
        RangeView(overlap=Overlap(4, 5, 3, 16384), backfilled=True, broken=True),
        RangeView(overlap=Overlap(5, 6, 3, 16384), backfilled=True, verified=True, differs=True),
    )
    metrics.note_resharding(TASK, _resharding(ranges, sources=4))
    counts = {"Serving": 1, "Verified": 1, "Following": 1, "Backfilling": 1, "Broken": 2}
    for phase, count in counts.items():
        assert value(registry, "reshard_ranges", phase=phase) == count
    assert value(registry, "reshard_partitions", state="CutOver") == 1
    assert value(registry, "reshard_partitions", state="Open") == 3
    metrics.note_state(TASK, TaskState.SUCCEEDED)
    assert value(registry, "reshard_ranges", phase="Serving") == 0
    assert value(registry, "reshard_partitions", state="CutOver") == 0


def _resharding(ranges: tuple[RangeView, ...], sources: int) -> ReshardingView:
    record = routes.initial((0,), 1)
    return ReshardingView(
        sources={p: SourceView(partition=p, record=record) for p in range(sources)},
        targets={16384: TargetView(partition=16384, nodes=(0,), ranges=ranges)},
        generation=1,
        stable=(),
        pending=(),
        holds_pending=True,
        done=False,
        cancel_written=False,
        coordinator_epoch=1,
        paused=False,
        manual_approval=False,
        max_concurrent_cut_overs=1,
        lag_rows_max=1_000,
        grace_seconds=0.0,
    )


async def test_loop_lag_is_how_late_the_loop_wakes(
    registry: CollectorRegistry,
    metrics: OperatorMetrics,
    clock: StandingClock[float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pass that computes for seconds delays the Lease, and nothing would say so."""
    naps = iter((subject.LAG_SECONDS, subject.LAG_SECONDS + 0.75))

    async def sleep(_seconds: float) -> None:
        try:
            clock.now += next(naps)
        except StopIteration:
            raise asyncio.CancelledError from None

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await metrics.measure_lag()
    assert value(registry, "loop_lag_seconds") == pytest.approx(0.75)


async def test_watch_staleness_is_the_age_of_the_oldest_write_not_seen(
    registry: CollectorRegistry, metrics: OperatorMetrics, clock: StandingClock[float]
) -> None:
    """A watch that is cut without an error would let changes by people go unseen for ever."""
    coordinator = _coordinator(metrics)
    coordinator.queue._closed = True
    wakes = Wakes(asyncio.get_running_loop(), coordinator.queue.put)
    wakes.pass_on(coordinator)
    assert value(registry, "watch_staleness_seconds") == 0
    metrics.note_written(TASK, "41")
    clock.now += 3
    metrics.note_written(MIGRATION, "42")
    clock.now += 2
    assert value(registry, "watch_staleness_seconds") == 5
    wakes.wake(TASK, "40")
    wakes.wake(MIGRATION)
    await asyncio.sleep(0)
    assert value(registry, "watch_staleness_seconds") == 5, "older versions are no news of it"
    wakes.wake(TASK, "41")
    await asyncio.sleep(0)
    assert value(registry, "watch_staleness_seconds") == 2
    metrics.forget(MIGRATION)
    assert value(registry, "watch_staleness_seconds") == 0
    await coordinator.close()


def test_zones_that_are_not_ready_are_counted_by_reason_and_forgotten(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """A partition whose rows are lost would wait until a user asks."""
    assert value(registry, "zones_not_ready", reason="QuorumLost") == 0, "an alert needs a value"
    other = ZoneKey("ns", "other").object_key
    metrics.note_zone(ZONE, (_ready(Reason.QUORUM_LOST, value=False),))
    metrics.note_zone(other, (_ready(Reason.PODS_NOT_READY, value=False),))
    assert value(registry, "zones_not_ready", reason="QuorumLost") == 1
    assert value(registry, "zones_not_ready", reason="PodsNotReady") == 1
    metrics.note_zone(ZONE, (_ready(Reason.AVAILABLE, value=True),))
    metrics.forget(other)
    assert value(registry, "zones_not_ready", reason="QuorumLost") == 0
    assert value(registry, "zones_not_ready", reason="PodsNotReady") is None


def test_zones_that_are_degraded_are_counted_by_reason_and_forgotten(
    registry: CollectorRegistry, metrics: OperatorMetrics
) -> None:
    """Nobody would hear that the operator is cut off while all clients are served."""
    cut_off, well = (
        condition_of(
            ConditionType.DEGRADED,
            degraded,
            Reason.OPERATOR_CUT_OFF if degraded else Reason.AVAILABLE,
            "why",
            generation=1,
            now=datetime(2026, 11, 21, tzinfo=UTC),
        )
        for degraded in (True, False)
    )
    assert value(registry, "zones_degraded", reason="OperatorCutOff") == 0, "an alert needs a value"
    metrics.note_zone(ZONE, (cut_off,))
    assert value(registry, "zones_degraded", reason="OperatorCutOff") == 1
    assert value(registry, "zones_degraded", reason="NotReached") == 0
    metrics.note_zone(ZONE, (well,))
    assert value(registry, "zones_degraded", reason="OperatorCutOff") == 0
    metrics.note_zone(ZONE, (cut_off,))
    metrics.forget(ZONE)
    assert value(registry, "zones_degraded", reason="OperatorCutOff") == 0


def _ready(reason: Reason, *, value: bool) -> Condition:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    return condition_of(ConditionType.READY, value, reason, "why", generation=1, now=now)


def test_alerts_ask_for_metrics_and_labels_that_exist(
    registry: CollectorRegistry,
) -> None:
    """An alert on a metric that was renamed, or on a reason that is none, never fires."""
    OperatorMetrics(registry)
    rules = Path(__file__).parents[3] / "charts" / "rezone" / "alerts" / "rezone.yaml"
    asked = {
        (name, labels)
        for group in yaml.safe_load(rules.read_text())["groups"]
        for rule in group["rules"]
        for name, labels in re.findall(r"(rezone_operator_\w+)(?:\{(.*?)\})?", rule["expr"])
    }
    assert ("rezone_operator_zones_not_ready", 'reason="QuorumLost"') in asked
    for name, labels in asked:
        found = _samples(registry, name)
        assert found, name
        for label, values in re.findall(r'(\w+)=~?"(.*?)"', labels):
            told = {sample.labels[label] for sample in found}
            assert told & set(values.split("|")), f"{name} has no {label} {values}"


def test_no_label_names_an_object(registry: CollectorRegistry, metrics: OperatorMetrics) -> None:
    """A thousand migrations would be a thousand series, and never go away."""
    for number in range(100):
        metrics.note_state(ObjectKey(Kind.MIGRATION, "ns", f"m{number}"), "")
    states = [s for s in _samples(registry, "rezone_operator_objects") if s.labels["state"]]
    assert len(states) == 2 + len(TaskState) + len(MigrationState)


def _samples(registry: CollectorRegistry, name: str) -> list[Any]:
    return [s for family in registry.collect() for s in family.samples if s.name == name]


def _coordinator(metrics: OperatorMetrics) -> Coordinator:
    client: Any = object()
    return Coordinator(Kube(client), CoordinatorSettings(), 1, metrics=metrics)
