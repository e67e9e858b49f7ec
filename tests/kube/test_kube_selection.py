"""Lists by selectable fields, on the real API server: the definitions must name the fields."""

from __future__ import annotations

import pytest
from kube_helpers import stored_zone

from rezone.kube.api.client import Kube
from rezone.kube.stored.store import StatusStore
from rezone.resources.migration import RegionMigration, RegionMigrationSpec
from rezone.resources.model import ObjectMeta


@pytest.mark.apiserver
@pytest.mark.slow
async def test_migrations_are_selected_by_zone_and_partition(api: Kube, namespace: str) -> None:
    """The API server refuses an unknown field: no migration of a task would ever begin."""
    zone = await stored_zone(api, namespace)
    store = StatusStore(api)
    for name, of, partition in (("a", "orders", 1), ("b", "orders", 2), ("c", "others", 1)):
        meta = ObjectMeta(name=name, namespace=namespace)
        spec = RegionMigrationSpec(zone_name=of, partition=partition)
        await store.create(RegionMigration(metadata=meta, spec=spec), zone)
    for fields, names in (
        ({"spec.zoneName": "orders"}, ["a", "b"]),
        ({"spec.zoneName": "orders", "spec.partition": "1"}, ["a"]),
        ({"spec.zoneName": "nobody"}, []),
    ):
        found = await store.list(RegionMigration, namespace, fields=fields)
        assert [each.metadata.name for each in found] == names
