"""`python -m e2e.kind`: the steps of a cluster, one at a time or all of them."""

from __future__ import annotations

import sys

import click

from e2e.kind import host
from e2e.kind.command import CommandError
from e2e.kind.places import default_places


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
def stop() -> None:
    """Stop the Docker daemon and take back its network and rules."""
    host.stop_docker(default_places())


if __name__ == "__main__":
    try:
        main()
    except CommandError as error:
        sys.exit(f"e2e: {error}")
