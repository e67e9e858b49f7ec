"""Simulated data nodes: what the coordinator's simulation talks to instead of real ones.

They keep the rules that real ones keep: the highest epoch wins, a write is acknowledged when
every in-sync replica has it, a takeover goes PENDING, DEAD, ACTIVE and may stop on the way.
Time is counted in ticks; chance comes from the seeded generator alone.
"""

import dataclasses
import random
from collections.abc import Iterator

import msgspec

from rezone.wire.messages import (
    CopyFailure,
    CopyProgress,
    IsrProposal,
    LeaderAndIsr,
    ReplicaReport,
    Role,
    TakeoverState,
)

PARTITION_BYTES = 1000
COPY_BYTES_PER_TICK = 400


@dataclasses.dataclass
class Replica:
    """One replica: its record as last heard, its log, its takeover, its copy."""

    record: LeaderAndIsr
    role: Role
    log_end: int = 0
    applied: int = 0
    needs_snapshot: bool = False
    takeover: TakeoverState = TakeoverState.NONE
    takeover_epoch: int = 0
    copied_bytes: int = 0
    pulls: bool = False
    no_space: bool = False
    corrupt: bool = False
    proposed: frozenset[int] = frozenset()

    @property
    def epoch(self) -> int:
        """The highest leader epoch it has heard of."""
        return self.record.leader_epoch


@dataclasses.dataclass
class Node:
    """A data node; `alive` to its peers, `connected` to the coordinator."""

    replicas: dict[int, Replica] = dataclasses.field(default_factory=dict)
    alive: bool = True
    connected: bool = True
    lost: bool = False
    since: int | None = None
    room: int | None = None  # how many whole replicas its disk has room for

    @property
    def full(self) -> bool:
        """Whether its disk has no room for another replica."""
        held = sum(not replica.needs_snapshot for replica in self.replicas.values())
        return self.room is not None and held >= self.room

    @property
    def reachable(self) -> bool:
        """Whether the coordinator can talk to it."""
        return self.alive and self.connected


@dataclasses.dataclass
class Chances:
    """How probable each fault is at each opportunity; all zero: nothing ever fails."""

    takeover_fails: float = 0.0
    active_is_lost: float = 0.0
    notice_is_late: float = 0.0
    copy_is_corrupt: float = 0.0


class Replicas:
    """All data nodes of a zone and what happens between them."""

    def __init__(self, rng: random.Random, nodes: int, routes: list[LeaderAndIsr]) -> None:
        self.rng = rng
        self.chances = Chances()
        self.nodes = {n: Node() for n in range(nodes)}
        self.acked = [100] * len(routes)
        self.leaders_seen: dict[tuple[int, int], int] = {}
        self.verified_ever: set[tuple[int, int]] = set()
        for partition, record in enumerate(routes):
            for node in record.replicas:
                role = Role.LEADER if node == record.leader else Role.FOLLOWER
                replica = Replica(record=record, role=role, log_end=100, applied=100)
                self.nodes[node].replicas[partition] = replica

    def notify(self, node: int, partition: int, record: LeaderAndIsr) -> None:
        """Deliver a route; unknown replicas are opened, lower epochs refused (HS-02)."""
        if not self.nodes[node].reachable or self.rng.random() < self.chances.notice_is_late:
            return
        replica = self.nodes[node].replicas.get(partition)
        if replica is None:
            if node not in record.replicas:
                return
            replica = Replica(record=record, role=Role.LEARNER, needs_snapshot=True)
            replica.corrupt = self.rng.random() < self.chances.copy_is_corrupt
            self.nodes[node].replicas[partition] = replica
            return
        known = (replica.epoch, replica.record.partition_epoch)
        if (record.leader_epoch, record.partition_epoch) < known:
            return
        self._adopt(partition, node, replica, record)

    def _adopt(self, partition: int, node: int, replica: Replica, record: LeaderAndIsr) -> None:
        newer = record.leader_epoch > replica.epoch
        if record.partition_epoch > replica.record.partition_epoch:
            replica.proposed = frozenset()
        if record.leader == node:
            if newer or replica.role is not Role.LEADER:
                if newer or replica.takeover is not TakeoverState.DEAD:
                    self._lead(partition, node, replica, record)
                    return
            elif record.next_leader is None:
                replica.takeover = TakeoverState.NONE
            replica.record = record
            return
        if newer or record.partition_epoch > replica.record.partition_epoch:
            replica.takeover = TakeoverState.NONE
        replica.record = record
        replica.role = Role.FOLLOWER

    def _lead(self, partition: int, node: int, replica: Replica, record: LeaderAndIsr) -> None:
        assert not replica.needs_snapshot, f"p{partition}: node {node} leads without its rows"
        assert replica.log_end >= self.acked[partition], f"p{partition}: acknowledged rows lost"
        assert not replica.corrupt, f"p{partition}: a wrong copy leads on node {node}"
        replica.record = record
        replica.role = Role.LEADER
        replica.takeover = TakeoverState.NONE
        replica.applied = replica.log_end
        self._lead_once(partition, node, record.leader_epoch)

    def _lead_once(self, partition: int, node: int, epoch: int) -> None:
        first = self.leaders_seen.setdefault((partition, epoch), node)
        assert first == node, f"p{partition}: nodes {first} and {node} lead in epoch {epoch}"

    def request_takeover(self, partition: int, source: int, epoch: int, next_epoch: int) -> None:
        """Begin a takeover on the old leader (DCP-09); refusals change nothing."""
        replica = self._answering(source, partition)
        if replica is None or replica.role is not Role.LEADER or replica.epoch != epoch:
            return
        if replica.record.next_epoch != next_epoch:
            return
        if (replica.takeover_epoch, replica.takeover) == (next_epoch, TakeoverState.DEAD):
            return
        replica.takeover, replica.takeover_epoch = TakeoverState.PENDING, next_epoch

    def request_upgrade(
        self, partition: int, node: int, next_epoch: int, last_offset: int | None
    ) -> None:
        """Let the candidate lead if its record authorizes it and its log reaches far enough."""
        replica = self._answering(node, partition)
        if replica is None or replica.log_end < (last_offset or 0):
            return
        record = replica.record
        if (record.next_leader, record.next_epoch) == (node, next_epoch):
            self._take(partition, node, replica, next_epoch)

    def _take(self, partition: int, node: int, replica: Replica, epoch: int) -> None:
        record = msgspec.structs.replace(
            replica.record, leader=node, leader_epoch=epoch, next_leader=None, next_epoch=None
        )
        self._lead(partition, node, replica, record)

    def _answering(self, node: int, partition: int) -> Replica | None:
        return self.nodes[node].replicas.get(partition) if self.nodes[node].reachable else None

    def stop(self, partition: int, node: int, epoch: int) -> None:
        """Stop and delete a replica, unless it knows of a higher epoch."""
        replica = self._answering(node, partition)
        if replica is not None and replica.epoch <= epoch:
            del self.nodes[node].replicas[partition]

    def pull(self, partition: int, node: int) -> None:
        """Begin a node to node copy; a replica that is gone meanwhile copies nothing."""
        replica = self._answering(node, partition)
        if replica is not None:
            replica.pulls = True

    def copy_some(self, partition: int, source: int, node: int) -> None:
        """Carry some bytes of a snapshot from a leader to a replica that needs it."""
        replica = self.nodes[node].replicas.get(partition)
        origin = self.nodes[source].replicas.get(partition)
        both = self.nodes[node].alive and self.nodes[source].alive
        if replica is None or origin is None or not both or not replica.needs_snapshot:
            return
        replica.no_space = self.nodes[node].full
        if replica.no_space:
            return
        replica.copied_bytes += COPY_BYTES_PER_TICK
        if replica.copied_bytes >= PARTITION_BYTES:
            replica.needs_snapshot = False
            replica.log_end = replica.applied = origin.log_end

    def tick(self) -> None:
        """Let all replicas do a tick's work: write, replicate, hand over, copy."""
        for partition in range(len(self.acked)):
            alive = dict(self._alive(partition))
            leaders = [n for n, r in alive.items() if r.role is Role.LEADER]
            if leaders:
                leader = max(leaders, key=lambda n: alive[n].epoch)
                self._lead_once(partition, leader, alive[leader].epoch)
                self._replicate(partition, leader, alive)
                self._hand_over(partition, leader, alive)
            for node, replica in alive.items():
                if replica.pulls:
                    self.copy_some(partition, replica.record.leader, node)

    def _alive(self, partition: int) -> Iterator[tuple[int, Replica]]:
        for number, node in self.nodes.items():
            if node.alive and partition in node.replicas:
                yield number, node.replicas[partition]

    def _replicate(self, partition: int, leader: int, alive: dict[int, Replica]) -> None:
        top = alive[leader]
        if top.takeover is not TakeoverState.DEAD:
            top.log_end += self.rng.randrange(0, 400)
        top.applied = top.log_end
        for node, replica in alive.items():
            if node == leader or replica.needs_snapshot or replica.epoch > top.epoch:
                continue
            if replica.epoch < top.epoch:
                seen = msgspec.structs.replace(
                    top.record, partition_epoch=replica.record.partition_epoch
                )
                replica.record, replica.role = seen, Role.FOLLOWER
                replica.takeover = TakeoverState.NONE
            replica.log_end = top.log_end
            hot = node in top.record.iss or node == top.record.hot_standby_replica
            lazy = max(replica.applied, top.log_end - 5000)
            replica.applied = replica.log_end if hot else min(lazy, replica.log_end)
        synced = {n for n, r in alive.items() if r.log_end == top.log_end and r.epoch == top.epoch}
        # As real leaders do: who was proposed may be in the coordinator's set already.
        if {*top.record.isr, *top.proposed} <= synced and top.takeover is not TakeoverState.DEAD:
            self.acked[partition] = max(self.acked[partition], top.log_end)

    def _hand_over(self, partition: int, leader: int, alive: dict[int, Replica]) -> None:
        old = alive[leader]
        candidate = old.record.next_leader
        if old.takeover is TakeoverState.PENDING:
            failed = candidate not in alive or self.rng.random() < self.chances.takeover_fails
            old.takeover = TakeoverState.FAILED if failed else TakeoverState.DEAD
        elif old.takeover is TakeoverState.DEAD and candidate in alive:
            assert candidate is not None
            epoch = old.takeover_epoch
            old.takeover = TakeoverState.ACTIVE
            old.role = Role.FOLLOWER
            old.record = msgspec.structs.replace(
                old.record,
                leader=candidate,
                leader_epoch=epoch,
                next_leader=None,
                next_epoch=None,
            )
            new = alive[candidate]
            if self.rng.random() >= self.chances.active_is_lost and new.epoch < epoch:
                new.log_end = old.log_end
                self._take(partition, candidate, new, epoch)

    def report(self, partition: int, node: int) -> ReplicaReport:
        """Return what the node says of its replica."""
        replica = self.nodes[node].replicas[partition]
        copy = CopyProgress(bytes=replica.copied_bytes) if replica.copied_bytes else None
        if replica.needs_snapshot and replica.no_space:
            error = "No space left on device"
            copy = CopyProgress(
                bytes=replica.copied_bytes, error=error, failure=CopyFailure.NO_SPACE
            )
        return ReplicaReport(
            partition=partition,
            role=replica.role,
            leader=replica.record.leader,
            leader_epoch=replica.epoch,
            partition_epoch=replica.record.partition_epoch,
            log_end_offset=replica.log_end,
            kv_applied_offset=replica.applied,
            needs_snapshot=replica.needs_snapshot,
            takeover=replica.takeover,
            takeover_epoch=replica.takeover_epoch,
            copy=copy,
            proposal=self._proposal(partition, node, replica),
            bytes_estimate=PARTITION_BYTES,
        )

    def _proposal(self, partition: int, node: int, leader: Replica) -> IsrProposal | None:
        if leader.role is not Role.LEADER or leader.takeover is TakeoverState.DEAD:
            return None
        record = leader.record
        alive = dict(self._alive(partition))
        isr = tuple(
            n
            for n in record.replicas
            if n in alive
            and not alive[n].needs_snapshot
            and alive[n].epoch == leader.epoch
            and alive[n].log_end == leader.log_end
        )
        hot = {*record.iss, record.hot_standby_replica}
        iss = tuple(n for n in isr if n in hot and n != node)
        if node not in isr or (set(isr), set(iss)) == (set(record.isr), set(record.iss)):
            return None
        leader.proposed |= set(isr)
        return IsrProposal(
            new_isr=isr,
            new_iss=iss,
            leader_epoch=leader.epoch,
            partition_epoch=record.partition_epoch,
            coordinator_epoch=record.coordinator_epoch,
        )
