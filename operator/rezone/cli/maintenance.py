"""`rezone maintenance`: ask for a Kubernetes node's maintenance, end it, or show who is in it."""

import asyncio
from datetime import UTC, datetime

import click

from rezone.cli.look.output import document, output_option
from rezone.cli.look.views import maintenance_list
from rezone.domain.observed.maintenance import ANNOTATION, until
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError
from rezone.kube.api.kinds import Node
from rezone.kube.stored.store import StatusStore
from rezone.resources.conditions import ConditionType
from rezone.resources.zone import DistributionZone


@click.command("maintenance")
@click.argument("node", required=False)
@click.option(
    "--for", "wanted", help="How long, as in 90m or 1h30m, or until when (with its zone)."
)
@click.option("--end", is_flag=True, help="End it: a node that is still cordoned is drained then.")
@click.option("--namespace", "-n", help="Whose zones to show; default: the context's namespace.")
@output_option
def maintenance(
    node: str | None, *, wanted: str | None, end: bool, namespace: str | None, output: str
) -> None:
    """Ask for the maintenance of the Kubernetes node NODE, or end it; without NODE, show all.

    Leaders leave the data nodes there, their data stays, and they are not replaced for that time.
    """
    if node is not None and (wanted is None) == (not end):
        raise click.UsageError("say for how long with --for, or --end it")
    if node is None and (wanted is not None or end):
        raise click.UsageError("name the Kubernetes node")
    if node is not None and output != "text":
        raise click.UsageError("--output is for what is shown: leave NODE out")

    async def run() -> list[str]:
        async with await connect() as kube:
            if node is not None:
                return [await _annotate(kube, node, None if end else wanted)]
            place = namespace or kube.namespace
            if output == "text":
                return await shown(kube, place)
            zones = await StatusStore(kube).list(DistributionZone, place)
            return [document(maintenance_list(zones), output)]

    try:
        for line in asyncio.run(run()):
            click.echo(line)
    except KubeError as error:
        raise click.ClickException(str(error)) from error


async def _annotate(kube: Kube, node: str, wanted: str | None) -> str:
    """Write the annotation as a time, or take it away; KubeError, click.ClickException."""
    text = None
    if wanted is not None:
        try:
            text = f"{until(wanted, datetime.now(UTC)):%Y-%m-%dT%H:%M:%SZ}"
        except ValueError as error:
            raise click.ClickException(str(error)) from error
    await kube.merge(Node, "", node, {"metadata": {"annotations": {ANNOTATION: text}}})
    if text is None:
        return f"node {node}: the maintenance is over"
    return f"node {node}: maintenance until {text} is asked for; `rezone maintenance` shows it"


async def shown(kube: Kube, namespace: str) -> list[str]:
    """Return a line for each zone of a namespace that says something about maintenance."""
    zones = await StatusStore(kube).list(DistributionZone, namespace)
    lines = [
        f"{zone.metadata.name}: {condition.message}"
        for zone in zones
        if zone.status is not None
        for condition in zone.status.conditions
        if condition.type is ConditionType.MAINTENANCE
    ]
    return lines or ["no data node is in maintenance"]
