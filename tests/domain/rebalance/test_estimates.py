"""Rate and time left of a task, from samples of the bytes done that its status keeps."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rebalance_case import MOVING, Case, Result, needs_copy
from resharding_world import NewRange, Zone
from worlds import NEW, NOW, record, text

from rezone.domain.rebalance import estimates
from rezone.domain.rebalance.progress import with_rate, without_falling
from rezone.resources.copy_progress import SAMPLES_MAX, ProgressSample
from rezone.resources.task import ClientsServed, TaskProgress
from rezone.resources.task import TaskState as S
from rezone.wire.messages import CopyProgress

START = datetime(2030, 1, 1, tzinfo=UTC)
TOTAL = 100_000


def progress(*observed: tuple[int, float], total: int = TOTAL) -> TaskProgress:
    """Return the progress after observations of (bytes done, seconds)."""
    made = TaskProgress()
    for done, seconds in observed:
        new = TaskProgress(bytes_total=total, bytes_done=done)
        made = with_rate(new, made, START + timedelta(seconds=seconds))
    return made


@pytest.mark.proves("B-10")
def test_rate_and_time_left_follow_from_the_samples() -> None:
    """The rate is that between the first and the last observation, the time left is rounded up.

    The status would show a wrong rate, or "0 s left" before the end.
    """
    made = progress((1000, 0), (1500, 10), (4000, 20), total=7001)
    assert (made.bytes_per_second, made.seconds_left) == (150, 21)
    assert made.copy_started_time == START
    assert progress((1000, 0), (4000, 20), total=4000).seconds_left == 0


@pytest.mark.proves("B-10")
def test_the_rate_of_a_finished_copy_stays() -> None:
    """After the last byte the rate is the last one known, with nothing left.

    Reports of an ended task would say that it copied at 0 bytes a second.
    """
    observed = [(1000, 0.0), (5000, 20), *((5000, 20.0 + s) for s in range(0, 300, 2))]
    made = progress(*observed, total=5000)
    assert (made.bytes_per_second, made.seconds_left) == (200, 0)


@pytest.mark.proves("B-14")
def test_what_no_longer_moves_has_no_time_left() -> None:
    """Within a minute of a stall the rate is 0 and no time left is told.

    A stuck copy would seem to end soon.
    """
    made = progress((1000, 0), (4000, 30))
    assert (made.bytes_per_second, made.seconds_left) == (100, 960)
    for seconds in range(32, 102, 2):
        new = TaskProgress(bytes_total=TOTAL, bytes_done=4000)
        made = with_rate(new, made, START + timedelta(seconds=seconds))
    assert (made.bytes_per_second, made.seconds_left) == (0, None)
    assert progress((0, 0), (0, 60)).seconds_left is None


@pytest.mark.proves("B-03")
def test_the_rate_follows_a_limit_that_is_changed() -> None:
    """A minute after the limit has changed the rate is that of the new limit.

    The time left would average over an hour at another limit.
    """
    fast = [(second * 100, float(second)) for second in range(10, 600, 2)]
    assert progress(*fast).bytes_per_second == 100
    slow = [(59_800 + second * 10, 600.0 + second) for second in range(0, 64, 2)]
    assert progress(*fast, *slow).bytes_per_second == 10


def test_a_copy_that_stalled_has_its_new_rate_at_once() -> None:
    """What stood still for ten minutes does not count after the next observation.

    The time left would be wrong for a minute after each pause.
    """
    made = progress((1000, 0), (2000, 10), (2000, 600), (2100, 602), (2300, 604))
    assert made.bytes_per_second == 75


def test_a_copy_that_begins_again_has_a_new_history() -> None:
    """Fewer bytes than before drop the samples.

    The rate would be negative.
    """
    assert progress((5000, 0), (6000, 10), (100, 20), (300, 30)).bytes_per_second == 20


def test_rare_observations_still_give_a_rate() -> None:
    """One sample older than the window is the base while there is no other.

    A slow reporter would never have a time left.
    """
    assert progress((500, 0), (1000, 500)).bytes_per_second == 1


def test_two_observations_of_one_second_give_no_rate() -> None:
    """The rate of the moment is not known.

    It would divide by zero, or show the bytes of an instant as those of a second.
    """
    assert progress((500, 0), (5000, 0.9)).bytes_per_second == 0


def test_bytes_cannot_be_negative() -> None:
    """A negative number of bytes is refused.

    A broken report would make all later rates wrong.
    """
    with pytest.raises(ValueError, match="bytes_done is -1"):
        estimates.observe((), -1, START)


def decided(case: Case, done: int, seconds: int, total: int = 10_000) -> Result:
    """Decide once with so many bytes copied, and keep the status."""
    case.now = NOW + timedelta(seconds=seconds)
    case.world.reports[0, 0] = {"bytes_estimate": total}
    copy = CopyProgress(bytes=done)
    case.world.reports[0, 3] = {"needs_snapshot": True, "copy": copy}
    decision = case.decide()
    stored = ("attempt", "conditions", "waiting_for", "waiting_reason", "progress")
    case.status |= {name: getattr(decision.status, name) for name in stored}
    return decision


@pytest.mark.proves("B-10", "B-14")
def test_the_status_of_a_rebalance_has_rate_and_time_left() -> None:
    """A task that copies tells its rate in the status; one that stalls tells that nothing moves.

    The status would have no rate at all, or that of a copy which stands still.
    """
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    decided(case, 1000, 0)
    told = decided(case, 3000, 4).status.progress
    assert (told.bytes_per_second, told.seconds_left) == (500, 14)
    for seconds in range(6, 80, 2):
        told = decided(case, 3000, seconds).status.progress
    assert (told.bytes_per_second, told.seconds_left) == (0, None)


def test_a_status_is_written_for_its_rate_at_most_every_ten_seconds() -> None:
    """Progress of less than a hundredth is written with each new sample only, and not when still.

    A zone would cost the API server a write a pass, or its rate would not fall.
    """
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    total = 1 << 40
    decided(case, 1, 0, total)
    written = 0
    for seconds in range(2, 62, 2):
        before = case.status["progress"]
        written += decided(case, seconds, seconds, total).status.progress != before
    assert written == 6
    for seconds in range(62, 200, 2):
        decided(case, 60, seconds, total)
    before = case.status["progress"]
    assert decided(case, 60, 300, total).status.progress == before


@pytest.mark.proves("B-10")
def test_the_status_of_a_re_sharding_has_rate_and_time_left() -> None:
    """A task that backfills new partitions tells its rate as one that copies does.

    The re-sharding of a large zone would tell no end.
    """
    zone = Zone(1, 2)
    zone.backfills, zone.part_bytes = False, 0
    for _ in range(8):
        zone.run()
        zone.settle()
    (hash_range, *_), *_ = (target.ranges for target in zone.targets.values())
    for done in (1000, 3000):
        hash_range.bytes_done, hash_range.bytes_total = done, 10_000
        zone.now = NOW + timedelta(seconds=done / 500)
        zone.run()
    told = zone.status.progress
    assert (told.bytes_per_second, told.seconds_left) == (500, 14)


@pytest.mark.proves("B-10")
def test_the_bytes_of_a_task_do_not_fall_while_it_runs() -> None:
    """A data node that is silent for a moment, or whose files shrink, takes no bytes from a task.

    A task would look larger, smaller and larger again, and its time left would jump.
    """
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    told = decided(case, 3000, 0).status.progress
    assert (told.bytes_done, told.bytes_total) == (3000, 10_000)
    told = decided(case, 100, 20, total=6_000).status.progress
    assert (told.bytes_done, told.bytes_total) == (3000, 10_000)
    case.world.silent = {0: 1.0}
    case.world.reports[0, 1] = {"bytes_estimate": 12_000}
    told = decided(case, 5000, 40).status.progress
    assert (told.bytes_done, told.bytes_total) == (5000, 12_000)
    case.world.silent, case.world.routes[0] = {}, MOVING
    told = decided(case, 5000, 60).status.progress
    assert (told.moves_done, told.bytes_done, told.bytes_total) == (1, 12_000, 12_000)


@pytest.mark.proves("SP-10")
def test_the_skew_is_that_of_the_largest_copy_by_the_mean_one() -> None:
    """Empty copies count as well: with all rows in one of four partitions the skew is 4.

    A rebalance whose last copy takes hours would look even.
    """
    assert estimates.skew_percent([5, 5]) == 100
    assert estimates.skew_percent([0, 0, 7, 0]) == 400
    assert estimates.skew_percent([]) is estimates.skew_percent([0, 0]) is None


@pytest.mark.proves("SP-10")
def test_the_status_of_a_rebalance_has_rows_and_skew() -> None:
    """Rows and skew come from the reports of data nodes, as bytes do.

    A task would not tell that one of its copies has most of the bytes.
    """
    case = Case(S.TRANSFERRING)
    both = (NEW[0], (1, 2, 3))
    case.status["target"] = text(both)
    case.world.pend(both)
    needs_copy(case)
    case.world.routes[1] = record(leader=1, replicas=(0, 1, 2, 3))
    case.world.reports[0, 0] = {"bytes_estimate": 3000, "rows_estimate": 30}
    behind = CopyProgress(rows=5, bytes=500)
    case.world.reports[0, 3] = {"needs_snapshot": True, "copy": behind}
    case.world.reports[1, 1] = {"bytes_estimate": 1000, "rows_estimate": 10}
    copied = CopyProgress(rows=1000, bytes=900)
    case.world.reports[1, 3] = {"needs_snapshot": True, "copy": copied}
    told = case.decide().status.progress
    assert (told.rows_done, told.rows_total, told.skew_percent) == (15, 40, 150)


@pytest.mark.proves("SP-10")
def test_rows_do_not_fall_and_the_skew_stays_while_a_leader_is_silent() -> None:
    """What is known with fewer bytes than before is not how copies are.

    Copies would look even, or uneven, for as long as one leader does not answer.
    """
    old = TaskProgress(
        moves_total=2,
        bytes_total=300,
        bytes_done=30,
        rows_total=30,
        rows_done=3,
        skew_percent=133,
    )
    less = TaskProgress(moves_total=2, bytes_total=100, rows_total=10, skew_percent=200)
    told = without_falling(less, old)
    assert (told.rows_total, told.rows_done, told.skew_percent) == (30, 3, 133)
    more = less.model_copy(update={"bytes_total": 400, "rows_total": 40})
    assert without_falling(more, old).skew_percent == 200
    unknown = TaskProgress(moves_total=2, moves_done=2, bytes_total=300)
    told = without_falling(unknown, old)
    assert (told.rows_total, told.rows_done, told.skew_percent) == (30, 30, 133)


@pytest.mark.proves("SP-10")
def test_the_status_of_a_re_sharding_has_rows_and_skew() -> None:
    """Ranges are to a re-sharding what copies are to a rebalance.

    A backfill would tell neither rows nor that one range has most of them.
    """
    zone = Zone(1, 2)
    zone.backfills, zone.part_bytes = False, 0
    for _ in range(8):
        zone.run()
        zone.settle()
    large, small = (each for target in zone.targets.values() for each in target.ranges)
    large.bytes_done, large.bytes_total, large.rows_done, large.rows_total = 100, 900, 10, 90
    small.bytes_total, small.rows_total = 100, 10
    zone.run()
    told = zone.status.progress
    assert (told.rows_done, told.rows_total, told.skew_percent) == (10, 100, 180)


@pytest.mark.proves("B-10")
def test_a_re_sharding_that_is_over_shows_all_ranges() -> None:
    """A task whose old partitions have all cut over tells that all ranges are done.

    One whose leader says nothing in that moment would be missing for ever: 15 of 16.
    """
    zone = Zone(2, 4)
    while zone.status.state != S.FINALIZING:
        zone.run()
        zone.settle()
    silent = next(iter(zone.targets.values()))
    silent.ranges = [NewRange(hash_range.overlap) for hash_range in silent.ranges]
    for _ in range(3):
        zone.run()
    assert zone.status.state == S.STOPPING_REDUNDANT
    told = zone.status.progress
    assert told.moves_total
    assert told.moves_done == told.moves_total
    assert told.leader_moves_done == told.leader_moves_total == 2


@pytest.mark.proves("B-01")
def test_a_plan_s_time_is_estimated_before_it_runs() -> None:
    """The preview's time is its bytes at the limit, or at the expected rate if that is lower.

    The preview would have no time.
    """
    assert estimates.seconds_for(1001, 10, 100) == 101
    assert estimates.seconds_for(1000, 0, 100) == 10
    assert estimates.seconds_for(1000, 500, 100) == 10
    with pytest.raises(ValueError, match="rate_default"):
        estimates.seconds_for(1, 0, 0)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1 << 40), st.floats(0, 1e3)), max_size=120))
def test_the_window_stays_small_and_in_order(observed: list[tuple[int, float]]) -> None:
    """Samples rise in time and bytes and fit into the status, whatever was observed.

    The API server would refuse the status, or a late report turn the rate around.
    """
    samples: tuple[ProgressSample, ...] = ()
    for done, seconds in observed:
        at = START + timedelta(seconds=seconds)
        samples = estimates.observe(samples, done, at)
        assert len(samples) <= SAMPLES_MAX
        for before, after in itertools.pairwise(samples):
            assert before.time < after.time
            assert before.bytes_done <= after.bytes_done
        assert (estimates.bytes_per_second(samples, done, at) or 0) >= 0


@pytest.mark.proves("OB-05")
def test_a_rebalance_remembers_how_busy_data_nodes_were() -> None:
    """With each sample of the rate the busiest data node is looked at; the sums are in the status.

    A report could not say whether clients were served while copies were made. A look with each
    pass would count a busy zone, whose passes are frequent, more than a calm one.
    """
    case = Case(S.TRANSFERRING)
    needs_copy(case)
    assert decided(case, 1000, 0).status.progress.clients_served is None
    for seconds, served in ((10, {0: 20, 1: 80}), (12, {0: 99}), (20, {0: 40}), (30, {})):
        case.world.served = served
        told = decided(case, 1000 + 100 * seconds, seconds).status.progress
    assert told.clients_served == ClientsServed(samples=2, total_percent=120, max_percent=80)
