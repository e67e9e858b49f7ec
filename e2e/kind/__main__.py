"""`python -m e2e.kind`: the steps of a cluster, one at a time or all of them."""

from __future__ import annotations

import sys

import click

from e2e.kind import host
from e2e.kind.binaries import build_programs
from e2e.kind.cluster import KindCluster
from e2e.kind.command import CommandError
from e2e.kind.nodeimage import ensure_node_image
from e2e.kind.places import default_places
from rezone.local.errors import LocalError


@click.group()
def main() -> None:
    """Make a real Kubernetes cluster on this machine, and end it."""


@main.command(name="host")
def host_() -> None:
    """Install packages and start our Docker daemon; prints the DOCKER_HOST to use it with."""
    places = default_places()
    host.prepare(places)
    click.echo(places.environment()["DOCKER_HOST"])


@main.command()
def build() -> None:
    """Build the programs of the cluster; prints where they are."""
    for path in build_programs(default_places()).values():
        click.echo(path)


@main.command()
def up() -> None:
    """Make the cluster, and all that it takes; prints the KUBECONFIG to use it with."""
    places = default_places()
    host.prepare(places)
    programs = build_programs(places)
    cluster = KindCluster(places, programs)
    if not cluster.exists():
        cluster.create(ensure_node_image(places, programs))
    click.echo(places.kubeconfig)


@main.command()
def down() -> None:
    """Remove the cluster, stop the Docker daemon, take back its network and rules."""
    places = default_places()
    KindCluster(places, build_programs(places)).delete()
    host.stop_docker(places)


@main.command()
def delete() -> None:
    """Remove the cluster only; the Docker daemon with the node image goes on."""
    places = default_places()
    KindCluster(places, build_programs(places)).delete()


if __name__ == "__main__":
    try:
        main()
    except (CommandError, LocalError) as error:
        sys.exit(f"e2e: {error}")
