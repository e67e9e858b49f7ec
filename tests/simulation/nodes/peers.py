"""Whom a simulated node hears: by its streams, and by connections that nothing is streamed over."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, cast

from rezone.wire.messages import NodeId
from simulation.nodes.streams import SimulatedStream

if TYPE_CHECKING:
    from simulation.nodes.node import SimulatedNode


class SimulatedPeers:
    """What `Links` is to a node's `Hearing`."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node

    def look_at_leaders(self, now: float) -> None:
        """Tell the followers for how long their leaders have been silent."""
        for follower in self._node.followers.values():
            follower.look_at_leader(now)

    def keep_warm(self, nodes: Collection[NodeId]) -> None:
        """Have connections to these nodes; each is as old as the last frame that came both ways."""
        own, network = self._node.node_id, self._node.network
        for consumer, peer in list(network.warm):
            if consumer == own and peer not in nodes:
                del network.warm[consumer, peer]
        for peer in nodes:
            if network.linked(own, peer) and not network.is_silent(own, peer):
                network.warm[own, peer] = self._node.clock.monotonic()

    def heard(self, now: float, seconds_max: float) -> frozenset[NodeId]:
        """Return the peers that have said something within so many seconds."""
        own, warm = self._node.node_id, self._node.network.warm
        pairs = [pair for pair, at in warm.items() if own in pair and now - at < seconds_max]
        idle = {node for pair in pairs for node in pair} - {own}
        return frozenset((*idle, *self._streaming(now, seconds_max)))

    def _streaming(self, now: float, seconds_max: float) -> Iterator[NodeId]:
        for follower in self._node.followers.values():
            if (leader := follower.hears(now, seconds_max)) is not None:
                yield leader
        for partition in self._node.partitions():
            for node, stream in partition.leading.streams.items():
                if cast("SimulatedStream", stream).liveness.quiet_seconds(now) < seconds_max:
                    yield node
