"""Data nodes that take what the operator tells them and then stay as they are."""

from __future__ import annotations

import threading
from typing import Any

from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    LeaderAndIsr,
    Message,
    NodeReport,
    NotifyLeaderAndIsr,
    ReplicaReport,
    ReportRequest,
    Role,
    encode,
)


class StillNode:
    """One data node: its replicas are open and caught up the moment they are assigned."""

    def __init__(self, node: int) -> None:
        self.reports = 0
        self._node = node
        self._zone_uid = ""
        self._version = 1
        self._epoch = 0
        self._records: dict[int, LeaderAndIsr] = {}
        self._changed = threading.Condition()
        self._closed = False

    def call(
        self,
        request: Message,
        _reply: type[Any],
        *,
        timeout_seconds: float = 5.0,
        encoded: bytes | None = None,
    ) -> Any:
        """Answer a control call as `NodeClient.call` does."""
        assert encoded in (None, encode(request)), "what is sent is not what was meant"
        with self._changed:
            match request:
                case ReportRequest(seen=seen, timeout_ms=wait_ms):
                    self._changed.wait_for(
                        lambda: self._closed or self._version != seen,
                        min(wait_ms / 1000, timeout_seconds),
                    )
                    self.reports += 1
                    return self._report()
                case ConfigureNode():
                    self._zone_uid = request.config.zone_uid
                case NotifyLeaderAndIsr():
                    self._records |= {p.partition: p.state for p in request.partitions}
                case _:
                    raise AssertionError(f"a node of a zone at rest was sent {request}")
            self._epoch = request.fence.coordinator_epoch
            self._version += 1
            self._changed.notify_all()
            return Ack()

    def close(self) -> None:
        """Answer polls at once from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _report(self) -> NodeReport:
        return NodeReport(
            node=self._node,
            zone_uid=self._zone_uid,
            version=self._version,
            coordinator_epoch=self._epoch,
            replicas=tuple(self._replica(p, r) for p, r in sorted(self._records.items())),
            process_id="still",
        )

    def _replica(self, partition: int, record: LeaderAndIsr) -> ReplicaReport:
        leads = record.leader == self._node
        return ReplicaReport(
            partition=partition,
            role=Role.LEADER if leads else Role.FOLLOWER,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            revision=0,
            log_end_offset=0,
            durable_offset=0,
            committed_offset=0,
            kv_applied_offset=0,
            needs_snapshot=False,
            follower_offsets={n: 0 for n in record.isr if n != self._node} if leads else {},
        )
