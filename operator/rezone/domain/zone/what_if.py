"""The plan that would be made for a zone if something changed: nodes, replicas, partitions.

The change is made in a copy of the zone's state, and the planner is asked as a pass asks it
(`planning`). That a change has to last for a while before a plan is made of it does not count here.
"""

import dataclasses
from datetime import datetime

from rezone.domain.assignment import assignments
from rezone.domain.observed.maintenance import kept_ids
from rezone.domain.planner.plan import PlanRequest, plan
from rezone.domain.planner.types import Move
from rezone.domain.resharding.plan import plan_resharding
from rezone.domain.routing.topology_text import Topology
from rezone.domain.zone.data_nodes import eligible_ids, planner_nodes
from rezone.domain.zone.planning import PARTITION_BYTES_TAKEN, leaders_of, old_zone
from rezone.domain.zone.triggers import Trigger, find_due, usable_ids, wants_partitions
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    WEIGHT_MAX,
    Assignment,
    Assignments,
    DataNodeState,
    DataNodeStatus,
    DistributionZoneStatus,
)
from rezone.wire.layouts import Layout
from rezone.wire.messages import NodeId

ADDED_MAX = 1024


@dataclasses.dataclass(frozen=True)
class Joining:
    """A data node that would join. Raises ValueError for a weight out of its range."""

    failure_domain: str = ""
    weight: int = 1

    def __post_init__(self) -> None:
        """Check the weight."""
        if not 1 <= self.weight <= WEIGHT_MAX:
            raise ValueError(f"a data node's weight is 1 to {WEIGHT_MAX}, not {self.weight}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """What would change; None leaves a number as it is."""

    without: frozenset[NodeId] = frozenset()
    added: tuple[Joining, ...] = ()
    replicas: int | None = None
    partitions: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """The plan that would be made.

    `base` names the assignment key that it starts from, empty when there is none; `before` is that
    assignment, and `leaders` lead it now. `trigger` is why a plan is made, empty when none is:
    what differs needs none, or waits for a lost data node. `partitions_copied` counts what is
    copied in partitions of `before`, so that bytes follow from their size. `moves` are empty for
    a re-sharding.
    """

    base: str
    before: Topology
    leaders: tuple[NodeId, ...]
    target: Topology
    nodes: tuple[DataNodeStatus, ...]
    replicas: int
    trigger: str = ""
    resharding: bool = False
    copies: int = 0
    copies_lower_bound: int = 0
    partitions_copied: float = 0.0
    leader_moves: int = 0
    domain_conflicts: int = 0
    moves: tuple[Move, ...] = ()


def answer(
    zone: DistributionZone, leaders: tuple[NodeId, ...], question: Question, now: datetime
) -> Answer:
    """Return the plan for a zone after a change; `leaders` are those of its stable partitions.

    Raises NotPlaceableError when no assignment is possible, ValueError for a question that
    contradicts the zone.
    """
    status = zone.status if zone.status is not None else DistributionZoneStatus()
    nodes = _changed(zone.metadata.name, status, question)
    replicas = question.replicas or zone.spec.replicas
    keys, wanted = status.assignments, question.partitions or zone.spec.partitions
    if wants_partitions(keys, wanted):
        return _resharded(keys, leaders, nodes, replicas, wanted)
    base, newest = _newest(keys)
    if newest is None:
        return _placed(_ready(nodes), replicas, wanted)
    before = assignments.parse(newest.replicas)
    leaders_now = leaders_of(keys, newest, leaders)
    adjust = zone.spec.data_nodes.auto_adjust.model_copy(update={"scale_up_seconds": 0})
    due = find_due(before, nodes, adjust, replicas=replicas, now=now)
    answered = Answer(
        base=base,
        trigger=due.trigger or "",
        before=before,
        leaders=leaders_now or tuple(row[0] for row in before),
        target=before,
        nodes=nodes,
        replicas=replicas,
    )
    if due.trigger is None:
        return answered
    eligible = usable_ids(nodes, before, frozenset())
    request = PlanRequest(
        partitions=len(before),
        replicas=replicas,
        nodes=planner_nodes(nodes, eligible, due.frozen),
        current=before,
        leaders=leaders_now,
    )
    made = plan(request)
    if made.target == before:
        return answered
    return dataclasses.replace(
        answered,
        target=made.target,
        copies=made.copies,
        copies_lower_bound=made.lower_bound,
        partitions_copied=float(made.copies),
        leader_moves=len(made.leader_moves),
        domain_conflicts=made.after.domain_conflicts,
        moves=made.moves,
    )


def _placed(nodes: tuple[DataNodeStatus, ...], replicas: int, partitions: int) -> Answer:
    """Return the first placement: of empty partitions, so nothing is copied."""
    infos = planner_nodes(nodes, eligible_ids(nodes))
    made = plan(PlanRequest(partitions=partitions, replicas=replicas, nodes=infos))
    return Answer(
        base="",
        before=(),
        leaders=(),
        target=made.target,
        nodes=nodes,
        replicas=replicas,
        domain_conflicts=made.after.domain_conflicts,
    )


def _resharded(
    keys: Assignments,
    leaders: tuple[NodeId, ...],
    nodes: tuple[DataNodeStatus, ...],
    replicas: int,
    wanted: int,
) -> Answer:
    base, before = _newest(keys.model_copy(update={"planned": None}))
    if before is None:
        raise ValueError("the zone has no assignment yet")
    current = assignments.parse(before.replicas)
    old = old_zone(before, current, leaders_of(keys, before, leaders))
    made = plan_resharding(
        old,
        Layout(keys.last_layout_version + 1, wanted),
        replicas=replicas,
        nodes=planner_nodes(nodes, eligible_ids(nodes) - kept_ids(nodes)),
        revision=0,
    )
    return Answer(
        base=base,
        before=current,
        leaders=old.leaders,
        target=made.target,
        nodes=nodes,
        replicas=replicas,
        trigger=Trigger.PARTITIONS_CHANGED,
        resharding=True,
        copies=made.replicas,
        copies_lower_bound=made.replicas,
        partitions_copied=made.bytes_copied / PARTITION_BYTES_TAKEN,
        leader_moves=wanted,
    )


def _newest(keys: Assignments) -> tuple[str, Assignment | None]:
    """Return the newest assignment, on which the next one is built, and its name."""
    names = ("planned", "pending", "stable")
    found = ((name, getattr(keys, name)) for name in names)
    return next((each for each in found if each[1] is not None), ("", None))


def _ready(nodes: tuple[DataNodeStatus, ...]) -> tuple[DataNodeStatus, ...]:
    """Return the nodes as the first placement awaits them: those that start have begun to serve."""
    return tuple(
        node.model_copy(update={"state": DataNodeState.ACTIVE})
        if node.state is DataNodeState.STARTING
        else node
        for node in nodes
    )


def _changed(
    zone: str, status: DistributionZoneStatus, question: Question
) -> tuple[DataNodeStatus, ...]:
    """Return the data nodes after the change; one that goes is drained, or is lost already."""
    unknown = question.without - {node.id for node in status.data_nodes}
    if unknown:
        raise ValueError(f"the zone has no data node {min(unknown)}")
    if len(question.added) > ADDED_MAX:
        raise ValueError(f"at most {ADDED_MAX} data nodes can be added")
    stay = tuple(
        node.model_copy(update={"state": DataNodeState.DRAINING, "maintenance": None})
        if node.id in question.without
        else node
        for node in status.data_nodes
    )
    first = max([status.next_node_id, *(node.id + 1 for node in status.data_nodes)])
    return stay + tuple(
        DataNodeStatus(
            id=first + number,
            pod_name=f"{zone}-{first + number}",
            failure_domain=each.failure_domain,
            weight=each.weight,
            state=DataNodeState.ACTIVE,
        )
        for number, each in enumerate(question.added)
    )
