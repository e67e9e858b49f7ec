"""The route cache: who leads which partition and who serves which hash (RM-10).

Epochs decide: a higher leader epoch replaces a lower one, whether it came in a route table or in
a NotLeader answer; a lower one is stale news and is ignored. Of layouts a later generation replaces
an earlier one, and what is sealed stays sealed. An id is of one layout for good, so leaders of both
stand side by side. Not thread-safe: its user locks.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rezone.client.routing.placement import Placement
from rezone.wire.errors import ConflictError, NotLeaderError, ReshardedError, RezoneError
from rezone.wire.layouts import HashRange, Layout, generation_of, layout_of, next_layout_of
from rezone.wire.messages import (
    LeaderMoved,
    NodeId,
    PartitionAssignment,
    PartitionId,
    RouteTable,
    ZoneConfig,
)
from rezone.wire.typed import from_builtins

LAYOUTS_KEPT_MAX = 8
"""Of so many layouts that are over a client remembers the ranges, for outcomes asked for late."""


class Leader(NamedTuple):
    """The leader of a partition, as far as known; `address` is "host:port"."""

    node: NodeId
    address: str
    epoch: int


class _Layouts(msgspec.Struct, frozen=True):
    """What the details of a Resharded answer say of the zone's layouts; as in ZoneConfig."""

    generation: int = -1
    next_partitions: int = 0
    next_generation: int = 0


class RouteCache:
    """Leaders by partition, addresses by node, the zone's config, and who serves which hash."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        if not bootstrap:
            raise ValueError("a client needs at least one bootstrap address")
        self._bootstrap = tuple(bootstrap)
        self._leaders: dict[PartitionId, Leader] = {}
        self._followers: dict[PartitionId, tuple[str, ...]] = {}
        self._peers: dict[NodeId, str] = {}
        self._past: dict[int, Layout] = {}
        self.config: ZoneConfig | None = None
        self.placement: Placement | None = None

    def leader(self, partition: PartitionId) -> Leader | None:
        """Return the leader of a partition, or None when none with an address is known."""
        found = self._leaders.get(partition)
        return found if found is not None and found.address else None

    def followers(self, partition: PartitionId) -> tuple[str, ...]:
        """Return where in-sync followers of a partition are: hot standbys, else all of them."""
        return self._followers.get(partition, ())

    def address(self, node: NodeId) -> str | None:
        """Return where a node is reached, None when that is not known."""
        return self._peers.get(node)

    def addresses(self) -> list[str]:
        """Return every address worth asking for routes: known nodes, then the bootstrap's."""
        return list(dict.fromkeys([*self._peers.values(), *self._bootstrap]))

    def range_of(self, partition: PartitionId) -> HashRange | None:
        """Return the range of a partition, of a layout that is over too; None when not known."""
        placement = self.placement
        if placement is not None and placement.knows(partition):
            return placement.range_of(partition)
        past = self._past.get(generation_of(partition))
        return past.range_of(partition) if past is not None and partition in past.ids else None

    def refusal(self, partition: PartitionId) -> RezoneError | None:
        """Return why nobody needs to be asked for a partition; None when somebody may know it."""
        placement = self.placement
        if placement is None:
            return None
        if placement.is_over(partition):
            return ReshardedError(f"partition {partition} was re-sharded", partition=partition)
        newest = placement.next_layout or placement.layout
        if placement.knows(partition) or generation_of(partition) > newest.generation:
            return None
        return ConflictError(f"the zone has no partition {partition}", partition=partition)

    # --- what answers say -------------------------------------------------------------------

    def merge(self, table: RouteTable) -> set[PartitionId]:
        """Take over what is newer in a route table; returns the partitions that changed."""
        self._follow(table.config)
        self._peers = dict(table.peers)
        changed = set()
        for one in table.partitions:
            if self._take_record(one, table.peers):
                changed.add(one.partition)
        sealed = [one.partition for one in table.partitions if one.state.sealed]
        return changed | self._seal(sealed)

    def _take_record(self, one: PartitionAssignment, peers: dict[NodeId, str]) -> bool:
        assert self.placement is not None  # noqa: S101 - the config was followed
        if not self.placement.knows(one.partition):
            return False
        state = one.state
        fresh = Leader(state.leader, peers.get(state.leader, ""), state.leader_epoch)
        others = [n for n in state.iss or state.isr if n != state.leader and n in peers]
        self._followers[one.partition] = tuple(peers[n] for n in others)
        known = self._leaders.get(one.partition)
        if known is not None and (known.epoch > fresh.epoch or known == fresh):
            return False
        self._leaders[one.partition] = fresh
        return True

    def correct(self, partition: PartitionId, error: NotLeaderError) -> Leader | None:
        """Take over the leader that a NotLeader answer names; None when it names none or stale."""
        node = error.details.get("leader")
        if not isinstance(node, int) or node < 0:
            return None
        known = self._leaders.get(partition)
        epoch = int(error.details.get("epoch", known.epoch if known else 0))
        address = str(error.details.get("address", "")) or self._peers.get(node, "")
        return self._led_by(partition, Leader(node, address, epoch))

    def moved(self, news: LeaderMoved) -> None:
        """Take over the leader that the one before has told of, unless a later one is known."""
        if news.partition in self._leaders:
            self._led_by(news.partition, Leader(news.leader, news.address, news.leader_epoch))

    def _led_by(self, partition: PartitionId, leader: Leader) -> Leader | None:
        known = self._leaders.get(partition)
        if not leader.address or (known is not None and leader.epoch < known.epoch):
            return None
        self._leaders[partition] = leader
        return leader

    def reshard(self, partition: PartitionId, error: ReshardedError) -> bool:
        """Take over what a Resharded answer says; return whether it is known who serves instead."""
        config, placement = self.config, self.placement
        if config is None or placement is None:
            return False
        if placement.is_over(partition):
            return True
        try:
            told = from_builtins(error.details, _Layouts)
        except msgspec.ValidationError:  # of a node that does not keep to the protocol
            return False
        if told.generation != config.generation:
            return False
        if told.next_partitions:
            self._follow(
                msgspec.structs.replace(
                    config,
                    next_partitions=told.next_partitions,
                    next_generation=told.next_generation,
                )
            )
        return bool(self._seal([partition]))

    def forget(self, partition: PartitionId) -> None:
        """Drop what is known of a partition's leader, so that any next news of it is taken."""
        self._leaders.pop(partition, None)

    # --- layouts ----------------------------------------------------------------------------

    def _follow(self, config: ZoneConfig) -> None:
        """Take a config over unless it is of an earlier generation; drop what it ends."""
        before, placement = self.config, self.placement
        if before is None or placement is None or before.zone_uid != config.zone_uid:
            self._leaders.clear()
            self._followers.clear()
            self._past.clear()
        elif config.generation < before.generation:
            return
        elif config.generation > before.generation:
            self._remember(placement)
        elif placement.sealed:
            # Nobody goes back from a seal: a node that knows of another next layout is behind.
            self.config = msgspec.structs.replace(
                config,
                next_partitions=before.next_partitions,
                next_generation=before.next_generation,
            )
            return
        self.config = config
        fresh = Placement(layout_of(config), next_layout_of(config))
        if fresh != placement:
            self.placement = fresh
            self._drop([p for p in self._leaders if not fresh.knows(p)])

    def _remember(self, placement: Placement) -> None:
        self._past[placement.layout.generation] = placement.layout
        if placement.next_layout is not None:
            self._past[placement.next_layout.generation] = placement.next_layout
        while len(self._past) > LAYOUTS_KEPT_MAX:
            del self._past[min(self._past)]

    def _drop(self, partitions: Sequence[PartitionId]) -> None:
        for partition in partitions:
            self._leaders.pop(partition, None)
            self._followers.pop(partition, None)

    def _seal(self, partitions: Sequence[PartitionId]) -> set[PartitionId]:
        """Add to what is sealed; returns what was not known to be."""
        placement = self.placement
        if placement is None or placement.next_layout is None:
            return set()
        fresh = {p for p in partitions if p in placement.layout.ids} - placement.sealed
        if fresh:
            sealed = placement.sealed | fresh
            self.placement = Placement(placement.layout, placement.next_layout, sealed)
        return fresh
