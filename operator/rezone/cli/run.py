"""The two processes of the product: the operator and the data node."""

import os
import sys
from pathlib import Path

import click
import structlog


@click.command("operator")
def operator() -> None:
    """Run the operator; settings come from REZONE_* variables; a wrong one is named."""
    from rezone.controller.process.main import run_operator  # noqa: PLC0415 - see cli.main

    raise SystemExit(run_operator(begin_again))


def begin_again() -> None:
    """Put another life of the operator in the place of this one, of which nothing is left.

    A container that ends, as with each outage of the API server, is started again after a pause
    that grows to five minutes.
    """
    os.execv(sys.executable, [sys.executable, "-m", "rezone.cli.main", "operator"])  # noqa: S606


@click.command("data-node")
@click.option("--node-id", type=click.IntRange(min=0), required=True, help="This node's id.")
@click.option("--zone", default="", help="The zone's name, for logs.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Where the partitions are kept.",
)
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where Flight is served.")
@click.option("--health", required=True, metavar="HOST:PORT", help="Where probes are answered.")
def data_node(node_id: int, zone: str, data_dir: Path, listen: str, health: str) -> None:
    """Run one data node until it is told to end (SIGTERM)."""
    from rezone.wire.transport import receive_limits  # noqa: PLC0415 - see cli.main

    receive_limits.load_or_end()
    from rezone.datanode.process import run  # noqa: PLC0415 - brings Flight, after its limits

    structlog.contextvars.bind_contextvars(zone=zone)
    health_port = int(health.rpartition(":")[2])
    raise SystemExit(run(node_id, data_dir, listen, health_port))
