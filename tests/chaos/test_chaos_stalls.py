"""What a chaos run says of partitions that take no writes, and when it fails for them."""

import pytest
from e2e.chaos.history import NEVER_NS, Operation, Outcome
from e2e.chaos.run import served_too_late
from e2e.chaos.stalls import Picture, Stall, picture, refusals, serving

from rezone.domain.routing import routes
from rezone.wire.layouts import id_of
from rezone.wire.messages import NodeReport, ReplicaReport, Role

pytestmark = pytest.mark.proves("NW-07")
RECORD = routes.initial((0, 1, 2), 1)


def failed(error: str, *, call: float, partition: int = 0, outcome: Outcome) -> Operation:
    """Return a write that was not acknowledged; times in seconds."""
    return Operation(
        client=1,
        partition=partition,
        key=7,
        write=True,
        value=1,
        call_ns=int(call * 1e9),
        return_ns=NEVER_NS,
        outcome=outcome,
        error=error,
    )


@pytest.mark.parametrize(("served", "says"), [(None, "not served at all"), (61.0, "61 s after")])
def test_clients_that_are_not_served_in_time_fail_a_run(served: float | None, says: str) -> None:
    """A partition that is dead for minutes after a storm would pass for whole in the end."""
    (wrong,) = served_too_late(served, 60.0)

    assert says in wrong
    assert served_too_late(60.0, 60.0) == []


def test_a_stall_keeps_how_it_began_and_why_it_goes_on() -> None:
    """Its report would have one line a second, or nothing of either end."""
    stall = Stall(4, 0.0)
    for seconds in range(15, 25):
        stall.saw(Picture(float(seconds), [f"leader {seconds // 2}"]))

    assert [each.lines for each in stall.pictures] == [
        ["leader 7"],
        ["leader 10"],
        ["leader 11"],
        ["leader 12"],
    ]
    assert [each.seconds for each in stall.pictures] == [15, 20, 22, 24]
    stall.seconds = 25.0
    assert stall.lines()[:3] == ["p4 took no write for 25 s", "  after 15 s:", "    leader 7"]


def test_what_clients_were_told_is_of_the_partition_and_of_now() -> None:
    """A refusal of a minute ago would be taken for the reason."""
    writes = [
        failed("old", call=1.0, outcome=Outcome.FAILED),
        failed("no leader", call=9.0, outcome=Outcome.UNKNOWN),
        failed("no leader", call=9.5, outcome=Outcome.UNKNOWN),
        failed("another's", call=9.5, partition=1, outcome=Outcome.UNKNOWN),
    ]

    assert refusals(writes, 0, 8.0) == ["clients were told 2 times: no leader"]


def test_a_measured_range_is_found_in_all_layouts() -> None:
    """Of a zone that is re-sharded the picture would show who has served before."""
    eight = dict.fromkeys(range(8), RECORD)
    twelve = {id_of(1, index): RECORD for index in range(12)}

    assert serving(4, 8, eight) == [4]
    assert serving(4, 8, eight | twelve) == [4, id_of(1, 6), id_of(1, 7)]
    assert serving(4, 8, twelve) == [id_of(1, 6), id_of(1, 7)]
    assert serving(4, 8, {}) == []


def test_a_picture_has_records_and_what_each_node_says_or_that_it_does_not() -> None:
    """Nobody would know which of them waits for which."""
    follower = ReplicaReport(
        partition=4, role=Role.FOLLOWER, leader=0, leader_epoch=3, partition_epoch=5, error="why"
    )
    other = ReplicaReport(
        partition=5, role=Role.LEADER, leader=1, leader_epoch=1, partition_epoch=1
    )
    report = NodeReport(
        node=1,
        zone_uid="u",
        version=1,
        coordinator_epoch=1,
        replicas=(follower, other),
        process_id="p",
        hears=(0, 2),
        leaving=True,
    )

    record, silent, said, replica = picture([4], {4: RECORD}, {1: report, 0: "no answer"})

    assert record.startswith("partition 4: leader=0")
    assert silent == "node 0 does not say: no answer"
    assert said == "node 1: hears [0, 2], leaves"
    assert replica.startswith("  has 4: role=Follower")
    assert replica.endswith("error=why")
