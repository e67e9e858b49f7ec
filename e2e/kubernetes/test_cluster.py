"""What happens to a zone in use when its cluster changes and breaks, one case after the other.

Each case begins and ends with the zone settled on its three nodes; the fourth is spare.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.kind.command import CommandError, run
from e2e.kubernetes.cluster import Json, Nodes
from e2e.kubernetes.conftest import CHART, RELEASE, RELEASE_NAMESPACE, ROOT, Stage
from e2e.kubernetes.zone import (
    KINDS,
    NAMESPACE,
    PARTITIONS,
    PLANNED,
    UNPLANNED,
    ZONE,
    Zone,
    condition,
    reason,
)

pytestmark = [pytest.mark.timeout(1200), pytest.mark.proves("OP-08")]


@pytest.mark.proves("OP-06")
def test_helm_test_passes(installed: Stage) -> None:
    """A chart whose own test fails tells its user that a good installation is broken."""
    installed.cluster.helm("test", RELEASE, "--namespace", RELEASE_NAMESPACE, "--timeout=5m")


@pytest.mark.proves("OP-03", "ZR-03")
def test_a_node_joins_and_leaves(stage: Stage, zone: Zone) -> None:
    """A new node that gets no share, or one that leaves with the only copy, loses rows."""
    with zone.under_traffic("node added", gap_seconds_max=PLANNED):
        stage.label(stage.spare, member=True)
        zone.wait_settled({*stage.base, stage.spare})
    with zone.under_traffic("node removed", gap_seconds_max=PLANNED):
        stage.label(stage.spare, member=False)
        zone.wait_settled(stage.base)


def test_kubectl_drain(stage: Stage, zone: Zone) -> None:
    """A drain that takes a leader before its successor is ready stops writers or loses rows."""
    stage.label(stage.spare, member=True)
    zone.wait_settled({*stage.base, stage.spare})
    drained = stage.workers[0]
    with zone.under_traffic("kubectl drain", gap_seconds_max=PLANNED):
        flags = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=240s"]
        stage.cluster.kubectl("drain", drained, *flags, seconds=300)
        zone.wait_settled({*stage.base, stage.spare} - {drained})
    with zone.under_traffic("uncordon", gap_seconds_max=PLANNED):
        stage.cluster.kubectl("uncordon", drained)
        zone.wait_settled({*stage.base, stage.spare})


def test_a_pod_is_deleted_by_force(stage: Stage, zone: Zone) -> None:
    """A data node that comes back under its name with an old claim must not lead stale rows."""
    with zone.under_traffic("pod deleted by force", gap_seconds_max=UNPLANNED):
        pod = zone.pod_on(stage.workers[1])
        flags = ["--force", "--grace-period=0", f"--namespace={NAMESPACE}"]
        stage.cluster.kubectl("delete", "pod", pod, *flags)
        zone.wait_settled(stage.base)


def test_a_process_is_killed(stage: Stage, zone: Zone, machines: Nodes) -> None:
    """What was acknowledged and only in memory would be lost with SIGKILL."""
    with zone.under_traffic("process killed", gap_seconds_max=UNPLANNED):
        _kill_process(stage, zone, machines, stage.workers[2])
        zone.wait_settled(stage.base)


def test_a_disk_is_damaged(stage: Stage, zone: Zone, machines: Nodes) -> None:
    """Rows that a disk has changed would be served, or copied over good ones."""
    node = stage.workers[2]
    with zone.under_traffic("disk damaged", gap_seconds_max=UNPLANNED):
        pod = zone.pod_on(node)
        machines.execute(node, "sh", "-euc", _DAMAGE, "sh", zone.volume_of(pod))
        _kill_process(stage, zone, machines, node)
        zone.wait_settled(stage.base)
    log = stage.cluster.kubectl("logs", pod, f"--namespace={NAMESPACE}")
    assert log.count("a replica is damaged") == PARTITIONS


# A byte in the middle of the newest log of each partition: checksums of entries must show it.
_DAMAGE = """
for log in $(find "$1" -path '*/partitions/*/log/*' -type f -size +0); do
  printf '\\377' | dd of="$log" bs=1 seek=$(($(stat -c %s "$log") / 2)) conv=notrunc status=none
done
"""


def _kill_process(stage: Stage, zone: Zone, machines: Nodes, node: str) -> None:
    """Kill a node's data node process, and wait until its container is started again."""
    pod = zone.pod_on(node)
    before = _container(stage, pod)
    name = before["containerID"].rpartition("/")[2]
    machines.execute(node, "ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", name)
    stage.cluster.until(
        "the container is started again",
        lambda: _container(stage, pod)["restartCount"] > before["restartCount"],
        seconds=60,
        seen=zone.describe,
    )


def _container(stage: Stage, pod: str) -> Json:
    found: Json = stage.cluster.get("pod", pod, f"--namespace={NAMESPACE}")
    status: Json = found["status"]["containerStatuses"][0]
    return status


def test_a_kubelet_stops(stage: Stage, zone: Zone, machines: Nodes) -> None:
    """A node that cannot be asked may still run its data node: both must not lead."""
    node = stage.workers[0]
    with zone.under_traffic("kubelet stopped", gap_seconds_max=UNPLANNED):
        with machines.without_kubelet(node):
            _wait_for_node(stage, zone, node, "Unknown")
            _wait_until_available(stage, zone, seconds=120)
        _wait_for_node(stage, zone, node, "True")
        zone.wait_settled(stage.base)


def test_a_node_is_lost(stage: Stage, zone: Zone, machines: Nodes) -> None:
    """Leaders of a dead node that nobody replaces end the writes of their partitions."""
    node = stage.workers[1]
    with zone.under_traffic("node lost", gap_seconds_max=UNPLANNED):
        machines.kill(node)
        try:
            _wait_for_node(stage, zone, node, "Unknown")
            _wait_until_available(stage, zone, seconds=180)
        finally:
            machines.start(node)
        _wait_for_node(stage, zone, node, "True")
        zone.wait_settled(stage.base)


def _wait_for_node(stage: Stage, zone: Zone, node: str, ready: str) -> None:
    stage.cluster.until(
        f"node {node} is Ready={ready}",
        lambda: condition(stage.cluster.get("node", node), "Ready") == ready,
        seconds=180,
        seen=zone.describe,
    )


def _wait_until_available(stage: Stage, zone: Zone, seconds: int) -> None:
    stage.cluster.until(
        "the zone is available without the node",
        lambda: _available(stage),
        seconds=seconds,
        seen=zone.describe,
    )


def _available(stage: Stage) -> bool:
    """Whether every partition has a leader, be it with fewer replicas than it shall have."""
    zone = stage.cluster.get("dz", ZONE, f"--namespace={NAMESPACE}")
    return reason(zone, "Ready") in {"Available", "UnderReplicated"}


@pytest.mark.proves("OP-02")
def test_the_operator_is_killed_during_a_rebalance(stage: Stage, zone: Zone) -> None:
    """A rebalance that only its operator's memory knew would stay half done for ever."""
    with zone.under_traffic("operator killed", gap_seconds_max=PLANNED):
        stage.label(stage.spare, member=True)
        stage.cluster.until(
            "a rebalance is under way",
            lambda: zone.status().get("currentTask", "") != "",
            seconds=120,
            seen=zone.describe,
        )
        task = zone.status()["currentTask"]
        flags = ["--force", "--grace-period=0", f"--namespace={RELEASE_NAMESPACE}"]
        stage.cluster.kubectl("delete", "pod", _leading_operator(stage), *flags)
        zone.wait_settled({*stage.base, stage.spare})
    assert _task_state(stage, task) == "Succeeded"


def _leading_operator(stage: Stage) -> str:
    lease = stage.cluster.get("lease", "rezone-operator", f"--namespace={RELEASE_NAMESPACE}")
    return str(lease["spec"]["holderIdentity"]).split("_")[0]


def _task_state(stage: Stage, name: str) -> str:
    found = stage.cluster.get("rbt", name, f"--namespace={NAMESPACE}")
    return str(found["status"]["state"])


def test_the_pods_are_updated(stage: Stage, zone: Zone) -> None:
    """An update that takes the next pod before the last has caught up stops writers."""
    before = {pod["metadata"]["uid"] for pod in zone.pods()}
    change = {"metadata": {"annotations": {"rezone.dev/e2e": "updated"}}}
    with zone.under_traffic("rolling update", gap_seconds_max=PLANNED):
        patch(stage, {"spec": {"dataNodes": {"podTemplate": change}}})
        stage.cluster.until(
            "all pods are new",
            lambda: not before & {pod["metadata"]["uid"] for pod in zone.pods()},
            seconds=300,
            seen=zone.describe,
        )
        zone.wait_settled(stage.base)
    for pod in zone.pods():
        assert pod["metadata"]["annotations"]["rezone.dev/e2e"] == "updated"


def patch(stage: Stage, change: Json) -> None:
    """Change the zone's manifest, as its owner would."""
    words = ("patch", "dz", ZONE, f"--namespace={NAMESPACE}", "--type=merge")
    stage.cluster.kubectl(*words, f"--patch={json.dumps(change)}")


@pytest.mark.proves("OP-06")
def test_the_chart_is_upgraded(stage: Stage, zone: Zone, tmp_path: Path) -> None:
    """Definitions that stay old would drop what the new operator stores; a zone must not notice."""
    older = chart_before_last_change_of_definitions(tmp_path)
    pods = {pod["metadata"]["uid"] for pod in zone.pods()}
    stage.install(older)
    assert definitions(stage) != definitions_of_the_chart(stage)
    with zone.under_traffic("chart upgraded", gap_seconds_max=PLANNED):
        stage.install(CHART, "--set=logLevel=debug", "--set=settings.resyncSeconds=20")
        zone.wait_settled(stage.base)
    assert definitions(stage) == definitions_of_the_chart(stage)
    assert {pod["metadata"]["uid"] for pod in zone.pods()} == pods


def chart_before_last_change_of_definitions(directory: Path) -> Path:
    """Return the chart as it was when it had other definitions; skip without that history."""
    definitions = "charts/rezone/templates/crds"
    git = ("git", "-C", str(ROOT))
    try:
        changed = run([*git, "log", "-1", "--format=%H", "--", definitions]).strip()
        packed = directory / "chart.tar"
        run([*git, "archive", f"--output={packed}", f"{changed}^", "charts/rezone"])
    except CommandError as error:
        pytest.skip(f"the checkout has no earlier chart: {error}")
    run(["tar", "-C", directory, "-xf", packed])
    return directory / "charts" / "rezone"


def definitions(stage: Stage) -> list[Json]:
    """Return the versions of all definitions in the cluster, with their schemas."""
    found = [stage.cluster.get("crd", f"{kind}.rezone.dev") for kind in KINDS]
    return [one["spec"]["versions"] for one in found]


def definitions_of_the_chart(stage: Stage) -> list[Json]:
    """Return the same of this checkout, as the API server would store it."""
    dry = ("apply", "--server-side", "--dry-run=server", "--force-conflicts", "--output=json")
    files = [ROOT / "crds" / f"{kind}.rezone.dev.yaml" for kind in KINDS]
    stored = [json.loads(stage.cluster.kubectl(*dry, f"--filename={file}")) for file in files]
    return [one["spec"]["versions"] for one in stored]
