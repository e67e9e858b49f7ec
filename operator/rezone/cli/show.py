"""What people look at: zones, a zone's data nodes, partition map, rebalances and streams."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from rezone.cli.look import planned, source
from rezone.cli.look.output import FORMATS, document, output_choice, output_option
from rezone.cli.look.page import write_page
from rezone.cli.look.present import present
from rezone.cli.look.views import ConnectionRow, StreamList, StreamRow, Unanswered, connections
from rezone.domain.zone.what_if import Question
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError
from rezone.kube.stored.store import StatusStore
from rezone.resources.zone import DistributionZone
from rezone.wire.errors import RezoneError
from rezone.wire.messages import NodeStatistics, StatisticsRequest
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import tls_from_environment

T = TypeVar("T")

_NAMESPACE = click.option("--namespace", "-n", help="The zone's namespace; default: the context's.")
_WATCH = click.option("--watch", "-w", is_flag=True, help="Show it live until Ctrl-C.")


@click.command("zones")
@_NAMESPACE
@click.option("--all-namespaces", "-A", is_flag=True, help="The zones of all namespaces.")
@_WATCH
@output_option
def zones(*, namespace: str | None, all_namespaces: bool, watch: bool, output: str) -> None:
    """List the zones: whether they are ready, their partitions, data nodes and tasks."""
    present(source.zones(None if all_namespaces else namespace or ""), output, watch=watch)


@click.command("top")
@click.argument("zone")
@_NAMESPACE
@_WATCH
@output_option
def top(*, zone: str, namespace: str | None, watch: bool, output: str) -> None:
    """Show the load of ZONE's data nodes, and its rebalances under way."""
    present(source.top(zone, namespace or ""), output, watch=watch)


@click.command("map")
@click.argument("zone")
@_NAMESPACE
@_WATCH
@output_option
def partition_map(*, zone: str, namespace: str | None, watch: bool, output: str) -> None:
    """Draw which data node holds which partition of ZONE, and as what."""
    present(source.partition_map(zone, namespace or ""), output, watch=watch)


@click.command("progress")
@click.argument("zone")
@_NAMESPACE
@_WATCH
@output_option
def progress(*, zone: str, namespace: str | None, watch: bool, output: str) -> None:
    """Show the rebalances of ZONE: moves, bytes, rate, time left, and what they wait for.

    And the indexes that are being built.
    """
    present(source.progress(zone, namespace or ""), output, watch=watch)


@click.command("explain-wait")
@click.argument("name")
@_NAMESPACE
@click.option("--kind", type=click.Choice(source.KINDS), help="Of which kind NAME is.")
@output_option
def explain_wait(*, name: str, namespace: str | None, kind: str | None, output: str) -> None:
    """Say why the task, leader transfer or zone NAME waits, and what a person can do."""
    present(source.explanation(name, kind, namespace or ""), output, watch=False)


@click.command("report")
@click.argument("name")
@_NAMESPACE
@click.option("--kind", type=click.Choice(source.REPORTED_KINDS), help="Of which kind NAME is.")
@click.option(
    "--file",
    "-f",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With -o html: where the page is written. It must not exist.",
)
@output_choice(*FORMATS, "html")
def report(
    *, name: str, namespace: str | None, kind: str | None, path: Path | None, output: str
) -> None:
    """Show what became of the task or leader transfer NAME, beside the one before it.

    What was planned and done, bytes, rate, states, waits, stopped writes, who asked. As HTML it
    is one file with pictures, which loads nothing.
    """
    found = source.report(name, kind, namespace or "")
    if output == "html":
        write_page(found, path)
        return
    if path is not None:
        raise click.UsageError("--file is for -o html")
    present(found, output, watch=False)


@click.command("what-if")
@click.argument("zone")
@_NAMESPACE
@click.option("--without", type=int, multiple=True, help="A data node that goes; may be repeated.")
@click.option(
    "--add",
    multiple=True,
    metavar="DOMAIN[=WEIGHT]",
    help="A data node that joins, in this failure domain ('-': in none); may be repeated.",
)
@click.option("--replicas", type=click.IntRange(1, 7), help="Another number of replicas.")
@click.option("--partitions", type=click.IntRange(1, 16_384), help="Another number of partitions.")
@click.option("--partition-bytes", type=click.IntRange(0), help="How large a replica is, about.")
@output_option
def what_if(
    *,
    zone: str,
    namespace: str | None,
    without: tuple[int, ...],
    add: tuple[str, ...],
    replicas: int | None,
    partitions: int | None,
    partition_bytes: int | None,
    output: str,
) -> None:
    """Show the plan that the operator would make for ZONE if something changed, and change nothing.

    Without an option: the plan for the zone as it is now.
    """
    try:
        question = Question(
            without=frozenset(without),
            added=tuple(planned.joining(each) for each in add),
            replicas=replicas,
            partitions=partitions,
        )
        found = source.what_if(zone, namespace or "", question, partition_bytes)
        present(found, output, watch=False)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


@click.command("streams")
@click.argument("zone")
@_NAMESPACE
@output_option
def streams(*, zone: str, namespace: str | None, output: str) -> None:
    """Show the replication connections and streams of ZONE's data nodes under their names.

    Asks the data nodes themselves: where they speak TLS, with an Admin's certificate.
    """

    async def load(kube: Kube) -> list[str]:
        found = await StatusStore(kube).read(DistributionZone, namespace or kube.namespace, zone)
        nodes = found.status.data_nodes if found.status is not None else ()
        return [node.address for node in nodes if node.address]

    items: list[ConnectionRow] = []
    unanswered: list[Unanswered] = []
    for address in _ask(load):
        try:
            items += connections(_statistics_of(address))
        except RezoneError as error:
            unanswered.append(Unanswered(address=address, error=str(error)))
            click.echo(f"{address}: {error}", err=True)
    found = StreamList(zone=zone, items=tuple(items), unanswered=tuple(unanswered))
    if output != "text":
        click.echo(document(found, output))
        return
    for line in stream_lines(found.items):
        click.echo(line)


def _statistics_of(address: str) -> NodeStatistics:
    client = NodeClient(address, tls=tls_from_environment())
    try:
        return client.call(StatisticsRequest(), NodeStatistics)
    finally:
        client.close()


def stream_lines(found: Iterable[ConnectionRow]) -> list[str]:
    """Return a line for each connection, and one for each stream on it."""
    lines = []
    for connection in found:
        way = "to" if connection.producing else "from"
        lines.append(
            f"node {connection.node}: {connection.name}, {way} node {connection.peer}, "
            f"{len(connection.streams)} streams"
        )
        lines += [f"  {_stream_line(stream)}" for stream in connection.streams]
    return lines


def _stream_line(stream: StreamRow) -> str:
    moved = f"{stream.bytes / 1e6:,.1f} MB in {stream.frames} frames"
    state = "" if stream.active else " (not running)"
    layout = f" of generation {stream.layout_version}" if stream.layout_version else ""
    name = f"partition {stream.partition}{layout}{state}"
    if stream.sent_offset is None:
        return f"{name}: received {moved}"
    return (
        f"{name}: sent {moved}, up to offset {stream.sent_offset}, "
        f"{stream.missing_rows} rows not acknowledged"
    )


def _ask(load: Callable[[Kube], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with await connect() as kube:
            return await load(kube)

    try:
        return asyncio.run(run())
    except KubeError as error:
        raise click.ClickException(str(error)) from error
