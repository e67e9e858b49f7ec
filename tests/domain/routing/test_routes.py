"""LeaderAndIsr records: every change, every refusal, and what holds in every sequence of them."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rezone.domain.routing import route_checks, route_leaders, route_seals, routes
from rezone.domain.routing.route_shards import decode_record, encode_record
from rezone.domain.routing.routes import Refusal, RefusalReason
from rezone.wire.messages import IsrProposal, LeaderAndIsr

THREE = routes.initial((0, 1, 2), coordinator_epoch=4)


def changed(answer: routes.Answer | None) -> LeaderAndIsr:
    """Return the record of an answer that must not be a refusal."""
    assert isinstance(answer, LeaderAndIsr), answer
    assert route_checks.violations(answer) == ()
    return answer


def reason(answer: routes.Answer | None) -> RefusalReason:
    """Return the reason of an answer that must be a refusal."""
    assert isinstance(answer, Refusal), answer
    assert answer.message
    return answer.reason


def propose(record: LeaderAndIsr, isr: tuple[int, ...], **fields: object) -> IsrProposal:
    """Return a proposal of the record's leader, up to date but for `fields`."""
    given = {
        "new_isr": isr,
        "leader_epoch": record.leader_epoch,
        "partition_epoch": record.partition_epoch,
        "coordinator_epoch": record.coordinator_epoch,
    }
    return msgspec.convert(given | fields, IsrProposal)


STANDING_BY = changed(routes.set_hot_standby(THREE, 1))
IN_SYNC = changed(
    routes.adjust_isr(STANDING_BY, propose(STANDING_BY, (0, 1, 2), new_iss=(1,)), 4, minimum=1)
)
AUTHORIZED = changed(route_leaders.authorize_takeover(IN_SYNC, 1))


def test_a_new_partition_is_led_by_its_first_replica() -> None:
    """The preferred leader would not lead, or an empty replica would count as behind."""
    assert THREE.leader == 0
    assert THREE.isr == THREE.replicas == (0, 1, 2)
    for wrong in ((), (1, 1)):
        with pytest.raises(ValueError, match="distinct replicas"):
            routes.initial(wrong, 1)


@pytest.mark.proves("HS-06")
def test_the_seed_s_move_goes_through_four_replicas_with_a_hot_standby() -> None:
    """[0,1,2] -> [1,2,3]: a copy would be missing in between, or node 3 count as in sync."""
    record = changed(routes.add_replicas(THREE, (1, 2, 3)))
    record = changed(routes.set_hot_standby(record, 1))
    assert (record.replicas, record.leader) == ((0, 1, 2, 3), 0)
    assert (record.hot_standby_replica, record.isr) == (1, (0, 1, 2))
    full = propose(record, (0, 1, 2, 3), new_iss=(1,))
    record = changed(routes.adjust_isr(record, full, 4, minimum=1))
    record = changed(route_leaders.authorize_takeover(record, 1))
    record = changed(route_leaders.complete_takeover(record, 1, record.next_epoch or 0))
    record = changed(routes.remove_replicas(record, (0,)))
    assert (record.leader, record.leader_epoch) == (1, 2)
    assert record.replicas == record.isr == (1, 2, 3)


# --- adjust_isr ---------------------------------------------------------------------------------


@pytest.mark.proves("HS-04", "HS-08")
def test_isr_and_iss_become_what_the_leader_proposes() -> None:
    """A slow replica would hold up writes for ever, a standby never count as ready."""
    assert IN_SYNC.iss == (1,)
    assert IN_SYNC.partition_epoch == STANDING_BY.partition_epoch + 1
    alone = changed(routes.adjust_isr(IN_SYNC, propose(IN_SYNC, (0,)), 6, minimum=1))
    assert (alone.isr, alone.iss, alone.coordinator_epoch) == ((0,), (), 6)


@pytest.mark.proves("HS-04")
@pytest.mark.parametrize(
    ("isr", "fields", "expected"),
    [
        ((0, 1), {"leader_epoch": 0}, RefusalReason.STALE_LEADER_EPOCH),
        ((0, 1), {"partition_epoch": 2}, RefusalReason.STALE_PARTITION_EPOCH),
        ((0, 1), {"leader_epoch": 2}, RefusalReason.RECORD_BEHIND),
        ((0, 1), {"partition_epoch": 9}, RefusalReason.RECORD_BEHIND),
        ((0, 1), {"coordinator_epoch": 5}, RefusalReason.COORDINATOR_FENCED),
        ((), {}, RefusalReason.EMPTY_ISR),
        ((0, 7), {}, RefusalReason.NOT_A_REPLICA),
        ((1, 2), {}, RefusalReason.LEADER_NOT_IN_ISR),
        ((0, 2), {"new_iss": (1,)}, RefusalReason.NOT_IN_SYNC),
        ((0, 1, 2), {"new_iss": (1, 2)}, RefusalReason.NOT_A_HOT_STANDBY),
    ],
)
def test_a_proposal_that_must_not_hold_is_refused(
    isr: tuple[int, ...], fields: dict[str, object], expected: RefusalReason
) -> None:
    """A deposed leader would shrink the in-sync set and lose acknowledged rows."""
    assert (
        reason(routes.adjust_isr(IN_SYNC, propose(IN_SYNC, isr, **fields), 4, minimum=1))
        is expected
    )


def test_a_fenced_coordinator_changes_nothing() -> None:
    """A coordinator without its lease would still write."""
    proposal = propose(IN_SYNC, (0, 1))
    assert (
        reason(routes.adjust_isr(IN_SYNC, proposal, 3, minimum=1))
        is RefusalReason.COORDINATOR_FENCED
    )
    answer = routes.add_replicas(IN_SYNC, (5,), coordinator_epoch=3)
    assert reason(answer) is RefusalReason.COORDINATOR_FENCED
    assert route_leaders.fail_over(IN_SYNC, {1}, coordinator_epoch=3, minimum=1) is None


@pytest.mark.proves("ZR-13")
def test_what_holds_already_is_answered_with_the_same_record() -> None:
    """Repeats would write for ever, each waking every node."""
    late = propose(IN_SYNC, (2, 1, 0), new_iss=(1,), partition_epoch=1)
    assert routes.adjust_isr(IN_SYNC, late, 4, minimum=1) is IN_SYNC
    assert routes.add_replicas(IN_SYNC, (1, 2)) is IN_SYNC
    assert routes.set_hot_standby(IN_SYNC, 1) is IN_SYNC
    assert routes.remove_replicas(IN_SYNC, (9,)) is IN_SYNC
    assert route_leaders.authorize_takeover(AUTHORIZED, 1) is AUTHORIZED
    done = changed(route_leaders.complete_takeover(AUTHORIZED, 1, 2))
    assert route_leaders.complete_takeover(done, 1, 2) is done
    assert route_leaders.roll_back_takeover(IN_SYNC) is IN_SYNC
    assert route_leaders.fail_over(IN_SYNC, {0}, minimum=1) is IN_SYNC
    assert routes.set_hot_standby(THREE, None) is THREE


def test_the_candidate_of_a_takeover_cannot_leave_the_in_sync_set() -> None:
    """It may lead at this moment: the old leader would acknowledge rows it does not have."""
    answer = routes.adjust_isr(AUTHORIZED, propose(AUTHORIZED, (0, 2)), 4, minimum=1)
    assert reason(answer) is RefusalReason.TAKEOVER_AUTHORIZED


# --- replicas and hot standbys ------------------------------------------------------------------


def test_several_hot_standbys_are_made_one_after_the_other() -> None:
    """The second one would end the first, and a zone could have no two."""
    second = changed(routes.set_hot_standby(IN_SYNC, 2))
    assert routes.hot_standbys(second) == {1, 2}
    both = changed(
        routes.adjust_isr(second, propose(second, (0, 1, 2), new_iss=(1, 2)), 4, minimum=1)
    )
    assert both.iss == (1, 2)
    assert routes.hot_standbys(changed(routes.drop_hot_standbys(both, (2,)))) == {1}
    assert routes.hot_standbys(changed(routes.set_hot_standby(both, None))) == frozenset()


def test_only_a_following_replica_can_stand_by() -> None:
    """A node without the partition would be promised the leadership."""
    assert reason(routes.set_hot_standby(THREE, 0)) is RefusalReason.IS_LEADER
    assert reason(routes.set_hot_standby(THREE, 9)) is RefusalReason.NOT_A_REPLICA
    for node in (None,):
        assert reason(routes.set_hot_standby(AUTHORIZED, node)) is RefusalReason.TAKEOVER_AUTHORIZED


def test_removing_a_replica_takes_it_out_of_every_set() -> None:
    """Writes would wait for a replica that is gone."""
    record = changed(routes.remove_replicas(IN_SYNC, (1,)))
    assert (record.replicas, record.isr, record.iss) == ((0, 2), (0, 2), ())
    assert record.hot_standby_replica is None


def test_neither_the_leader_nor_a_takeover_s_candidate_is_removed() -> None:
    """A partition would lose its leader, or the one that is just becoming it."""
    assert reason(routes.remove_replicas(IN_SYNC, (0,))) is RefusalReason.IS_LEADER
    answer = routes.remove_replicas(AUTHORIZED, (1,))
    assert reason(answer) is RefusalReason.TAKEOVER_AUTHORIZED
    assert changed(routes.remove_replicas(AUTHORIZED, (2,))).replicas == (0, 1)


# --- takeover -----------------------------------------------------------------------------------


@pytest.mark.proves("RM-01")
def test_a_takeover_is_authorized_for_one_in_sync_replica_with_the_next_epoch() -> None:
    """A replica that lacks rows could lead, or two could."""
    assert (AUTHORIZED.next_leader, AUTHORIZED.next_epoch) == (1, 2)
    grown = changed(routes.add_replicas(THREE, (3,)))
    assert reason(route_leaders.authorize_takeover(grown, 3)) is RefusalReason.NOT_IN_SYNC
    assert reason(route_leaders.authorize_takeover(grown, 9)) is RefusalReason.NOT_A_REPLICA
    assert reason(route_leaders.authorize_takeover(grown, 0)) is RefusalReason.IS_LEADER
    answer = route_leaders.authorize_takeover(AUTHORIZED, 2)
    assert reason(answer) is RefusalReason.TAKEOVER_AUTHORIZED


@pytest.mark.proves("RM-06", "B-13")
def test_after_a_takeover_the_old_leader_follows_in_sync() -> None:
    """Moving back would need a copy."""
    record = changed(route_leaders.complete_takeover(AUTHORIZED, 1, 2))
    assert (record.leader, record.leader_epoch, record.isr) == (1, 2, (0, 1, 2))
    assert (record.iss, record.hot_standby_replica) == ((), None)
    assert (record.next_leader, record.next_epoch) == (None, None)


@pytest.mark.proves("RM-06")
@pytest.mark.parametrize(
    ("leader", "epoch", "expected"),
    [
        (2, 2, RefusalReason.NOT_AUTHORIZED),
        (1, 3, RefusalReason.NOT_AUTHORIZED),
        (2, 1, RefusalReason.STALE_LEADER_EPOCH),
    ],
)
def test_only_the_authorized_takeover_is_adopted(
    leader: int, epoch: int, expected: RefusalReason
) -> None:
    """A node that only believes to lead would become the leader."""
    assert reason(route_leaders.complete_takeover(AUTHORIZED, leader, epoch)) is expected


@pytest.mark.proves("B-09", "ZR-16")
def test_a_takeover_that_finished_without_the_coordinator_is_adopted() -> None:
    """The coordinator would come back and fight the leader of the data plane."""
    record = changed(route_leaders.complete_takeover(AUTHORIZED, 1, 2))
    assert (record.leader, record.leader_epoch) == (1, 2)
    assert route_leaders.complete_takeover(record, 1, 2) is record


@pytest.mark.proves("RM-08")
def test_rolling_back_fences_the_candidate() -> None:
    """The candidate and the old leader would both lead."""
    record = changed(route_leaders.roll_back_takeover(AUTHORIZED))
    assert (record.leader, record.leader_epoch, record.next_leader) == (0, 3, None)
    assert reason(route_leaders.complete_takeover(record, 1, 2)) is RefusalReason.STALE_LEADER_EPOCH


# --- failover -----------------------------------------------------------------------------------


@pytest.mark.proves("B-06")
def test_failover_takes_a_hot_standby_before_another_in_sync_replica() -> None:
    """The partition would wait for an engine to be filled though one is ready."""
    second = changed(routes.set_hot_standby(THREE, 2))
    hot = changed(routes.adjust_isr(second, propose(second, (0, 1, 2), new_iss=(2,)), 4, minimum=1))
    record = changed(route_leaders.fail_over(hot, {1, 2}, minimum=1))
    assert (record.leader, record.leader_epoch, record.isr) == (2, 2, (1, 2))
    assert changed(route_leaders.fail_over(hot, {1}, minimum=1)).leader == 1
    # Even before the candidate of a takeover, when that is not hot itself.
    authorized = changed(route_leaders.authorize_takeover(hot, 1))
    assert changed(route_leaders.fail_over(authorized, {1, 2}, minimum=1)).leader == 2
    assert record.replicas == (0, 1, 2)


@pytest.mark.proves("B-06")
def test_without_a_living_in_sync_replica_nobody_leads() -> None:
    """Acknowledged rows would be lost by a replica that lacks them."""
    alone = changed(routes.adjust_isr(IN_SYNC, propose(IN_SYNC, (0,)), 4, minimum=1))
    assert route_leaders.fail_over(alone, {1, 2}, minimum=1) is None


@pytest.mark.proves("B-06")
def test_failover_during_a_takeover_is_above_the_authorized_epoch() -> None:
    """The candidate may lead with next_epoch already: two leaders would share an epoch."""
    record = changed(route_leaders.fail_over(AUTHORIZED, {2}, minimum=1))
    assert (record.leader, record.leader_epoch) == (2, 3)
    assert reason(route_leaders.complete_takeover(record, 1, 2)) is RefusalReason.STALE_LEADER_EPOCH
    plain = changed(route_leaders.authorize_takeover(THREE, 2))
    assert changed(route_leaders.fail_over(plain, {1, 2}, minimum=1)).leader == 2


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"leader": 9}, "leader 9 is not in isr"),
        ({"isr": (0, 1, 2, 9)}, "is not within replicas"),
        ({"isr": (0, 0, 1)}, "isr names a node twice"),
        ({"iss": (9,)}, "is not within isr"),
        ({"hot_standby_replica": 9}, "hot standby 9"),
        ({"next_epoch": None}, "not set together"),
        ({"next_leader": 0}, "not an in-sync follower"),
        ({"next_epoch": 1}, "is not above 1"),
    ],
)
def test_the_checker_sees_each_wrong_record(fields: dict[str, object], says: str) -> None:
    """The invariant of the stateful test would hold for anything."""
    wrong = msgspec.structs.replace(AUTHORIZED, **fields)
    assert any(says in found for found in route_checks.violations(wrong))


def test_the_checker_sees_epochs_that_fall() -> None:
    """A record written by a fenced coordinator would go unnoticed."""
    lower = msgspec.structs.replace(AUTHORIZED, partition_epoch=1, coordinator_epoch=1)
    assert len(route_checks.regressions(AUTHORIZED, lower)) == 2
    usurped = msgspec.structs.replace(AUTHORIZED, leader=2)
    assert route_checks.regressions(AUTHORIZED, usurped)


NODES = st.integers(0, 5)
SETS = st.lists(NODES, max_size=5, unique=True).map(tuple)


class RoutesMachine(RuleBasedStateMachine):
    """One record under every call in every order, with right and wrong arguments."""

    @initialize(replicas=st.permutations(range(4)))
    def start(self, replicas: list[int]) -> None:
        """Begin with three replicas."""
        self.record = routes.initial(tuple(replicas[:3]), 1)
        self.fenced_epoch = 0  # the highest epoch that was taken from somebody

    def _take(self, answer: routes.Answer | None) -> None:
        if isinstance(answer, LeaderAndIsr) and answer is not self.record:
            assert answer.partition_epoch == self.record.partition_epoch + 1
            assert route_checks.regressions(self.record, answer) == ()
            self.record = answer

    @rule(isr=SETS, iss=SETS, behind=st.integers(-1, 1), coordinator=st.integers(0, 3))
    def adjust(
        self, isr: tuple[int, ...], iss: tuple[int, ...], behind: int, coordinator: int
    ) -> None:
        """Propose an in-sync set."""
        epoch = self.record.partition_epoch - behind
        proposal = propose(self.record, isr, new_iss=iss, partition_epoch=epoch)
        self._take(routes.adjust_isr(self.record, proposal, coordinator, minimum=1))

    @rule(nodes=SETS)
    def add(self, nodes: tuple[int, ...]) -> None:
        """Add replicas."""
        self._take(routes.add_replicas(self.record, nodes))

    @rule(nodes=SETS)
    def remove(self, nodes: tuple[int, ...]) -> None:
        """Remove replicas."""
        self._take(routes.remove_replicas(self.record, nodes))

    @rule(node=st.none() | NODES)
    def stand_by(self, node: int | None) -> None:
        """Make or end hot standbys."""
        self._take(routes.set_hot_standby(self.record, node))

    @rule(nodes=SETS)
    def drop(self, nodes: tuple[int, ...]) -> None:
        """End some hot standbys."""
        self._take(routes.drop_hot_standbys(self.record, nodes))

    @rule(node=NODES)
    def authorize(self, node: int) -> None:
        """Authorize a takeover."""
        self._take(route_leaders.authorize_takeover(self.record, node))

    @rule(node=NODES, epoch=st.integers(-1, 3))
    def report(self, node: int, epoch: int) -> None:
        """Let a node say that it leads."""
        said = self.record.leader_epoch + epoch
        before = self.record
        self._take(route_leaders.complete_takeover(before, node, said))
        if self.record is not before:
            assert (before.next_leader, before.next_epoch) == (node, said)
            assert said > self.fenced_epoch

    @rule()
    def roll_back(self) -> None:
        """Roll the takeover back."""
        self.fenced_epoch = max(self.fenced_epoch, self.record.next_epoch or 0)
        self._take(route_leaders.roll_back_takeover(self.record))

    @rule()
    def seal(self) -> None:
        """Authorize a seal."""
        self._take(route_seals.authorize_seal(self.record))

    @rule()
    def revoke(self) -> None:
        """Revoke a seal; its request is fenced."""
        before = self.record
        self._take(route_seals.revoke_seal(before))
        if self.record is not before:
            assert self.record.leader_epoch > before.leader_epoch

    @rule()
    def hear_of_seal(self) -> None:
        """Let a leader say that it has sealed; only one that was asked can."""
        if self.record.sealing:
            self._take(route_seals.note_sealed(self.record))

    @rule(node=NODES)
    def elect(self, node: int) -> None:
        """Elect somebody by a person's word."""
        before = self.record
        epoch = routes.highest_epoch(before) + 1
        self._take(route_leaders.elect_uncleanly(before, node, epoch, lost=()))
        if self.record is not before:
            assert (before.sealing, before.sealed) == (False, False)
            self.fenced_epoch = epoch - 1

    @rule(alive=SETS)
    def fail_over(self, alive: tuple[int, ...]) -> None:
        """Replace the leader unless it is alive."""
        before = self.record
        self._take(route_leaders.fail_over(before, alive, minimum=1))
        if self.record.leader != before.leader:
            self.fenced_epoch = max(self.fenced_epoch, before.leader_epoch, before.next_epoch or 0)
            assert self.record.leader in before.isr
            assert self.record.leader_epoch > self.fenced_epoch

    @invariant()
    def nothing_is_wrong(self) -> None:
        """Leader in isr, isr within replicas, next_epoch above leader_epoch."""
        assert route_checks.violations(self.record) == ()

    @invariant()
    def it_is_stored_as_it_is(self) -> None:
        """Store the record and read it again."""
        assert decode_record(encode_record(self.record)) == self.record


RoutesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRoutesMachine = pytest.mark.slow(
    pytest.mark.proves("HS-01", "HS-04", "B-06", "RM-08")(RoutesMachine.TestCase)
)
