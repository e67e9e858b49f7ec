"""Maintenance on a real cluster: a cordon with the annotation moves leaders and nothing else."""

from __future__ import annotations

import asyncio

import pytest
from operated_cluster import (
    TestCluster,
    Writer,
    addresses_of,
    check_settled,
    condition,
    make_zone,
    path_of,
    remove_zone,
    routes_of,
    stable_of,
    until_zone,
)
from operator_process import OperatorProcess

from rezone.local.agent.nodes import add_node
from rezone.local.api import Json, KubeApi

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "maintained"
# Nodes are chosen by the zone's name, and other modules have zones of theirs.
ZONE = "maintained"
POOL = tuple(f"pool-{n}" for n in range(31, 34))


@pytest.mark.long
@pytest.mark.proves("B-07")
async def test_a_cordon_with_the_annotation_moves_leaders_only(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess
) -> None:
    """The node leads nothing, keeps its replicas and its pod, and is used again afterwards.

    A machine that reboots would be copied away and back.
    """
    del operator
    for name in POOL:
        await add_node(api, name)
    made = await make_zone(cluster, api, NAMESPACE, ZONE, POOL, partitions=6)
    node = next(n for n in made["status"]["dataNodes"] if n["nodeName"] == POOL[0])

    def told(zone: Json) -> Json:
        return condition(zone, "Maintenance")

    with Writer(addresses_of(made).values()) as writer:
        cluster.kubectl("annotate", "node", POOL[0], "rezone.dev/maintenance=soon")
        await until_zone(
            api, NAMESPACE, ZONE, lambda z: told(z).get("reason") == "InvalidMaintenance"
        )
        cluster.kubectl("annotate", "--overwrite", "node", POOL[0], "rezone.dev/maintenance=1h")
        cluster.kubectl("cordon", POOL[0])
        found = await until_zone(
            api, NAMESPACE, ZONE, lambda z: "may stop" in told(z).get("message", "")
        )
        assert told(found)["status"] == "True"
        assert node["id"] not in {r.leader for r in await routes_of(api, NAMESPACE, ZONE)}
        await asyncio.to_thread(writer.wait_for_more, 5)
        cluster.kubectl("uncordon", POOL[0])
        cluster.kubectl("annotate", "node", POOL[0], "rezone.dev/maintenance-")
        found = await until_zone(api, NAMESPACE, ZONE, lambda z: not told(z))
        found = await check_settled(api, NAMESPACE, ZONE)
    await asyncio.to_thread(writer.check)
    assert stable_of(found) == stable_of(made)
    assert [n["state"] for n in found["status"]["dataNodes"]] == ["Active"] * 3
    tasks = await api.get(path_of(NAMESPACE, "rebalancetasks"))
    assert tasks is not None
    assert tasks["items"] == []
    await remove_zone(api, NAMESPACE, ZONE)
