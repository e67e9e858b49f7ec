"""What people look at: a zone's partition map, the progress of its rebalances, its streams."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from rezone.domain.routing.partition_map import marks_of_routes, picture
from rezone.domain.routing.route_records import RouteRecords
from rezone.kube.client import Kube, connect
from rezone.kube.errors import KubeError
from rezone.kube.routes import RouteStore
from rezone.kube.store import StatusStore
from rezone.resources.conditions import ConditionType
from rezone.resources.task import RebalanceTask, TaskProgress, TaskType
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import DistributionZoneStatus
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import generation_of, index_of
from rezone.wire.messages import NodeStatistics, StatisticsRequest, StreamStatistics
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import tls_from_environment

T = TypeVar("T")

_NAMESPACE = click.option("--namespace", "-n", help="The zone's namespace; default: the context's.")


@click.command("map")
@click.argument("zone")
@_NAMESPACE
def partition_map(zone: str, namespace: str | None) -> None:
    """Draw which data node holds which partition of ZONE, and as what."""

    async def load(kube: Kube) -> str:
        found = await StatusStore(kube).read(DistributionZone, namespace or kube.namespace, zone)
        routes = await RouteStore(kube, found).load()
        if not routes:
            return f"zone {zone} has no partitions yet"
        return "\n".join(map_parts(routes))

    click.echo(_ask(load))


def map_parts(routes: RouteRecords) -> list[str]:
    """Return the map of a zone, and that of the layout to come while it is re-sharded."""
    maps = [picture(marks_of_routes(routes.of(each.generation))) for each in routes.layouts]
    if routes.next_layout is None:
        return maps
    sealed = sum(record.sealed for record in routes.of(routes.layout.generation))
    count, new = routes.layout.partitions, routes.next_layout.partitions
    titles = [f"{sealed} of {count} partitions have cut over to {new} new ones\n", "new layout\n"]
    return [line for pair in zip(titles, maps, strict=True) for line in pair]


@click.command("progress")
@click.argument("zone")
@_NAMESPACE
def progress(zone: str, namespace: str | None) -> None:
    """Show the rebalances of ZONE: moves, bytes, rate, time left, and what they wait for.

    And the indexes that are being built.
    """

    async def load(kube: Kube) -> list[str]:
        store = StatusStore(kube)
        found = await store.read(DistributionZone, namespace or kube.namespace, zone)
        tasks = await store.list(RebalanceTask, namespace or kube.namespace)
        lines = [task_line(task) for task in tasks if task.spec.zone_name == zone]
        return [*lines, *index_lines(found.status)]

    for line in _ask(load) or [f"zone {zone} has no RebalanceTask"]:
        click.echo(line)


def task_line(task: RebalanceTask) -> str:
    """Return one line about a task: how far it is, how fast, how long still, and why it waits.

    What a re-sharding moves are the ranges that old and new partitions have in common, and what
    follows is how many old partitions have cut over.
    """
    status = task.status
    done = status.progress if status is not None else TaskProgress()
    resharding = task.spec.type is TaskType.RESHARD
    moves, leaders = ("ranges", "cut over") if resharding else ("moves", "leaders")
    parts = [
        f"{task.metadata.name}: {(status.state if status is not None else '') or 'new'}",
        f"{moves} {done.moves_done}/{done.moves_total}",
        f"{leaders} {done.leader_moves_done}/{done.leader_moves_total}",
        f"{done.bytes_done / 1e6:,.0f} of {done.bytes_total / 1e6:,.0f} MB",
        f"{done.bytes_per_second / 1e6:,.0f} MB/s",
    ]
    if done.seconds_left is not None:
        parts.append(f"{done.seconds_left} s left")
    if status is not None and status.waiting_for:
        parts.append(f"({status.waiting_for})")
    return ", ".join(parts)


def index_lines(status: DistributionZoneStatus | None) -> list[str]:
    """Return a line for each index of a zone that is being built."""
    conditions = status.conditions if status is not None else ()
    told = [c.message for c in conditions if c.type is ConditionType.INDEXING]
    return [f"index {line}" for message in told for line in message.split("; ")]


@click.command("streams")
@click.argument("zone")
@_NAMESPACE
def streams(zone: str, namespace: str | None) -> None:
    """Show the replication connections and streams of ZONE's data nodes under their names.

    Asks the data nodes themselves: where they speak TLS, with an Admin's certificate.
    """

    async def load(kube: Kube) -> list[str]:
        found = await StatusStore(kube).read(DistributionZone, namespace or kube.namespace, zone)
        nodes = found.status.data_nodes if found.status is not None else ()
        return [node.address for node in nodes if node.address]

    for address in _ask(load):
        try:
            answer = _statistics_of(address)
        except RezoneError as error:
            click.echo(f"{address}: {error}", err=True)
            continue
        for line in stream_lines(answer):
            click.echo(line)


def _statistics_of(address: str) -> NodeStatistics:
    client = NodeClient(address, tls=tls_from_environment())
    try:
        return client.call(StatisticsRequest(), NodeStatistics)
    finally:
        client.close()


def stream_lines(found: NodeStatistics) -> list[str]:
    """Return a line for each of a node's connections, and one for each stream on it."""
    lines = []
    for connection in found.connections:
        way = "to" if connection.producing else "from"
        lines.append(
            f"node {found.node}: {connection.name}, {way} node {connection.peer}, "
            f"{len(connection.streams)} streams"
        )
        lines += [f"  {_stream_line(s, sent=connection.producing)}" for s in connection.streams]
    return lines


def _stream_line(stream: StreamStatistics, *, sent: bool) -> str:
    moved = f"{stream.bytes / 1e6:,.1f} MB in {stream.frames} frames"
    state = "" if stream.active else " (not running)"
    generation = generation_of(stream.partition)
    layout = f" of generation {generation}" if generation else ""
    name = f"partition {index_of(stream.partition)}{layout}{state}"
    if not sent:
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
