"""A node's replication channels: one to each node that leads for it, one from each that follows.

A partition has at most one stream, to its leader, in its leader's epoch; `restream` makes that
so after any change, and does nothing when it is so already.

Concurrency: a lock guards the tables and is not held while a channel is asked for something;
`Replica.linking` keeps two changes of one partition's stream apart.
"""

import functools
import math
import threading
from collections.abc import Callable, Collection
from typing import NamedTuple, Protocol

from rezone.datanode.commit.lease import Promise
from rezone.datanode.replica.host import Host
from rezone.datanode.replica.replica import Replica
from rezone.datanode.replication.consumer import ConsumerChannel
from rezone.datanode.replication.producer import ProducerChannel
from rezone.datanode.replication.stream import Source
from rezone.datanode.scheduling.unread import Peer, Unread
from rezone.datanode.state.runner import entry
from rezone.storage.budget import Tally
from rezone.wire.errors import ConflictError, LimitExceededError, NotReadyError
from rezone.wire.messages import NodeId, OpenConnection, PartitionId
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.flight import NodeClient


class RequireNode(Protocol):
    """Who asks the certificate of a channel's other side which data node it is of."""

    def __call__(self, node: NodeId, *, shared: bool) -> None:
        """Raise ForbiddenError when it is not this one's."""
        ...


class Connect(Protocol):
    """What makes a connection to another node by its address."""

    def __call__(self, address: str, *, node: NodeId | None = None) -> NodeClient:
        """Return the connection; with `node` the other side must be this one."""
        ...


class _Link(NamedTuple):
    """Which stream a partition has; a new one is asked for when any of this changes."""

    leader: NodeId
    leader_epoch: int
    copies: int


@entry
def _wanted(replica: Replica, host: Host[Replica]) -> tuple[_Link | None, NodeId | None]:
    """Return which stream a replica is to have, and which node is to lead next."""
    leader, planned = replica.streams_from, replica.record.next_leader
    if leader is None or not host.address(leader):
        return None, planned
    return _Link(leader, replica.leader_epoch, replica.copies), planned


class Links:
    """The channels of one node; `find` raises UnknownPartitionError."""

    def __init__(
        self,
        host: Host[Replica],
        find: Callable[[PartitionId], Source],
        *,
        connect: Connect = NodeClient,
        unread: Unread,
        unsent: Tally,
    ) -> None:
        self._host = host
        self._unread = unread
        self._unsent = unsent
        self._connect = connect
        self._find = find
        self._lock = threading.Lock()
        self._consumers: dict[NodeId, ConsumerChannel] = {}
        self._links: dict[PartitionId, _Link] = {}
        # By node as well: the name of another's connection must end nothing.
        self._producers: dict[tuple[NodeId, str], ProducerChannel] = {}
        self._warmed: set[NodeId] = set()
        self._closed = False

    def consumers(self) -> list[ConsumerChannel]:
        """Return this node's connections to leaders."""
        with self._lock:
            return list(self._consumers.values())

    def close(self, timeout_seconds: float) -> None:
        """End all channels, and refuse those that anybody still asks for."""
        with self._lock:
            self._closed = True
            consumers = list(self._consumers.values())
            producers = list(self._producers.values())
        for producer in producers:
            producer.close("the node is stopping")
        for consumer in consumers:
            consumer.close(timeout_seconds)

    def producers(self) -> list[ProducerChannel]:
        """Return the connections of followers to this node."""
        with self._lock:
            return list(self._producers.values())

    def ack(self, partition: PartitionId) -> None:
        """Ack to the leader what is durable."""
        with self._lock:
            link = self._links.get(partition)
            consumer = self._consumers.get(link.leader) if link is not None else None
        if consumer is not None:
            consumer.ack(partition)

    def restream(self, replica: Replica) -> None:
        """Make the partition's stream fit its state: to its leader, in its epoch, or none.

        Followers hear first that this replica leads no more, if so. Those that asked for a stream
        before it led are answered as well.
        """
        for producer in self.producers():
            producer.push()
            producer.resume(replica.partition_id)
        self._restream(replica)

    def _restream(self, replica: Replica) -> None:
        number = replica.partition_id
        with replica.linking:
            link, planned = _wanted(replica, self._host)
            with self._lock:
                old = self._links.pop(number, None)
                if link is not None:
                    self._links[number] = link
                leaving = self._consumers.get(old.leader) if old is not None else None
            if planned is not None and planned != self._host.node_id:
                self._warm_up(planned)
            if link == old:
                return
            if leaving is not None and (link is None or leaving.peer != link.leader):
                leaving.unwant(number)
            if link is not None:
                self._consumer(link.leader).want(replica.following)
            elif replica.streams_from is not None:
                # Of a leader without an address nothing is heard, and no channel would say so.
                replica.following.leader_silent(math.inf)

    def unlink(self, partition: PartitionId) -> None:
        """End the partition's stream until its state changes (DCP-12)."""
        with self._lock:
            link = self._links.pop(partition, None)
            consumer = self._consumers.get(link.leader) if link is not None else None
        if consumer is not None:
            consumer.unwant(partition)

    def streaming(self, partition: PartitionId) -> bool:
        """Return whether the partition's stream from its leader runs."""
        with self._lock:
            link = self._links.get(partition)
            consumer = self._consumers.get(link.leader) if link is not None else None
        return consumer is not None and consumer.active(partition)

    def promised_to(self, leader: NodeId) -> Promise:
        """Return what a node that leads was promised."""
        with self._lock:
            consumer = self._consumers.get(leader)
        return consumer.promise if consumer is not None else Promise()

    def new_addresses(self, peers: dict[NodeId, str]) -> None:
        """Connect again to nodes whose address has changed."""
        for consumer in self.consumers():
            address = peers.get(consumer.peer, consumer.address)
            if address != consumer.address:
                consumer.move_to(address)

    def look_at_leaders(self, now: float) -> None:
        """Tell the followers for how long their leaders have been silent."""
        for consumer in self.consumers():
            consumer.look_at_leaders(now)

    def keep_warm(self, nodes: Collection[NodeId]) -> None:
        """Have connections to these nodes, though nothing may be streamed from them."""
        for consumer in self.consumers():
            if consumer.peer in self._warmed.difference(nodes):
                consumer.cool_down()
        self._warmed = {*nodes}
        for node in nodes:
            self._warm_up(node)

    def heard(self, now: float, seconds_max: float) -> frozenset[NodeId]:
        """Return the peers that have said something within so many seconds."""
        leaders = (c.peer for c in self.consumers() if c.hears(now, seconds_max))
        followers = (p.node for p in self.producers() if p.hears(now, seconds_max))
        return frozenset((*leaders, *followers))

    def _warm_up(self, peer: NodeId) -> None:
        if self._host.address(peer):
            self._consumer(peer).warm_up()

    def _consumer(self, peer: NodeId) -> ConsumerChannel:
        host = self._host
        zone_uid = host.config.zone_uid
        named = None if host.settings.shared_names_accepted else peer
        with self._lock:
            consumer = self._consumers.get(peer)
            if consumer is None:
                consumer = self._consumers[peer] = ConsumerChannel(
                    name=f"{zone_uid}:{host.node_id}->{peer}",
                    node=host.node_id,
                    peer=peer,
                    address=host.address(peer),
                    zone_uid=zone_uid,
                    settings=host.settings,
                    clock=host.clock,
                    clock_bound=host.clock_bound,
                    connect=functools.partial(self._connect, node=named),
                    unread=self._unread,
                    unsent=self._unsent,
                )
            closed = self._closed
        if closed:
            # A step that was under way asks for a stream after the node has ended its others.
            consumer.close(0)
        return consumer

    def serve(self, channel: Channel, peer: Peer, require_node: RequireNode) -> None:
        """Serve a follower's node to the end of its channel.

        A channel of the same node and name is closed first (DCP-01). All that comes by the channel
        is said by the node that its first frame names, so that is asked for once. Raises
        LimitExceededError when there are too many, ConflictError for another zone's, ForbiddenError
        for a node that the other side is not, NotReadyError when this node is stopping.
        """
        host = self._host
        frame = channel.receive()
        if frame is None:
            return
        hello = frame[0]
        if not isinstance(hello, OpenConnection):
            raise ConflictError("a replication channel begins with OpenConnection")
        if hello.zone_uid != host.config.zone_uid:
            raise ConflictError(f"this node is of zone {host.config.zone_uid}")
        require_node(hello.node, shared=host.settings.shared_names_accepted)
        key = hello.node, hello.name
        served = ProducerChannel(
            hello.name,
            hello.node,
            channel,
            self._find,
            settings=host.settings,
            clock=host.clock,
            beats=hello.beats,
            peer=peer,
        )
        limit = host.settings.replication_connections_max
        with self._lock:
            if self._closed:
                # It was opened before, and nobody else would ask the follower to hang up.
                raise NotReadyError(f"node {host.node_id} is stopping")
            old = self._producers.get(key)
            if old is None and len(self._producers) >= limit:
                raise LimitExceededError(
                    f"node {host.node_id} has {limit} replication connections, which is the limit",
                    limit=limit,
                )
            self._producers[key] = served
        if old is not None:
            old.close("a connection of the same name has been opened")
        self._unread.watch(channel, peer, lambda: served.outbox.inline)
        try:
            served.run()
        finally:
            self._unread.forget(channel)
            with self._lock:
                if self._producers.get(key) is served:
                    del self._producers[key]
