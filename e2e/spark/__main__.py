"""`python -m e2e.spark`: run the SparkApplications of a cluster until told to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from e2e.spark.launcher import SubmitLauncher
from rezone.local.api import KubeApi
from rezone.local.sparkrunner import SparkRunner, run_until_told


async def serve(kubeconfig: Path) -> None:
    """Serve the cluster of a kubeconfig's current context."""
    async with KubeApi(kubeconfig) as api:
        await run_until_told(SparkRunner(api, SubmitLauncher(kubeconfig, api.server)))


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path, exists=True), required=True)
def main(kubeconfig: Path) -> None:
    """Submit the SparkApplications of a cluster and keep their states."""
    asyncio.run(serve(kubeconfig))


if __name__ == "__main__":
    main()
