"""What a data node knows of its zone: configuration, peers, and who leads each partition.

It is in a journal, so that after a restart the node goes on without the coordinator (B-09). The
records are of every partition of the zone, the node's own or not: any node can tell a client
where to go (ZR-12, RM-10).

Concurrency: `lock` guards changes. Who configures the node holds it until the replicas that this
makes known are open.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from rezone.datanode.replica.replica import Replica
from rezone.storage.log.journal import Journal
from rezone.wire import layouts
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import (
    ConflictError,
    CorruptionError,
    NotReadyError,
    StaleEpochError,
    StaleRevisionError,
)
from rezone.wire.messages import (
    Fence,
    LeaderAndIsr,
    NodeId,
    PartitionAssignment,
    PartitionId,
    RouteTable,
    ZoneConfig,
)
from rezone.wire.typed import from_json

_log = structlog.get_logger(__name__)
JOURNAL_NAME = "node.journal"


class NodeState(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a node remembers of its zone over a restart; `records` are hints for routing only."""

    config: ZoneConfig
    peers: dict[NodeId, str]
    coordinator_epoch: int = 0
    configured_by: int = 0
    configured_number: int = 0
    records: tuple[PartitionAssignment, ...] = ()


class Records(Protocol):
    """Where facts are kept: a `Journal`, or what a test puts in its place."""

    newest: bytes | None

    def write(self, payload: bytes) -> None:
        """Make this the newest record, durably before this returns."""
        ...


class KnownZone:
    """The zone of one node; nothing before the first ConfigureNode, or `open` after a restart."""

    def __init__(self, node_id: NodeId) -> None:
        self.lock = threading.RLock()
        self._node_id = node_id
        self._journal: Records | None = None
        self._state: NodeState | None = None
        self._codec: RowCodec | None = None
        self._records: dict[PartitionId, LeaderAndIsr] = {}

    # --- the journal -----------------------------------------------------------------------------

    def open(self, directory: Path) -> None:
        """Take over what the journal in a directory knows.

        What is damaged is kept beside it, and the coordinator tells the node its zone again.
        """
        path = directory / JOURNAL_NAME
        try:
            self.take_over(Journal(path))
        except (CorruptionError, msgspec.MsgspecError) as error:
            _log.error("the node's facts are damaged: it waits to be told its zone", why=str(error))
            path.rename(path.with_name(f"{path.name}.damaged"))
            self.take_over(Journal(path))

    def take_over(self, journal: Records) -> None:
        """Go on with what a journal knows, and write to it from now on."""
        if journal.newest is not None:
            state = from_json(journal.newest, NodeState)
            self._take(state)
            self._records = {a.partition: a.state for a in state.records}
        self._journal = journal

    def close(self) -> None:
        """Write what is known, if the disk takes it; what must be kept was written at once."""
        try:
            self.save()
        except OSError as error:
            _log.warning("what is known of routes is not written", error=str(error))

    def save(self) -> None:
        """Write what is known, durably before this returns; nothing where nothing is known."""
        with self.lock:
            if self._state is None:
                return
            assert self._journal is not None, "an open node has a journal"  # noqa: S101 - invariant
            state = msgspec.structs.replace(self._state, records=_assignments(self._records))
            self._journal.write(msgspec.json.encode(state))

    def _take(self, state: NodeState) -> None:
        self._codec = RowCodec(state.config.table, state.config.limits)
        self._state = state

    # --- facts -----------------------------------------------------------------------------------

    @property
    def configured(self) -> bool:
        """Whether the node knows its zone."""
        return self._state is not None

    @property
    def state(self) -> NodeState:
        """The node's zone; NotReadyError before the first ConfigureNode."""
        if self._state is None:
            raise NotReadyError(f"node {self._node_id} has not been configured yet")
        return self._state

    @property
    def codec(self) -> RowCodec:
        """The row format of the zone."""
        if self._codec is None:
            raise NotReadyError(f"node {self._node_id} has not been configured yet")
        return self._codec

    @property
    def table(self) -> TableSchema | None:
        """The zone's table; None in no zone."""
        return self._state.config.table if self._state is not None else None

    @property
    def foreground_target_percent(self) -> int:
        """How much of the time copies leave to clients; nothing is copied in no zone."""
        return self._state.config.foreground_target_percent if self._state is not None else 0

    def address(self, node: NodeId) -> str:
        """Return a node's address, empty when unknown."""
        return self._state.peers.get(node, "") if self._state is not None else ""

    @property
    def coordinator_epoch(self) -> int:
        """The highest epoch of a coordinator that has called; 0 before the first."""
        return self._state.coordinator_epoch if self._state is not None else 0

    def configured_number(self, coordinator_epoch: int) -> int:
        """Return the number of the newest configuration of a coordinator; 0 of another one."""
        known = self._state
        same = known is not None and known.configured_by == coordinator_epoch
        return known.configured_number if known is not None and same else 0

    # --- changes ---------------------------------------------------------------------------------

    def check_fence(self, fence: Fence) -> None:
        """Refuse calls of a coordinator older than one seen before, over restarts too."""
        with self.lock:
            known = self._state.coordinator_epoch if self._state is not None else 0
            if fence.coordinator_epoch < known:
                raise StaleEpochError(
                    f"coordinator epoch {fence.coordinator_epoch} is behind {known}",
                    coordinator_epoch=known,
                )
            if self._state is not None and fence.coordinator_epoch > known:
                self._state = msgspec.structs.replace(
                    self._state, coordinator_epoch=fence.coordinator_epoch
                )
                self.save()

    def check_configuration(self, fence: Fence, config: ZoneConfig, number: int) -> None:
        """Refuse a configuration that is not this zone's newest.

        ConflictError when the node's data is of another zone. StaleRevisionError when a later call
        of the same coordinator has come before: its sender believes that to be what stands here.
        """
        with self.lock:
            self.check_fence(fence)
            known = self._state
            if known is None:
                return
            same = known.configured_by == fence.coordinator_epoch
            if same and number < known.configured_number:
                raise StaleRevisionError(
                    f"configuration {number} is behind {known.configured_number}",
                    number=known.configured_number,
                )
            if known.config.zone_uid != config.zone_uid:
                raise ConflictError(
                    f"node {self._node_id} holds data of zone {known.config.zone_uid}",
                    zone_uid=known.config.zone_uid,
                )

    def configure(
        self, fence: Fence, config: ZoneConfig, peers: dict[NodeId, str], number: int
    ) -> None:
        """Take and persist a configuration that has been checked, and the layout before it."""
        with self.lock:
            known = self._state.config if self._state is not None else None
            self._take(
                NodeState(
                    config=layouts.with_former(config, known),
                    peers=peers,
                    coordinator_epoch=fence.coordinator_epoch,
                    configured_by=fence.coordinator_epoch,
                    configured_number=number,
                )
            )
            self._records = {
                partition: record
                for partition, record in self._records.items()
                if layouts.is_known(config, partition)
            }
            self.save()

    def update_peers(self, peers: dict[NodeId, str]) -> bool:
        """Take and persist the nodes' addresses; whether any has changed."""
        with self.lock:
            if peers == self.state.peers:
                return False
            self._state = msgspec.structs.replace(self.state, peers=peers)
            self.save()
            return True

    # --- routes ----------------------------------------------------------------------------------

    def note_record(self, partition: PartitionId, record: LeaderAndIsr) -> None:
        """Remember a partition's record for routing; StaleEpochError when a later one is known."""
        with self.lock:
            known = self._records.get(partition)
            if known is not None and (record.leader_epoch, record.partition_epoch) < (
                known.leader_epoch,
                known.partition_epoch,
            ):
                raise StaleEpochError(
                    f"epochs {record.leader_epoch}/{record.partition_epoch} of partition "
                    f"{partition} are behind {known.leader_epoch}/{known.partition_epoch}",
                    leader_epoch=known.leader_epoch,
                    partition_epoch=known.partition_epoch,
                    superseded=1,
                )
            self._records[partition] = record

    def record(self, partition: PartitionId) -> LeaderAndIsr | None:
        """Return a partition's newest record; None when nothing was heard of it."""
        with self.lock:
            return self._records.get(partition)

    def routes(self, replicas: Sequence[Replica]) -> RouteTable:
        """Return where every partition of the zone's layouts is led, and which are sealed.

        As far as this node and its replicas know.
        """
        with self.lock:
            records, state = dict(self._records), self.state
        for partition in replicas:
            # A takeover changes a leader before the coordinator says so.
            known = layouts.is_known(state.config, partition.partition_id)
            if known and partition.record.leader_epoch >= 0 and partition.record.leader >= 0:
                record = partition.record
                # That is its log's to say, too.
                sealed = record.sealed or partition.is_sealed
                records[partition.partition_id] = msgspec.structs.replace(record, sealed=sealed)
        return RouteTable(config=state.config, partitions=_assignments(records), peers=state.peers)


def _assignments(records: dict[PartitionId, LeaderAndIsr]) -> tuple[PartitionAssignment, ...]:
    return tuple(PartitionAssignment(partition=p, state=s) for p, s in sorted(records.items()))
