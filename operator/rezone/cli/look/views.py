"""What the commands show, as values: the shapes that `-o json` and `-o yaml` write.

Each document has `apiVersion` and `kind`. Fields are only added, never renamed or given another
meaning, as long as API_VERSION stays; docs/use/command-line.md lists all of them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from rezone.domain.observed.client_load import ClientRates, RequestRates
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.routing.routes import hot_standbys
from rezone.kube.jobs.loads import NO_RATES, ZoneRates
from rezone.report.document import Document, condition
from rezone.resources.conditions import ConditionStatus, ConditionType
from rezone.resources.copy_progress import CopiesProgress
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, RegionMigration
from rezone.resources.model import Model, Time
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTask, TaskProgress
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import MaintenanceState
from rezone.wire.layouts import generation_of, index_of
from rezone.wire.messages import NodeStatistics, StreamStatistics


class ZoneRow(Model):
    """One zone: whether it is ready, and what it is doing."""

    namespace: str
    name: str
    ready: str
    reason: str
    message: str
    partitions: int
    partitions_ready: int
    under_replicated: int
    data_nodes: int
    ready_data_nodes: int
    current_task: str


class ZoneList(Document):
    """What `rezone zones` shows."""

    kind: str = "ZoneList"
    items: tuple[ZoneRow, ...] = ()


class CopiesRow(Model):
    """How far copies are, how fast, and how long they still take. Bytes, bytes a second."""

    bytes_total: int
    bytes_done: int
    bytes_per_second: int
    rows_total: int
    rows_done: int
    skew_percent: int | None = None
    seconds_left: int | None = None


class RepairsRow(CopiesRow):
    """The copies that a zone makes of replicas which have lost their data."""

    data_nodes: tuple[int, ...]
    copies_total: int
    copies_done: int


class TransferCopyRow(CopiesRow):
    """The copy that a leader transfer makes first; a transfer without one has no row."""

    name: str
    partition: int
    state: str
    waiting_for: str = ""


class TaskRow(CopiesRow):
    """One RebalanceTask: how far it is, how fast, and why it waits."""

    name: str
    type: str
    state: str
    ended: bool
    moves_total: int
    moves_done: int
    leader_moves_total: int
    leader_moves_done: int
    waiting_for: str = ""

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1: of the bytes, of the leaders where none are copied."""
        if self.ended:
            return 1.0 if self.state == "Succeeded" else 0.0
        done, total = self.bytes_done, self.bytes_total
        if not total:
            done = self.moves_done + self.leader_moves_done
            total = self.moves_total + self.leader_moves_total
        return min(1.0, done / total) if total else 0.0


class Progress(Document):
    """What `rezone progress` shows; `indexes` are lines of the condition Indexing."""

    kind: str = "Progress"
    namespace: str
    zone: str
    tasks: tuple[TaskRow, ...] = ()
    transfers: tuple[TransferCopyRow, ...] = ()
    repairs: RepairsRow | None = None
    indexes: tuple[str, ...] = ()


class PartitionRow(Model):
    """Who holds one partition; a replica that is not in sync is a learner."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    hot_standbys: tuple[int, ...]
    sealed: bool


class LayoutRow(Model):
    """The partitions of one layout; a zone that is re-sharded has two."""

    layout_version: int
    partitions: tuple[PartitionRow, ...]


class PartitionMap(Document):
    """What `rezone map` shows."""

    kind: str = "PartitionMap"
    namespace: str
    zone: str
    layouts: tuple[LayoutRow, ...] = ()


class RequestRow(Model):
    """Requests of clients: how many a second, and how long they took; absent without any."""

    per_second: float
    failed_per_second: float
    p50_milliseconds: float | None = None
    p99_milliseconds: float | None = None


class RatesRow(Model):
    """What clients, and copies, do with a data node or a zone. Bytes a second.

    `write_throttled`: how many writes wait, in the mean, for a replica to catch up.
    """

    reads: RequestRow
    writes: RequestRow
    copied_bytes_per_second: int
    write_throttled: float


class NodeRow(Model):
    """One data node: where it is, and how many partitions it has as what."""

    id: int
    state: str
    pod: str
    node: str
    failure_domain: str
    leaders: int
    followers: int
    learners: int
    maintenance: str = ""
    rates: RatesRow | None = None


class Top(Document):
    """What `rezone top` shows: a zone, its tasks under way, and its data nodes.

    `rates` are absent where they are unknown; `rates_unknown` says why some are.
    """

    kind: str = "Top"
    zone: ZoneRow
    rates: RatesRow | None = None
    rates_unknown: str = ""
    tasks: tuple[TaskRow, ...] = ()
    nodes: tuple[NodeRow, ...] = ()


class StreamRow(Model):
    """What one stream has moved; where a partition ends is known to who sends."""

    partition: int
    layout_version: int
    active: bool
    frames: int
    bytes: int
    sent_offset: int | None = None
    missing_rows: int | None = None


class ConnectionRow(Model):
    """One replication connection of a data node, with its streams."""

    node: int
    name: str
    peer: int
    producing: bool
    streams: tuple[StreamRow, ...]


class Unanswered(Model):
    """A data node that did not answer."""

    address: str
    error: str


class StreamList(Document):
    """What `rezone streams` shows."""

    kind: str = "StreamList"
    zone: str
    items: tuple[ConnectionRow, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


class MovedPartition(Model):
    """A partition whose replicas would move."""

    partition: int
    added: tuple[int, ...]
    removed: tuple[int, ...]
    why: str


class LoadChange(Model):
    """What a data node would have, and has now; `change` is Added, Removed or empty."""

    id: int
    failure_domain: str
    change: str = ""
    replicas_before: int
    replicas_after: int
    leaders_before: int
    leaders_after: int


class WhatIf(Document):
    """What `rezone what-if` shows: the plan that the operator would make.

    `base` is the assignment that it starts from, `trigger` why a plan is made; empty: none is.
    Bytes and seconds are absent where nobody knows how large a partition is; `moves` of a
    re-sharding, whose partitions are all new, are empty.
    """

    kind: str = "WhatIf"
    namespace: str
    zone: str
    possible: bool = True
    why_not: str = ""
    base: str = ""
    trigger: str = ""
    partitions: int
    replicas: int
    resharding: bool = False
    copies: int = 0
    copies_lower_bound: int = 0
    leader_moves: int = 0
    bytes: int | None = None
    seconds: int | None = None
    partition_bytes: int | None = None
    partition_bytes_from: str = ""
    domain_conflicts: int = 0
    nodes: tuple[LoadChange, ...] = ()
    moves: tuple[MovedPartition, ...] = ()


class BundleFile(Model):
    """A file of a support bundle."""

    name: str
    bytes: int


class Unread(Model):
    """What a support bundle does not have, or not whole, and why."""

    what: str
    why: str


class SupportBundle(Document):
    """What `rezone support-bundle` has written; the archive has it, too, as bundle.json."""

    kind: str = "SupportBundle"
    file: str
    version: str
    time: Time
    namespace: str
    zone: str = ""
    files: tuple[BundleFile, ...] = ()
    unread: tuple[Unread, ...] = ()


class MaintenanceRow(Model):
    """A data node in maintenance, or one that waits for it."""

    zone: str
    id: int
    node: str
    state: str
    until: Time
    waiting_for: str = ""


class MaintenanceList(Document):
    """What `rezone maintenance` shows."""

    kind: str = "MaintenanceList"
    items: tuple[MaintenanceRow, ...] = ()


def connections(found: NodeStatistics) -> tuple[ConnectionRow, ...]:
    """Return the connections of one data node."""
    return tuple(
        ConnectionRow(
            node=found.node,
            name=each.name,
            peer=each.peer,
            producing=each.producing,
            streams=tuple(_stream(stream, sent=each.producing) for stream in each.streams),
        )
        for each in found.connections
    )


def _stream(stream: StreamStatistics, *, sent: bool) -> StreamRow:
    return StreamRow(
        partition=index_of(stream.partition),
        layout_version=generation_of(stream.partition),
        active=stream.active,
        frames=stream.frames,
        bytes=stream.bytes,
        sent_offset=stream.sent_offset if sent else None,
        missing_rows=stream.missing_rows if sent else None,
    )


def maintenance_list(zones: Iterable[DistributionZone]) -> MaintenanceList:
    """Return the data nodes of zones whose maintenance was asked for and is not over."""
    return MaintenanceList(
        items=tuple(
            MaintenanceRow(
                zone=zone.metadata.name,
                id=node.id,
                node=node.node_name,
                state=node.maintenance.state,
                until=node.maintenance.until_time,
                waiting_for=node.maintenance.waiting_for,
            )
            for zone in zones
            for node in (zone.status.data_nodes if zone.status is not None else ())
            if node.maintenance is not None and node.maintenance.state is not MaintenanceState.OVER
        )
    )


def zone_list(zones: Iterable[DistributionZone]) -> ZoneList:
    """Return a row for each zone."""
    return ZoneList(items=tuple(zone_row(zone) for zone in zones))


def zone_row(zone: DistributionZone) -> ZoneRow:
    """Return what one line says about a zone."""
    status = zone.status
    ready = condition(status, ConditionType.READY)
    stalled = condition(status, ConditionType.STALLED)
    told = stalled if stalled is not None else ready
    return ZoneRow(
        namespace=zone.metadata.namespace,
        name=zone.metadata.name,
        ready=ready.status if ready is not None else ConditionStatus.UNKNOWN,
        reason=told.reason if told is not None else "",
        message=told.message if told is not None else "the operator has not seen the zone",
        partitions=zone.spec.partitions,
        partitions_ready=status.partitions_ready if status is not None else 0,
        under_replicated=status.under_replicated if status is not None else 0,
        data_nodes=len(status.data_nodes) if status is not None else 0,
        ready_data_nodes=status.ready_data_nodes if status is not None else 0,
        current_task=status.current_task if status is not None else "",
    )


def progress(
    zone: DistributionZone,
    tasks: Iterable[RebalanceTask],
    migrations: Iterable[RegionMigration] = (),
) -> Progress:
    """Return the tasks of a zone, and its copies and indexes that are being made beside them."""
    name = zone.metadata.name
    building = condition(zone.status, ConditionType.INDEXING)
    return Progress(
        namespace=zone.metadata.namespace,
        zone=name,
        tasks=tuple(task_row(task) for task in tasks if task.spec.zone_name == name),
        transfers=tuple(filter(None, map(_transfer_copy, migrations))),
        repairs=_repairs(zone),
        indexes=tuple(building.message.split("; ")) if building is not None else (),
    )


def _transfer_copy(migration: RegionMigration) -> TransferCopyRow | None:
    status = migration.status
    if status is None or status.copy_progress is None:
        return None
    if status.state in TERMINAL_MIGRATION_STATES:
        return None
    return TransferCopyRow(
        name=migration.metadata.name,
        partition=migration.spec.partition,
        state=status.state,
        waiting_for=status.waiting_for,
        **_copies(status.copy_progress),
    )


def _repairs(zone: DistributionZone) -> RepairsRow | None:
    done = zone.status.repair_progress if zone.status is not None else None
    if done is None:
        return None
    return RepairsRow(
        data_nodes=done.data_nodes,
        copies_total=done.copies_total,
        copies_done=done.copies_done,
        **_copies(done),
    )


def _copies(done: CopiesProgress) -> dict[str, Any]:
    """Return the fields that all rows of copies have."""
    return {name: getattr(done, name) for name in CopiesRow.model_fields}


def task_row(task: RebalanceTask) -> TaskRow:
    """Return how far a task is."""
    status = task.status
    done = status.progress if status is not None else TaskProgress()
    state = status.state if status is not None else ""
    return TaskRow(
        name=task.metadata.name,
        type=task.spec.type,
        state=state or "new",
        ended=state in TERMINAL_TASK_STATES,
        moves_total=done.moves_total,
        moves_done=done.moves_done,
        leader_moves_total=done.leader_moves_total,
        leader_moves_done=done.leader_moves_done,
        waiting_for=status.waiting_for if status is not None else "",
        **_copies(done),
    )


def partition_map(zone: DistributionZone, routes: RouteRecords) -> PartitionMap:
    """Return who holds which partition, in both layouts while the zone is re-sharded."""
    layouts = [
        LayoutRow(
            layout_version=layout.generation,
            partitions=_partitions(routes, layout.generation),
        )
        for layout in routes.layouts
    ]
    meta = zone.metadata
    return PartitionMap(namespace=meta.namespace, zone=meta.name, layouts=tuple(layouts))


def _partitions(routes: RouteRecords, generation: int) -> tuple[PartitionRow, ...]:
    return tuple(
        PartitionRow(
            partition=index,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            replicas=record.replicas,
            in_sync=record.isr,
            hot_standbys=tuple(hot_standbys(record)),
            sealed=record.sealed,
        )
        for index, record in enumerate(routes.of(generation))
    )


def top(
    zone: DistributionZone,
    tasks: Sequence[RebalanceTask],
    routes: RouteRecords,
    rates: ZoneRates = NO_RATES,
) -> Top:
    """Return a zone with its tasks under way and the load of its data nodes."""
    rows = progress(zone, tasks).tasks
    return Top(
        zone=zone_row(zone),
        tasks=tuple(row for row in rows if not row.ended),
        nodes=_nodes(zone, routes, rates),
        rates=_rates(rates.zone),
        rates_unknown=rates.unknown,
    )


def _rates(found: ClientRates | None) -> RatesRow | None:
    if found is None:
        return None
    return RatesRow(
        reads=_requests(found.reads),
        writes=_requests(found.writes),
        copied_bytes_per_second=int(found.copied_bytes_per_second),
        write_throttled=round(found.write_throttled, 2),
    )


def _requests(found: RequestRates) -> RequestRow:
    return RequestRow(
        per_second=round(found.ok_per_second, 1),
        failed_per_second=round(found.failed_per_second, 1),
        p50_milliseconds=_milliseconds(found.p50_seconds),
        p99_milliseconds=_milliseconds(found.p99_seconds),
    )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def _nodes(zone: DistributionZone, routes: RouteRecords, rates: ZoneRates) -> tuple[NodeRow, ...]:
    leads, follows, learns = Counter[int](), Counter[int](), Counter[int]()
    for record in routes.values():
        for node in record.replicas:
            if node == record.leader:
                leads[node] += 1
            elif node in record.isr:
                follows[node] += 1
            else:
                learns[node] += 1
    return tuple(
        NodeRow(
            id=each.id,
            state=each.state,
            pod=each.pod_name,
            node=each.node_name,
            failure_domain=each.failure_domain,
            leaders=leads[each.id],
            followers=follows[each.id],
            learners=learns[each.id],
            maintenance=each.maintenance.state if each.maintenance is not None else "",
            rates=_rates(rates.nodes.get(each.id)),
        )
        for each in (zone.status.data_nodes if zone.status is not None else ())
    )


def age_seconds(since: datetime | None, now: datetime) -> int | None:
    """Return how long ago that was in whole seconds, at least 0."""
    return None if since is None else max(0, int((now - since).total_seconds()))
