"""Which data nodes a zone shall have, from its spec, its Kubernetes nodes and its pods (ZR-03).

Ids are given out once and never again: a replica that belonged to a data node of the past can
never be taken for one of today's. A data node that is no longer wanted drains: it stays until
nothing is assigned to it. All of this is computed again each pass; uncordoning a node in time
therefore takes a drain back.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from rezone.domain.observed import maintenance
from rezone.domain.planner.types import NodeInfo
from rezone.resources.zone import DataNodesSpec
from rezone.resources.zone_status import WEIGHT_MAX, DataNodeState, DataNodeStatus, PlacedAs


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubeNode:
    """A Kubernetes node as far as placement cares; `maintenance` is what its annotation says."""

    name: str
    schedulable: bool
    maintenance: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Presence:
    """What is seen of one data node: its pod, its place and address, and whether it answers.

    A pod that could not be scheduled has neither place nor address. `heard`: other data nodes have
    just said that they hear it (NW-02).
    """

    pod: bool = False
    node_name: str = ""
    address: str = ""
    reachable: bool = False
    unreachable_since: datetime | None = None
    heard: bool = False


_MET = frozenset({DataNodeState.ACTIVE, DataNodeState.DRAINING})
"""What a node that is not lost goes on from: active, unless something drains it again."""


@dataclasses.dataclass(frozen=True)
class DataNodePlan:
    """The data nodes of the next status, and the id the next new one gets."""

    nodes: tuple[DataNodeStatus, ...]
    next_node_id: int


def plan_data_nodes(
    *,
    zone: str,
    spec: DataNodesSpec,
    current: Sequence[DataNodeStatus],
    next_node_id: int,
    kube_nodes: Mapping[str, KubeNode],
    presence: Mapping[int, Presence],
    assigned: frozenset[int],
    lost_after: timedelta,
    now: datetime,
) -> DataNodePlan:
    """Return the data nodes the zone shall have now; `assigned` ids stay even when unwanted."""
    seen = [
        _refresh(
            node,
            presence.get(node.id, Presence()),
            kube_nodes,
            spec=spec,
            lost_after=lost_after,
            now=now,
        )
        for node in current
    ]
    if spec.node_selector is not None:
        wanted, missing = _by_selector(seen, spec.node_selector, kube_nodes)
    else:
        wanted, missing = _by_count(seen, spec.count or 0, kube_nodes)
    kept = [
        node if node.id in wanted else _unwanted(node)
        for node in seen
        if node.id in wanted or node.id in assigned or _still_there(node, presence)
    ]
    for place in missing:
        kube = kube_nodes.get(place)
        kept.append(
            DataNodeStatus(
                id=next_node_id,
                pod_name=f"{zone}-{next_node_id}",
                node_name=place,
                failure_domain=_domain(kube, spec),
                weight=_weight(kube, spec),
            ),
        )
        next_node_id += 1
    return DataNodePlan(tuple(kept), next_node_id)


def _refresh(
    node: DataNodeStatus,
    presence: Presence,
    kube_nodes: Mapping[str, KubeNode],
    *,
    spec: DataNodesSpec,
    lost_after: timedelta,
    now: datetime,
) -> DataNodeStatus:
    node_name = presence.node_name or node.node_name
    if node.state is DataNodeState.DRAINING and node.node_name:
        # Its pod may have been evicted and come back elsewhere. It goes on being drained for as
        # long as its first place is, or its data would come after it, and move back and forth.
        node_name = node.node_name
    kube = kube_nodes.get(node_name)
    asked = maintenance.requested(node, spec, kube.maintenance if kube is not None else "", now)
    node = node.model_copy(update={"maintenance": asked})
    silent_since = presence.unreachable_since
    away = maintenance.is_active(node)
    silent = silent_since is not None and now - silent_since >= lost_after
    if silent and not presence.heard and not away:
        state = DataNodeState.LOST
    elif (
        presence.reachable
        or presence.heard
        or node.state in _MET
        or (away and node.state is DataNodeState.LOST)
    ):
        state = DataNodeState.ACTIVE
    else:
        state = node.state
    return node.model_copy(
        update={
            "trigger_time": node.trigger_time if state is node.state else None,
            "node_name": node_name,
            "address": presence.address or node.address,
            "failure_domain": _domain(kube, spec) or node.failure_domain,
            # A Kubernetes node that is away for a while has not lost its label.
            "weight": node.weight if kube is None else _weight(kube, spec),
            "state": state,
        },
    )


def _by_selector(
    nodes: Sequence[DataNodeStatus],
    selector: Mapping[str, str],
    kube_nodes: Mapping[str, KubeNode],
) -> tuple[frozenset[int], list[str]]:
    places = {
        kube.name
        for kube in kube_nodes.values()
        if kube.schedulable and all(kube.labels.get(k) == v for k, v in selector.items())
    }
    wanted: dict[str, int] = {}
    for node in nodes:
        stays = node.node_name in places or maintenance.is_asked_for(node)
        if stays and node.state is not DataNodeState.LOST:
            wanted.setdefault(node.node_name, node.id)
    return frozenset(wanted.values()), sorted(places - wanted.keys())


def _by_count(
    nodes: Sequence[DataNodeStatus],
    count: int,
    kube_nodes: Mapping[str, KubeNode],
) -> tuple[frozenset[int], list[str]]:
    def usable(node: DataNodeStatus) -> bool:
        kube = kube_nodes.get(node.node_name)
        stays = kube is None or kube.schedulable or maintenance.is_asked_for(node)
        return stays and node.state is not DataNodeState.LOST

    fit = sorted(node.id for node in nodes if usable(node))
    return frozenset(fit[:count]), [""] * max(0, count - len(fit))


def _unwanted(node: DataNodeStatus) -> DataNodeStatus:
    if node.state is DataNodeState.LOST:
        return node
    return node.model_copy(update={"state": DataNodeState.DRAINING})


def _still_there(node: DataNodeStatus, presence: Mapping[int, Presence]) -> bool:
    """Whether there is a pod to delete: without its data node nobody would ever do that."""
    return presence.get(node.id, Presence()).pod


def _domain(kube: KubeNode | None, spec: DataNodesSpec) -> str:
    return "" if kube is None else kube.labels.get(spec.failure_domain_key, "")


def _weight(kube: KubeNode | None, spec: DataNodesSpec) -> int:
    text = "" if kube is None else kube.labels.get(spec.weight_key, "")
    if not (text.isascii() and text.isdigit()):
        return 1
    return int(text) if 1 <= int(text) <= WEIGHT_MAX else 1


def eligible_ids(nodes: Sequence[DataNodeStatus]) -> frozenset[int]:
    """Return the ids that partitions may be assigned to."""
    return frozenset(node.id for node in nodes if node.state is DataNodeState.ACTIVE)


def placed(nodes: Sequence[DataNodeStatus], *, again: bool) -> tuple[DataNodeStatus, ...]:
    """Return the nodes, those in use marked with what an assignment takes them for.

    `again`: by an assignment made now. Else only nodes without a mark get one, so that a change of
    their labels can be told later.
    """
    return tuple(
        node.model_copy(update={"placed_as": _place_of(node)})
        if node.state is DataNodeState.ACTIVE and (again or not node.placed_as)
        else node
        for node in nodes
    )


def changed_ids(nodes: Sequence[DataNodeStatus]) -> frozenset[int]:
    """Return the nodes in use whose weight or failure domain is not what it was when placed."""
    return frozenset(
        node.id
        for node in nodes
        if node.state is DataNodeState.ACTIVE and node.placed_as not in (None, _place_of(node))
    )


def _place_of(node: DataNodeStatus) -> PlacedAs:
    return PlacedAs(weight=node.weight, failure_domain=node.failure_domain)


def planner_nodes(
    nodes: Sequence[DataNodeStatus], eligible: Collection[int], frozen: Collection[int] = ()
) -> tuple[NodeInfo, ...]:
    """Return the nodes as the planner sees them.

    Only `eligible` ones may hold anything after, and `frozen` ones what they hold now.
    """
    return tuple(
        NodeInfo(
            id=node.id,
            weight=node.weight,
            failure_domain=node.failure_domain,
            available=node.id in eligible or node.id in frozen,
            frozen=node.id in frozen,
        )
        for node in nodes
    )
