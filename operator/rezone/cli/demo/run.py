"""Runs the main job on a local cluster: install the operator, then the scenario."""

from pathlib import Path

import click

from rezone.cli.demo.cluster import NAMESPACE, DemoCluster
from rezone.cli.demo.operations import Operations
from rezone.cli.demo.report import DemoReport
from rezone.cli.demo.scenario import Scenario
from rezone.cli.demo.table import DemoTable
from rezone.cli.demo.traffic import PAUSE_SECONDS
from rezone.cli.demo.view import LiveView
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.tools import find_tools

MANIFESTS = Path(__file__).parents[4] / "manifests" / "overlays" / "one-machine"
OPERATOR_SECONDS = 90.0


async def run_main_job(
    local: LocalCluster,
    table: DemoTable,
    *,
    partitions: int,
    pause_seconds: float = PAUSE_SECONDS,
    operations: Operations | None = None,
) -> DemoReport:
    """Install the operator on a cluster that is up and run the scenario; shows its progress.

    A partition's next write comes `pause_seconds` after the last one's answer. `operations` gets
    the history of each row. Raises DemoError when a step does not come to
    its end.
    """
    kubectl = find_tools(["kubectl"])["kubectl"]
    state = local.kubeconfig.parent
    async with KubeApi(local.kubeconfig) as api:
        cluster = DemoCluster(api, local.kubeconfig, kubectl, state)
        await install_operator(cluster)
        view = LiveView()
        scenario = Scenario(
            cluster,
            table,
            partitions=partitions,
            say=_say,
            show_task=view.show,
            end_task=view.end,
            pause_seconds=pause_seconds,
            operations=operations,
        )
        try:
            return await scenario.run()
        finally:
            view.end()


async def install_operator(cluster: DemoCluster) -> None:
    """Install the operator as a user does, and wait for it. Raises DemoError."""
    _say("installing the operator from manifests/overlays/one-machine")
    await cluster.kubectl("apply", "--server-side", "--kustomize", str(MANIFESTS))

    deployment = ("deployment/rezone-operator", f"--timeout={OPERATOR_SECONDS}s")
    await cluster.kubectl("--namespace", NAMESPACE, "rollout", "status", *deployment)

    async def alone() -> bool:
        return len(await cluster.pods("app.kubernetes.io/component=operator")) == 1

    # An operator of an earlier run, with other settings, must not make the zone's pods any more.
    await cluster.until("earlier operators to end", alone, timeout_seconds=OPERATOR_SECONDS)


def _say(text: str) -> None:
    click.secho(f"==> {text}", bold=True)
