"""`rezone local ...`: the commands of the one-machine cluster."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import yaml

from rezone.local.agent.nodes import add_node, fail_node, remove_node
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.errors import LocalError
from rezone.local.tools import find_tools


def default_state_dir() -> Path:
    """Return where the cluster of this user lives if nobody says otherwise."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root, "rezone", "local")


@click.group()
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_state_dir,
    show_default="$XDG_STATE_HOME/rezone/local",
    help="Where the cluster keeps everything.",
)
@click.pass_context
def local(context: click.Context, state_dir: Path) -> None:
    """Run a Kubernetes cluster on this machine: no containers, every pod is a process."""
    context.obj = LocalCluster(state_dir)


@local.command()
@click.option("--nodes", default=3, show_default=True, help="How many nodes a new cluster gets.")
@click.option(
    "--use-kubeconfig", is_flag=True, help="Start nothing; use the cluster of $KUBECONFIG."
)
@click.pass_obj
def up(cluster: LocalCluster, nodes: int, *, use_kubeconfig: bool) -> None:
    """Start the cluster, or what of it does not run.

    Prints what a shell needs to use it: eval "$(rezone local up)".
    """
    if use_kubeconfig:
        path = _kubeconfig_of_environment()
        _ask_version(path)
        click.echo(f"using the cluster of {path}; nothing was started")
        return
    _run(lambda: cluster.up(nodes, lambda line: click.echo(line, err=True)))
    kubectl = find_tools(["kubectl"])["kubectl"]
    click.echo(f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}")
    click.echo(f"export PATH={shlex.quote(str(kubectl.parent))}:$PATH")


@local.command()
@click.option("--delete", is_flag=True, help="Remove all data as well.")
@click.pass_obj
def down(cluster: LocalCluster, *, delete: bool) -> None:
    """End the cluster with all its pods."""
    _run(lambda: cluster.down(delete=delete))
    click.echo("down; all data removed" if delete else "down; the data is kept")


@local.command()
@click.pass_obj
def status(cluster: LocalCluster) -> None:
    """Show which parts run; exit code 1 if one does not."""
    parts = cluster.status()
    for part in parts:
        click.echo(f"{part.name:<26}{f'running, pid {part.pid}' if part.running else 'stopped'}")
    if not all(part.running for part in parts):
        raise SystemExit(1)


@local.command("kubeconfig")
@click.pass_obj
def kubeconfig_command(cluster: LocalCluster) -> None:
    """Print the path of the administrator's kubeconfig."""
    _require(cluster)
    click.echo(str(cluster.kubeconfig))


@local.command("add-node")
@click.argument("name")
@click.option(
    "--zone", default="", help="Its failure domain; a, b or c by its number if not given."
)
@click.pass_obj
def add_node_command(cluster: LocalCluster, name: str, zone: str) -> None:
    """Add a node while the cluster runs."""
    _with_api(cluster, lambda api: add_node(api, name, zone))
    click.echo(f"node {name} added")


@local.command("remove-node")
@click.argument("name")
@click.pass_obj
def remove_node_command(cluster: LocalCluster, name: str) -> None:
    """Remove a node after its pods have ended in order."""
    _with_api(cluster, lambda api: remove_node(api, name))
    click.echo(f"node {name} removed")


@local.command("fail-node")
@click.argument("name")
@click.option("--recover", is_flag=True, help="Bring it back.")
@click.pass_obj
def fail_node_command(cluster: LocalCluster, name: str, *, recover: bool) -> None:
    """Let a node fail as by a power cut: no heartbeat, its processes killed."""
    _with_api(cluster, lambda api: fail_node(api, name, failed=not recover))
    click.echo(f"node {name} {'comes back' if recover else 'fails'}")


def _kubeconfig_of_environment() -> Path:
    path = os.environ.get("KUBECONFIG")
    if not path:
        raise click.ClickException("--use-kubeconfig needs the environment variable KUBECONFIG")
    return Path(path)


def _ask_version(path: Path) -> None:
    async def ask() -> None:
        async with KubeApi(path) as api:
            await api.get("/version")

    try:
        asyncio.run(ask())
    except (OSError, KeyError, yaml.YAMLError, LocalError) as error:
        raise click.ClickException(f"the cluster of {path} cannot be used: {error}") from error


def _with_api(cluster: LocalCluster, action: Callable[[KubeApi], Awaitable[None]]) -> None:
    _require(cluster)

    async def act() -> None:
        async with KubeApi(cluster.own_kubeconfig) as api:
            await action(api)

    _run(lambda: asyncio.run(act()))


def _require(cluster: LocalCluster) -> None:
    if not cluster.own_kubeconfig.exists():
        raise click.ClickException("there is no local cluster; start one with `rezone local up`")


def _run(action: Callable[[], None]) -> None:
    try:
        action()
    except LocalError as error:
        raise click.ClickException(str(error)) from error
