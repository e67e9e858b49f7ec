"""The rolling update's one decision: which pod is replaced next, and when none may be."""

import dataclasses
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import World, record

from rezone.domain.observed.rollout import (
    NOTHING,
    RolloutDecision,
    SeenPod,
    Situation,
    counted_nodes,
    decide,
    lagging_nodes,
    sole_holders,
)
from rezone.resources.zone import UpdateMode, UpdateStrategySpec
from rezone.resources.zone_status import RolloutStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE_SECONDS = 600
TASK = "z-u260101000000"
ONLY_COPY = "holds the only copy of a partition on its pod's own disk: raise spec.replicas"


def pod(node: int, *, outdated: bool = True, **changes: Any) -> SeenPod:
    """Return a pod of a healthy data node; even ones are in one failure domain."""
    usual = {"uid": f"{node}-old" if outdated else f"{node}-new", "failure_domain": "ba"[node % 2]}
    return SeenPod(node=node, outdated=outdated, **(usual | changes))


def situation(*pods: SeenPod, **changes: Any) -> Situation:
    """Return a zone at rest with these pods."""
    usual: dict[str, Any] = {
        "template_hash": "h2",
        "strategy": UpdateStrategySpec(),
        "nodes": frozenset(p.node for p in pods),
        "pods": pods,
        "lagging": frozenset(),
        "counted": frozenset(),
        "sole": frozenset(),
        "ephemeral": False,
        "rebalancing": False,
    }
    return Situation(**(usual | changes))


def replacing(node: int, seconds: float = 5.0) -> RolloutStatus:
    """Return the status while a data node's pod is being replaced."""
    return RolloutStatus(
        template_hash="h2",
        started_time=NOW,
        node=node,
        pod_uid=f"{node}-old",
        replace_time=NOW - timedelta(seconds=seconds),
    )


def waits(decision: RolloutDecision) -> str:
    """Return what an update waits for that replaces nothing now."""
    assert decision.delete is None
    assert decision.status is not None
    return decision.status.waiting_for


def test_pods_of_the_current_template_are_left_alone() -> None:
    """Every pass would write a status, or replace pods for nothing."""
    assert decide(None, situation(pod(0, outdated=False)), NOW) is NOTHING


def test_the_choice_is_persisted_with_the_pods_uid() -> None:
    """A restarted operator would delete the new pod for the old one."""
    decision = decide(None, situation(pod(0), pod(1, outdated=False)), NOW)
    assert decision.delete == pod(0)
    status = decision.status
    assert status is not None
    assert (status.node, status.pod_uid, status.replace_time) == (0, "0-old", NOW)
    assert (status.updated, status.outdated, status.template_hash) == (1, 1, "h2")


def test_one_failure_domain_comes_after_the_other() -> None:
    """Two domains would be short of a data node, one after the other, again and again."""
    pods = [pod(n) for n in range(4)]
    order = []
    for _ in range(4):
        chosen = decide(None, situation(*pods), NOW).delete
        assert chosen is not None
        order.append(chosen.node)
        pods = [p for p in pods if p.node != chosen.node]
    assert order == [1, 3, 0, 2]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rebalancing": True}, "a rebalance is under way"),
        ({"lagging": frozenset({1})}, "data node 1 is not in sync"),
        (
            {"maintenance": frozenset({1}), "lagging": frozenset({1})},
            "data node 1 is in maintenance",
        ),
        ({"nodes": frozenset({0, 1, 2})}, "data node 2 does not serve"),
        (
            {"strategy": UpdateStrategySpec(type=UpdateMode.ON_DELETE)},
            "OnDelete: a pod is replaced when somebody deletes it",
        ),
        (
            {"strategy": UpdateStrategySpec(paused=True)},
            "Paused: spec.dataNodes.updateStrategy.paused",
        ),
        (
            {"ephemeral": True, "sole": frozenset({0})},
            f"data node 0 {ONLY_COPY}",
        ),
    ],
)
def test_no_pod_is_replaced_while(changes: dict[str, Any], reason: str) -> None:
    """A second replica of a partition would be missing, or the only one be lost."""
    seen = situation(pod(0), pod(1, outdated=False), **changes)
    assert waits(decide(None, seen, NOW)) == reason


def test_an_update_that_waits_for_maintenance_is_not_stuck() -> None:
    """Maintenance has an end of its own: the update's deadline does not count meanwhile.

    The zone would be Stalled for as long as a machine is mended.
    """
    before = RolloutStatus(started_time=NOW - timedelta(days=1))
    seen = situation(pod(0), pod(1, outdated=False), maintenance=frozenset({1}))
    decision = decide(before, seen, NOW)
    assert (decision.stuck, decision.delete) == ("", None)


@pytest.mark.parametrize("changes", [{"serving": False}, {"deleting": True}])
def test_no_pod_is_replaced_while_another_is_away(changes: dict[str, Any]) -> None:
    """Two replicas of a partition would be away at once."""
    seen = situation(pod(0), pod(1, outdated=False, **changes))
    assert waits(decide(None, seen, NOW)) == "data node 1 does not serve"


def test_what_does_not_serve_goes_first_and_waits_for_nothing() -> None:
    """A template that was mended would never reach the pods that the old one keeps from starting.

    The zone is neither in sync nor done rebalancing because of exactly these pods.
    """
    broken = pod(2, serving=False)
    seen = situation(pod(1), broken, rebalancing=True, lagging=frozenset({2}))
    assert decide(None, seen, NOW).delete == broken
    spared = dataclasses.replace(seen, ephemeral=True, counted=frozenset({2}))
    assert decide(None, spared, NOW).delete is None, "its disk has what others count on"


def test_an_update_that_waits_for_another_data_node_for_too_long_is_stuck() -> None:
    """A node that joined with a template that never starts held the update up, in silence."""
    joined = pod(1, outdated=False, serving=False)
    seen = situation(pod(0), joined)
    first = decide(None, seen, NOW)
    assert first.status is not None
    assert (first.status.blocked_time, first.stuck) == (NOW, "")
    assert first.wake_seconds == DEADLINE_SECONDS
    late = NOW + timedelta(seconds=DEADLINE_SECONDS)
    assert "data node 1 does not serve" in decide(first.status, seen, late).stuck
    moving = decide(first.status, dataclasses.replace(seen, rebalancing=True), late)
    assert moving.status is not None
    assert (moving.stuck, moving.status.blocked_time) == ("", None)
    back = decide(first.status, situation(pod(0), pod(1, outdated=False)), late)
    assert back.delete == pod(0)
    assert back.status is not None
    assert back.status.blocked_time is None


def test_an_old_pod_that_is_still_there_is_deleted_again() -> None:
    """An operator that died between the write and the deletion would wait for ever."""
    decision = decide(replacing(0), situation(pod(0), pod(1)), NOW)
    assert decision.delete == pod(0)
    stopping = situation(pod(0, deleting=True, serving=False), pod(1))
    assert waits(decide(replacing(0), stopping, NOW)) == "data node 0 hands over and stops"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pods": (pod(1),)}, "data node 0's pod is being made"),
        (
            {"pods": (pod(0, outdated=False, serving=False), pod(1))},
            "data node 0's new pod does not answer yet",
        ),
        (
            {"pods": (pod(0, outdated=False, serving=False, waiting="CrashLoopBackOff"), pod(1))},
            "data node 0's new pod does not answer yet: CrashLoopBackOff",
        ),
        (
            {"pods": (pod(0, outdated=False), pod(1)), "lagging": frozenset({0})},
            "data node 0 catches up",
        ),
    ],
)
def test_the_next_waits_until_the_replaced_one_has_caught_up(
    changes: dict[str, Any], reason: str
) -> None:
    """Two replicas of a partition would be behind at once."""
    seen = situation(pod(0), pod(1), **changes)
    decision = decide(replacing(0), seen, NOW)
    assert waits(decision) == reason
    assert not decision.stuck
    assert decision.wake_seconds == DEADLINE_SECONDS - 5.0
    late = decide(replacing(0, DEADLINE_SECONDS), seen, NOW)
    assert reason in late.stuck
    assert late.delete is None


def test_a_pod_that_caught_up_makes_way_for_the_next_and_then_for_the_end() -> None:
    """The update would stop after its first pod, or never be over."""
    next_one = decide(replacing(0), situation(pod(0, outdated=False), pod(1)), NOW)
    assert next_one.delete == pod(1)
    done = situation(pod(0, outdated=False), pod(1, outdated=False))
    decision = decide(replacing(0), done, NOW, "z")
    assert (decision.delete, decision.even_out) == (None, TASK)
    assert decide(decision.status, done, NOW, "z").even_out == TASK, "the task was not made"
    made = dataclasses.replace(done, tasks=frozenset({TASK}))
    assert decide(decision.status, made, NOW, "z") is NOTHING


def test_another_template_at_the_end_is_another_update() -> None:
    """Its pods would wait for leaders to be evened out, which their replacement undoes."""
    status = decide(replacing(0), situation(pod(0, outdated=False)), NOW, "z").status
    assert decide(status, situation(pod(0)), NOW, "z").delete == pod(0)


def test_a_mended_template_reaches_the_pod_that_does_not_start() -> None:
    """A person would have to delete pods by hand after a bad update."""
    bad = pod(0, uid="0-bad", serving=False)
    decision = decide(replacing(0, DEADLINE_SECONDS), situation(bad, pod(1)), NOW)
    assert decision.delete == bad
    assert decision.status is not None
    assert decision.status.replace_time == NOW, "its deadline begins again"
    assert not decision.stuck
    held = situation(bad, pod(1), strategy=UpdateStrategySpec(paused=True))
    assert decide(replacing(0), held, NOW).delete is None


def test_a_data_node_that_is_given_up_holds_nothing_up() -> None:
    """The update would wait for a pod that never comes back."""
    decision = decide(replacing(7), situation(pod(0)), NOW)
    assert decision.delete == pod(0)


@pytest.mark.parametrize(
    ("changes", "lagging"),
    [
        ({}, set()),
        ({"silent": {2: 0.1}}, {2}),
        ({"routes": [record(isr=(0, 1))]}, {2}),
        ({"reports": {(0, 2): None}}, {2}),
        ({"reports": {(0, 2): {"needs_snapshot": True}}}, {2}),
        ({"reports": {(0, 0): {"follower_offsets": {1: 9}}}}, {2}),
        ({"silent": {0: 0.1}}, {0}),
    ],
)
def test_who_lags_is_not_told_by_the_record_alone(
    changes: dict[str, Any], lagging: set[int]
) -> None:
    """A record may be of before a restart: the next pod would go while the last one is empty."""
    world = World(**({"routes": [record()]} | changes))
    if (0, 0) not in world.reports:
        world.reports[0, 0] = {"follower_offsets": {1: 9, 2: 9}}
    assert lagging_nodes(world.view()) == lagging


def test_who_is_counted_on() -> None:
    """The disk of a pod that only the operator cannot reach would be thrown away."""
    view = World(routes=[record(isr=(0, 2)), record(isr=(1,), leader=1)]).view()
    assert counted_nodes(view) == {0, 1, 2}
    assert sole_holders(view) == {1}


@st.composite
def zones(draw: st.DrawFn) -> list[SeenPod]:
    """Draw a zone of outdated pods in some failure domains."""
    domains = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=6))
    return [pod(n, failure_domain=d) for n, d in enumerate(domains)]


@given(zones(), st.integers(0, 1 << 30))
def test_any_order_of_events_ends_with_new_pods_never_two_away(
    pods: list[SeenPod], seed: int
) -> None:
    """Some order of deaths, restarts and lost writes would replace two pods at once, or none."""
    rng = random.Random(seed)
    status: RolloutStatus | None = None
    now = NOW
    for _ in range(400):
        now += timedelta(seconds=1)
        seen = situation(*pods, nodes=frozenset(range(len(pods))))
        away = {p.node for p in pods if not p.serving}
        decision = decide(status, seen, now)
        if decision.even_out or decision is NOTHING:
            assert not any(p.outdated for p in pods)
            return
        if decision.delete is not None:
            assert away <= {decision.delete.node}
        # The operator may die before the write, or after it and before the deletion.
        if rng.random() < 0.1:
            continue
        status = decision.status
        if decision.delete is not None and rng.random() < 0.9:
            pods = [_stopping(p) if p.node == decision.delete.node else p for p in pods]
        elif rng.random() < 0.5:
            pods = [_next_life(p) for p in pods]
    raise AssertionError(f"the update does not end: {status}")


def _stopping(each: SeenPod) -> SeenPod:
    return dataclasses.replace(each, deleting=True, serving=False)


def _next_life(each: SeenPod) -> SeenPod:
    if each.deleting:
        return dataclasses.replace(
            each, uid=f"{each.node}-new", outdated=False, deleting=False, serving=False
        )
    return each if each.serving else dataclasses.replace(each, serving=True)


def test_an_update_stays_where_it_is_while_its_template_cannot_be_used() -> None:
    """Its pods would be deleted, and no others be made; or the update would count as done."""
    seen = situation(pod(0), pod(1), refused=True)
    assert decide(None, seen, NOW) == NOTHING
    held = decide(replacing(0), seen, NOW)
    assert held.delete is None
    assert held.held
    assert held.status is not None
    assert (held.status.node, held.status.waiting_for.split()[1]) == (0, "template")
