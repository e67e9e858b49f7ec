"""The command: bring the cluster up, run the main job, print the report."""

import asyncio
import sys
import tempfile
from pathlib import Path

import click

from rezone.cli.demo.cluster import NAMESPACE, DemoError
from rezone.cli.demo.picture import picture_of
from rezone.cli.demo.report import show
from rezone.cli.demo.run import run_main_job
from rezone.cli.demo.scenario import ZONE
from rezone.cli.demo.table import UnusableInputError, generated_table, table_of_file
from rezone.local.cluster import LocalCluster
from rezone.local.commands import default_state_dir
from rezone.local.errors import LocalError
from rezone.local.tools import find_tools

ROWS = 1_000_000
PARTITIONS = 24


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
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Where the picture of what happened goes (SVG); by default demo.svg in the state "
    "directory.",
)
def demo(
    *, rows: int, partitions: int, source: Path | None, key: str | None, picture: Path | None
) -> None:
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
            report = asyncio.run(run_main_job(cluster, table, partitions=partitions))
    except (DemoError, UnusableInputError, LocalError) as error:
        raise click.ClickException(str(error)) from error
    show(report)
    drawn = picture or cluster.kubeconfig.parent / "demo.svg"
    try:
        drawn.write_text(picture_of(report.history), encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"no picture: {error}") from error
    click.echo(f"A picture of throughput, write gaps and leaders over time: {drawn}")
    _how_to_go_on(cluster)
    sys.exit(0 if report.kept else 1)


def _how_to_go_on(cluster: LocalCluster) -> None:
    kubectl = find_tools(["kubectl"])["kubectl"]
    path = f"{kubectl.parent}:{Path(sys.executable).parent}"
    click.echo(
        f"\nLook around:\n"
        f"  export KUBECONFIG={cluster.kubeconfig} PATH={path}:$PATH\n"
        f"  kubectl -n {NAMESPACE} get dz,rbt,rgm\n"
        f"  kubectl -n {NAMESPACE} describe dz {ZONE}\n"
        f"  rezone top {ZONE} -n {NAMESPACE}\n"
        f"  rezone map {ZONE} -n {NAMESPACE}\n"
        f"Stop everything: make down"
    )
