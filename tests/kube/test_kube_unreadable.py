"""Stored objects that this version cannot read: none hides the others, none is given up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_helpers import stored_task, stored_zone

from rezone.controller.observing.observe import migration_view
from rezone.controller.reconcile.zone_tasks import copies_now, moves_now, task_name
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import UnreadableError
from rezone.kube.api.kinds import Manifest, MigrationKind, TaskKind, ZoneKind
from rezone.kube.api.standins import stand_in
from rezone.kube.stored.store import StatusStore, parse
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignment, Assignments

NO_TIME = "2026-01-01T00:00:00+99:99"
"""The API server takes it for a time, and no program does."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below),
    max_leaves=8,
)


def task_body(status: Any) -> Manifest:
    """Return a task of the revision 7 as stored."""
    return {
        "metadata": {"name": "orders-7", "namespace": "ns", "uid": "u"},
        "spec": {"zoneName": "orders", "revision": 7},
        "status": status,
    }


def migration_body(status: Any, **spec: Any) -> Manifest:
    """Return a migration of partition 5 as stored."""
    return {
        "metadata": {"name": "m", "namespace": "ns", "uid": "u"},
        "spec": {"zoneName": "orders", "partition": 5, "target": 2, **spec},
        "status": status,
    }


def pending(revision: int) -> Assignments:
    """Return keys with this revision pending."""
    return Assignments(pending=Assignment(revision=revision, replicas="0"))


@pytest.mark.proves("TR-03")
def test_a_task_that_cannot_be_read_keeps_its_place_and_begins_nothing() -> None:
    """Its zone would make a second task for the same assignment, or let a copy begin twice."""
    body = task_body({"state": "Transferring", "revision": 7, "startedTime": NO_TIME, "plan": 5})
    with pytest.raises(UnreadableError, match=r"status\.startedTime"):
        parse(RebalanceTask, body)
    found = stand_in(RebalanceTask, body)
    assert found is not None
    assert found.status is not None
    assert (found.status.state, found.status.plan) == ("Transferring", None)
    assert task_name("orders", [found], pending(7)) == "orders-7"
    assert moves_now(found)
    assert not copies_now(found)


@pytest.mark.proves("TR-03")
def test_a_migration_that_cannot_be_read_keeps_its_partition() -> None:
    """Another could move the same leader, or its candidate be stopped as a stray."""
    context = {"partition": 5, "fromNode": 1, "toNode": 2, "retainedTime": None}
    body = migration_body(
        {"state": "DowngradeLeader", "context": context, "startedTime": NO_TIME}, cancel="perhaps"
    )
    found = stand_in(RegionMigration, body)
    assert found is not None
    seen = migration_view(found, 0)
    assert (seen.partition, seen.source, seen.candidate, seen.terminal) == (5, 1, 2, False)
    ended = stand_in(RegionMigration, migration_body({"state": "Failed", "history": 3}))
    assert ended is not None
    assert migration_view(ended, 0).terminal


@pytest.mark.proves("TR-03")
def test_nothing_stands_in_for_a_zone_or_for_what_names_none() -> None:
    """A zone without its assignments would be planned as if it were new."""
    assert stand_in(DistributionZone, {"metadata": {"name": "z"}, "spec": {}}) is None
    assert stand_in(RegionMigration, migration_body({}, partition="five")) is None


@pytest.mark.proves("TR-03")
@given(status=JSON, spec=st.dictionaries(st.text(max_size=8), JSON, max_size=3))
def test_no_content_makes_a_stand_in_fail(status: Any, spec: dict[str, Any]) -> None:
    """The pass of the zone would end with it."""
    found = stand_in(RebalanceTask, task_body(status) | {"spec": {"zoneName": "z", **spec}})
    assert found is None or found.spec.suspend
    stand_in(RegionMigration, {**migration_body(status), "spec": spec})


@pytest.mark.proves("TR-03")
def test_words_of_a_later_version_are_left_out() -> None:
    """An operator that is put back could read no object of which the newer one has said more."""
    known = {
        "type": "Ready",
        "status": "True",
        "reason": "Available",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {
        "state": "Planned",
        "conditions": [known | {"type": "Sublime"}, known, known | {"lastTransitionTime": "soon"}],
        "waitingReason": "Boredom",
    }
    found = parse(RebalanceTask, task_body(status))
    assert found.status is not None
    assert [c.type for c in found.status.conditions] == ["Ready"]
    assert (found.status.state, found.status.waiting_reason) == ("Planned", None)
    only = parse(RebalanceTask, task_body({"conditions": [known], "waitingReason": "Boredom"}))
    assert only.status is not None
    assert len(only.status.conditions) == 1
    for wrong in ({"conditions": "all well"}, {"conditions": [1]}):
        mended = parse(RebalanceTask, task_body(wrong))
        assert mended.status is not None
        assert mended.status.conditions == ()
    with pytest.raises(UnreadableError):
        parse(RebalanceTask, task_body({**status, "attempt": -1}))


@pytest.mark.proves("TR-03")
def test_what_is_wrong_without_its_words_too_is_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any other error would end the passes of the whole zone again."""
    monkeypatch.setattr("rezone.kube.stored.store.without_words", lambda body, _error: body)
    with pytest.raises(UnreadableError, match=r"status\.waitingReason"):
        parse(RebalanceTask, task_body({"waitingReason": "Boredom"}))


async def break_status(api: Kube, kind: Any, body: Manifest, **status: Any) -> None:
    """Store a status that no program can read."""
    await api.replace_status(kind, {**body, "status": {"startedTime": NO_TIME, **status}})


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.proves("TR-03")
async def test_one_that_cannot_be_read_leaves_the_others_readable(
    api: Kube, namespace: str
) -> None:
    """One wrong object would end each pass of its zone, failover included."""
    zone = await stored_zone(api, namespace)
    store = StatusStore(api)
    for name in ("orders-1", "orders-2"):
        await stored_task(api, zone, name)
    body = await api.get(TaskKind, namespace, "orders-1")
    await break_status(api, TaskKind, body, state="Switching", revision=1)
    fields = {"spec.zoneName": "orders"}
    with pytest.raises(UnreadableError, match=r"orders-1: status\.startedTime") as told:
        await store.list(RebalanceTask, namespace, fields=fields)
    assert told.value.about.metadata.name == "orders-1"
    found = await store.list_all(RebalanceTask, namespace, fields=fields)
    assert [(t.metadata.name, t.spec.suspend) for t in found] == [
        ("orders-1", True),
        ("orders-2", False),
    ]
    made = {
        "metadata": {"name": "m", "namespace": namespace},
        "spec": {"zoneName": "orders", "partition": 5},
    }
    created = await api.create(MigrationKind, made)
    await break_status(api, MigrationKind, created, state="OpenCandidate")
    (migration,) = await store.list_all(RegionMigration, namespace, fields=fields)
    assert migration_view(migration, 0).partition == 5
    await api.delete(MigrationKind, namespace, "m")
    await api.delete(TaskKind, namespace, "orders-1")


@pytest.mark.apiserver
@pytest.mark.slow
@pytest.mark.proves("TR-03")
async def test_zones_are_named_whatever_they_hold(api: Kube, namespace: str) -> None:
    """A zone that cannot be read would keep every copy of every other zone from its beginning."""
    await stored_zone(api, namespace)
    await stored_zone(api, namespace, "broken")
    body = await api.get(ZoneKind, namespace, "broken")
    node = {"id": 0, "podName": "p", "state": "Active", "triggerTime": NO_TIME}
    await api.replace_status(ZoneKind, {**body, "status": {"dataNodes": [node]}})
    with pytest.raises(UnreadableError):
        await StatusStore(api).read(DistributionZone, namespace, "broken")
    names = set(await api.names(ZoneKind, namespace))
    assert names == {(namespace, "broken"), (namespace, "orders")}
    assert names <= set(await api.names(ZoneKind))
    # Lists of all namespaces, which other tests make, would meet it.
    await api.delete(ZoneKind, namespace, "broken")
