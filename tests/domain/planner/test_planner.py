"""The planner: what must hold of every plan, the lower bound, and the optimum by trying all."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_reference import bounds, fewest_copies, fewest_leader_changes, sets_of_nodes

from rezone.domain.planner import plan as planner
from rezone.domain.planner.plan import (
    Goal,
    LeaderMove,
    Move,
    NodeInfo,
    NotPlaceableError,
    Plan,
    PlanRequest,
    Why,
    described,
    plan,
    reasons_of,
)
from rezone.resources.task import RANGES_MAX, PartitionRange


def nodes(count: int, domains: int = 1, weights: tuple[int, ...] = (1,)) -> tuple[NodeInfo, ...]:
    """Return nodes dealt out to domains and weights in turn."""
    return tuple(
        NodeInfo(id=i, failure_domain=f"zone-{i % domains}", weight=weights[i % len(weights)])
        for i in range(count)
    )


def without(given: tuple[NodeInfo, ...], *gone: int) -> tuple[NodeInfo, ...]:
    """Return the nodes with some of them unavailable."""
    return tuple(dataclasses.replace(n, available=n.id not in gone) for n in given)


def frozen(given: tuple[NodeInfo, ...], *which: int) -> tuple[NodeInfo, ...]:
    """Return the nodes, some of which keep what they have and get nothing."""
    return tuple(dataclasses.replace(n, frozen=n.id in which) for n in given)


def placed(partitions: int, replicas: int, given: tuple[NodeInfo, ...]) -> PlanRequest:
    """Return the request for a zone that was placed on these nodes and has not changed."""
    request = PlanRequest(partitions=partitions, replicas=replicas, nodes=given)
    return dataclasses.replace(request, current=plan(request).target)


def check(request: PlanRequest, made: Plan) -> None:
    """Check all that must hold of a plan for the whole zone."""
    allowed = set(sets_of_nodes(request))
    pinned = request.pinned
    assert len(made.target) == request.partitions
    for partition, row in enumerate(made.target):
        assert len(set(row)) == len(row) == request.replicas
        assert partition in pinned or frozenset(row) in allowed, (partition, row)
    if not pinned:
        held = Counter(node for row in made.target for node in row)
        for node, (low, high) in bounds(request).items():
            assert low <= held[node] <= high, (node, held[node], low, high)
    check_moves(request, made)


def check_moves(request: PlanRequest, made: Plan) -> None:
    """Check that the moves lead from the current assignment to the target, and their number."""
    source = request.current or ((),) * request.partitions
    rows = [set(row) for row in source]
    for move in made.moves:
        assert not rows[move.partition] & set(move.added)
        rows[move.partition] -= set(move.removed)
        rows[move.partition] |= set(move.added)
    assert rows == [set(row) for row in made.target]
    assert made.copies == sum(len(move.added) for move in made.moves)
    assert made.copies >= made.lower_bound
    leaders = list(request.leaders or (row[0] if row else None for row in source))
    for change in made.leader_moves:
        assert leaders[change.partition] == change.source
        leaders[change.partition] = change.target


ZONES = [(24, 3, 6, 1), (64, 3, 9, 3), (100, 2, 7, 4), (60, 3, 10, 10), (50, 5, 8, 2), (7, 1, 3, 1)]

# --- first placement ----------------------------------------------------------------------------


@pytest.mark.proves("B-02")
@pytest.mark.parametrize(("partitions", "replicas", "count", "domains"), ZONES)
@pytest.mark.parametrize("weights", [(1,), (1, 2, 3)])
def test_the_first_placement_is_even(
    partitions: int, replicas: int, count: int, domains: int, weights: tuple[int, ...]
) -> None:
    """A new zone would start with hot nodes, or two replicas in one failure domain."""
    given = nodes(count, domains, weights)
    request = PlanRequest(partitions=partitions, replicas=replicas, nodes=given)
    made = plan(request)
    check(request, made)
    assert made.copies == made.lower_bound == partitions * replicas
    assert made.before is None
    assert {move.why for move in made.moves} == {Why.INITIAL}
    if weights == (1,):
        led = Counter(row[0] for row in made.target)
        assert max(led.values()) - min(led[node.id] for node in given) <= 1
        by_domain = Counter(f"zone-{row[0] % domains}" for row in made.target)
        in_domain = Counter(node.failure_domain for node in given)
        shares = [by_domain[name] / in_domain[name] for name in in_domain]
        assert max(shares) - min(shares) <= 1


@pytest.mark.proves("B-02")
def test_a_lost_node_s_load_falls_on_many_others() -> None:
    """If the same nodes shared all their partitions, few would carry a lost one's whole load."""
    made = plan(PlanRequest(partitions=600, replicas=3, nodes=nodes(30, 3)))
    partners = {node for row in made.target if 0 in row for node in row} - {0}
    assert len(partners) == 20  # all nodes of the other two domains


# --- ordinary changes: exactly the lower bound -------------------------------------------------


@pytest.mark.proves("B-02")
@pytest.mark.parametrize(("partitions", "replicas", "count", "domains"), ZONES)
def test_nothing_moves_when_nothing_has_changed(
    partitions: int, replicas: int, count: int, domains: int
) -> None:
    """Every restart of the coordinator would move data."""
    request = placed(partitions, replicas, nodes(count, domains))
    made = plan(request)
    assert (made.copies, made.moves, made.leader_moves) == (0, (), ())
    assert made.target == request.current


@pytest.mark.proves("B-02")
@pytest.mark.parametrize(("partitions", "replicas", "count", "domains"), ZONES)
@pytest.mark.parametrize("weights", [(1,), (1, 2)])
def test_an_added_node_gets_its_share_and_nothing_else_moves(
    partitions: int, replicas: int, count: int, domains: int, weights: tuple[int, ...]
) -> None:
    """Scaling out would copy more than the new node holds."""
    before = placed(partitions, replicas, nodes(count, domains, weights))
    request = dataclasses.replace(before, nodes=nodes(count + 1, domains, weights))
    made = plan(request)
    check(request, made)
    assert made.copies == made.lower_bound
    if weights == (1,):
        assert {node for move in made.moves for node in move.added} <= {count}


@pytest.mark.proves("B-02")
@pytest.mark.parametrize(("partitions", "replicas", "count", "domains"), ZONES)
@pytest.mark.parametrize("goal", [Goal.BALANCE, Goal.DRAIN])
def test_a_node_that_goes_costs_what_it_held(
    partitions: int, replicas: int, count: int, domains: int, goal: Goal
) -> None:
    """Losing a node would move partitions that it never held."""
    before = placed(partitions, replicas, nodes(count, domains))
    request = dataclasses.replace(before, nodes=without(before.nodes, 1), goal=goal)
    made = plan(request)
    check_moves(request, made)
    assert made.copies == made.lower_bound
    assert not any(1 in row for row in made.target)
    if goal is Goal.DRAIN:
        held = sum(1 in row for row in before.current or ())
        assert made.copies == held
        assert {move.removed for move in made.moves} == {(1,)}
        assert {move.why for move in made.moves} == {Why.NODE_UNAVAILABLE}
    else:
        check(request, made)


@pytest.mark.proves("B-07")
def test_a_drain_leaves_alone_what_is_uneven_besides() -> None:
    """Draining one node for maintenance would rebalance the whole zone."""
    current = ((0, 1), (0, 1), (0, 1), (0, 2))
    request = PlanRequest(partitions=4, replicas=2, nodes=nodes(4), current=current)
    made = plan(planner.drain(request, [2]))
    check_moves(request, made)
    assert [(move.partition, move.removed) for move in made.moves] == [(3, (2,))]
    assert made.target[:3] == current[:3]
    assert made.moves[0].added == (3,)
    assert made.leader_moves == ()


@pytest.mark.proves("ZR-01")
@pytest.mark.parametrize("replicas", [1, 2, 4, 5])
def test_more_or_fewer_replicas_cost_only_the_difference(replicas: int) -> None:
    """A change of the replica count would copy partitions that have enough already."""
    request = dataclasses.replace(placed(60, 3, nodes(10, 5)), replicas=replicas)
    made = plan(request)
    check(request, made)
    assert made.copies == max(0, replicas - 3) * 60
    assert {move.why for move in made.moves} == {Why.REPLICA_COUNT}


@pytest.mark.proves("B-02")
def test_two_replicas_in_one_domain_are_parted() -> None:
    """The loss of one domain would take two of three replicas."""
    current = ((0, 3, 1), (1, 2, 0), (2, 1, 3))
    request = PlanRequest(partitions=3, replicas=3, nodes=nodes(6, 3), current=current)
    made = plan(request)
    check(request, made)
    assert made.before is not None
    assert made.before.domain_conflicts == 1
    assert made.after.domain_conflicts == 0
    assert next(move.why for move in made.moves if move.partition == 0) is Why.FAILURE_DOMAIN


# --- nodes that are left alone ------------------------------------------------------------------


def rows_of(node: int, made: Sequence[Sequence[int]]) -> set[int]:
    """Return the partitions that a node holds."""
    return {partition for partition, row in enumerate(made) if node in row}


@pytest.mark.parametrize(("count", "domains"), [(6, 1), (6, 3), (9, 3)])
def test_a_frozen_node_keeps_what_it_has_and_gets_nothing(count: int, domains: int) -> None:
    """Only what was on the drained node moves, and nothing to or from the frozen one.

    A node that reboots would be copied away, or be sent rows that it cannot take.
    """
    request = placed(30, 3, nodes(count, domains))
    current = request.current or ()
    made = plan(dataclasses.replace(request, nodes=frozen(without(request.nodes, 0), 1)))
    assert rows_of(1, made.target) == rows_of(1, current)
    assert rows_of(0, made.target) == set()
    assert made.copies == len(rows_of(0, current))
    assert all(row[0] != 1 for row in made.target)
    assert all(len(set(row)) == 3 for row in made.target)


def test_a_frozen_node_that_leaves_a_domain_alone_breaks_no_plan() -> None:
    """A partition gets its third replica in a domain that it has, when the third domain is frozen.

    The drain would end the pass with an error, or wait for the node that is away.
    """
    given_nodes = tuple(NodeInfo(id=i, failure_domain=d) for i, d in enumerate("abcabc"))
    request = placed(8, 3, given_nodes)
    made = plan(dataclasses.replace(request, nodes=frozen(without(given_nodes, 2), 5)))
    assert rows_of(2, made.target) == set()
    assert rows_of(5, made.target) == rows_of(5, request.current or ())
    assert all(len(set(row)) == 3 for row in made.target)


def test_too_few_nodes_beside_frozen_ones_are_told() -> None:
    """A plan that needs a frozen node is refused with the reason.

    The pass would end with an error of the search.
    """
    request = placed(4, 3, nodes(4))
    with pytest.raises(NotPlaceableError, match="frozen"):
        plan(dataclasses.replace(request, nodes=frozen(without(request.nodes, 0), 3)))


def test_a_frozen_node_is_given_no_leaders() -> None:
    """Leaders are evened out over the nodes that are there.

    Leaders would be moved to a node that is about to stop.
    """
    request = planner.leaders_only(placed(12, 3, nodes(4)))
    made = plan(dataclasses.replace(request, nodes=frozen(request.nodes, 1)))
    assert Counter(row[0] for row in made.target) == {0: 4, 2: 4, 3: 4}


# --- the optimum, by trying all -----------------------------------------------------------------


@st.composite
def tiny_requests(draw: st.DrawFn) -> PlanRequest:
    """Return requests of a few partitions, from any assignment, however bad."""
    count = draw(st.integers(1, 6))
    domains = draw(st.integers(1, count))
    heaviest = draw(st.sampled_from([1, 1, 3]))
    given_nodes = tuple(
        NodeInfo(
            id=i,
            weight=draw(st.integers(1, heaviest)),
            failure_domain=str(draw(st.integers(0, domains - 1))),
            available=draw(st.integers(0, 6)) > 0,
        )
        for i in range(count)
    )
    row = st.lists(st.integers(0, count), min_size=1, max_size=min(4, count), unique=True)
    current = draw(st.lists(row.map(tuple), min_size=1, max_size=6 if count < 6 else 4))
    return PlanRequest(
        partitions=len(current),
        replicas=draw(st.integers(1, min(4, count))),
        nodes=given_nodes,
        current=tuple(current),
    )


@pytest.mark.slow
@pytest.mark.proves("B-02")
@settings(max_examples=300, deadline=None)
@given(request_=tiny_requests())
def test_no_assignment_within_the_rules_needs_fewer_copies(request_: PlanRequest) -> None:
    """The planner would copy data for nothing; or its lower bound would be a false promise."""
    available = [node.id for node in request_.nodes if node.available]
    if len(available) < request_.replicas:
        with pytest.raises(NotPlaceableError):
            plan(request_)
        return
    made = plan(request_)
    check(request_, made)
    assert made.copies == fewest_copies(request_)
    if {node.weight for node in request_.nodes} == {1}:
        current = request_.current or ()
        leaders = tuple(row[0] for row in current)
        fewest = fewest_leader_changes(made.target, leaders, tuple(available))
        changed = sum(
            leader in row and leader != row[0]
            for leader, row in zip(leaders, made.target, strict=True)
        )
        if fewest is not None:
            assert made.after.leaders_off == 0
            assert changed == fewest


@st.composite
def zone_histories(draw: st.DrawFn) -> list[PlanRequest]:
    """Return a zone's requests, one after the other: nodes come, go, and are drained."""
    count = draw(st.integers(3, 12))
    domains = draw(st.integers(1, 5))
    replicas = draw(st.integers(1, 3))
    partitions = draw(st.integers(1, 80))
    requests = []
    for _ in range(draw(st.integers(2, 4))):
        gone = draw(st.sets(st.integers(0, count - 1), max_size=count - 3))
        given_nodes = without(nodes(count, domains), *gone)
        requests.append(PlanRequest(partitions=partitions, replicas=replicas, nodes=given_nodes))
        count += draw(st.integers(0, 2))
    return requests


@pytest.mark.slow
@pytest.mark.proves("B-02")
@settings(max_examples=60, deadline=None)
@given(history=zone_histories())
def test_a_zone_s_life_of_changes_stays_within_the_rules(history: list[PlanRequest]) -> None:
    """Plans would be right from a fresh placement and wrong from what earlier plans left."""
    current = None
    for step in history:
        request = dataclasses.replace(step, current=current)
        made = plan(request)
        check(request, made)
        # Domains and shares together can force a few more; where they force many, exactly those.
        few = made.lower_bound + max(2, made.lower_bound // 4)
        assert made.copies <= few or made.copies == fewest_copies(request)
        current = made.target


# --- leaders ------------------------------------------------------------------------------------


@pytest.mark.proves("B-02")
def test_leaders_only_evens_leaders_and_copies_nothing() -> None:
    """A rebalance of leaders would move data."""
    request = placed(60, 3, nodes(6, 3))
    piled = tuple(min(row) for row in request.current or ())
    made = plan(planner.leaders_only(dataclasses.replace(request, leaders=piled)))
    assert (made.copies, made.lower_bound, made.moves) == (0, 0, ())
    led = Counter(row[0] for row in made.target)
    assert set(led.values()) == {10}
    # The fewest changes: just what is over.
    over = sum(max(0, count - 10) for count in Counter(piled).values())
    assert len(made.leader_moves) == over
    assert [set(row) for row in made.target] == [set(row) for row in request.current or ()]


@pytest.mark.proves("B-02")
def test_no_node_leads_more_than_its_share_rounded_up() -> None:
    """A node would lead two partitions more than another one because nothing has to move then."""
    request = placed(63, 3, nodes(6, 3))
    piled = tuple(min(row) for row in request.current or ())
    made = plan(planner.leaders_only(dataclasses.replace(request, leaders=piled)))
    assert set(Counter(row[0] for row in made.target).values()) == {10, 11}


@pytest.mark.proves("B-02")
def test_leaders_that_cannot_be_even_are_as_even_as_their_replicas_allow() -> None:
    """The planner would fail, or pile leaders on one node, where replicas are uneven."""
    current = ((0, 1),) * 6 + ((2, 3),) * 2
    request = PlanRequest(partitions=8, replicas=2, nodes=nodes(4), current=current)
    made = plan(planner.leaders_only(request))
    assert Counter(row[0] for row in made.target) == {0: 3, 1: 3, 2: 1, 3: 1}
    assert made.after.leaders_off == 1


def test_a_partition_without_an_available_replica_keeps_its_leader() -> None:
    """Leaders could not be evened out while one partition is down."""
    request = PlanRequest(
        partitions=2, replicas=1, nodes=without(nodes(2), 1), current=((1,), (0,))
    )
    made = plan(planner.leaders_only(request))
    assert made.target == ((1,), (0,))
    assert made.leader_moves == ()


def test_weights_share_leaders_too() -> None:
    """A node of double size would do half of what it could."""
    request = PlanRequest(partitions=90, replicas=3, nodes=nodes(6, 1, (1, 2)))
    led = Counter(row[0] for row in plan(request).target)
    assert [led[i] for i in range(6)] == [10, 20, 10, 20, 10, 20]


# --- explicit moves and pins --------------------------------------------------------------------


def test_explicit_moves_change_exactly_what_they_name() -> None:
    """A request to put partition 1 on node 3 would move other partitions."""
    request = PlanRequest(
        partitions=3, replicas=2, nodes=nodes(4), current=((0, 1), (0, 1), (0, 1))
    )
    made = plan(planner.explicit_moves(request, {1: (3, 0)}))
    assert made.target == ((0, 1), (3, 0), (0, 1))
    assert made.moves == (Move(1, (3,), (1,), Why.PINNED),)
    assert made.leader_moves == (LeaderMove(1, 0, 3),)
    assert made.copies == made.lower_bound == 1


def test_a_pinned_partition_stays_as_a_person_wants_it() -> None:
    """A rebalance would undo what was asked for by hand."""
    request = dataclasses.replace(placed(40, 2, nodes(5)), pinned={7: (4, 3), 8: (4, 3)})
    request = dataclasses.replace(request, nodes=nodes(6))
    made = plan(request)
    check(request, made)
    assert made.target[7] == made.target[8] == (4, 3)
    held = Counter(node for row in made.target for node in row)
    assert max(held.values()) - min(held.values()) <= 1


# --- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"nodes": nodes(2)},
            "3 replicas need 3 data nodes, there are 2: add data nodes or lower replicas",
        ),
        ({"nodes": without(nodes(4), 0, 1, 2)}, "3 data nodes, there is 1:"),
        ({"nodes": ()}, "there is no available data node"),
        ({"pinned": {0: (0, 1)}}, "partition 0 needs 3 distinct data nodes"),
        ({"pinned": {0: (0, 1, 1)}}, "partition 0 needs 3 distinct"),
        ({"pinned": {1: (0, 1, 9)}}, "partition 1 cannot go to node 9, which is not available"),
    ],
)
def test_what_cannot_be_placed_is_answered_with_what_to_do(
    changes: dict[str, Any], says: str
) -> None:
    """A person would be left with a zone that does nothing and does not say why."""
    request = PlanRequest(partitions=4, replicas=3, nodes=nodes(4))
    with pytest.raises(NotPlaceableError, match=says):
        plan(dataclasses.replace(request, **changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": 0},
        {"replicas": 8},
        {"nodes": (*nodes(4), NodeInfo(id=0))},
        {"nodes": (*nodes(4), NodeInfo(id=9, weight=0))},
        {"current": ((0, 1, 2),)},
        {"leaders": (0,)},
        {"partition_bytes": (1, 2)},
        {"goal": Goal.DRAIN},
        {"pinned": {4: (0, 1, 2)}},
    ],
)
def test_a_request_that_contradicts_itself_is_an_error(changes: dict[str, Any]) -> None:
    """A mistake of the caller would become a plan."""
    request = PlanRequest(partitions=4, replicas=3, nodes=nodes(4))
    with pytest.raises(ValueError, match=r"\S"):
        plan(dataclasses.replace(request, **changes))


# --- the same plan ------------------------------------------------------------------------------


@pytest.mark.proves("B-01")
def test_equal_requests_give_equal_plans() -> None:
    """The executed plan would not be the approved one."""
    request = dataclasses.replace(placed(64, 3, nodes(9, 3)), nodes=nodes(12, 3), revision=5)
    turned = dataclasses.replace(request, nodes=request.nodes[::-1])
    assert plan(request) == plan(request) == plan(turned)


@pytest.mark.proves("B-01")
def test_the_hash_names_source_target_and_revision() -> None:
    """An approval would hold for another plan, or be refused for the same one."""
    request = dataclasses.replace(placed(8, 2, nodes(3)), revision=5)
    made = plan(request)
    assert made.hash == plan(request).hash
    other = dataclasses.replace(request, revision=6)
    assert made.hash != plan(other).hash
    moved = dataclasses.replace(request, nodes=nodes(4))
    assert made.hash != plan(moved).hash
    first = PlanRequest(partitions=1, replicas=1, nodes=nodes(1))
    # Stored in approvals: a change of the text that is hashed makes them all stale.
    assert plan(first).hash == ("30cf28d4e1d70c23ee760ee4d27aa6e026d79133db7ffe7ac7192e299381d75c")


@pytest.mark.proves("B-02")
def test_of_two_partitions_the_smaller_moves() -> None:
    """Gigabytes would be copied where megabytes do."""
    sizes = tuple(10**9 if p % 2 else 10**6 for p in range(60))
    request = placed(60, 1, nodes(3))
    request = dataclasses.replace(request, nodes=nodes(4), partition_bytes=sizes)
    made = plan(request)
    assert made.bytes_moved == made.copies * 10**6


@pytest.mark.slow
@pytest.mark.proves("B-02")
def test_a_zone_of_full_size_is_planned() -> None:
    """16,384 partitions on 1,000 nodes, one added and one lost: the numbers of the promise."""
    before = placed(16_384, 3, nodes(1000, 10))
    added = plan(dataclasses.replace(before, nodes=nodes(1001, 10)))
    assert added.copies == added.lower_bound == 49
    lost = plan(dataclasses.replace(before, nodes=without(before.nodes, 500)))
    assert lost.copies == lost.lower_bound == 49
    for made in (added, lost):
        assert (made.after.replicas_off, made.after.leaders_off) == (0, 0)
        assert (made.after.domain_conflicts, made.after.missing) == (0, 0)


@pytest.mark.proves("B-01")
def test_a_plan_tells_the_reason_of_each_move_in_a_bounded_size() -> None:
    """Reasons name all moved partitions by ranges, the first thousand, and count all of them.

    Otherwise a person would approve a plan without knowing why, or the status be too large.
    """
    given = nodes(4)
    moves = plan(dataclasses.replace(placed(64, 3, given), nodes=without(given, 3))).moves
    (told,) = reasons_of(moves)
    assert (told.reason, told.partitions) == (Why.NODE_UNAVAILABLE, len(moves))
    named = [p for r in told.ranges for p in range(r.first, r.last + 1)]
    assert named == [move.partition for move in moves]
    every_other = [Move(p, (1,), (0,), Why.BALANCE) for p in range(0, 16_384, 2)]
    (told,) = reasons_of(every_other)
    assert (told.partitions, len(told.ranges)) == (8192, RANGES_MAX)
    (told,) = reasons_of([Move(p, (1,), (0,), Why.BALANCE) for p in range(16_384)])
    assert told.ranges == (PartitionRange(first=0, last=16_383),)


def test_a_plan_that_was_decided_before_is_described_as_it_is() -> None:
    """The moves, hash and costs of a decided target are its own, not those of today's best plan.

    Otherwise a task of the operator's would show another plan than it carries out.
    """
    request = placed(8, 2, nodes(4))
    assert request.current is not None
    best = plan(request)
    assert best.moves == ()
    free = next(n for n in range(4) if n not in request.current[0])
    target = ((request.current[0][0], free), *request.current[1:])
    sized = dataclasses.replace(request, partition_bytes=(7,) * 8)
    made = described(sized, target, best)
    assert (made.target, made.copies, made.bytes_moved) == (target, 1, 7)
    assert [move.partition for move in made.moves] == [0]
    assert made.leader_moves == ()
    assert made.hash not in {best.hash, ""}
