"""How far a zone's own copies are: in its status, whether by Spark or by streams."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import NOW, World, child, record

from rezone.domain.model.world import SparkView
from rezone.domain.rebalance.repair_copies import repair_copies
from rezone.domain.rebalance.repair_progress import SeenRepairs, repair_progress, told
from rezone.resources.copy_progress import RepairProgress
from rezone.wire.messages import CopyProgress, Role

LOST: dict[str, Any] = {"needs_snapshot": True, "role": Role.LEARNER}
SIZES = {0: 900, 1: 300}
"""The bytes of two partitions, which nodes 0 and 1 lead; a row has ten bytes."""


class Case:
    """A zone whose node 2 came back without its disk."""

    def __init__(self) -> None:
        self.world = World()
        self.world.settings["spark_threshold_bytes"] = 1 << 20
        self.now = NOW
        self.task_copies = False
        self.progress: RepairProgress | None = None
        for partition, size in SIZES.items():
            self.world.routes[partition] = record(leader=partition, isr=(0, 1))
            estimates = {"bytes_estimate": size, "rows_estimate": size // 10}
            self.world.reports |= {(partition, 0): estimates, (partition, 1): estimates}
            self.loses(partition)

    def loses(self, partition: int, node: int = 2) -> None:
        """Let a node tell that it lacks a partition's rows."""
        isr = tuple(n for n in self.world.routes[partition].isr if n != node)
        self.world.routes[partition] = record(leader=partition, isr=isr)
        self.world.reports[partition, node] = LOST

    def arrives(self, partition: int, size: int) -> None:
        """Let so many bytes of a partition have arrived at node 2."""
        self.world.reports[partition, 2] = LOST | {
            "copy": CopyProgress(bytes=size, rows=size // 10)
        }

    def completes(self, partition: int) -> None:
        """Let node 2 have all of a partition."""
        self.world.reports[partition, 2] = {}
        self.world.routes[partition] = record(leader=partition)

    def look(self, seconds: int = 0) -> RepairProgress:
        """Look how far the copies are, after some time; there are some."""
        self.now += timedelta(seconds=seconds)
        self.progress = self.seen()
        assert self.progress is not None
        return self.progress

    def seen(self) -> RepairProgress | None:
        """Return what a pass sees."""
        view = self.world.view()
        return repair_progress(view, self.progress, self.now, task_copies=self.task_copies)


def copied(progress: RepairProgress) -> tuple[int, int, int, int]:
    """Return the bytes and rows that are done, each with all of them."""
    return (
        progress.bytes_done,
        progress.bytes_total,
        progress.rows_done,
        progress.rows_total,
    )


@pytest.mark.proves("SP-10", "B-10")
def test_repairs_tell_bytes_rows_skew_rate_and_time_left() -> None:
    """What has arrived counts, and a copy that is done stays done; after the last one it is gone.

    A zone that refills a lost data node of a terabyte would tell no end.
    """
    case = Case()
    begun = case.look()
    assert (copied(begun), begun.skew_percent) == ((0, 1200, 0, 120), 150)
    assert (begun.copies_done, begun.copies_total, begun.data_nodes) == (0, 2, (2,))
    case.arrives(0, 100)
    case.look(2)
    case.arrives(0, 300)
    now = case.look(10)
    assert (copied(now), now.bytes_per_second, now.seconds_left) == ((300, 1200, 30, 120), 20, 45)
    case.completes(0)
    now = case.look(10)
    assert (copied(now), now.copies_done, now.skew_percent) == ((900, 1200, 90, 120), 1, 150)
    case.completes(1)
    assert case.seen() is None


@pytest.mark.proves("SP-10")
def test_repairs_tell_nothing_of_what_others_copy() -> None:
    """A task at work, and a migration, have progress of their own.

    The same bytes would be told twice, or a zone that repairs nothing say that it does.
    """
    case = Case()
    case.task_copies = True
    assert case.seen() is None
    case.task_copies = False
    opens = child("m", partition=1, state="OpenCandidate", owner_task="", candidate=2)
    case.world.migrations.append(opens)
    assert case.look().bytes_total == 900
    healthy = Case()
    for partition in SIZES:
        healthy.completes(partition)
    assert healthy.seen() is None


@pytest.mark.proves("SP-10")
def test_a_silent_data_node_has_copied_nothing() -> None:
    """While the node that is repaired does not answer, nothing becomes done, and nothing falls.

    A report that is lost would look like the end of all copies, and the next one like new ones.
    """
    case = Case()
    case.arrives(0, 500)
    before = case.look(2)
    case.world.silent = {2: 1.0}
    silent = case.look(2)
    assert copied(silent) == copied(before) == (500, 1200, 50, 120)
    assert (silent.copies_done, silent.copies_total) == (0, 2)
    case.world.silent = {}
    case.completes(1)
    case.arrives(0, 600)
    assert copied(case.look(2)) == (900, 1200, 90, 120)
    case.world.silent, case.world.lost = {2: 60.0}, {2}
    assert case.seen() is None


@pytest.mark.proves("SP-10")
def test_another_silent_data_node_hides_no_copy_that_is_done() -> None:
    """Who is not repaired may be silent: what is done is done.

    A zone with one data node away would not tell how far the other one is.
    """
    case = Case()
    case.world.routes[0] = record(isr=(0,), replicas=(0, 1, 2))
    case.world.silent = {1: 60.0}
    case.arrives(1, 100)
    case.look()
    case.world.routes[1] = record(leader=1)
    case.world.reports[1, 2] = {}
    assert case.look(2).copies_done == 1


@pytest.mark.proves("SP-10")
def test_a_silent_leader_takes_no_bytes_from_repairs() -> None:
    """Where nobody tells a partition's size, it has that of the mean copy.

    The zone would have copied all of it in the moment in which nobody answers.
    """
    case = Case()
    case.arrives(0, 60)
    case.look()
    case.world.reports |= {(0, 0): None, (0, 1): None}
    assert copied(case.look(2)) == (360, 1200, 36, 120)
    case.world.reports |= {(0, 0): {"bytes_estimate": 900, "rows_estimate": 90}}
    assert copied(case.look(2)) == (360, 1200, 36, 120)


@pytest.mark.proves("SP-10")
def test_an_application_that_another_follows_takes_nothing_from_repairs() -> None:
    """Receivers go on where they stand; until they say so, what had arrived stays.

    The bytes of a repair would fall with each application that fails, and its rate be nonsense.
    """
    case = Case()
    case.world.settings["spark_threshold_bytes"] = 1000
    state = repair_copies(case.world.view(), None, case.now, task_copies=False).state
    assert state is not None
    case.arrives(0, 400)
    case.look()
    case.world.spark = SparkView(name=state.application, state="FAILED")
    following = repair_copies(case.world.view(), state, case.now, task_copies=False).state
    assert following is not None
    assert following.application != state.application
    case.loses(0)
    begins_again = case.look(10)
    assert (begins_again.bytes_done, begins_again.bytes_total) == (400, 1200)
    assert begins_again.bytes_per_second == 0
    case.arrives(0, 500)
    now = case.look(10)
    assert (now.bytes_done, now.bytes_per_second) == (500, 5)


@pytest.mark.proves("SP-10")
def test_replicas_that_are_lost_meanwhile_are_more_to_be_copied() -> None:
    """What is done stays, and what is new comes on top of it.

    The repair would seem to be nearly over, or to begin again.
    """
    case = Case()
    case.completes(1)
    case.arrives(0, 300)
    case.look()
    case.loses(1)
    more = case.look(2)
    assert (copied(more), more.copies_total) == ((300, 1200, 30, 120), 2)
    case.completes(0)
    assert copied(case.look(2)) == (900, 1200, 90, 120)


@pytest.mark.proves("SP-10")
def test_the_status_of_a_zone_is_written_in_steps() -> None:
    """A hundredth is a step, also the begin and the end; what nobody has looked at stays.

    A repair would cost the API server a write a pass, and the next operator forget it at first.
    """
    case = Case()
    begun = case.look()
    assert told(None, SeenRepairs(begun)) == begun
    assert told(begun, None) == begun
    assert told(begun, SeenRepairs(None)) is None
    case.arrives(0, 500)
    before = case.look(1)
    case.arrives(0, 503)
    assert told(before, SeenRepairs(case.look(1))) == before
    case.arrives(0, 530)
    assert told(before, SeenRepairs(case.look(1))) == case.progress


EVENTS = st.tuples(
    st.sampled_from(["arrives", "completes", "loses", "silent", "answers", "unknown"]),
    st.sampled_from(sorted(SIZES)),
    st.integers(0, 1000),
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_what_repairs_tell_never_falls(events: list[tuple[str, int, int]]) -> None:
    """Bytes, rows and copies rise until nothing is left, and done is never more than all.

    The API server would refuse a negative number, and people not believe one that falls.
    """
    case = Case()
    for kind, partition, size in events:
        before = case.progress
        case.now += timedelta(seconds=3)
        match kind:
            case "arrives" | "completes" | "loses":
                arguments = (partition, size) if kind == "arrives" else (partition,)
                getattr(case, kind)(*arguments)
            case "silent" | "answers":
                case.world.silent = {2 * partition: 1.0} if kind == "silent" else {}
            case _:
                case.world.reports |= {(partition, node): None for node in (0, 1)}
        case.progress = now = case.seen()
        if now is None:
            continue
        assert now.bytes_done <= now.bytes_total
        assert now.rows_done <= now.rows_total
        assert now.copies_done < now.copies_total
        if before is not None:
            assert all(new >= old for new, old in zip(copied(now), copied(before), strict=True))
            assert now.copies_done >= before.copies_done
