"""Which copies make no progress: each has a deadline, which counts from its last bytes.

A copy is watched from when it is asked for: one that waits for its turn has all the time. What is
watched is in the coordinator's memory alone. A new coordinator gives each copy its time once more,
so a copy that fails for ever is found out all the same.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from datetime import datetime

from rezone.domain.model.world import Copy, NodeView, StalledCopy
from rezone.resources.conditions import Reason
from rezone.wire.messages import CopyFailure, CopyProgress, NodeId, PartitionId

ASKED_AGAIN_SECONDS = 60.0
"""A stream that was not asked for so long has rested, because of a pause or a limit: its time
begins again."""

RESTARTS_MAX = 3
"""How often a copy may start over, and have its time from then on. One that receives the same bytes
again and again, until the disk is full, makes no progress."""

AVOIDED_SECONDS = 3600.0
"""For so long a data node whose copy failed is no substitute for others, and starts no rebalance
while it is empty: full data nodes would take turns, or one be tried again and again."""


@dataclasses.dataclass
class _Watched:
    since: datetime
    asked: datetime
    streams: bool
    seen: tuple[int, int] = (0, 0)
    restarts: int = 0
    waits: bool = True  # for its first bytes, of a Spark job that has yet to begin
    failure: CopyFailure | None = None
    error: str = ""


class CopyWatch:
    """The copies of a zone that were asked for, and since when each of them stands still."""

    def __init__(self) -> None:
        self._copies: dict[tuple[PartitionId, NodeId], _Watched] = {}
        self._failed: dict[NodeId, datetime] = {}
        self._held: dict[NodeId, int] = {}

    def asked(self, copies: Iterable[Copy], now: datetime, *, streams: bool) -> None:
        """Note copies that were asked for; `streams` are asked for again in each pass."""
        for key in ((copy.partition, node) for copy in copies for node in copy.targets):
            known = self._copies.get(key)
            if known is None or _rested(known, now) or known.streams is not streams:
                self._copies[key] = _Watched(since=now, asked=now, streams=streams)
            else:
                known.asked = now

    def look(self, nodes: Mapping[NodeId, NodeView], now: datetime) -> None:
        """Look how far the copies are; those that are done, or gone, are not watched.

        A copy to a full node has its time once more when another replica has left that node.
        """
        relieved = self._relieved(nodes)
        for (partition, node), known in list(self._copies.items()):
            seen = nodes.get(node)
            if seen is None or not seen.reachable:
                continue
            report = seen.replicas.get(partition)
            if report is None or not report.needs_snapshot:
                del self._copies[partition, node]
            else:
                _advance(known, report.copy, now)
                if node in relieved and known.failure is CopyFailure.NO_SPACE:
                    known.since = now

    def _relieved(self, nodes: Mapping[NodeId, NodeView]) -> frozenset[NodeId]:
        before, watched = self._held, {node for _, node in self._copies}
        self._held = {
            node: len(nodes[node].replicas) if nodes[node].reachable else before.get(node, 0)
            for node in watched & nodes.keys()
        }
        return frozenset(node for node, held in self._held.items() if held < before.get(node, 0))

    def stalled(
        self, now: datetime, *, deadline_seconds: float
    ) -> dict[tuple[PartitionId, NodeId], StalledCopy]:
        """Return the copies that have made no progress for so long."""
        found = {}
        for key, known in self._copies.items():
            seconds = (now - known.since).total_seconds()
            begun = known.streams or not known.waits
            if not begun or seconds < deadline_seconds or _rested(known, now):
                continue
            self._failed[key[1]] = now
            found[key] = _stalled(known, seconds)
        return found

    def avoided(self, now: datetime) -> frozenset[NodeId]:
        """Return the data nodes whose copies have failed lately."""
        return frozenset(
            node
            for node, failed in self._failed.items()
            if (now - failed).total_seconds() < AVOIDED_SECONDS
        )


def _rested(known: _Watched, now: datetime) -> bool:
    return (now - known.asked).total_seconds() > ASKED_AGAIN_SECONDS


def _advance(known: _Watched, copy: CopyProgress | None, now: datetime) -> None:
    if copy is None:
        return
    known.waits = False
    known.failure, known.error = copy.failure, copy.error
    seen = (copy.rows, copy.bytes)
    over = seen < known.seen and not copy.error
    if over:
        known.restarts += 1
    if seen > known.seen or (over and known.restarts <= RESTARTS_MAX):
        known.seen, known.since = seen, now


def _stalled(known: _Watched, seconds: float) -> StalledCopy:
    full = known.failure is CopyFailure.NO_SPACE
    reason = Reason.NO_SPACE if full else Reason.PROGRESS_DEADLINE_EXCEEDED
    return StalledCopy(reason=reason, seconds=seconds, error=known.error)
