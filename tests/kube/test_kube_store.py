"""The compare-and-set of a status, and create-or-adopt, on the real API server."""

from __future__ import annotations

from datetime import timedelta

import pytest
from kube_helpers import NOW, stored_task, stored_zone, task_of, zone_of

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ConflictWriteError,
    ForeignObjectError,
    InvalidWriteError,
    MissingError,
    UnreadableError,
)
from rezone.kube.api.kinds import TaskKind
from rezone.kube.api.names import is_owned
from rezone.kube.stored.store import StatusStore, parse
from rezone.resources.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    condition_of,
)
from rezone.resources.task import TaskType
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus

pytestmark = [pytest.mark.apiserver, pytest.mark.slow]


def ready(seconds: int = 0, *, value: bool = True) -> Condition:
    """Return a Ready condition of some time."""
    now = NOW + timedelta(seconds=seconds)
    return condition_of(
        ConditionType.READY, value, Reason.AVAILABLE, "all is well", generation=1, now=now
    )


async def test_stale_status_write_is_refused_and_overwrites_nothing(
    api: Kube, namespace: str
) -> None:
    """Two passes on one revision would otherwise undo each other's decision (Kopf's trap 3)."""
    store = StatusStore(api)
    first = await stored_zone(api, namespace)
    second = await store.read(DistributionZone, namespace, "orders")
    won = await store.write_status(first, DistributionZoneStatus(current_task="winner"))
    with pytest.raises(ConflictWriteError):
        await store.write_status(second, DistributionZoneStatus(current_task="loser", replicas=3))

    found = await store.read(DistributionZone, namespace, "orders")

    assert found.status == won.status == DistributionZoneStatus(current_task="winner")
    assert found.metadata.resource_version == won.metadata.resource_version


async def test_status_write_leaves_spec_and_labels_alone(api: Kube, namespace: str) -> None:
    """A status PUT that carried the rest along would revert a person's edit."""
    store = StatusStore(api)
    zone = await stored_zone(api, namespace)
    written = await store.write_status(zone, DistributionZoneStatus(replicas=3))
    assert written.spec == zone.spec
    assert written.metadata.generation == zone.metadata.generation
    assert written.status is not None
    assert written.status.replicas == 3


async def test_equal_status_is_not_written(api: Kube, namespace: str) -> None:
    """A write of nothing but a newer transition time would wake the operator for ever."""
    store = StatusStore(api)
    zone = await stored_zone(api, namespace)
    once = await store.write_status(zone, DistributionZoneStatus(conditions=(ready(),)))
    again = await store.write_status(once, DistributionZoneStatus(conditions=(ready(60),)))
    assert again is once
    changed = await store.write_status(
        once, DistributionZoneStatus(conditions=(ready(60, value=False),))
    )
    assert changed.metadata.resource_version != once.metadata.resource_version


async def test_status_of_a_successor_with_the_same_name_is_not_written(
    api: Kube, namespace: str
) -> None:
    """A deleted and re-made zone would begin its life with the status of the old one."""
    store = StatusStore(api)
    old = await stored_zone(api, namespace)
    assert await store.delete(old)
    await stored_zone(api, namespace)
    with pytest.raises(ConflictWriteError):
        await store.write_status(old, DistributionZoneStatus(replicas=9))
    found = await store.read(DistributionZone, namespace, "orders")
    assert found.status is None or found.status.replicas == 0


async def test_missing_object(api: Kube, namespace: str) -> None:
    """A handler of a deleted object must be able to tell that from an outage."""
    store = StatusStore(api)
    assert await store.find(DistributionZone, namespace, "none") is None
    with pytest.raises(MissingError):
        await store.read(DistributionZone, namespace, "none")
    with pytest.raises(MissingError):
        await store.write_status(zone_of(namespace, "none"), DistributionZoneStatus(replicas=1))
    assert not await store.delete(zone_of(namespace, "none"))


async def test_invalid_status_is_found_before_it_is_sent(api: Kube, namespace: str) -> None:
    """model_copy checks nothing; the API server's 422 would come after the decision."""
    store = StatusStore(api)
    zone = await stored_zone(api, namespace)
    condition = ready().model_copy(update={"reason": ""})
    with pytest.raises(InvalidWriteError, match=r"conditions\.0\.reason"):
        await store.write_status(zone, DistributionZoneStatus(conditions=(condition,)))
    found = await store.read(DistributionZone, namespace, "orders")
    assert found.metadata.resource_version == zone.metadata.resource_version


async def test_refused_spec_is_invalid_and_tells_the_rule(api: Kube, namespace: str) -> None:
    """A CEL refusal taken for a conflict would be retried for ever (Kopf's trap 2)."""
    zone = await stored_zone(api, namespace)
    task = task_of(zone)
    drain = task.model_copy(update={"spec": task.spec.model_copy(update={"type": TaskType.DRAIN})})
    with pytest.raises(InvalidWriteError, match="must name the data nodes to drain"):
        await StatusStore(api).create(drain, zone)


async def test_create_adopts_its_own(api: Kube, namespace: str) -> None:
    """A pass that crashed after the create must find its child, not make or lose one."""
    store = StatusStore(api)
    zone = await stored_zone(api, namespace)
    first = await store.create(task_of(zone), zone)
    again = await store.create(task_of(zone), zone)
    assert again == first
    assert is_owned(await api.get(TaskKind, namespace, "orders-1"), zone)


async def test_foreign_owner_is_refused(api: Kube, namespace: str) -> None:
    """Adopting by name alone would take over another zone's task, or a person's."""
    store = StatusStore(api)
    mine = await stored_zone(api, namespace)
    other = await stored_zone(api, namespace, "other")
    theirs = await store.create(task_of(other, "same"), other)
    with pytest.raises(ForeignObjectError, match="does not belong to DistributionZone orders"):
        await store.create(task_of(mine, "same"), mine)
    assert await store.read(type(theirs), namespace, "same") == theirs


async def test_patches_are_guarded(api: Kube, namespace: str) -> None:
    """An unguarded patch would cancel a task that meanwhile is something else."""
    store = StatusStore(api)
    zone = await stored_zone(api, namespace)
    old = await stored_task(api, zone)
    suspended = await store.patch_spec(old, {"suspend": True})
    with pytest.raises(ConflictWriteError):
        await store.patch_spec(old, {"cancel": True})
    cancelled = await store.patch_spec(suspended, {"cancel": True})
    assert (cancelled.spec.suspend, cancelled.spec.cancel) == (True, True)


async def test_list_is_of_the_namespace_and_sorted(api: Kube, namespace: str) -> None:
    """A list over all namespaces would mix two tenants' zones."""
    store = StatusStore(api)
    for name in ("b", "a"):
        await stored_zone(api, namespace, name)
    found = await store.list(DistributionZone, namespace)
    assert [zone.metadata.name for zone in found] == ["a", "b"]
    everywhere = await store.list(DistributionZone)
    assert {zone.metadata.uid for zone in found} <= {zone.metadata.uid for zone in everywhere}


def test_unreadable_object_names_the_field() -> None:
    """Without the field's name a person could not mend the object."""
    body = {"metadata": {"name": "z", "namespace": "n"}, "spec": {"partitions": 0, "replicas": 1}}
    with pytest.raises(UnreadableError, match=r"n/z: spec\.partitions"):
        parse(DistributionZone, body)


def test_condition_status_survives_the_round_trip() -> None:
    """The comparison of old and new would otherwise always differ."""
    status = DistributionZoneStatus(conditions=(ready(),))
    assert DistributionZoneStatus.model_validate(status.dump()) == status
    assert status.conditions[0].status is ConditionStatus.TRUE
