"""`python -m e2e.proxied`: a zone in use, and what commands learn of it through the proxy.

Prints, as one JSON document, what `rezone top` says, and the members of a support bundle.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import click

from e2e.chaos.apart import raise_loopback
from e2e.kind.command import run
from rezone.cli.demo.cluster import NAMESPACE, DemoCluster
from rezone.cli.demo.run import install_operator
from rezone.client import TableClient
from rezone.local.agent.__main__ import POD_NETWORK
from rezone.local.api import KubeApi
from rezone.local.cluster import LocalCluster
from rezone.local.controlplane import ControlPlaneSettings
from rezone.local.tools import find_tools

ZONE = "rates"
NODES = 2
ROWS_AT_ONCE = 10
_NETWORK = "10.64.0.0/16"
_READY_SECONDS = 240.0


class Load(threading.Thread):
    """Writes and reads some rows until it is stopped."""

    def __init__(self, bootstrap: list[str]) -> None:
        super().__init__(name="load", daemon=True)
        self._addresses = bootstrap
        self._stopping = threading.Event()

    def run(self) -> None:
        """Write and read."""
        with TableClient(self._addresses) as table:
            start = 0
            while not self._stopping.wait(0.01):
                keys = [{"id": start + each} for each in range(ROWS_AT_ONCE)]
                table.write([{**key, "value": start} for key in keys])
                table.read(keys)
                start += ROWS_AT_ONCE

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self.join()


@click.command()
@click.argument("state", type=click.Path(path_type=Path))
def main(*, state: Path) -> None:
    """Make a cluster and a zone below STATE, use it, and tell what is seen of it."""
    raise_loopback()
    run(["ip", "route", "add", "local", _NETWORK, "dev", "lo"])
    os.environ[POD_NETWORK] = _NETWORK
    local = LocalCluster(state / "cluster", ControlPlaneSettings(unsafe_no_fsync=True))
    try:
        local.up(NODES, report=lambda line: click.echo(line, err=True))
        bootstrap = asyncio.run(_made(local))
        load = Load(bootstrap)
        load.start()
        found = {"top": json.loads(_rezone(local, "top", ZONE, "--output=json"))}
        bundle = state / "bundle.tar.gz"
        _rezone(local, "support-bundle", ZONE, f"--file={bundle}")
        load.stop()
        with tarfile.open(bundle) as archive:
            found["bundle"] = sorted(archive.getnames())
        click.echo(json.dumps(found))
    finally:
        local.down(delete=True)


async def _made(local: LocalCluster) -> list[str]:
    """Install the operator and make the zone; return where its data nodes are."""
    kubectl = find_tools(["kubectl"])["kubectl"]
    async with KubeApi(local.kubeconfig) as api:
        cluster = DemoCluster(api, local.kubeconfig, kubectl, local.kubeconfig.parent)
        await install_operator(cluster)
        await cluster.apply(_zone())

        async def ready() -> list[str]:
            status = (await cluster.own("distributionzones", ZONE)).get("status", {})
            told = {each["type"]: each["status"] for each in status.get("conditions", ())}
            nodes = status.get("dataNodes", ()) if told.get("Ready") == "True" else ()
            return [str(node["address"]) for node in nodes]

        found: list[str] = await cluster.until("the zone", ready, timeout_seconds=_READY_SECONDS)
        return found


def _zone() -> dict[str, Any]:
    return {
        "apiVersion": "rezone.dev/v1alpha1",
        "kind": "DistributionZone",
        "metadata": {"name": ZONE, "namespace": NAMESPACE},
        "spec": {
            "partitions": 4,
            "replicas": NODES,
            "minInSyncReplicas": 1,
            "schema": {
                "columns": [
                    {"name": "id", "type": "int64", "nullable": False},
                    {"name": "value", "type": "int64"},
                ],
                "primaryKey": ["id"],
            },
            "dataNodes": {"count": NODES},
        },
    }


def _rezone(local: LocalCluster, *words: str) -> str:
    env = {**os.environ, "KUBECONFIG": str(local.kubeconfig)}
    command = [sys.executable, "-m", "rezone.cli.main", *words, f"--namespace={NAMESPACE}"]
    return run(command, env=env)


if __name__ == "__main__":
    main()
