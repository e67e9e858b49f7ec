"""What becomes of in-sync members that came back without their data, and who copies for them."""

import dataclasses

import pytest
from worlds import LEASE_SECONDS, NEW, NOW, World, record

from rezone.domain.repair.repairs import missing_copies, repairs
from rezone.domain.routing import routes
from rezone.domain.routing.route_checks import regressions, violations
from rezone.domain.routing.routes import Refusal, RefusalReason
from rezone.wire.messages import CopyProgress, Role


@pytest.mark.proves("RM-08", "B-06")
def test_a_candidate_that_lost_its_data_is_fenced_before_it_leaves() -> None:
    """It would stay authorized to lead, without the rows, and the record break its own rules."""
    world = World()
    world.routes[0] = record(next_leader=2, next_epoch=5)
    world.reports[0, 2] = {"needs_snapshot": True, "role": Role.LEARNER}
    (change,) = repairs(world.view(), NOW)
    assert (change.state.leader, change.state.isr) == (0, (0, 1))
    assert change.state.next_leader is None
    assert change.state.leader_epoch > 5
    assert change.state.partition_epoch == world.routes[0].partition_epoch + 1
    assert violations(change.state) == ()
    assert regressions(world.routes[0], change.state) == ()


def test_a_candidate_is_not_dropped_while_it_may_take_over() -> None:
    """A leader could come up that nobody waits for any more."""
    answer = routes.drop_from_isr(record(next_leader=2, next_epoch=5), (2,), minimum=1)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.TAKEOVER_AUTHORIZED


@pytest.mark.proves("B-06")
def test_a_member_without_a_replica_does_not_lead() -> None:
    """The leader is down and its follower has just lost its disk: it would lead nothing, alone.

    With the rows on a node that is out of sync from then on, nobody could ever lead again.
    """
    world = World()
    world.silent[0] = LEASE_SECONDS + 1
    world.reports[0, 1] = world.reports[0, 2] = None
    assert repairs(world.view(), NOW) == ()
    del world.reports[0, 2]
    (change,) = repairs(world.view(), NOW)
    assert (change.state.leader, change.state.isr) == (2, (2,))


@pytest.mark.parametrize(
    ("copy", "wanted"),
    [
        (None, True),
        (CopyProgress(bytes=5), False),
        (CopyProgress(bytes=5, error="the source is gone"), True),
        (CopyProgress(bytes=9, done=True), True),
    ],
    ids=["none", "under-way", "failed", "an-earlier-one"],
)
def test_a_replica_is_copied_to_as_often_as_it_needs_it(
    copy: CopyProgress | None, *, wanted: bool
) -> None:
    """Whoever had been copied once was never copied again, and its partition stayed short."""
    world = World()
    world.routes[0] = record(isr=(0, 1))
    world.reports[0, 2] = {"needs_snapshot": True, "role": Role.LEARNER, "copy": copy}
    assert bool(missing_copies(world.view(), task_copies=False)) is wanted


@pytest.mark.proves("B-06")
def test_stable_replicas_are_copied_to_while_no_task_copies() -> None:
    """A plan that waits for a person, or a cancel, would leave a zone short of replicas."""
    world = World().pend()
    assert world.settings["pending"] == NEW
    world.routes[0] = record(replicas=(0, 1, 2, 3), isr=(0, 1))
    world.reports[0, 2] = {"needs_snapshot": True, "role": Role.LEARNER}
    world.reports[0, 3] = {"needs_snapshot": True, "role": Role.LEARNER}
    view = world.view()
    (copy,) = missing_copies(view, task_copies=False)
    assert (copy.partition, copy.source, copy.targets) == (0, 0, (2,))
    assert missing_copies(view, task_copies=True) == ()
    assert missing_copies(dataclasses.replace(view, paused=True), task_copies=False) == ()
