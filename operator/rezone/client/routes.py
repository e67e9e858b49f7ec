"""The route cache: who leads which partition, and how answers correct it (RM-10).

Epochs decide: a higher leader epoch replaces a lower one, whether it came in a route table or in
a NotLeader answer; a lower one is stale news and is ignored. Not thread-safe: its user locks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rezone.wire.errors import NotLeaderError
from rezone.wire.messages import NodeId, PartitionId, RouteTable, ZoneConfig


class Leader(NamedTuple):
    """The leader of a partition, as far as known; `address` is "host:port"."""

    node: NodeId
    address: str
    epoch: int


class RouteCache:
    """Leaders by partition, addresses by node, and the zone's config."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        if not bootstrap:
            raise ValueError("a client needs at least one bootstrap address")
        self._bootstrap = tuple(bootstrap)
        self._leaders: dict[PartitionId, Leader] = {}
        self._followers: dict[PartitionId, tuple[str, ...]] = {}
        self._peers: dict[NodeId, str] = {}
        self.config: ZoneConfig | None = None

    def leader(self, partition: PartitionId) -> Leader | None:
        """Return the leader of a partition, or None when none with an address is known."""
        found = self._leaders.get(partition)
        return found if found is not None and found.address else None

    def followers(self, partition: PartitionId) -> tuple[str, ...]:
        """Return where in-sync followers of a partition are: hot standbys, else all of them."""
        return self._followers.get(partition, ())

    def addresses(self) -> list[str]:
        """Return every address worth asking for routes: known nodes, then the bootstrap's."""
        return list(dict.fromkeys([*self._peers.values(), *self._bootstrap]))

    def merge(self, table: RouteTable) -> set[PartitionId]:
        """Take over what is newer in a route table; returns the partitions that changed.

        A table of another zone, or of another number of partitions, replaces everything.
        """
        before = self.config
        if before is not None and (
            before.zone_uid != table.config.zone_uid or before.partitions != table.config.partitions
        ):
            self._leaders.clear()
            self._followers.clear()
        self.config = table.config
        self._peers = dict(table.peers)
        changed = set()
        for one in table.partitions:
            state = one.state
            fresh = Leader(state.leader, table.peers.get(state.leader, ""), state.leader_epoch)
            others = [n for n in state.iss or state.isr if n != state.leader and n in table.peers]
            self._followers[one.partition] = tuple(table.peers[n] for n in others)
            known = self._leaders.get(one.partition)
            if known is None or (known.epoch <= fresh.epoch and known != fresh):
                self._leaders[one.partition] = fresh
                changed.add(one.partition)
        return changed

    def correct(self, partition: PartitionId, error: NotLeaderError) -> Leader | None:
        """Take over the leader that a NotLeader answer names; None when it names none or stale."""
        node = error.details.get("leader")
        if not isinstance(node, int) or node < 0:
            return None
        known = self._leaders.get(partition)
        epoch = int(error.details.get("epoch", known.epoch if known else 0))
        if known is not None and epoch < known.epoch:
            return None
        address = str(error.details.get("address", "")) or self._peers.get(node, "")
        if not address:
            return None
        leader = Leader(node, address, epoch)
        self._leaders[partition] = leader
        return leader

    def forget(self, partition: PartitionId) -> None:
        """Drop what is known of a partition's leader, so that any next news of it is taken."""
        self._leaders.pop(partition, None)
