"""An overwrite: a re-sharding whose rows a job brings, and that is switched to at once."""

import dataclasses
from typing import Any

import msgspec
import pytest
from resharding_world import Zone
from test_resharding import asked, change, check_cancelled, go_on, waiting
from test_resharding_observe import HEIRS, seen, target, with_targets, world
from worlds import OLD

from rezone.domain.assignment import assignments
from rezone.domain.assignment.assignments import SKIP
from rezone.domain.model.world import NodeView, WriteStable
from rezone.domain.resharding.overwrites import NOBODY_ASKS, asked_for, is_abandoned
from rezone.domain.routing.topology_text import compact
from rezone.resources.task import TaskState as S
from rezone.resources.zone_status import (
    Assignment,
    Assignments,
    Overwrite,
)
from rezone.wire.messages import ReshardProgress


def overwritten(first: int = 2, second: int = 3) -> Zone:
    """Return a zone that is overwritten; its job has brought nothing yet."""
    made = Zone(first, second)
    made.filled_by, made.backfills = "job", False
    return made


def bring(made: Zone, *ranges: int) -> None:
    """Have the job bring the rows of these ranges, by their place, or of all."""
    every = [each for h in made.targets.values() for each in h.ranges]
    for number in ranges or range(len(every)):
        every[number].backfilled = True
    made.settle()


def sealing(made: Zone) -> int:
    """Return how many sources are being sealed, or have been."""
    return sum(s.record.sealing or s.record.sealed for s in made.sources.values())


@pytest.mark.proves("SP-05")
def test_all_old_partitions_seal_at_once_when_all_rows_are_there() -> None:
    """A range that is sealed is served by nobody until the switch: for as long as a job takes."""
    made = overwritten(3, 3)
    made.cut_overs_max = 1
    go_on(made, S.TRANSFERRING)
    bring(made, 0, 1)
    for _ in range(5):
        made.run()
        made.settle()
    assert sealing(made) == 0
    assert "Copying" in waiting(made)
    bring(made)
    made.run()
    assert sealing(made) == 3
    go_on(made)
    assert made.status.state == S.SUCCEEDED
    assert made.readable_from == 100 + max(made.targets) + 1


@pytest.mark.proves("SP-05")
def test_one_that_cannot_seal_yet_holds_all_others_up() -> None:
    """Its rows would be the old ones, after the others' are the new ones."""
    made = overwritten(2, 2)
    go_on(made, S.TRANSFERRING)
    bring(made)
    next(iter(made.targets.values())).ranges[0].lag_rows = 1_000
    made.run()
    assert sealing(made) == 0
    made.settle()
    made.run()
    assert sealing(made) == 2


@pytest.mark.proves("SP-05")
def test_nothing_is_compared_and_no_other_job_begins() -> None:
    """New rows differ from the old ones: it would end as damage, or bring the old rows."""
    made = overwritten()
    made.threshold = 0
    go_on(made, S.TRANSFERRING)
    made.run()
    bring(made)
    go_on(made)
    assert made.status.state == S.SUCCEEDED
    assert made.asked_for == []


@pytest.mark.proves("SP-05")
def test_it_is_stable_only_when_all_have_said_from_when_on_they_may_be_read() -> None:
    """Rows of a time at which a new partition had not all of them would be read."""
    made = overwritten()
    go_on(made, S.TRANSFERRING)
    bring(made)
    while (found := made.decide().status).state != S.FINALIZING:
        made.run()
        made.settle()
    made.status = found  # and the deed is lost
    last = next(iter(made.targets.values()))
    last.lost = True
    assert asked(made, WriteStable) == []
    assert waiting(made) == "Unreachable: leaders of new partitions"
    last.lost = False
    assert len(asked(made, WriteStable)) == 1


@pytest.mark.proves("SP-05")
@pytest.mark.parametrize("state", [S.AWAITING_REPLICAS, S.TRANSFERRING])
def test_one_that_nobody_asks_for_is_cancelled(state: str) -> None:
    """A zone would wait for ever for a driver that has died, and have no other re-sharding."""
    made = overwritten()
    go_on(made, state)
    made.abandoned = True
    go_on(made)
    assert made.status.state == S.CANCELLED
    assert NOBODY_ASKS in str(made.status.last_error)
    check_cancelled(made)


@pytest.mark.proves("SP-05")
def test_after_the_first_seal_it_goes_on_without_its_driver() -> None:
    """Nobody would serve the range that is sealed."""
    made = overwritten()
    go_on(made, S.TRANSFERRING)
    bring(made)
    for _ in range(3):
        made.run()
    made.settle()
    assert any(source.seal == "committed" for source in made.sources.values())
    made.abandoned = True
    change(made, cancel=True)
    go_on(made)
    assert made.status.state == S.SUCCEEDED


def test_a_re_sharding_does_not_care_whether_anybody_asks() -> None:
    """Each would be cancelled: nobody asks data nodes for it."""
    made = Zone(2, 3)
    made.abandoned = True
    go_on(made)
    assert made.status.state == S.SUCCEEDED
    assert made.readable_from == 0


@pytest.mark.proves("SP-05")
def test_a_range_is_as_good_as_compared_when_it_has_its_rows() -> None:
    """It would wait for a comparison that is never made."""
    progress = ReshardProgress(source=0, backfilled=True, lag_rows=0, sealed_time=7)
    view = with_targets(world().view(), n0={"reshard_progress": (progress,)})
    assert not target(seen(view), 0).ranges[0].verified
    filled = dataclasses.replace(view, pending_filled_by="job")
    found = target(seen(filled), 0).ranges[0]
    assert (found.verified, found.broken, found.sealed_time) == (True, False, 7)
    assert seen(filled).filled_by == "job"


@pytest.mark.proves("SP-05")
@pytest.mark.parametrize(("epoch", "broken"), [(1, True), (0, False)])
def test_a_replica_that_takes_no_rows_any_more_has_its_target_begin_again(
    epoch: int, *, broken: bool
) -> None:
    """Its rows are in no log: the job would be refused for ever. What it said before is over."""
    view = dataclasses.replace(with_targets(world().view()), pending_filled_by="job")
    partition = HEIRS.ids[0]
    nodes_ = dict(view.nodes)
    follower = nodes_[1]
    report = follower.replicas[partition]
    said = msgspec.structs.replace(report, lost_marks=(0,), leader_epoch=epoch)
    replicas = {**follower.replicas, partition: said}
    nodes_[1] = dataclasses.replace(follower, replicas=replicas)
    view = dataclasses.replace(view, nodes=nodes_)
    assert target(seen(view), 0).broken is broken


def node(name: str = "job", **changes: Any) -> NodeView:
    """Return a data node that is asked for an overwrite."""
    usual: dict[str, Any] = {"node": 0, "address": "", "reachable": True}
    return NodeView(**(usual | {"overwrite": name} | changes))


STABLE = Assignment(revision=5, replicas=compact(OLD))
KEYS = Assignments(stable=STABLE, change=5)
TIME = 1_795_854_264_029_051
"""A commit time of these years: more than the status takes for a count."""

DONE = Overwrite(name="job", layout_version=1, readable_from=9)


@pytest.mark.proves("SP-05")
@pytest.mark.parametrize(
    ("there", "changes", "name"),
    [
        ((node(), node()), {}, "job"),
        ((), {}, ""),
        ((node(), node("")), {}, ""),
        ((node(), node("other")), {}, ""),
        ((node(), node(reachable=False)), {}, ""),
        ((node(), node("", lost=True, reachable=False)), {}, "job"),
        ((node(),), {"overwrite": DONE}, ""),
        ((node("other"),), {"overwrite": DONE}, "other"),
        ((node(),), {"cancelled_overwrite": "job"}, ""),
        ((node(),), {"pending": STABLE}, ""),
        ((node(),), {"stable": None}, ""),
    ],
)
def test_it_is_begun_when_all_data_nodes_are_asked_for_it(
    there: tuple[NodeView, ...], changes: dict[str, Any], name: str
) -> None:
    """One of an earlier release would bring old rows; one that is done would be begun again."""
    assert asked_for(there, KEYS.model_copy(update=changes)) == name


@pytest.mark.proves("SP-05")
def test_it_is_abandoned_when_all_that_answer_say_so() -> None:
    """A driver that only one node hears would be given up."""
    silent = node("", overwrite_silent=True)
    assert is_abandoned([silent, node("", reachable=False)])
    assert not is_abandoned([silent, node("")])
    assert not is_abandoned([node("", reachable=False)])


@pytest.mark.proves("SP-05")
def test_its_end_is_one_write_that_says_since_when_it_may_be_read() -> None:
    """Some nodes would serve the new rows, and a reader of before see both."""
    keys = assignments.request(KEYS, OLD, 7, 1, "job")
    assert keys is not SKIP
    done = assignments.complete(keys, 7, OLD, TIME)
    assert done is not SKIP
    assert done.overwrite == Overwrite(name="job", layout_version=1, readable_from=TIME)
    assert done.stable == Assignment(revision=7, replicas=compact(OLD), layout_version=1)
    again = assignments.request(done, OLD, 9, 2, "next")
    assert again is not SKIP
    after = assignments.complete(again, 9, OLD, TIME + 5)
    assert after is not SKIP
    assert after.overwrite == Overwrite(
        name="next", layout_version=2, readable_from=TIME + 5, old_readable_from=TIME
    )
    resharded = assignments.request(after, OLD[:1], 11, 3)
    assert resharded is not SKIP
    last = assignments.complete(resharded, 11, OLD[:1])
    assert last is not SKIP
    assert last.overwrite == after.overwrite


@pytest.mark.proves("SP-05", "ZR-20")
def test_one_that_is_cancelled_declines_its_name_and_no_number() -> None:
    """Its driver would begin it again, or the zone say that its own number was declined."""
    keys = assignments.request(KEYS, OLD, 7, 1, "job")
    assert keys is not SKIP
    written, keys = assignments.intend_cancel(keys, 7, OLD, OLD)
    assert written
    after = assignments.clear_pending(keys, 7)
    assert after is not SKIP
    assert (after.pending, after.cancelled_overwrite, after.cancelled_partitions) == (
        None,
        "job",
        0,
    )
