"""Objects that several tests of the console show."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from rezone.domain.routing import routes
from rezone.domain.routing.topology_text import Topology, compact
from rezone.resources.conditions import ConditionType, Reason, condition_of
from rezone.resources.model import ObjectMeta
from rezone.resources.task import (
    MoveReason,
    PartitionRange,
    PlanSummary,
    RebalanceTask,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
    TaskProgress,
    TaskState,
    Why,
)
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    Assignment,
    Assignments,
    DataNodeState,
    DataNodeStatus,
    DistributionZoneStatus,
)
from rezone.wire.messages import LeaderAndIsr

NOW = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
PLAN = "b5c1d2e3f4"

BEFORE: Topology = ((0, 1), (1, 2), (2, 0), (0, 1))
AFTER: Topology = ((0, 3), (1, 2), (2, 0), (1, 0))


def replicated(record: LeaderAndIsr, **changes: object) -> LeaderAndIsr:
    """Return a record with other fields and the next epoch."""
    epoch = record.partition_epoch + 1
    return msgspec.structs.replace(record, partition_epoch=epoch, **changes)


def records_of(topology: Topology) -> list[LeaderAndIsr]:
    """Return the first records of a topology: all are in sync."""
    return [routes.initial(nodes, 1) for nodes in topology]


def zone_status(stable: Topology, pending: Topology = (), nodes: int = 4) -> DistributionZoneStatus:
    """Return the status of a zone with data nodes 0, 1, 2, ..."""
    says = condition_of(
        ConditionType.READY,
        True,  # noqa: FBT003 - the condition's value
        Reason.AVAILABLE,
        "all in sync",
        generation=1,
        now=NOW,
    )
    return DistributionZoneStatus(
        conditions=(says,),
        ready_data_nodes=nodes,
        partitions_ready=len(stable),
        current_task="orders-7" if pending else "",
        data_nodes=tuple(
            DataNodeStatus(id=i, pod_name=f"orders-{i}", state=DataNodeState.ACTIVE)
            for i in range(nodes)
        ),
        assignments=Assignments(
            stable=Assignment(revision=1, replicas=compact(stable)),
            pending=Assignment(revision=7, replicas=compact(pending)) if pending else None,
        ),
    )


def zone_of(
    stable: Topology, pending: Topology = (), *, nodes: int = 4, namespace: str = "shop"
) -> DistributionZone:
    """Return a zone as if read from the API server."""
    meta = ObjectMeta(name="orders", namespace=namespace, uid="zone-uid")
    spec = {
        "partitions": len(stable),
        "replicas": len(stable[0]),
        "dataNodes": {"count": nodes},
        "rebalance": {"approval": "Manual"},
    }
    body = {"metadata": meta.dump(), "spec": spec}
    zone = DistributionZone.parse(body)
    return zone.model_copy(update={"status": zone_status(stable, pending, nodes)})


def planned_status(before: Topology = BEFORE, after: Topology = AFTER) -> RebalanceTaskStatus:
    """Return the status of a task that waits for a person."""
    why = MoveReason(reason=Why.BALANCE, partitions=1, ranges=(PartitionRange(first=0, last=0),))
    return RebalanceTaskStatus(
        state=TaskState.PLANNED,
        source=compact(before),
        target=compact(after),
        plan=PlanSummary(
            hash=PLAN,
            moves=1,
            moves_lower_bound=1,
            leader_moves=1,
            bytes_estimate=5_000_000,
            seconds_estimate=90,
            reasons=(why,),
        ),
        progress=TaskProgress(moves_total=1, leader_moves_total=1, bytes_total=5_000_000),
        waiting_for=f"AwaitingApproval: set spec.approvedPlan to {PLAN}",
    )


def task_of(status: RebalanceTaskStatus | None = None, **spec: object) -> RebalanceTask:
    """Return a task of the zone as if read from the API server."""
    return RebalanceTask(
        metadata=ObjectMeta(name="orders-7", namespace="shop", uid="task-uid"),
        spec=RebalanceTaskSpec.model_validate({"zone_name": "orders", **spec}),
        status=status,
    )
