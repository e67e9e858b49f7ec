"""The largest zone has room in the API server: etcd takes no object over 1.5 MiB."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kube_helpers import NOW, stored_task, stored_zone

from rezone.domain.assignment import assignments
from rezone.domain.assignment.assignments import Skip
from rezone.domain.routing import routes
from rezone.kube.api.client import Kube
from rezone.kube.api.kinds import ConfigMap, TaskKind, ZoneKind
from rezone.kube.api.names import COMPONENT_LABEL, ROUTES
from rezone.kube.stored.routes import RouteStore
from rezone.kube.stored.store import StatusStore
from rezone.resources.task import (
    RANGES_MAX,
    MoveReason,
    PartitionRange,
    PlanSummary,
    RebalanceTaskStatus,
    TaskState,
    Why,
)
from rezone.resources.zone_status import Assignments, DataNodeStatus, DistributionZoneStatus
from rezone.wire.codec.keyspace import PARTITIONS_MAX

NODES = 1000
FIRST_ID = 9000
"""Ids are never used again: those of a zone that has lived long are longer."""
OBJECT_BYTES_MAX = 1 << 20
"""Two thirds of what etcd takes."""
SHARD_BYTES_MAX = 1 << 18


def topology(shift: int) -> tuple[tuple[int, ...], ...]:
    """Return an assignment of 3 replicas each, other ones for each shift."""
    return tuple(
        tuple(FIRST_ID + (p * 7 + i * 331 + shift) % NODES for i in range(3))
        for p in range(PARTITIONS_MAX)
    )


def all_keys() -> Assignments:
    """Return the keys of a zone that is re-sharded, as often before, and then once more."""
    keys = assignments.first(Assignments(), topology(0), 1)
    for number in (1, 2):
        made = assignments.request(keys, topology(number), 10_000_000 + number, 1000 + number)
        assert not isinstance(made, Skip)
        keys = made
    assert keys.pending is not None
    assert keys.planned is not None
    return keys


def data_nodes() -> tuple[DataNodeStatus, ...]:
    """Return data nodes with names as long as those of clouds."""
    return tuple(
        DataNodeStatus(
            id=FIRST_ID + number,
            pod_name=f"customers-of-the-shop-{FIRST_ID + number}",
            node_name=f"ip-10-100-{number // 250}-{number % 250}.eu-central-1.compute.internal",
            address=f"10.100.{number // 250}.{number % 250}:7400",
            failure_domain="eu-central-1a",
        )
        for number in range(NODES)
    )


def size_of(stored: Any) -> int:
    """Return the bytes of an object as the API server stores it."""
    return len(json.dumps(stored, separators=(",", ":")))


@pytest.mark.apiserver
@pytest.mark.slow
async def test_the_largest_zone_and_its_task_have_room(api: Kube, namespace: str) -> None:
    """A status that does not fit is refused in every pass: the zone would stand still for ever."""
    zone = await stored_zone(api, namespace, partitions=PARTITIONS_MAX)
    store, keys = StatusStore(api), all_keys()
    status = DistributionZoneStatus(assignments=keys, data_nodes=data_nodes())
    zone = await store.write_status(zone, status)
    assert size_of(await api.get(ZoneKind, namespace, "orders")) < OBJECT_BYTES_MAX
    assert keys.stable is not None
    assert keys.pending is not None
    revision = keys.pending.revision
    answer, made = assignments.intend_cancel(keys, revision, topology(0), topology(1))
    assert not isinstance(made, Skip), answer
    await store.write_status(zone, status.model_copy(update={"assignments": made}))
    assert size_of(await api.get(ZoneKind, namespace, "orders")) < OBJECT_BYTES_MAX
    task = await stored_task(api, zone)
    ranges = tuple(PartitionRange(first=p, last=p) for p in range(16_000 - RANGES_MAX, 16_000))
    every_other = MoveReason(reason=Why.BALANCE, partitions=8192, ranges=ranges)
    assert keys.planned is not None
    doing = RebalanceTaskStatus(
        state=TaskState.TRANSFERRING,
        source=keys.stable.replicas,
        target=keys.pending.replicas,
        outcome=keys.planned.replicas,
        plan=PlanSummary(hash="h" * 64, moves=1, moves_lower_bound=1, reasons=(every_other,)),
        started_time=NOW,
    )
    await store.write_status(task, doing)
    assert size_of(await api.get(TaskKind, namespace, "orders-1")) < OBJECT_BYTES_MAX


@pytest.mark.apiserver
@pytest.mark.slow
async def test_the_largest_route_table_has_room(api: Kube, namespace: str) -> None:
    """Each leader move writes one shard whole: its size is what the API server pays for a move.

    In a zone of the most partitions that is re-sharded to as many, as it was before.
    """
    zone = await stored_zone(api, namespace, partitions=PARTITIONS_MAX)
    store, records = RouteStore(api, zone), [routes.initial(nodes, 12) for nodes in topology(0)]
    for generation in (1000, 1001):
        await store.create(records, generation)
    shards = await api.list(ConfigMap, namespace, labels={COMPONENT_LABEL: ROUTES})
    assert len(shards) == 2 * PARTITIONS_MAX // 256
    assert max(map(size_of, shards)) < SHARD_BYTES_MAX
