"""The cluster, the installation and the zone that the cases share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from e2e.kind import host
from e2e.kind.binaries import build_programs
from e2e.kind.cluster import CONTEXT, NAME, KindCluster
from e2e.kind.command import Step, run, say
from e2e.kind.nodeimage import ensure_node_image
from e2e.kind.places import Places, default_places
from e2e.kubernetes.cluster import CONTEXTS, KEEP, Cluster, Nodes, allowed_context
from e2e.kubernetes.zone import NAMESPACE, POOL, ROWS, ZONE, Zone, zone_manifest
from e2e.spark.image import ensure_spark_image
from rezone.local.tools import find_tools

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "rezone"
RELEASE = "rezone"
RELEASE_NAMESPACE = "rezone-system"
REPOSITORY = "REZONE_E2E_REPOSITORY"
TAG = "REZONE_E2E_TAG"
_WORKERS = 4


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the cases in the order in which they are written: each goes on from the last one.

    They come last: what else is run has the machine for itself before there is a cluster.
    """
    cases = [item for item in items if Path(__file__).parent in item.path.parents]
    cases.sort(key=lambda item: (item.path, item.location[1] or 0))
    items[:] = [*(item for item in items if item not in cases), *cases]


@dataclass(frozen=True)
class Stage:
    """What the cases play on.

    `workers` are four nodes, the first three of which hold the zone; `client_node` is where the
    client lives, None for anywhere; `image` is the operator's.
    """

    cluster: Cluster
    workers: tuple[str, ...]
    client_node: str | None
    repository: str
    tag: str

    @property
    def image(self) -> str:
        """The operator's image."""
        return f"{self.repository}:{self.tag}"

    @property
    def values(self) -> list[str]:
        """The chart's values that differ from what a user gets."""
        return [
            f"--set=image.repository={self.repository}",
            f"--set=image.tag={self.tag}",
            f"--set=zoneNamespaces={{{NAMESPACE}}}",
        ]

    @property
    def base(self) -> set[str]:
        """The nodes that hold the zone between cases."""
        return set(self.workers[:3])

    @property
    def spare(self) -> str:
        """The node that joins and leaves."""
        return self.workers[3]

    def label(self, node: str, *, member: bool) -> None:
        """Let a node join the zone's pool, or leave it."""
        change = f"{POOL}={ZONE}" if member else f"{POOL}-"
        self.cluster.kubectl("label", "node", node, "--overwrite", change)

    def install(self, chart: Path, *more: str) -> None:
        """Install or upgrade the release and wait until it is ready."""
        self.cluster.helm(
            *("upgrade", "--install", RELEASE, str(chart), "--namespace", RELEASE_NAMESPACE),
            *("--create-namespace", "--wait", "--timeout=4m"),
            *self.values,
            # Copies take the image of this checkout. An older chart has no value for that.
            *("--set", "extraEnv[0].name=REZONE_SPARK_TEMPLATE_FIELDS,extraEnv[0].value=image"),
            *more,
        )


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """Give a cluster: the one that KUBECONFIG names if it is allowed, else one made here."""
    kubectl = find_tools(["kubectl"], report=say)["kubectl"]
    if allowed_context(kubectl) is not None:
        yield _foreign_stage(kubectl)
        return
    places = default_places()
    host.prepare(places)
    programs = build_programs(places)
    cluster = KindCluster(places, programs)
    try:
        if not cluster.exists():
            cluster.create(ensure_node_image(places, programs))
        yield _kind_stage(places, programs, cluster)
    finally:
        if os.environ.get(KEEP):
            say(f"the cluster stays: KUBECONFIG={places.kubeconfig}; end it: make e2e-down")
        else:
            cluster.delete()
            host.stop_docker(places)


def _kind_stage(places: Places, programs: dict[str, Path], kind: KindCluster) -> Stage:
    env = places.environment()
    repository, tag = _images()
    if TAG not in os.environ:
        with Step("building the images"):
            script = ROOT / "hack" / "images.py"
            run([sys.executable, script, "operator", "data-node"], env=env, timeout_seconds=1800)
        tag = kind.load([f"{repository}:{tag}", f"{repository}-data-node:{tag}"])
    cluster = Cluster(
        kubectl_path=programs["kubectl"],
        helm_path=programs["helm"],
        env={**env, "KUBECONFIG": str(places.kubeconfig)},
        nodes=Nodes(env),
    )
    cluster.kubectl("config", "use-context", CONTEXT)
    workers = [f"{NAME}-worker{number}" for number in ("", "2", "3", "4")]
    # The control plane's node is never drained, lost or full of data nodes.
    return Stage(cluster, tuple(workers), f"{NAME}-control-plane", repository, tag)


def _foreign_stage(kubectl: Path) -> Stage:
    helm = find_tools(["helm"], report=say)["helm"]
    cluster = Cluster(kubectl_path=kubectl, helm_path=helm, env=os.environ, nodes=None)
    schedulable = [
        node["metadata"]["name"]
        for node in cluster.items("nodes")
        if not node["spec"].get("unschedulable") and not node["spec"].get("taints")
    ]
    assert len(schedulable) >= _WORKERS, f"{CONTEXTS} names a cluster with under {_WORKERS} nodes"
    return Stage(cluster, tuple(sorted(schedulable)[:_WORKERS]), None, *_images())


def _images() -> tuple[str, str]:
    """Return repository and tag of the images; a tag that was given names images that are there."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    repository = os.environ.get(REPOSITORY, "rezone-dev/rezone")
    return repository, os.environ.get(TAG, str(chart["appVersion"]))


@pytest.fixture(scope="session")
def installed(stage: Stage) -> Stage:
    """Install the chart of this checkout as a user would, TLS and two operators included."""
    # What an earlier run has left is not what this one has written.
    gone = ("--ignore-not-found", "--wait", "--timeout=180s")
    stage.cluster.kubectl("delete", "namespace", NAMESPACE, *gone, seconds=200)
    spaces = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    stage.cluster.apply(spaces)
    with Step("installing the chart"):
        stage.install(CHART)
    return stage


@pytest.fixture(scope="session")
def zone(installed: Stage, tmp_path_factory: pytest.TempPathFactory) -> Zone:
    """Make the zone and its client, and load the rows."""
    cluster = installed.cluster
    for node in installed.workers:
        installed.label(node, member=node in installed.base)
    cluster.apply(zone_manifest())
    zone = Zone(cluster, tmp_path_factory.mktemp("histories"))
    with Step("waiting for the zone"):
        zone.wait_settled(installed.base)
    certificate = tmp_path_factory.mktemp("client")
    run(
        [
            *(sys.executable, "-m", "rezone.cli.main", "certificate", ZONE, "-n", NAMESPACE),
            *("--role", "admin", "--out", str(certificate)),
            *("--authority", f"{RELEASE_NAMESPACE}/rezone-authority"),
        ],
        env={**cluster.env, "PYTHONPATH": str(ROOT / "operator")},
    )
    zone.start_client(installed.image, certificate, installed.client_node)
    say(f"loaded: {zone.call_client(f'load?rows={ROWS}')}")
    return zone


@pytest.fixture(scope="session")
def spark_image(stage: Stage) -> str:
    """Return the name of an image that every node has, or can pull."""
    if stage.cluster.nodes is None or TAG in os.environ:
        return f"{stage.repository}-spark:{stage.tag}"
    return ensure_spark_image(default_places(), stage.repository)


@pytest.fixture(autouse=True)
def _settled(stage: Stage, zone: Zone) -> None:
    """Begin with the zone settled on its three nodes, whatever the case before has left."""
    for node in stage.workers:
        stage.cluster.kubectl("uncordon", node)
        stage.label(node, member=node in stage.base)
    zone.wait_settled(stage.base)


@pytest.fixture
def machines(stage: Stage) -> Nodes:
    """Give the nodes as machines; skip where there is no way to them."""
    if stage.cluster.nodes is None:
        pytest.skip("the machines of this cluster cannot be reached: only those of kind can")
    return stage.cluster.nodes
