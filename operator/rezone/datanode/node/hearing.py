"""Whom a data node hears, and since when a follower has not heard its leader (NW-02).

The coordinator may be cut off from nodes that hear each other well. So each node reports the peers
that it exchanges frames with, and each follower whether its leader is among them. Who hears also
is heard: an end that hears nothing for `channel_silent_ms_max` closes the channel. A leader counts
as heard until its followers' promises are over (`lease_ms`), for until then nobody else may commit.

A follower that has not heard its leader for half that time, or only its node's heartbeats for long,
connects to the other members of the in-sync set. So it is known which of them hear each other when
a new leader is to be chosen.

Concurrency: `tick` is called by one thread; `heard` is replaced and never changed.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Protocol

from rezone.datanode.replica.replica import Replica
from rezone.datanode.settings import NodeSettings, heard_seconds_max
from rezone.wire.messages import NodeId

LOOK_SECONDS = 0.1


class Peers(Protocol):
    """The channels of a node."""

    def look_at_leaders(self, now: float) -> None:
        """Tell the followers for how long their leaders have been silent."""
        ...

    def keep_warm(self, nodes: Collection[NodeId]) -> None:
        """Have connections to these nodes, though nothing may be streamed from them."""
        ...

    def heard(self, now: float, seconds_max: float) -> frozenset[NodeId]:
        """Return the peers that have said something within so many seconds."""
        ...


class Hearing:
    """What one node reports of its peers; `on_change` is called when that has changed."""

    def __init__(
        self,
        peers: Peers,
        partitions: Callable[[], Iterable[Replica]],
        settings: NodeSettings,
        on_change: Callable[[], None],
    ) -> None:
        self.heard: frozenset[NodeId] = frozenset()
        self._peers = peers
        self._partitions = partitions
        self._seconds_max = heard_seconds_max(settings)
        self._on_change = on_change
        self._looked_at = float("-inf")

    def tick(self, now: float) -> None:
        """Look around, now and then."""
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        self._peers.look_at_leaders(now)
        self._peers.keep_warm(self._sought())
        heard = self._peers.heard(now, self._seconds_max)
        if heard != self.heard:
            self.heard = heard
            self._on_change()

    def _sought(self) -> set[NodeId]:
        """Return who might lead, or follow, in place of leaders that are silent."""
        sought: set[NodeId] = set()
        for partition in self._partitions():
            if partition.following.misses_leader(self._seconds_max / 2):
                record = partition.record
                sought.update(n for n in record.isr if n not in (partition.node_id, record.leader))
        return sought
