"""The command: prepare the cluster, install the operator, run the scenario, print the report."""

import asyncio
import sys
import tempfile
from pathlib import Path

import click

from rezone.cli.demo.cluster import NAMESPACE, DemoCluster, DemoError
from rezone.cli.demo.report import show
from rezone.cli.demo.scenario import ZONE, Scenario
from rezone.cli.demo.table import (
    DemoTable,
    UnusableInputError,
    generated_table,
    table_of_file,
)
from rezone.cli.demo.view import LiveView
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.commands import default_state_dir
from rezone.local.errors import LocalError
from rezone.local.tools import find_tools

ROWS = 1_000_000
PARTITIONS = 24
MANIFESTS = Path(__file__).parents[4] / "manifests" / "base"
OPERATOR_SECONDS = 90.0


@click.command("demo")
@click.option("--rows", default=ROWS, show_default=True, type=click.IntRange(1, 1 << 32))
@click.option("--partitions", default=PARTITIONS, show_default=True, type=click.IntRange(1, 1024))
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A Parquet or CSV file to load instead of generated rows.",
)
@click.option("--key", help="The key column of the input; the first one if not given.")
def demo(rows: int, partitions: int, source: Path | None, key: str | None) -> None:
    """Move a loaded table while it is used, kill the operator, and prove that nothing is lost."""
    cluster = LocalCluster(default_state_dir())
    try:
        cluster.up(nodes=4, report=click.echo)
        with tempfile.TemporaryDirectory(prefix="rezone-demo-") as staging:
            table = (
                table_of_file(source, key, Path(staging) / "input.parquet")
                if source is not None
                else generated_table(rows)
            )
            kept = asyncio.run(_run(cluster, table, partitions))
    except (DemoError, UnusableInputError, LocalError) as error:
        raise click.ClickException(str(error)) from error
    _how_to_go_on(cluster)
    sys.exit(0 if kept else 1)


async def _run(local: LocalCluster, table: DemoTable, partitions: int) -> bool:
    kubectl = find_tools(["kubectl"])["kubectl"]
    state = local.kubeconfig.parent
    async with KubeApi(local.kubeconfig) as api:
        cluster = DemoCluster(api, local.kubeconfig, kubectl, state)
        await _install(cluster)
        view = LiveView()
        scenario = Scenario(
            cluster,
            table,
            partitions=partitions,
            say=lambda text: click.secho(f"==> {text}", bold=True),
            show_task=view.show,
            end_task=view.end,
        )
        report = await scenario.run()
    show(report)
    return report.kept


async def _install(cluster: DemoCluster) -> None:
    click.secho("==> installing the operator from manifests/base", bold=True)
    await cluster.kubectl("apply", "--server-side", "--kustomize", str(MANIFESTS))

    async def ready() -> bool:
        pods = await cluster.pods("app.kubernetes.io/component=operator")
        conditions = [c for p in pods for c in (p.get("status") or {}).get("conditions", ())]
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    await cluster.until("the operator to be ready", ready, timeout_seconds=OPERATOR_SECONDS)


def _how_to_go_on(cluster: LocalCluster) -> None:
    kubectl = find_tools(["kubectl"])["kubectl"]
    click.echo(
        f"\nLook around:\n"
        f"  export KUBECONFIG={cluster.kubeconfig} PATH={kubectl.parent}:$PATH\n"
        f"  kubectl -n {NAMESPACE} get dz,rbt,rgm\n"
        f"  kubectl -n {NAMESPACE} describe dz {ZONE}\n"
        f"Stop everything: make down"
    )
