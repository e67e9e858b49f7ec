"""The node's report: what the coordinator polls, and which replicas have changed since it did.

The version rises with every change, and for each replica is remembered at which version it last
changed. So whoever says which version it knows is told the rest and no more; whoever knows a
version of another process, or none, is told everything. What is remembered is one number for each
partition that the node has had, so it needs no limit of its own.

Concurrency: `touched` is cheap and may be called under any lock, before or after the change that
it tells of if that is made under the replica's own lock, else after it; `wait` runs in the callers'
threads. Changes of state count at once, progress at most every `progress_interval_ms`.

An answer waits `report_pause_ms` for what else changes: the steps of a leader's move come within a
few milliseconds, in which clients wait, and a report for each would be made meanwhile.
"""

import threading
from collections.abc import Iterable
from typing import Protocol

from rezone.datanode.clock.checked_clock import CheckedClock
from rezone.datanode.disk.disk_speed import DiskSpeed
from rezone.datanode.disk.space import DiskSpace
from rezone.datanode.node.hearing import Hearing
from rezone.datanode.node.known_zone import KnownZone
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding.overwrites import Overwrites
from rezone.datanode.resharding.reshard_streams import lost_marks
from rezone.datanode.scheduling.foreground import Foreground
from rezone.datanode.settings import Clock, NodeSettings
from rezone.datanode.state.runner import entry
from rezone.wire.messages import (
    DiskTrouble,
    IsrProposal,
    NodeId,
    NodeReport,
    PartitionId,
    ReplicaReport,
    ReportRequest,
    Role,
)

WHOLE_REPORT = ReportRequest(seen=0)


class ReportedNode(Protocol):
    """What a report tells of a node and its replicas."""

    @property
    def node_id(self) -> NodeId:
        """The node."""
        ...

    @property
    def zone(self) -> KnownZone:
        """What the node knows of its zone."""
        ...

    @property
    def leaving(self) -> bool:
        """Whether it is about to stop."""
        ...

    @property
    def space(self) -> DiskSpace:
        """What is left of its disk."""
        ...

    @property
    def clock(self) -> CheckedClock:
        """Its time, and what is wrong with that."""
        ...

    @property
    def disk_speed(self) -> DiskSpeed:
        """How long its disk takes."""
        ...

    @property
    def hearing(self) -> Hearing:
        """Whom it hears."""
        ...

    @property
    def foreground(self) -> Foreground:
        """What it serves to clients."""
        ...

    @property
    def overwrites(self) -> Overwrites:
        """What it is asked to overwrite."""
        ...

    def partitions(self) -> list[Replica]:
        """Return its open replicas."""
        ...


class ReportBoard:
    """The version of a node's report, what has changed at which one, and who waits for another."""

    def __init__(self, clock: Clock, settings: NodeSettings, process_id: str) -> None:
        self._clock = clock
        self._process_id = process_id
        self._interval = settings.progress_interval_ms / 1000
        self._pause = settings.report_pause_ms / 1000
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._version = 1
        self._changed_at: dict[PartitionId, int] = {}
        self._progress: set[PartitionId] = set()
        self._flushed_at = 0.0
        self._closed = False
        self._waiting = 0
        self._asked_at = float("-inf")

    def touched(self, partition: PartitionId | None, *, at_once: bool) -> None:
        """Note a change of a replica, None for the node; without `at_once` it is only progress."""
        with self._changed:
            if not at_once and partition is not None:
                self._progress.add(partition)
                return
            self._count([partition] if partition is not None else [])

    def tick(self, now: float) -> None:
        """Let progress count, when the last time is long enough ago."""
        with self._changed:
            if self._progress and now - self._flushed_at >= self._interval:
                self._flushed_at = now
                self._count(self._progress)
                self._progress = set()

    def _count(self, partitions: Iterable[PartitionId]) -> None:
        self._version += 1
        self._changed_at.update(dict.fromkeys(partitions, self._version))
        self._changed.notify_all()

    def has_changes(self, request: ReportRequest) -> bool:
        """Return whether there is something that the caller does not know."""
        return request.seen != self._version or request.process_id != self._process_id

    def wait(self, request: ReportRequest, timeout_seconds: float) -> None:
        """Return when there is news for the caller, at the latest after the time given.

        A moment after the news, unless the caller knows nothing yet.
        """
        until = self._clock.monotonic() + timeout_seconds
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(
                lambda: self.has_changes(request) or self._closed, timeout_seconds
            )
        if request.process_id == self._process_id:
            # Not on the condition: each change would wake this thread.
            self._ended.wait(max(0.0, min(self._pause, until - self._clock.monotonic())))
        with self._changed:
            self._waiting -= 1
            self._asked_at = self._clock.monotonic()

    def is_read(self, within_seconds: float) -> bool:
        """Return whether somebody waits for the report, or did so a moment ago."""
        with self._changed:
            return self._waiting > 0 or self._clock.monotonic() - self._asked_at < within_seconds

    def close(self) -> None:
        """Let nobody wait any more."""
        self._ended.set()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def build(self, node: ReportedNode, request: ReportRequest) -> NodeReport:
        """Return what the caller does not know, or all when it knows nothing of this process.

        The version is taken first, so that no change is ever missed: what changes while the
        replicas are looked at is told again.
        """
        with self._changed:
            version = self._version
            same = request.process_id == self._process_id and request.seen <= version
            since = request.seen if same else 0
            news = {p for p, at in self._changed_at.items() if at > since}
        if not node.zone.configured:
            # A coordinator must hear of a node before it can give it a zone.
            return NodeReport(
                node=node.node_id,
                zone_uid="",
                version=version,
                coordinator_epoch=0,
                replicas=(),
                process_id=self._process_id,
            )
        state, present = node.zone.state, node.partitions()
        return NodeReport(
            node=node.node_id,
            zone_uid=state.config.zone_uid,
            version=version,
            coordinator_epoch=state.coordinator_epoch,
            replicas=tuple(
                replica_report(p) for p in present if not since or p.partition_id in news
            ),
            process_id=self._process_id,
            leaving=node.leaving,
            disk=DiskTrouble.FULL if node.space.short else DiskTrouble.NONE,
            disk_text=node.space.why,
            clock_off=node.clock.trouble.off,
            clock_text=node.clock.trouble.text,
            sync_ms=node.disk_speed.sync_ms,
            slow_ms=node.disk_speed.slow_ms,
            since=since,
            hears=tuple(sorted(node.hearing.heard)),
            overwrite=node.overwrites.asked,
            overwrite_silent=node.overwrites.silent,
            served_percent=round(100 * node.foreground.served_share),
            gone=tuple(sorted(news - {p.partition_id for p in present})) if since else (),
        )


@entry
def replica_report(replica: Replica) -> ReplicaReport:
    """Return the state of one replica."""
    store, record, leading = replica.store, replica.record, replica.leadership
    proposal: IsrProposal | None = None
    refusal = replica.leading.refusal
    led_from: int | None = None
    gap_ms: int | None = None
    durable: dict[int, int] = {}
    applied: dict[int, int] = {}
    if leading is not None:
        proposal, led_from = leading.proposal, replica.leading.led_from
        gap_ms = replica.write_gap.milliseconds(replica.leader_epoch)
        durable = {n: f.durable for n, f in leading.followers.items() if f.durable >= 0}
        applied = {n: f.applied for n, f in leading.followers.items() if f.durable >= 0}
    stream_error = replica.following.error if replica.role is not Role.LEADER else ""
    return ReplicaReport(
        partition=replica.partition_id,
        role=replica.role,
        leader=record.leader,
        leader_epoch=replica.leader_epoch,
        partition_epoch=record.partition_epoch,
        revision=store.meta.revision,
        last_epoch=store.last_epoch,
        led_from_offset=led_from,
        log_end_offset=store.log_end,
        durable_offset=store.durable_end,
        committed_offset=replica.positions.committed,
        kv_applied_offset=store.applied,
        index=store.indexer.position if store.indexer.enabled else None,
        index_builds=replica.index.builds,
        needs_snapshot=store.meta.needs_snapshot,
        takeover=replica.transfer.state,
        takeover_epoch=replica.transfer.epoch,
        takeover_error=replica.transfer.error,
        copy=replica.copy_progress,
        proposal=proposal,
        write_gap_ms=gap_ms,
        write_gap_time=replica.write_gap.ended_micros(replica.leader_epoch),
        proposal_error=refusal.error_code if refusal is not None else "",
        follower_offsets=durable,
        follower_applied=applied,
        rows_estimate=replica.upkeep.sizes[0],
        bytes_estimate=replica.upkeep.sizes[1],
        error=replica.failure or replica.damage.reason or stream_error,
        damage=replica.damage.reason,
        failed=bool(replica.failure),
        leader_heard=replica.following.leader_heard,
        leader_stalled=replica.following.leader_stalled,
        disk=replica.failing.disk,
        paced_rows_per_second=round(replica.pacer.rows_per_second or 0),
        seal=replica.sealing.state,
        reshard_progress=replica.reshard_streams.progress(),
        uncompared=store.meta.uncompared,
        lost_marks=lost_marks(replica),
        pulls_log=replica.pulls_log,
    )
