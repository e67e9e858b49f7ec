"""How long old leaders stay beside the assignment, by a clock of the test's own."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from worlds import NOW, OLD, World, child, record

from rezone.domain.assignment import retained_replicas
from rezone.resources.zone_status import RetainedReplica
from rezone.wire.messages import LeaderAndIsr

END = NOW + timedelta(seconds=60)
AFTER = END + timedelta(seconds=1)
NODES = (0, 1, 2, 3)


def world_with_kept(**changes: object) -> World:
    """Return a world in which node 3 is kept beside partition 0's assignment until END."""
    world = World()
    world.routes[0] = record(replicas=NODES, isr=NODES)
    keep(world, **changes)
    return world


def keep(world: World, **changes: object) -> None:
    """Write down node 3 as kept."""
    usual = {
        "partition": 0,
        "node": 3,
        "migration": "m",
        "retained_time": NOW,
        "retain_until_time": END,
    }
    world.settings["retained"] = (RetainedReplica.model_validate(usual | changes),)


def shrunk(world: World, *, seconds: float = 61) -> tuple[LeaderAndIsr, ...]:
    """Return the records that are written so long after NOW."""
    now = NOW + timedelta(seconds=seconds)
    return tuple(c.state for c in retained_replicas.releases(world.view(), now))


@pytest.mark.proves("B-13")
def test_a_kept_leader_goes_when_its_time_is_over_and_not_before() -> None:
    """The way back would end too early, or each write wait for one replica more for ever."""
    world = world_with_kept()
    assert shrunk(world, seconds=59.9) == ()
    (state,) = shrunk(world, seconds=60)
    assert (state.replicas, state.isr) == ((0, 1, 2), (0, 1, 2))
    assert shrunk(world, seconds=86_400) != (), "nobody was there when it was over"
    world.routes[0] = state
    assert shrunk(world) == ()
    assert retained_replicas.still_retained(world.view(), AFTER) == ()


def test_a_pass_is_due_at_the_next_end() -> None:
    """The time would be over when something else happens to wake the zone."""
    view = world_with_kept().view()
    assert retained_replicas.ends_in(view.retained, NOW) == 60
    assert retained_replicas.ends_in(view.retained, AFTER) == retained_replicas.LOOK_AGAIN_SECONDS
    endless = world_with_kept(retain_until_time=None).view()
    assert retained_replicas.ends_in(endless.retained, NOW) == float("inf")
    assert not retained_replicas.any_over(view.retained, NOW)
    assert retained_replicas.any_over(view.retained, AFTER)


def test_what_is_kept_is_not_written_again_while_nothing_changes() -> None:
    """Each pass of an idle zone would write its status."""
    view = world_with_kept().view()
    assert retained_replicas.still_retained(view, NOW) == view.retained
    assert retained_replicas.releases(view, NOW) == ()


def leads_again(world: World) -> None:
    """Let a failover make the kept replica the leader."""
    world.routes[0] = record(leader=3, replicas=NODES, isr=NODES)


def about_to_lead(world: World) -> None:
    """Authorize the way back."""
    world.routes[0] = record(replicas=NODES, isr=NODES, next_leader=3, next_epoch=5)


def moved_back(world: World) -> None:
    """Let a person apply the way back; it has not begun."""
    world.migrations = [child("back", partition=0, state="")]


def short(world: World) -> None:
    """Let a replica of the assignment be out of sync."""
    world.routes[0] = record(replicas=NODES, isr=(0, 1, 3))


def too_small(world: World) -> None:
    """Let the kept replica be one of few that have all rows."""
    world.routes[0] = record(replicas=NODES, isr=(0,), eligible=(1, 3))


def rebalanced(world: World) -> None:
    """Let a rebalance move the partition, to the kept replica's node among others."""
    world.pend(((3, 1, 2), OLD[1]))


def paused(world: World) -> None:
    """Pause the zone."""
    world.settings["paused"] = True


def resharded(world: World) -> None:
    """Let the zone be re-sharded."""
    world.pend(OLD).settings.update(pending_generation=1)


@pytest.mark.proves("B-13", "B-14")
@pytest.mark.parametrize(
    "tweak",
    [
        leads_again,
        about_to_lead,
        moved_back,
        short,
        too_small,
        rebalanced,
        paused,
        resharded,
    ],
)
def test_a_kept_leader_outlasts_its_time_for_a_reason_that_is_told(
    tweak: Callable[[World], None],
) -> None:
    """A leader, the target of a move or the last good copy would be removed by a clock."""
    world = world_with_kept()
    tweak(world)
    assert shrunk(world) == ()
    (each,) = retained_replicas.still_retained(world.view(), AFTER)
    assert each.waiting_for
    assert each.retain_until_time == END
    (each,) = retained_replicas.still_retained(world.view(), NOW)
    assert each.waiting_for == "", "its time is not over: nothing is waited for"


@pytest.mark.proves("B-13")
@pytest.mark.parametrize("gone", ["assigned", "no replica", "layout"])
def test_what_is_not_beside_the_assignment_is_not_kept(gone: str) -> None:
    """The time would take a replica away from the assignment itself."""
    world = world_with_kept()
    if gone == "assigned":
        world.settings["stable"] = ((3, 1, 2), OLD[1])
        world.routes[0] = record(replicas=(3, 1, 2), isr=(3, 1, 2), leader=1)
    if gone == "no replica":
        world.routes[0] = record()
    if gone == "layout":
        keep(world, partition=16_384)
    assert retained_replicas.still_retained(world.view(), AFTER) == ()
    assert shrunk(world) == ()


@pytest.mark.proves("B-13", "ZR-03")
@pytest.mark.parametrize("how", ["draining", "lost", "rebalance"])
def test_a_kept_leader_ends_with_its_node_and_with_a_rebalance(how: str) -> None:
    """A drained node would keep its pod for ever, or a partition a replica that no plan counts."""
    world = world_with_kept(retain_until_time=None)
    assert retained_replicas.still_retained(world.view(), NOW)[0].retain_until_time is None
    if how == "draining":
        world.draining.add(3)
    if how == "lost":
        world.lost.add(3)
    if how == "rebalance":
        world.pend(((1, 2, 4), OLD[1]))
    (each,) = retained_replicas.still_retained(world.view(), NOW)
    assert each.retain_until_time == NOW
    world.settings |= {"retained": (each,), "pending": None}
    assert [state.replicas for state in shrunk(world)] == [(0, 1, 2)]


def test_a_replica_that_is_not_in_sync_needs_no_waiting() -> None:
    """A node that is away would keep its place until all others are in sync."""
    world = world_with_kept()
    world.routes[0] = record(replicas=NODES, isr=(0, 1))
    assert [state.replicas for state in shrunk(world)] == [(0, 1, 2)]


def test_a_replica_that_nobody_has_placed_is_written_down_and_goes() -> None:
    """A replica beside the assignment that nobody keeps is kept with an end, now.

    Each write would wait for one replica more for ever, and no status would tell of it.
    """
    world = World()
    world.routes[0] = record(replicas=NODES, isr=NODES)
    (found,) = retained_replicas.unplaced(world.view(), NOW)
    assert (found.partition, found.node, found.retain_until_time) == (0, 3, NOW)
    world.settings["retained"] = (found,)
    assert retained_replicas.unplaced(world.view(), NOW) == ()
    (state,) = shrunk(world, seconds=0)
    assert state.replicas == (0, 1, 2)


@pytest.mark.parametrize("why", ["pending", "moving"])
def test_what_is_being_moved_has_its_place_to_come(why: str) -> None:
    """Nothing is written down while a rebalance or a migration may be about to place it.

    A copy that has just been made would be taken away.
    """
    world = World()
    world.routes[0] = record(replicas=NODES, isr=NODES)
    if why == "pending":
        world.pend()
    else:
        world.migrations = [child("m", state="", owner_task="")]
    assert retained_replicas.unplaced(world.view(), NOW) == ()
