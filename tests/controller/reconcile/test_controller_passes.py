"""Which other migrations a pass reads: each one costs the API server and the operator time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rezone.controller.observing.passes import _migrations
from rezone.resources.migration import MigrationState, RegionMigration

OWNED = {"kind": "RebalanceTask", "name": "t", "uid": "u", "apiVersion": "rezone.dev/v1alpha1"}


class Listing:
    """A store that notes what is asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    async def list_all(self, _kind: Any, _namespace: str, *, fields: dict[str, str]) -> tuple[()]:
        """Return nothing."""
        self.asked.append(fields)
        return ()


def migration(state: str, *, child: bool) -> RegionMigration:
    """Return a migration of partition 7."""
    metadata: dict[str, Any] = {"name": "m", "namespace": "ns"}
    if child:
        metadata["ownerReferences"] = [OWNED]
    spec = {"zoneName": "z", "partition": 7, "target": 1}
    return RegionMigration.parse({"metadata": metadata, "spec": spec, "status": {"state": state}})


@pytest.mark.parametrize("child", [True, False])
async def test_a_migration_that_has_begun_reads_no_other(child: bool) -> None:
    """With a thousand of them each pass would read a thousand: minutes of the API server's time."""
    store = Listing()
    own = migration(MigrationState.OPEN_CANDIDATE, child=child)
    found = await _migrations(SimpleNamespace(store=store), "ns", "z", own)  # type: ignore[arg-type]
    assert found == (own,)
    assert store.asked == []


@pytest.mark.parametrize("state", ["", MigrationState.SELECT_CANDIDATE])
async def test_before_it_begins_a_tasks_one_reads_those_of_its_partition(state: str) -> None:
    """Two migrations of one partition would run side by side."""
    store = Listing()
    own = migration(state, child=True)
    await _migrations(SimpleNamespace(store=store), "ns", "z", own)  # type: ignore[arg-type]
    assert store.asked == [{"spec.zoneName": "z", "spec.partition": "7"}]


async def test_others_look_at_all_of_their_zone() -> None:
    """A person's migration would go over the limits; a task would miss its own."""
    store = Listing()
    coordinator: Any = SimpleNamespace(store=store)
    await _migrations(coordinator, "ns", "z", migration("", child=False))
    await _migrations(coordinator, "ns", "z", None)
    assert store.asked == [{"spec.zoneName": "z"}] * 2
