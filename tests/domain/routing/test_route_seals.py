"""Seals in route records: authorized, revoked with a fence, and never undone once heard of."""

import msgspec
import pytest

from rezone.domain.routing import route_checks, route_leaders, route_seals, routes
from rezone.domain.routing.routes import Answer, Refusal, RefusalReason
from rezone.wire.messages import LeaderAndIsr

RECORD = routes.initial((0, 1, 2), coordinator_epoch=4)


def changed(answer: Answer) -> LeaderAndIsr:
    """Return the record of an answer that must not be a refusal."""
    assert isinstance(answer, LeaderAndIsr), answer
    assert route_checks.violations(answer) == ()
    return answer


def reason(answer: Answer) -> RefusalReason:
    """Return the reason of an answer that must be a refusal."""
    assert isinstance(answer, Refusal), answer
    return answer.reason


SEALING = changed(route_seals.authorize_seal(RECORD))
SEALED = changed(route_seals.note_sealed(SEALING))


@pytest.mark.proves("ZR-13")
def test_a_repeat_writes_nothing() -> None:
    """Each pass would write the record again."""
    assert route_seals.authorize_seal(SEALING) is SEALING
    assert route_seals.authorize_seal(SEALED) is SEALED
    assert route_seals.note_sealed(SEALED) is SEALED
    assert route_seals.revoke_seal(RECORD) is RECORD


def test_a_revoked_seal_is_fenced_by_the_epoch_of_the_same_leader() -> None:
    """A request on its way would seal a partition that the cancel counts as untouched."""
    revoked = changed(route_seals.revoke_seal(SEALING))
    assert (revoked.leader, revoked.sealing) == (RECORD.leader, False)
    assert revoked.leader_epoch == SEALING.leader_epoch + 1
    assert revoked.partition_epoch == SEALING.partition_epoch + 1


@pytest.mark.proves("B-08")
def test_what_is_sealed_stays_so() -> None:
    """A partition whose range others serve would serve again, and two writes of a row diverge."""
    assert reason(route_seals.revoke_seal(SEALED)) is RefusalReason.SEALED
    unsealed = msgspec.structs.replace(SEALED, sealed=False)
    assert route_checks.regressions(SEALED, unsealed) == (
        "a sealed partition is not sealed any more",
    )
    # The authorization was revoked while the leader committed its seal: the log decides.
    revoked = changed(route_seals.revoke_seal(SEALING))
    assert changed(route_seals.note_sealed(revoked)).sealed


def test_takeover_and_seal_exclude_each_other() -> None:
    """A leader would drain to its successor and to the new partitions at once."""
    taken_over = changed(route_leaders.authorize_takeover(RECORD, 1))
    assert reason(route_seals.authorize_seal(taken_over)) is RefusalReason.TAKEOVER_AUTHORIZED
    assert reason(route_leaders.authorize_takeover(SEALING, 1)) is RefusalReason.SEALING
    both = msgspec.structs.replace(taken_over, sealing=True)
    assert route_checks.violations(both) == ("sealing, and sealed or about to be taken over",)


@pytest.mark.proves("B-08")
@pytest.mark.parametrize("record", [SEALING, SEALED], ids=["sealing", "sealed"])
def test_rows_of_a_partition_that_may_be_sealed_cannot_be_given_up(record: LeaderAndIsr) -> None:
    """A replica without the seal would lead, beside the partitions that serve its range."""
    epoch = routes.highest_epoch(record) + 1
    answer = route_leaders.elect_uncleanly(record, 1, epoch, lost=(0,))
    assert reason(answer) in {RefusalReason.SEALING, RefusalReason.SEALED}
    # A safe failover keeps the seal and its authorization: the next leader has the log.
    failed_over = route_leaders.fail_over(record, (1, 2), minimum=1)
    assert failed_over is not None
    assert (failed_over.sealing, failed_over.sealed) == (record.sealing, record.sealed)


def test_a_fenced_coordinator_seals_nothing() -> None:
    """One that lost its Lease would begin a cut-over that the next one does not know of."""
    for step in (route_seals.authorize_seal, route_seals.revoke_seal, route_seals.note_sealed):
        assert reason(step(SEALING if step is not route_seals.authorize_seal else RECORD, 3)) is (
            RefusalReason.COORDINATOR_FENCED
        )


def test_only_a_later_leader_epoch_lets_a_partition_epoch_begin_again() -> None:
    """A late write of a coordinator before would empty a partition."""
    before = msgspec.structs.replace(RECORD, leader_epoch=4, partition_epoch=9)
    again = changed(routes.begin_again(before, (0, 1, 2), before.coordinator_epoch))
    assert route_checks.regressions(before, again) == ()
    same = msgspec.structs.replace(again, leader_epoch=before.leader_epoch)
    assert route_checks.regressions(before, same) != ()
    assert route_checks.regressions(again, before) != ()
