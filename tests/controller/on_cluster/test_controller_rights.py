"""The operator with the rights that the chart gives it, and none besides."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from operated_cluster import (
    TestCluster,
    check_settled,
    fail_over,
    make_zone,
    path_of,
    remove_zone,
    state_of,
    task_manifest,
    until,
    until_zone,
)
from operator_process import OperatorProcess
from resharding_case import has_ended, is_cut

from rezone.local.api import KubeApi

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.proves("TR-03", "B-12"),
]

NAMESPACE = "rights"
SYSTEM = "rezone-system"
ZONE = "kept"
BASE = Path(__file__).parents[3] / "manifests" / "base"


@pytest.fixture(scope="module")
def operator(cluster: TestCluster, logs: Path) -> Iterator[OperatorProcess]:
    """Run the operator by the account and the roles of the manifests."""
    for namespace in (NAMESPACE, SYSTEM):
        cluster.kubectl("create", "namespace", namespace)
    for name in ("serviceaccount", "rbac", "rbac-login"):
        cluster.kubectl("apply", f"--filename={BASE / name}.yaml", f"--namespace={SYSTEM}")
    token = cluster.kubectl("create", "token", "rezone-operator", f"--namespace={SYSTEM}")
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    kubeconfig = logs / "account"
    kubeconfig.write_text(yaml.safe_dump(config))
    own = {"KUBECONFIG": str(kubeconfig), "REZONE_LEASE_NAMESPACE": SYSTEM}
    process = OperatorProcess(cluster, NAMESPACE, logs, **own)
    with process.running():
        yield process


async def test_the_operator_needs_no_more_than_its_roles(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess, logs: Path
) -> None:
    """Asserts that it makes, repairs, moves and re-shards, and is refused nothing on the way.

    Rights that nobody needs are somebody's who takes the operator over; one that is missing shows
    where it is needed, which may be in a failover.
    """
    del operator
    await make_zone(cluster, api, NAMESPACE, ZONE, ("worker-1", "worker-2", "worker-3"))
    await fail_over(cluster, api, NAMESPACE, ZONE)
    await check_settled(api, NAMESPACE, ZONE)
    cluster.apply(task_manifest(NAMESPACE, "order", ZONE, {0: (2, 0, 1), 1: (1, 2, 0)}))
    tasks = path_of(NAMESPACE, "rebalancetasks")
    assert state_of(await until(api, tasks, "order", has_ended)) == "Succeeded"
    patch = json.dumps({"spec": {"partitions": 6}})
    cluster.kubectl(
        "patch", "dz", ZONE, "--namespace", NAMESPACE, "--type=merge", f"--patch={patch}"
    )
    await until_zone(api, NAMESPACE, ZONE, functools.partial(is_cut, partitions=6))
    await check_settled(api, NAMESPACE, ZONE)
    await remove_zone(api, NAMESPACE, ZONE)
    lines = (logs / "operator.log").read_text().splitlines()
    refusals = [line for line in lines if "forbidden" in line.lower()]
    assert lines
    assert refusals == []
