"""A new primary, and a new leader of a group, get the request again that is under way."""

from __future__ import annotations

import dataclasses

import pytest

from rezone.domain.assignment import assignments
from rezone.resources.task import TaskState
from rezone.wire.messages import (
    Message,
    NodeId,
    NotifyLeaderAndIsr,
    PullSnapshot,
    Role,
    Takeover,
)
from simulation.cluster.world import Order, World
from simulation.scenarios.scenarios import (
    TASK,
    Start,
    at_once,
    at_rest,
    cancel_all,
    in_state,
    kill_leader,
    later,
    move,
)

SECONDS_MAX = 300.0
FOUR = Start(replicas=3, nodes=4)


@dataclasses.dataclass(frozen=True)
class Call:
    """A call as it was sent; `leader_epoch` is the route's at that moment."""

    node: NodeId | None
    request: Message
    leader_epoch: int


def spied(world: World) -> list[Call]:
    """Have all calls noted from now on."""
    calls: list[Call] = []

    def note(address: str, request: Message) -> bool:
        epoch = world.checks.routes[0].leader_epoch
        calls.append(Call(world.network.id_at(address), request, epoch))
        return False

    world.network.holds = note
    return calls


def records_to(calls: list[Call], node: NodeId) -> list[NotifyLeaderAndIsr]:
    """Return the notifications that a node was sent."""
    found = (c.request for c in calls if c.node == node)
    return [request for request in found if isinstance(request, NotifyLeaderAndIsr)]


@pytest.mark.proves("ZR-15", "ZR-17")
def test_a_new_primary_gets_the_rebalance_again() -> None:
    """A rebalance would stop with the primary that died in it: its successor knows of nothing."""
    with World(1, at_rest(FOUR)) as world:
        calls = spied(world)
        before = world.checks.routes[0]
        revision: list[int] = []

        def kill(world: World) -> None:
            keys = world.zone().status.assignments  # type: ignore[union-attr]
            assert keys.pending is not None
            revision.append(keys.pending.revision)
            assert set(assignments.parse(keys.pending.replicas)[0]) - set(before.replicas)
            kill_leader(world)

        world.orders = [Order(at_once, move), Order(in_state(TASK, TaskState.TRANSFERRING), kill)]
        world.run(SECONDS_MAX)
        assert set(world.states(TASK).values()) == {TaskState.SUCCEEDED}
        first = next(c for c in calls if c.leader_epoch > before.leader_epoch)
        after = calls[calls.index(first) :]
        primary = next(
            a.state.leader
            for call in after
            if isinstance(call.request, NotifyLeaderAndIsr)
            for a in call.request.partitions
            if a.state.leader_epoch > before.leader_epoch
        )
        assert primary in before.isr
        again = records_to(after, primary)[0]
        (told,) = [a.state for a in again.partitions if a.partition == 0]
        assert told.leader == primary
        assert again.fence.revision == revision[0], "with the revision of its trigger"
        assert set(told.replicas) > set(before.replicas), "the new replicas are in the request"
        # The copy that the dead primary was the source of is asked for again, of its successor.
        pulls = [c.request for c in after if isinstance(c.request, PullSnapshot)]
        assert pulls
        assert all(pull.fence.revision == revision[0] for pull in pulls)


@pytest.mark.proves("ZR-15")
def test_a_new_primary_gets_the_cancel_that_is_under_way() -> None:
    """A cancel wins over the rebalance, for a primary that never heard of either as well."""

    def cancel(world: World) -> None:
        cancel_all(TASK)(world)
        kill_leader(world)

    with World(1, at_rest(FOUR)) as world:
        before = world.checks.routes[0]
        world.orders = [Order(at_once, move), Order(in_state(TASK, TaskState.TRANSFERRING), cancel)]
        world.run(SECONDS_MAX)
        assert set(world.states(TASK).values()) == {TaskState.CANCELLED}
        record = world.checks.routes[0]
        assert set(record.replicas) == set(before.replicas)
        assert record.leader_epoch > before.leader_epoch


@pytest.mark.proves("ZR-09", "ZR-16")
@pytest.mark.parametrize("unheard_seconds", [0.0, 2.0])
def test_a_leader_elected_while_no_operator_is_there_is_heard_and_asked_again(
    unheard_seconds: float,
) -> None:
    """A takeover inside the data plane would never reach the API server, nor the move its end."""
    with World(1, at_rest(FOUR)) as world:
        calls = spied(world)
        elected: list[NodeId] = []
        note = world.network.holds

        def crash(address: str, request: Message) -> bool:
            if isinstance(request, Takeover) and not elected:
                elected.append(request.candidate)
                world.loop.call_later(0.01, world.crash)
                if unheard_seconds:
                    world.loop.call_later(0.011, world.network.isolated.add, request.candidate)
                    back = 0.011 + unheard_seconds
                    world.loop.call_later(back, world.network.isolated.discard, request.candidate)
            return note(address, request)

        world.network.holds = crash
        world.orders = [Order(at_once, move), Order(lambda _: bool(elected), lambda _: None)]
        world.run(SECONDS_MAX)
        (leader,) = elected
        assert world.checks.routes[0].leader == leader
        assert world.network.nodes[leader].find(0).role is Role.LEADER
        again = [r for r in records_to(calls, leader) if r.fence.coordinator_epoch == world.epoch]
        states = [a.state for r in again for a in r.partitions if a.partition == 0]
        assert any(s.leader == leader and s.next_leader is None for s in states)
        assert again[-1].fence.revision > 0
        assert set(world.states(TASK).values()) == {TaskState.SUCCEEDED}


@pytest.mark.proves("ZR-09")
def test_a_leader_that_was_not_heard_in_time_finds_itself_outdated() -> None:
    """It would lead again when it is heard, beside the one that was chosen in its place."""
    with World(1, at_rest(FOUR)) as world:
        first = world.checks.routes[0]

        def isolate(world: World) -> None:
            """Cut the leader off from the operator, and from who would say that it is heard."""
            world.network.isolated.add(first.leader)
            world.network.silent |= {frozenset((first.leader, n)) for n in first.isr[1:]}
            world.loop.call_later(8.0, world.network.heal)
            world.disturbed()

        world.orders = [Order(at_once, isolate), Order(later(10.0), lambda _: None)]
        world.run(SECONDS_MAX)
        record = world.checks.routes[0]
        assert record.leader != first.leader
        assert record.leader_epoch > first.leader_epoch
        replica = world.network.nodes[first.leader].find(0)
        assert (replica.role, replica.leader_epoch) == (Role.FOLLOWER, record.leader_epoch)
        assert first.leader in record.isr, "and serves as a follower"
