"""Which data nodes a zone has: by selector and by count, drained, taken back, lost."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import NOW

from rezone.domain.zone.data_nodes import (
    DataNodePlan,
    KubeNode,
    Presence,
    changed_ids,
    eligible_ids,
    placed,
    plan_data_nodes,
)
from rezone.resources.zone import DataNodesSpec
from rezone.resources.zone_status import DataNodeState, DataNodeStatus

LOST_AFTER = timedelta(seconds=300)
LABELS = {"pool": "fast", "topology.kubernetes.io/zone": "a"}
SELECTOR = DataNodesSpec(node_selector={"pool": "fast"})
COUNT = DataNodesSpec(count=2)


def kube(*names: str, **cordoned: bool) -> dict[str, KubeNode]:
    """Return Kubernetes nodes of the pool; keywords name cordoned ones."""
    wanted = dict.fromkeys(names, True) | {name: not off for name, off in cordoned.items()}
    return {n: KubeNode(name=n, schedulable=s, labels=LABELS) for n, s in wanted.items()}


def active(node: int, place: str, **changes: Any) -> DataNodeStatus:
    """Return a data node that is at work."""
    known = DataNodeStatus(
        id=node,
        pod_name=f"z-{node}",
        node_name=place,
        address=f"10.0.0.{node}:7400",
        state=DataNodeState.ACTIVE,
    )
    return known.model_copy(update=changes)


def there(place: str, **changes: Any) -> Presence:
    """Return what is seen of a data node that answers."""
    usual: dict[str, Any] = {
        "pod": True,
        "node_name": place,
        "address": "10.0.0.9:7400",
        "reachable": True,
    }
    return Presence(**(usual | changes))


def plan(
    spec: DataNodesSpec,
    current: tuple[DataNodeStatus, ...],
    nodes: dict[str, KubeNode],
    **more: Any,
) -> DataNodePlan:
    """Plan; all current nodes answer and hold partitions unless told otherwise."""
    usual: dict[str, Any] = {
        "zone": "z",
        "next_node_id": max([n.id for n in current], default=-1) + 1,
        "presence": {n.id: there(n.node_name) for n in current},
        "assigned": frozenset(n.id for n in current),
        "lost_after": LOST_AFTER,
        "now": NOW,
    }
    return plan_data_nodes(spec=spec, current=current, kube_nodes=nodes, **(usual | more))


def states(made: DataNodePlan) -> dict[int, str]:
    """Return the states by id."""
    return {n.id: n.state.value for n in made.nodes}


def test_selector_gives_each_matching_node_one_data_node() -> None:
    """A node of the pool would stay empty, or one outside it be used."""
    nodes = kube("a", "b") | {"c": KubeNode(name="c", schedulable=True, labels={"pool": "slow"})}
    made = plan(SELECTOR, (), nodes)
    assert [(n.id, n.pod_name, n.node_name) for n in made.nodes] == [
        (0, "z-0", "a"),
        (1, "z-1", "b"),
    ]
    assert made.next_node_id == 2
    assert {n.failure_domain for n in made.nodes} == {"a"}
    assert states(made) == {0: "Starting", 1: "Starting"}


def test_cordoned_node_is_left_out_from_the_start() -> None:
    """A pod would be pinned to a node that takes no pods."""
    assert [n.node_name for n in plan(SELECTOR, (), kube("a", b=True)).nodes] == ["a"]


def test_count_makes_as_many_as_asked_for() -> None:
    """A count would be missed; the scheduler and not we choose the places."""
    made = plan(COUNT, (), {})
    assert [(n.id, n.node_name) for n in made.nodes] == [(0, ""), (1, "")]
    assert plan(COUNT, made.nodes, {}, presence={}, assigned=frozenset()) == made


def test_a_smaller_count_drains_the_newest() -> None:
    """The oldest data nodes, which hold most, would be emptied."""
    current = tuple(active(n, f"n{n}") for n in range(3))
    made = plan(COUNT, current, kube("n0", "n1", "n2"))
    assert states(made) == {0: "Active", 1: "Active", 2: "Draining"}


@pytest.mark.parametrize("spec", [SELECTOR, COUNT], ids=["selector", "count"])
def test_cordon_drains_and_uncordon_takes_it_back(spec: DataNodesSpec) -> None:
    """A cordoned node would keep its partitions, or an uncordoned one go on losing them."""
    current = (active(0, "a"), active(1, "b"))
    drained = plan(spec, current, kube("b", a=True))
    assert states(drained)[0] == "Draining"
    assert states(drained)[1] == "Active"
    assert 0 not in eligible_ids(drained.nodes)
    back = plan(spec, drained.nodes, kube("a", "b"), next_node_id=drained.next_node_id)
    # By count a substitute was made meanwhile: it is the newest and goes again.
    assert states(back)[0] == "Active"
    assert states(back)[1] == "Active"


def test_an_evicted_pod_that_came_back_elsewhere_goes_on_draining() -> None:
    """It would be wanted again, and its substitute, which has its data, be drained in turn."""
    drained = plan(COUNT, (active(0, "a"), active(1, "b")), kube("b", a=True))
    seen = {
        node: Presence(node_name=place, address="x", reachable=True)
        for node, place in ((0, "c"), (1, "b"), (2, "d"))
    }
    nodes = kube("b", "c", "d", a=True)
    for _ in range(2):
        drained = plan(
            COUNT, drained.nodes, nodes, presence=seen, next_node_id=drained.next_node_id
        )
        assert states(drained) == {0: "Draining", 1: "Active", 2: "Active"}


def test_count_replaces_a_cordoned_node() -> None:
    """A drain would have nowhere to go to."""
    made = plan(COUNT, (active(0, "a"), active(1, "b")), kube("b", a=True))
    assert states(made) == {0: "Draining", 1: "Active", 2: "Starting"}


@pytest.mark.parametrize(
    "gone",
    [kube("b"), kube("b") | {"a": KubeNode(name="a", schedulable=True, labels={"pool": "slow"})}],
    ids=["deleted", "relabelled"],
)
def test_node_that_left_the_pool_drains(gone: dict[str, KubeNode]) -> None:
    """A data node would stay where the zone may no longer live."""
    made = plan(SELECTOR, (active(0, "a"), active(1, "b")), gone)
    assert states(made) == {0: "Draining", 1: "Active"}


def test_drained_node_goes_when_nothing_is_left_of_it() -> None:
    """A data node would go while it holds partitions, while its pod runs, or never."""
    current = (active(0, "a"), active(1, "b"))
    nodes = kube("b")
    held = plan(SELECTOR, current, nodes, assigned=frozenset({0, 1}), presence={1: there("b")})
    assert 0 in states(held), "partitions are assigned to it"
    empty = plan(SELECTOR, current, nodes, assigned=frozenset({1}))
    assert states(empty)[0] == "Draining", "its pod is still there"
    gone = plan(SELECTOR, current, nodes, assigned=frozenset({1}), presence={1: there("b")})
    assert states(gone) == {1: "Active"}


def test_silent_node_is_lost_after_its_time_and_replaced() -> None:
    """A dead node would be waited for for ever, or given up at the first hiccup."""
    current = (active(0, "a"), active(1, "b"))
    nodes = kube("a", "b")

    def silent(seconds: float) -> DataNodePlan:
        since = NOW - timedelta(seconds=seconds)
        presence = {0: there("a", reachable=False, unreachable_since=since), 1: there("b")}
        return plan(SELECTOR, current, nodes, presence=presence)

    assert states(silent(299)) == {0: "Active", 1: "Active"}
    lost = silent(300)
    assert states(lost) == {0: "Lost", 1: "Active", 2: "Starting"}
    assert next(n for n in lost.nodes if n.id == 2).node_name == "a"


@pytest.mark.proves("NW-02")
def test_a_node_that_others_hear_is_not_lost_however_long_the_operator_does_not() -> None:
    """All that it holds would be copied again, because of the operator's own network."""
    nodes = (active(0, "a"), active(1, "b"))
    since = NOW - 2 * LOST_AFTER
    silent = there("b", reachable=False, unreachable_since=since, heard=True)
    after = plan(SELECTOR, nodes, kube("a", "b"), presence={0: there("a"), 1: silent})
    assert states(after) == {0: "Active", 1: "Active"}


def test_lost_node_stays_lost_until_it_answers() -> None:
    """A restart of the operator would make a lost node count again; a return would go unseen."""
    current = (active(0, "a", state=DataNodeState.LOST), active(1, "b"))
    unknown = {0: Presence(node_name="a"), 1: there("b")}
    assert states(plan(SELECTOR, current, kube("a", "b"), presence=unknown))[0] == "Lost"
    assert states(plan(SELECTOR, current, kube("a", "b")))[0] == "Active"


def test_starting_node_becomes_active_when_it_answers() -> None:
    """Partitions would be placed on a node that never came up, or never on any."""
    first = plan(SELECTOR, (), kube("a"))
    still = plan(SELECTOR, first.nodes, kube("a"), presence={0: Presence(node_name="a")})
    assert states(still) == {0: "Starting"}
    assert eligible_ids(still.nodes) == frozenset()
    up = plan(SELECTOR, first.nodes, kube("a"), presence={0: there("a")})
    assert states(up) == {0: "Active"}
    assert up.nodes[0].address == "10.0.0.9:7400"


def test_a_pod_that_was_never_scheduled_is_not_forgotten() -> None:
    """Evicted, made again and unschedulable on its cordoned node, it would run again after that."""
    pending = {0: Presence(pod=True), 1: there("b")}
    current = (active(0, "a"), active(1, "b"))
    made = plan(SELECTOR, current, kube("b", a=True), presence=pending, assigned=frozenset({1}))
    assert states(made) == {0: "Draining", 1: "Active"}
    gone = plan(
        SELECTOR, made.nodes, kube("b", a=True), presence={1: there("b")}, assigned=frozenset({1})
    )
    assert states(gone) == {1: "Active"}


def test_known_place_and_address_outlive_the_pod() -> None:
    """A restarting pod would lose its domain and its address, and the planner its picture."""
    made = plan(
        SELECTOR, (active(0, "a", failure_domain="a"),), kube("a"), presence={0: Presence()}
    )
    node = made.nodes[0]
    assert (node.node_name, node.address, node.failure_domain) == ("a", "10.0.0.0:7400", "a")


POOL = ("a", "b", "c", "d")


@given(
    st.lists(st.sets(st.sampled_from(POOL)), min_size=1, max_size=8),
    st.booleans(),
)
def test_ids_are_never_used_again(history: list[set[str]], by_selector: bool) -> None:
    """A replica of the past would be taken for one of a new data node (ZR-03)."""
    spec = SELECTOR if by_selector else DataNodesSpec(count=3)
    current: tuple[DataNodeStatus, ...] = ()
    next_id, given_out = 0, set[int]()
    for names in history:
        before = {n.id for n in current}
        made = plan(
            spec,
            current,
            kube(*names),
            next_node_id=next_id,
            presence={},
            assigned=frozenset(),
        )
        fresh = {n.id for n in made.nodes} - before
        assert not fresh & given_out
        assert all(n.id < made.next_node_id for n in made.nodes)
        given_out |= fresh
        current, next_id = made.nodes, made.next_node_id


@given(st.sets(st.sampled_from(POOL)), st.frozensets(st.integers(0, 3)))
def test_assigned_ids_stay(names: set[str], assigned: frozenset[int]) -> None:
    """A data node would vanish from the status while routes still name it."""
    current = tuple(active(n, POOL[n]) for n in range(4))
    made = plan(SELECTOR, current, kube(*names), presence={}, assigned=assigned)
    assert assigned <= {n.id for n in made.nodes}


def relabelled(**labels: str) -> dict[str, KubeNode]:
    """Return the Kubernetes node "a" with other labels."""
    return {"a": KubeNode(name="a", schedulable=True, labels=LABELS | labels)}


@pytest.mark.parametrize(
    ("label", "weight"),
    [
        ("3", 3),
        ("1000", 1000),
        ("0", 1),
        ("1001", 1),
        ("2.5", 1),
        ("-1", 1),
        ("\u0663", 1),
        ("", 1),
    ],
)
def test_weight_is_a_label_of_the_kubernetes_node(label: str, weight: int) -> None:
    """A misspelt weight would stop the operator, or make a node hold everything."""
    nodes = {
        "a": KubeNode(name="a", schedulable=True, labels=LABELS | {"rezone.dev/weight": label})
    }
    (new,) = plan(SELECTOR, (), nodes).nodes
    (known,) = plan(SELECTOR, (active(0, "a", weight=7),), nodes).nodes
    assert (new.weight, known.weight) == (weight, weight)


def test_a_kubernetes_node_that_is_away_keeps_its_weight() -> None:
    """Each short absence of a node would move its partitions to others and back."""
    (found,) = plan(COUNT, (active(0, "a", weight=7), active(1, "b")), {}).nodes[:1]
    assert found.weight == 7


@pytest.mark.proves("ZR-03")
def test_a_change_counts_from_the_assignment_on() -> None:
    """A relabelled node would not be noticed, or be noticed for ever."""
    first = placed(plan(SELECTOR, (active(0, "a"),), relabelled()).nodes, again=False)
    assert changed_ids(first) == frozenset()
    for labels in ({"rezone.dev/weight": "2"}, {"topology.kubernetes.io/zone": "b"}):
        nodes = plan(SELECTOR, first, relabelled(**labels)).nodes
        assert changed_ids(placed(nodes, again=False)) == {0}
        assert changed_ids(placed(nodes, again=True)) == frozenset()
        back = plan(SELECTOR, nodes, relabelled()).nodes
        assert changed_ids(back) == frozenset()
