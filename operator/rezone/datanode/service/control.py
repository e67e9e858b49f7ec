"""The coordinator's calls to a data node, by message.

Every call may come twice and is answered as done then (ZR-13); every call that changes something
is fenced twice: by the node's highest coordinator epoch, and by the partition's epochs and
revision (ZR-17).

Concurrency: runs in the Flight threads of the calls; partitions look after themselves.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from rezone.datanode.copying.copies import current_state
from rezone.datanode.node.node import DataNode
from rezone.datanode.reading.read import reading, wait_applied, wait_readable
from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling.foreground import CopySteps
from rezone.datanode.service.statistics import node_statistics
from rezone.wire import layouts
from rezone.wire.errors import (
    ConflictError,
    RezoneError,
    UnknownPartitionError,
)
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    Ack,
    AcknowledgeChanges,
    AdmitCopies,
    AskOverwrite,
    BeginEmpty,
    BeginReshard,
    ClaimBackfill,
    CommitIngested,
    ConfigureNode,
    CopyState,
    CopyStateRequest,
    DigestReply,
    DigestRequest,
    Fence,
    FollowChanges,
    Heartbeat,
    IngestVersions,
    Message,
    NodeReport,
    NodeStatistics,
    NoteCompared,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PullSnapshot,
    ReadOlderLog,
    RefuseIsr,
    ReportRequest,
    ReserveBackfills,
    ReshardBackfill,
    ReshardCatchUp,
    Role,
    RoutesRequest,
    RouteTable,
    Seal,
    StatisticsRequest,
    StopReplica,
    Takeover,
    UpgradeCandidate,
    WaitingCopies,
    WaitingCopiesRequest,
    ZoneDeleted,
)

WAIT_MS_MAX = 60_000


class Control:
    """Answers control calls for a node."""

    def __init__(self, node: DataNode) -> None:
        self._node = node
        self._calls: dict[type[Message], Callable[[Any], Message]] = {
            ConfigureNode: self.configure,
            NotifyLeaderAndIsr: self.notify,
            ZoneDeleted: self.zone_deleted,
            RefuseIsr: self.refuse_isr,
            StopReplica: self.stop_replica,
            BeginEmpty: self.begin_empty,
            PullSnapshot: self.pull_snapshot,
            AdmitCopies: self.admit_copies,
            Takeover: self.takeover,
            Seal: self.seal,
            UpgradeCandidate: self.upgrade,
            DigestRequest: self.digest,
            NoteCompared: self.note_compared,
            ReportRequest: self.report,
            RoutesRequest: self.routes,
            CopyStateRequest: self.copy_state,
            WaitingCopiesRequest: self.waiting_copies,
            StatisticsRequest: self.statistics,
            Heartbeat: lambda request: request,
            BeginReshard: node.reshard_source.begin,
            ReshardBackfill: node.reshard_source.backfill,
            ReshardCatchUp: node.reshard_source.catch_up,
            ReadOlderLog: node.older_log.source.read,
            AskOverwrite: node.overwrites.ask,
            ReserveBackfills: node.ingesting.reserve,
            ClaimBackfill: node.ingesting.claim,
            IngestVersions: node.ingesting.ingest,
            CommitIngested: node.ingesting.commit,
            FollowChanges: node.change_source.follow,
            AcknowledgeChanges: node.change_source.acknowledge,
        }

    @property
    def kinds(self) -> list[type[Message]]:
        """The messages that are calls."""
        return list(self._calls)

    def handle(self, request: Message) -> Message:
        """Answer one call; RezoneErrors travel to the caller."""
        call = self._calls.get(type(request))
        if call is None:
            raise RezoneError(f"{type(request).__name__} is not a call to a data node")
        return call(request)

    def configure(self, request: ConfigureNode) -> Ack:
        """Take the zone and the peers."""
        self._node.configure(request.fence, request.config, request.peers, request.number)
        return Ack()

    def notify(self, request: NotifyLeaderAndIsr) -> Ack:
        """Take the records of partitions; open replicas that are new here.

        One record that is refused does not keep the others from being taken; its error is then
        the answer. That a record is superseded is the answer only where nothing else is wrong: the
        coordinator goes by it, and sends none of these records again.
        """
        self._node.zone.check_fence(request.fence)
        self._node.update_peers(request.peers)
        refused: list[RezoneError] = []
        for assignment in request.partitions:
            try:
                self._notify_one(request, assignment)
            except RezoneError as error:
                refused.append(error)
        if refused:
            raise min(refused, key=lambda error: error.details.get("superseded", 0))
        return Ack()

    def zone_deleted(self, request: ZoneDeleted) -> Ack:
        """Note that the zone is deleted: this node is needed no longer."""
        self._node.zone.check_fence(request.fence)
        self._node.note_zone_deleted(request.zone_uid)
        return Ack()

    def _notify_one(self, request: NotifyLeaderAndIsr, assignment: PartitionAssignment) -> None:
        node, record = self._node, assignment.state
        if not layouts.is_known(node.config, assignment.partition):
            raise ConflictError(
                f"partition {assignment.partition} is of no layout of zone {node.config.zone}"
            )
        partition = self._replica_of(request.fence, assignment)
        if partition is None:
            # Also keeps a late call of an earlier assignment from opening it again.
            node.zone.note_record(assignment.partition, record)
            if node.node_id not in {*record.replicas, *record.isr}:
                return
            # A record that was changed since the zone was made is of a replica that had data:
            # whoever opens it empty has lost that, and must copy before it counts as in sync.
            learner = (
                node.node_id not in record.isr or record.partition_epoch > FIRST_PARTITION_EPOCH
            )
            partition = node.replicas.open(assignment.partition, learner=learner)
        partition.roles.notify(request.fence, record)
        node.zone.note_record(assignment.partition, record)

    def _replica_of(self, fence: Fence, assignment: PartitionAssignment) -> Replica | None:
        """Return the replica that a record is about, None without one.

        By a first record of a later leader epoch the partition begins again, empty in all its
        replicas (`routing.routes.begin_again`): what is here of it before is deleted. So is what a
        replica that was stopped has left because reads of it did not end.
        """
        record = assignment.state
        try:
            partition = self._node.find(assignment.partition)
        except UnknownPartitionError:
            return None
        if partition.retired:
            self._node.replicas.drop(partition)
            return None
        if not FIRST_PARTITION_EPOCH == record.partition_epoch <= partition.record.partition_epoch:
            return partition
        if record.leader_epoch <= partition.leader_epoch:
            return partition
        partition.log.warning("beginning again, empty", leader_epoch=record.leader_epoch)
        partition.retire(
            StopReplica(
                fence=fence,
                partition=partition.partition_id,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
            )
        )
        self._node.replicas.drop(partition)
        return None

    def refuse_isr(self, request: RefuseIsr) -> Ack:
        """Take the answer to a proposal that was not carried out (HS-05)."""
        self._node.zone.check_fence(request.fence)
        partition = self._node.find(request.partition)
        partition.calls.check_fence(request.fence)
        partition.leading.refused(request)
        if request.state.partition_epoch > partition.record.partition_epoch:
            partition.roles.notify(request.fence, request.state)
        return Ack()

    def stop_replica(self, request: StopReplica) -> Ack:
        """Delete the replica; ConflictError while it leads: it must hand over first (ZR-11)."""
        self._node.zone.check_fence(request.fence)
        try:
            partition = self._node.find(request.partition)
        except UnknownPartitionError:
            return Ack()
        partition.retire(request)
        self._node.replicas.drop(partition)
        return Ack()

    def begin_empty(self, request: BeginEmpty) -> Ack:
        """Lead without any rows."""
        self._node.zone.check_fence(request.fence)
        self._node.find(request.partition).roles.begin_empty(request.fence, request.state)
        return Ack()

    def pull_snapshot(self, request: PullSnapshot) -> Ack:
        """Start to copy the partition from another node."""
        self._node.zone.check_fence(request.fence)
        partition = self._node.find(request.partition)
        partition.calls.note_pull(request.fence)
        self._node.pulls.start(partition, request)
        return Ack()

    def admit_copies(self, request: AdmitCopies) -> Ack:
        """Let copies that others push begin, or wait."""
        self._node.zone.check_fence(request.fence)
        here = {each.partition_id: each for each in self._node.partitions()}
        for copy in request.admitted:
            if (partition := here.get(copy.partition)) is not None:
                rate = copy.bytes_per_second_max
                partition.calls.admit_copy(request.fence, rate, request.seconds)
        for waiting in request.held:
            if (partition := here.get(waiting)) is not None:
                partition.admission.hold()
        return Ack()

    def waiting_copies(self, request: WaitingCopiesRequest) -> WaitingCopies:
        """Say which replicas need a copy, and which of these may begin."""
        del request
        waiting = [
            each
            for each in self._node.partitions()
            if each.role is not Role.LEADER and each.store.meta.needs_snapshot
        ]
        return WaitingCopies(
            partitions=tuple(each.partition_id for each in waiting),
            admitted=tuple(each.partition_id for each in waiting if each.admission.admitted),
        )

    def takeover(self, request: Takeover) -> Ack:
        """Start to hand a partition over (DCP-09)."""
        self._node.zone.check_fence(request.fence)
        partition = self._node.find(request.partition)
        partition.calls.hand_over(request)
        # Not in that step, where writes would wait for the disk.
        partition.takeover.persist()
        return Ack()

    def seal(self, request: Seal) -> Ack:
        """Have a partition end."""
        self._node.zone.check_fence(request.fence)
        self._node.find(request.partition).calls.seal(request)
        return Ack()

    def upgrade(self, request: UpgradeCandidate) -> Ack:
        """Lead, if the log reaches far enough (RM-05)."""
        self._node.zone.check_fence(request.fence)
        self._node.find(request.partition).roles.upgrade(request)
        return Ack()

    def digest(self, request: DigestRequest) -> DigestReply:
        """Digest the rows visible at a time (B-04); waits until all of them are applied.

        Gives way to clients as the copy does that it checks.
        """
        partition = self._node.find(request.partition)
        uncompared = partition.store.meta.uncompared
        as_of = request.as_of
        if as_of is None:
            if partition.leads and not partition.is_sealed:
                wait_readable(partition, None)
            # Not a closed timestamp after it, of which the others may not have heard yet.
            as_of = partition.positions.rows_time
        wait_readable(partition, as_of)
        # Versions that are pulled are older than the entries that they come in: a time that is
        # readable tells nothing of them, and only the leader's log is known to have them all.
        if partition.reshard_streams.streams():
            wait_applied(partition, partition.store.log_end)
        partition.calls.require_whole()
        start, end = partition.hash_range
        if request.hashes is not None:
            first, last = request.hashes
            start, end = max(start, first), min(end, last + 1)
        throttle = CopySteps(self._node.foreground).throttle
        with reading(partition, as_of):
            digests, rows = partition.store.reader.digest(
                as_of, start, end, request.ranges, throttle
            )
        return DigestReply(
            digests=tuple(digests),
            rows=tuple(rows),
            as_of=as_of,
            applied_offset=partition.store.applied,
            uncompared=uncompared,
        )

    def note_compared(self, request: NoteCompared) -> Ack:
        """Note that the copy equals its source; nothing when another one was made since."""
        self._node.zone.check_fence(request.fence)
        partition = self._node.find(request.partition)
        partition.calls.note_compared(request)
        self._node.ack(partition)
        partition.touched(at_once=True)
        return Ack()

    def report(self, request: ReportRequest) -> NodeReport:
        """Return what is new in the report, when there is something, at the latest in time."""
        self._node.board.wait(request, min(request.timeout_ms, WAIT_MS_MAX) / 1000)
        return self._node.report(request)

    def routes(self, request: RoutesRequest) -> RouteTable:
        """Return the route table, or the part of it that is asked for (ZR-12)."""
        table = self._node.routes()
        if not request.partitions:
            return table
        wanted = frozenset(request.partitions)
        found = tuple(one for one in table.partitions if one.partition in wanted)
        return msgspec.structs.replace(table, partitions=found)

    def statistics(self, request: StatisticsRequest) -> NodeStatistics:
        """Return the counters of connections and streams (DCP-14)."""
        del request
        return node_statistics(self._node.node_id, self._node.links)

    def copy_state(self, request: CopyStateRequest) -> CopyState:
        """Say where the copy of a partition stands (B-05)."""
        return current_state(self._node.find(request.partition))
