"""The leader's bookkeeping, without nodes: commits, proposals, barriers, budgets."""

from __future__ import annotations

import msgspec
import pytest

from rezone.datanode.commit.insync import LeaderState
from rezone.datanode.commit.lease import NEVER, Lease
from rezone.datanode.settings import NodeSettings
from rezone.storage.budget import Budget
from rezone.storage.state.history import (
    FAILOVER_LOG_MAX,
    branch_at,
    branch_start,
    rollback_offset,
    with_new_branch,
)
from rezone.wire.errors import NotEnoughReplicasError, OverloadedError
from rezone.wire.messages import FailoverEntry, LeaderAndIsr

LAG_SECONDS = 10.0


def leader(
    isr: tuple[int, ...] = (0, 1, 2),
    replicas: tuple[int, ...] = (0, 1, 2),
    *,
    barrier: int = 0,
    standby: int | None = None,
    iss: tuple[int, ...] = (),
) -> LeaderState:
    """Return a leadership of node 0."""
    return LeaderState(
        node=0,
        state=LeaderAndIsr(
            leader=0,
            leader_epoch=1,
            isr=isr,
            replicas=replicas,
            coordinator_epoch=1,
            hot_standby_replica=standby,
            iss=iss,
        ),
        barrier=barrier,
        committed=0,
        settings=NodeSettings(replica_lag_ms_max=int(LAG_SECONDS * 1000)),
    )


def ack(state: LeaderState, node: int, durable: int, log_end: int, applied: int = 0) -> None:
    """Have a follower stream, grant a lease, and ack."""
    state.follower(node).streaming = True
    state.granted(node, Lease(NEVER, NEVER, 1))
    state.acked(node, durable, applied, 0.0, log_end)


def test_the_commit_offset_is_the_least_of_the_set() -> None:
    """A row would be acknowledged that an in-sync replica does not have."""
    state = leader()
    ack(state, 1, 10, 10)
    assert not state.advance(10, 0.0)
    ack(state, 2, 7, 10)
    assert state.advance(10, 0.0)
    assert state.committed == 7
    assert not state.advance(3, 0.0)
    assert state.committed == 7


@pytest.mark.proves("B-06")
def test_nothing_is_committed_below_the_minimum() -> None:
    """A row would be acknowledged on one disk; an eligible replica could lead without it."""
    state = leader()
    for node in (1, 2):
        ack(state, node, 10, 10)
    alone = msgspec.structs.replace(state.state, isr=(0,), eligible=(1, 2), partition_epoch=2)
    state.confirm(alone)
    assert not state.advance(10, 0.0, 2)
    assert not state.advance(10, 0.0, 1), "the record is what the coordinator goes by"
    with pytest.raises(NotEnoughReplicasError):
        state.require_enough(1)
    state.confirm(msgspec.structs.replace(alone, eligible=(), partition_epoch=3))
    assert not state.advance(10, 0.0, 2)
    assert state.propose(0.0, 10)
    assert state.maximal == {0, 1, 2}
    assert not state.advance(10, 0.0, 2), "who is only proposed may not lead when node 0 is lost"
    state.confirm(msgspec.structs.replace(alone, isr=(0, 1), eligible=(), partition_epoch=4))
    assert state.advance(10, 0.0, 2)
    assert state.committed == 10


def test_of_the_acks_of_one_write_only_the_last_one_changes_anything() -> None:
    """Each ack would cost a run of the job; or one that matters would be passed over."""
    state = leader()
    ack(state, 1, 10, 10)
    assert not state.moves_on(10, 10)
    ack(state, 2, 10, 10)
    assert not state.moves_on(0, 10), "the own disk is still missing"
    assert state.moves_on(10, 10)
    state.advance(10, 0.0)
    assert not state.moves_on(10, 10)
    assert leader((0, 1)).moves_on(0, 10), "a replica wants to join"
    hot = leader(standby=1)
    ack(hot, 1, 5000, 5000, applied=3999)
    assert not hot.moves_on(0, 5000)
    ack(hot, 1, 5000, 5000, applied=4000)
    assert hot.moves_on(0, 5000), "a standby comes into its set"


def test_a_late_ack_of_the_same_stream_takes_nothing_back() -> None:
    """Two threads' acks may cross; the lower one would undo the higher."""
    state = leader((0, 1))
    ack(state, 1, 10, 10)
    ack(state, 1, 5, 10)
    state.advance(10, 0.0)
    assert state.committed == 10


@pytest.mark.proves("HS-04")
def test_a_proposed_member_binds_at_once_and_a_proposed_leaver_until_the_answer() -> None:
    """A row would be missing at a replica that the coordinator already counts as in sync."""
    state = leader((0, 1), (0, 1, 2))
    ack(state, 1, 5, 5)
    ack(state, 2, 5, 5)
    assert state.propose(0.0, 5)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0, 1, 2)
    ack(state, 1, 9, 9)
    state.advance(9, 0.0)
    assert state.committed == 5

    leaving = leader()
    ack(leaving, 1, 9, 9)
    assert not leaving.propose(0.0, 9)
    assert leaving.propose(LAG_SECONDS + 1, 9)
    assert leaving.proposal is not None
    assert leaving.proposal.new_isr == (0, 1)
    leaving.advance(9, 0.0)
    assert leaving.committed == 0
    answered = LeaderAndIsr(
        leader=0,
        leader_epoch=1,
        isr=(0, 1),
        replicas=(0, 1, 2),
        coordinator_epoch=1,
        partition_epoch=1,
    )
    leaving.confirm(answered)
    assert leaving.proposal is None
    leaving.advance(9, 0.0)
    assert leaving.committed == 9


@pytest.mark.proves("ZR-09", "HS-04")
def test_a_proposal_stands_until_a_later_record_answers_it() -> None:
    """The record that the leader has already leaves its proposal in the report.

    A coordinator that sends its records again would take a wish for answered that it never saw.
    """
    state = leader(isr=(0, 1))
    ack(state, 2, 0, 0)
    assert state.propose(0.0, 0)
    proposal = state.proposal
    assert proposal is not None
    state.confirm(state.state)
    assert state.proposal == proposal
    later = state.state.partition_epoch + 1
    state.confirm(msgspec.structs.replace(state.state, isr=(0, 1, 2), partition_epoch=later))
    assert state.proposal is None


def test_an_idle_follower_is_not_thrown_out_for_its_silence() -> None:
    """A quiet night would empty the in-sync sets, and the first write of the day would wait."""
    state = leader((0, 1), (0, 1))
    ack(state, 1, 5, 5)
    assert not state.propose(1000.0, 5)
    # The first write after it: the clock starts now, not at the last ack.
    assert not state.propose(1000.0, 6)
    assert not state.propose(1000.0 + LAG_SECONDS - 1, 6)
    assert state.propose(1000.0 + LAG_SECONDS + 1, 6)


def test_a_follower_joins_only_with_everything_of_earlier_leaders() -> None:
    """A replica would be in sync without rows that an earlier leader acknowledged."""
    state = leader((0,), (0, 1), barrier=8)
    ack(state, 1, 7, 8)
    assert not state.propose(0.0, 8)
    ack(state, 1, 8, 8)
    assert state.propose(0.0, 8)


@pytest.mark.proves("HS-04", "HS-08")
def test_a_standby_enters_iss_near_the_end_and_leaves_far_from_it() -> None:
    """The coordinator would promote a standby that still has to apply for minutes."""
    state = leader((0, 1), (0, 1), standby=1)
    ack(state, 1, 5000, 5000, applied=3000)
    assert not state.propose(0.0, 5000)
    ack(state, 1, 5000, 5000, applied=4000)
    assert state.propose(0.0, 5000)
    assert state.proposal is not None
    assert state.proposal.new_iss == (1,)


@pytest.mark.proves("HS-08")
def test_several_standbys_are_each_judged_by_their_own_offset() -> None:
    """The second standby would throw the first out of `iss`, and a zone could have but one."""
    state = leader(standby=2, iss=(1,))
    ack(state, 1, 20_000, 20_000, applied=10_000)
    ack(state, 2, 20_000, 20_000, applied=19_500)
    assert state.propose(0.0, 20_000)
    assert state.proposal is not None
    kept = state.proposal.new_iss
    assert kept == (1, 2), "a member may be ten times as far behind"
    ack(state, 1, 20_000, 20_000, applied=9_999)
    assert state.propose(0.0, 20_000)
    assert state.proposal.new_iss == (2,)


@pytest.mark.proves("HS-08")
def test_a_new_leader_keeps_the_standbys_it_has_not_heard_of() -> None:
    """With every change of the leader all standbys would be cold on paper when it is next lost."""
    state = leader(iss=(1,))
    assert not state.propose(0.0, 9)
    ack(state, 2, 9, 9)
    assert not state.propose(0.0, 9)
    ack(state, 1, 9, 20_000, applied=9)
    assert state.propose(0.0, 20_000)
    assert state.proposal is not None
    assert state.proposal.new_iss == ()


def promised(asked_at: float, until: float) -> Lease:
    """Return a follower's promise."""
    return Lease(asked_at, until, 0)


@pytest.mark.proves("B-09")
def test_reads_wait_for_every_promise_and_for_the_barrier() -> None:
    """A leader that is cut off would answer from before a leader that came after it."""
    state = leader((0, 1, 2), barrier=5)
    assert not state.serving, "nobody knows yet what of its log is committed"
    ack(state, 1, 5, 5)
    ack(state, 2, 5, 5)
    state.advance(5, 0.0)
    assert state.serving
    state.granted(1, promised(0.0, 10.0))
    assert not state.vouched(1.0, 1.0), "node 2 may lead by now"
    state.granted(2, promised(0.0, 8.0))
    assert state.vouched(7.9, 7.9)
    assert not state.vouched(8.0, 8.0)


@pytest.mark.proves("B-09")
def test_an_answer_to_a_later_question_vouches_without_a_lease() -> None:
    """With no lease every read would wait for ever, or be answered from the past."""
    state = leader((0, 1), (0, 1))
    state.granted(1, promised(5.0, 5.0))
    assert state.vouched(6.0, 5.0)
    assert not state.vouched(6.0, 5.1)


def test_a_member_that_was_proposed_must_promise_too() -> None:
    """It may be in sync by now, and lead after this one."""
    state = leader((0, 1), (0, 1, 2))
    state.granted(1, promised(0.0, 10.0))
    assert state.vouched(1.0, 1.0)
    ack(state, 2, 0, 0)
    assert state.propose(0.0, 0)
    assert not state.vouched(1.0, 1.0)


@pytest.mark.proves("B-09")
def test_nothing_is_committed_or_added_while_an_earlier_leader_may_answer() -> None:
    """A write would be acknowledged that the earlier leader's reads do not know of."""
    state = leader((0, 1), (0, 1, 2))
    state.hold_until = 3.0
    for node in (1, 2):
        ack(state, node, 5, 5)
    assert not state.advance(5, 2.9)
    assert not state.propose(2.9, 5), "the third has promised the earlier leader nothing"
    assert state.advance(5, 3.0)
    assert state.propose(3.0, 5)


def test_too_few_in_sync_replicas_refuse_writes() -> None:
    """A write would be acknowledged on fewer disks than the zone asks for."""
    leader((0, 1)).require_enough(2)
    with pytest.raises(NotEnoughReplicasError):
        leader((0,)).require_enough(2)


def test_a_budget_refuses_above_its_limit_but_never_the_first() -> None:
    """Memory would grow without bound, or one large batch could never be written."""
    budget = Budget(10, "test")
    budget.take(50)
    with pytest.raises(OverloadedError):
        budget.take(1)
    budget.give(50)
    budget.take(10)


A, B, C = FailoverEntry("a", 0), FailoverEntry("b", 10), FailoverEntry("c", 20)


@pytest.mark.proves("DCP-05")
@pytest.mark.parametrize(
    ("high", "uuid", "expected"),
    [
        (0, "", None),
        (5, "a", None),
        (10, "a", None),
        (15, "a", 10),
        (15, "b", None),
        (25, "b", 20),
        (30, "c", None),
        (31, "c", 30),
        (5, "unknown", 0),
    ],
)
def test_where_a_consumer_must_roll_back(high: int, uuid: str, expected: int | None) -> None:
    """A consumer would keep rows of a branch that was given up."""
    assert rollback_offset((A, B, C), 30, high, uuid) == expected


def test_branches_are_found_begun_and_bounded() -> None:
    """The failover log would grow with each restart, or name a branch nobody has rows of."""
    assert [branch_at((A, B, C), n) for n in (0, 1, 10, 11, 30)] == ["", "a", "a", "b", "c"]
    assert with_new_branch((A, B, C), 20, "d") == (A, B, FailoverEntry("d", 20))
    log: tuple[FailoverEntry, ...] = ()
    for offset in range(FAILOVER_LOG_MAX + 5):
        log = with_new_branch(log, offset, f"branch {offset}")
    assert len(log) == FAILOVER_LOG_MAX


@pytest.mark.proves("HS-04")
def test_who_was_asked_for_before_a_restart_still_holds_up_writes() -> None:
    """An old proposal is accepted late, and brings in a member without the newest rows."""
    record = LeaderAndIsr(
        leader=0,
        leader_epoch=1,
        isr=(0, 1),
        replicas=(0, 1, 2),
        coordinator_epoch=1,
        partition_epoch=3,
    )
    state = LeaderState(
        node=0,
        state=record,
        barrier=5,
        committed=5,
        settings=NodeSettings(),
        proposed=(0, 1, 2),
    )
    ack(state, 1, 9, 9)
    assert not state.advance(9, 0.0), "node 2 may be in sync by now"
    assert state.proposal is not None, "or nobody would ever answer"
    assert state.proposal.new_isr == (0, 1)
    state.confirm(msgspec.structs.replace(record, partition_epoch=4))
    assert state.advance(9, 0.0)


@pytest.mark.proves("DCP-05")
def test_the_branch_of_the_last_row_has_a_start() -> None:
    """A follower whose newest branch is unknown to its leader would drop all its rows."""
    assert branch_start((A, B, C), 30) == C.first_offset
    assert branch_start((A, B, C), C.first_offset) == B.first_offset
    assert branch_start((A, B, C), A.first_offset) == 0
    assert branch_start((), 30) == 0


@pytest.mark.proves("B-07")
def test_a_follower_that_leaves_is_proposed_out_while_it_acks() -> None:
    """Every write would wait for a node that has stopped, until it is taken for dead."""
    state = leader()
    for node in (1, 2):
        ack(state, node, 0, 0)
    state.follower(2).leaving = True
    assert state.propose(0.0, 0, needed=2)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0, 1)
    state.confirm(msgspec.structs.replace(state.state, isr=(0, 1), partition_epoch=1))
    assert not state.propose(0.0, 0, needed=2), "it is proposed back in while it still streams"


@pytest.mark.proves("B-07")
def test_a_follower_that_leaves_goes_before_one_with_a_slow_disk() -> None:
    """Its pod would wait until the other one's disk is well, when only one can be spared."""
    state = leader()
    for node in (1, 2):
        ack(state, node, 0, 0)
    state.follower(1).slow = True
    state.follower(2).leaving = True
    assert state.propose(0.0, 0, needed=2)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0, 1)


def test_a_follower_that_leaves_is_kept_when_too_few_would_be_left() -> None:
    """A restart would refuse writes that need only wait for it."""
    state = leader(isr=(0, 1), replicas=(0, 1))
    ack(state, 1, 0, 0)
    state.follower(1).leaving = True
    assert not state.propose(0.0, 0, needed=2)


def test_a_member_whose_stream_broke_is_waited_for_no_longer_than_it_needs_to_come_back() -> None:
    """Writes would stand still for the whole lag limit when a node's process dies."""
    state = leader()
    for node in (1, 2):
        ack(state, node, 5, 5)
    gone = state.follower(2)
    gone.streaming, gone.gone_since = False, 1.0
    grace = state.settings.replica_gone_ms_max / 1000
    assert not state.propose(1.0 + grace, 9, 2), "it may be back in a moment"
    assert state.lag_deadline == 1.0 + grace
    assert state.propose(1.1 + grace, 9, 2)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0, 1)


def test_a_break_of_many_streams_does_not_take_the_set_below_its_minimum() -> None:
    """A moment's fault of the network would leave acknowledged rows on one disk alone."""
    state = leader()
    for node in (1, 2):
        ack(state, node, 5, 5)
        state.follower(node).streaming, state.follower(node).gone_since = False, 0.0
    assert not state.propose(LAG_SECONDS / 2, 9, 2)
    assert state.propose(LAG_SECONDS * 2, 9, 2)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0,)


def test_a_leader_that_all_have_left_drops_none_of_them_until_they_lag() -> None:
    """Whoever is out could not lead, and the set that is left could commit nothing either."""
    state = leader((0, 1, 2, 3), (0, 1, 2, 3))
    for node in (1, 2, 3):
        ack(state, node, 5, 5)
        state.follower(node).streaming, state.follower(node).gone_since = False, 0.0
    assert not state.propose(LAG_SECONDS / 2, 9, 2)
    state.follower(3).gone_since, state.follower(3).streaming = None, True
    assert state.propose(LAG_SECONDS / 2, 9, 2)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0, 3)


def test_who_may_join_next_must_have_been_told_a_time_before_it_is_closed() -> None:
    """It could lead with a late clock, and write below a time that was read at."""
    state = leader((0, 1), (0, 1, 2))
    state.granted(1, Lease(0.0, 0.0, 7))
    assert state.announced_time == 7
    state.follower(2).streaming, state.follower(2).durable = True, 5
    assert state.announced_time == 0
    assert not state.propose(0.0, 5), "it has granted no lease on this stream"
    state.granted(2, Lease(0.0, 0.0, 6))
    assert state.announced_time == 6
    assert state.propose(0.0, 5)


def test_a_leader_without_a_time_lets_a_follower_join_and_closes_none() -> None:
    """A zone whose leader has a wrong clock would have nobody who may lead in its place."""
    state = leader((0, 1), (0, 1, 2))
    state.granted(1, Lease(0.0, 0.0, 7))
    state.follower(2).streaming, state.follower(2).durable = True, 5
    state.granted(2, Lease(0.0, 0.0, 0))
    assert state.propose(0.0, 5)
    assert state.proposal is not None
    assert state.proposal.new_isr == (0, 1, 2)
    assert state.announced_time == 0, "what it was told with its stream has to be enough"
