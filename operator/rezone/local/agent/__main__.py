"""`python -m rezone.local.agent`: the agent as a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from ipaddress import IPv4Network
from pathlib import Path

import click

from rezone.local.agent.addresses import PODS
from rezone.local.agent.agent import Agent
from rezone.local.agent.settings import AgentSettings
from rezone.local.errors import told_in_a_line

POD_NETWORK = "REZONE_LOCAL_POD_NETWORK"


async def serve(settings: AgentSettings, nodes: list[str]) -> None:
    """Run the agent until SIGTERM or SIGINT; the pods' processes go on."""
    task = asyncio.create_task(Agent(settings).run(nodes))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


@click.command()
@click.option("--kubeconfig", type=click.Path(path_type=Path), required=True)
@click.option("--state-dir", type=click.Path(path_type=Path), required=True)
@click.option("--pki-dir", type=click.Path(path_type=Path), required=True)
@click.option("--node", "nodes", multiple=True, help="A node to create; may be repeated.")
@click.option("--back-off-base-seconds", default=1.0, show_default=True)
@click.option("--heartbeat-seconds", default=2.0, show_default=True)
@click.option("--pod-network", default=str(PODS), envvar=POD_NETWORK, show_default=True)
def main(
    *,
    kubeconfig: Path,
    state_dir: Path,
    pki_dir: Path,
    nodes: tuple[str, ...],
    back_off_base_seconds: float,
    heartbeat_seconds: float,
    pod_network: str,
) -> None:
    """Play the kubelet of every node of a local cluster."""
    settings = AgentSettings(
        kubeconfig=kubeconfig,
        state=state_dir,
        pki=pki_dir,
        back_off_base_seconds=back_off_base_seconds,
        heartbeat_seconds=heartbeat_seconds,
        pod_network=IPv4Network(pod_network),
    )
    with told_in_a_line():
        asyncio.run(serve(settings, list(nodes)))


if __name__ == "__main__":
    main()
