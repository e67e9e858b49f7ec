"""The node's report: what the coordinator polls, and the counter that tells it of news.

Concurrency: `touched` is cheap and may be called under any lock; `wait` runs in the callers'
threads. Changes of state count at once, progress at most every `progress_interval_ms`.
"""

import threading
from typing import TYPE_CHECKING

from rezone.replica.settings import Clock, NodeSettings
from rezone.wire.messages import IsrProposal, NodeReport, ReplicaReport, Role

if TYPE_CHECKING:
    from rezone.replica.node import DataNode
    from rezone.replica.partition import Partition


class ReportBoard:
    """The version of a node's report, and who waits for another one."""

    def __init__(self, clock: Clock, settings: NodeSettings) -> None:
        self._clock = clock
        self._interval = settings.progress_interval_ms / 1000
        self._changed = threading.Condition()
        self._version = 1
        self._progress = False
        self._flushed_at = 0.0
        self._closed = False
        self._waiting = 0
        self._asked_at = float("-inf")

    def touched(self, *, at_once: bool) -> None:
        """Note a change; without `at_once` it is only progress."""
        if not at_once:
            self._progress = True
            return
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def tick(self, now: float) -> None:
        """Let progress count, when the last time is long enough ago."""
        if self._progress and now - self._flushed_at >= self._interval:
            self._flushed_at = now
            self._progress = False
            self.touched(at_once=True)

    def wait(self, seen: int, timeout_seconds: float) -> None:
        """Return when the version is not `seen`, at the latest after the time given."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._version != seen or self._closed, timeout_seconds)
            self._waiting -= 1
            self._asked_at = self._clock.monotonic()

    def is_read(self, within_seconds: float) -> bool:
        """Return whether somebody waits for the report, or did so a moment ago."""
        with self._changed:
            return self._waiting > 0 or self._clock.monotonic() - self._asked_at < within_seconds

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def build(self, node: "DataNode") -> NodeReport:
        """Return the report; its version is taken first, so that no change is ever missed."""
        with self._changed:
            version = self._version
        if not node.zone.configured:
            # A coordinator must hear of a node before it can give it a zone.
            return NodeReport(
                node=node.node_id,
                zone_uid="",
                version=version,
                coordinator_epoch=0,
                replicas=(),
                process_id=node.process_id,
            )
        state = node.zone.state
        return NodeReport(
            node=node.node_id,
            zone_uid=state.config.zone_uid,
            version=version,
            coordinator_epoch=state.coordinator_epoch,
            replicas=tuple(replica_report(p) for p in node.partitions()),
            process_id=node.process_id,
            leaving=node.leaving,
        )


def replica_report(partition: "Partition") -> ReplicaReport:
    """Return the state of one replica."""
    with partition.lock:
        store, record, leading = partition.store, partition.record, partition.leading.state
        proposal: IsrProposal | None = None
        durable: dict[int, int] = {}
        applied: dict[int, int] = {}
        if leading is not None:
            proposal = leading.proposal
            durable = {n: f.durable for n, f in leading.followers.items() if f.durable >= 0}
            applied = {n: f.applied for n, f in leading.followers.items() if f.durable >= 0}
        stream_error = partition.following.error if partition.role is not Role.LEADER else ""
        return ReplicaReport(
            partition=partition.partition_id,
            role=partition.role,
            leader=record.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=record.partition_epoch,
            revision=store.meta.revision,
            last_epoch=store.last_epoch,
            log_end_offset=store.log_end,
            durable_offset=store.durable_end,
            committed_offset=partition.positions.committed,
            kv_applied_offset=store.applied,
            index=store.indexer.position if store.indexer.enabled else None,
            needs_snapshot=store.meta.needs_snapshot,
            takeover=partition.takeover.state,
            takeover_epoch=partition.takeover.epoch,
            takeover_error=partition.takeover.error,
            copy=partition.copy_progress,
            proposal=proposal,
            follower_offsets=durable,
            follower_applied=applied,
            rows_estimate=partition.upkeep.sizes[0],
            bytes_estimate=partition.upkeep.sizes[1],
            error=partition.failure or partition.damage.reason or stream_error,
            damage=partition.damage.reason,
            paced_rows_per_second=round(partition.pacer.rows_per_second or 0),
        )
