"""What the tests of re-shardings on a real cluster share: rows that stay, and waits for the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pyarrow as pa
from operated_cluster import (
    SCHEMA,
    TERMINAL_TASKS,
    TestCluster,
    addresses_of,
    make_zone,
    remove_zone,
    state_of,
    until_zone,
)

from rezone.client import TableClient
from rezone.local.api import Json, KubeApi

ROWS = 4000
GRACE = {"REZONE_RESHARDING_GRACE_SECONDS": "1"}
"""Old partitions go at once."""


def write_rows(zone: Json, value_bytes: int = 200) -> None:
    """Write what shall be there afterwards, once each."""
    keys = [f"row-{number:06}".encode() for number in range(ROWS)]
    value = b"v" * value_bytes
    with TableClient(list(addresses_of(zone).values())) as client:
        for start in range(0, ROWS, 500):
            part = keys[start : start + 500]
            client.write(
                pa.record_batch(
                    [pa.array(part, pa.binary()), pa.array([value] * len(part), pa.binary())],
                    schema=SCHEMA,
                )
            )


@contextlib.asynccontextmanager
async def zone_with_rows(
    cluster: TestCluster, api: KubeApi, namespace: str, name: str, nodes: Iterable[str]
) -> AsyncIterator[Json]:
    """Make a zone of three partitions with rows; in the end it is removed."""
    made = await make_zone(cluster, api, namespace, name, nodes, partitions=3)
    await asyncio.to_thread(write_rows, made)
    yield made
    await remove_zone(api, namespace, name)


def check_rows(zone: Json) -> None:
    """Scan, and see each row once."""
    with TableClient(list(addresses_of(zone).values())) as client:
        found = client.scan()["key"].to_pylist()
    assert len(found) == len(set(found)), "rows are there twice"
    assert sum(key.startswith(b"row-") for key in found) == ROWS


async def patch(api: KubeApi, path: str, name: str, **spec: Any) -> None:
    """Change the spec of an object."""
    await api.patch(f"{path}/{name}", {"spec": spec})


def is_cut(zone: Json, partitions: int) -> bool:
    """Return whether a zone has so many partitions, and nothing under way."""
    keys = (zone.get("status") or {}).get("assignments") or {}
    stable = keys.get("stable") or {}
    return len(stable.get("replicas", "").split(";")) == partitions and not keys.get("pending")


def has_ended(task: Json) -> bool:
    """Return whether a task is at its end."""
    return state_of(task) in TERMINAL_TASKS


async def task_of(api: KubeApi, namespace: str, zone: str, partitions: int) -> str:
    """Return the name of the task that re-shards the zone to so many partitions."""

    def pending(found: Json) -> bool:
        keys = (found.get("status") or {}).get("assignments") or {}
        text = (keys.get("pending") or {}).get("replicas", "")
        return len(text.split(";")) == partitions and bool(found["status"].get("currentTask"))

    found = await until_zone(api, namespace, zone, pending)
    return str(found["status"]["currentTask"])
