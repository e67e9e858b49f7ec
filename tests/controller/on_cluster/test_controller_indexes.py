"""An index is added to a zone in use by its spec, and dropped again, with the operator killed."""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa
import pytest
from operated_cluster import (
    TestCluster,
    addresses_of,
    condition,
    make_zone,
    path_of,
    remove_zone,
    until_zone,
)
from operator_process import OperatorProcess

from rezone.client import TableClient
from rezone.local.api import Json, KubeApi
from rezone.wire.errors import UnknownIndexError

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "indexed"
NODES = ("worker-1", "worker-2", "worker-3")
ZONE = f"{path_of(NAMESPACE, 'distributionzones')}/orders"
COLUMNS = [{"name": "id", "type": "int64"}, {"name": "owner", "type": "string"}]
SCHEMA = {"columns": COLUMNS, "primaryKey": ["id"]}
INDEXED = {**SCHEMA, "indexes": [{"name": "by_owner", "columns": ["owner"]}]}
ROWS = pa.table({"id": range(5000), "owner": [f"owner {i % 100}" for i in range(5000)]})


def settled(found: Json) -> bool:
    """Whether the operator has acted on the spec, and all indexes are built."""
    seen = found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
    return seen and not condition(found, "Indexing")


def owned(zone: Json, owner: str) -> list[int]:
    """Return the keys of an owner's rows, by the index."""
    with TableClient(list(addresses_of(zone).values())) as client:
        return sorted(client.lookup("by_owner", (owner,), (owner,)).rows.column("id").to_pylist())


async def test_an_index_is_added_by_the_spec_and_dropped_again(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """The API server would refuse it, or data nodes would not hear of it after a kill."""
    zone = await make_zone(cluster, api, NAMESPACE, "orders", NODES, schema=SCHEMA)

    def load() -> None:
        with TableClient(list(addresses_of(zone).values())) as client:
            client.write(ROWS)
            with pytest.raises(UnknownIndexError):
                client.lookup("by_owner")

    await asyncio.to_thread(load)
    await api.patch(ZONE, {"spec": {"schema": INDEXED}})
    await asyncio.to_thread(operator.kill)
    operator.start()
    found = await until_zone(api, NAMESPACE, "orders", settled)
    assert await asyncio.to_thread(owned, found, "owner 7") == list(range(7, 5000, 100))
    await api.patch(ZONE, {"spec": {"schema": {"indexes": []}}})
    with contextlib.suppress(UnknownIndexError):
        async with asyncio.timeout(30):
            while True:  # until the data nodes have heard of it
                await asyncio.to_thread(owned, found, "owner 7")
    await remove_zone(api, NAMESPACE, "orders")
