"""What a leader knows: who is in sync, and what is committed.

Pure state without I/O, threads or a clock of its own; the partition calls it under its lock.

- An offset is committed when every replica of the *maximal* in-sync set has it on disk: the set
  the coordinator last confirmed and every one proposed since, because a proposal may have been
  accepted without the answer having arrived. Growing therefore binds at once, shrinking only
  when the coordinator has answered.
- Nothing is committed while the confirmed set is smaller than the zone asks for, or its record has
  `eligible` replicas: these left a set that was too small with every acknowledged row, and may
  lead without what came later. What was appended before the set shrank is answered when it has
  grown again.
- A leader does not know which part of the log it started with is committed. `barrier` is the
  log's end at that moment: reads wait until the commit offset has reached it.
- Until `hold_until` an earlier leader may answer reads by its leases (`lease`): nothing is
  committed before, and no member is added that has promised nothing to that one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rezone.datanode.commit.lease import NEVER, NO_LEASE, Lease
from rezone.datanode.settings import NodeSettings
from rezone.domain.routing.routes import hot_standbys
from rezone.wire.errors import (
    NotEnoughReplicasError,
    NotReadyError,
    RezoneError,
)
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    FetchLog,
    IndexPosition,
    IsrProposal,
    LeaderAndIsr,
    NodeId,
    ProducerOpened,
    TransactionResult,
    WriteResult,
)

Outcome = WriteResult | TransactionResult | ProducerOpened | RezoneError
"""What becomes of what asks a leader to append."""

Reply = Callable[[Outcome], None]


@dataclass(slots=True)
class FollowerProgress:
    """What a leader knows of one follower; `waiting_since` is when it began to owe an ack.

    `leaving`: it has said that it is about to stop; `slow`: its disk is slow, beside the leader's,
    and had better not be waited for either; `sync_ms` is how long its syncs take. `gone_since`: its
    stream has broken then, and it has not asked for another one. `leased`: it has granted a lease
    on its present stream. `uncompared`: nobody has compared its copy with its source, so it must
    not lead. Of the candidate of a takeover alone: `index` is how far its indexes are,
    `ready_epoch` the epoch it waits to lead in.
    """

    durable: int = -1
    applied: int = 0
    streaming: bool = False
    leaving: bool = False
    slow: bool = False
    sync_ms: int = 0
    uncompared: bool = False
    waiting_since: float | None = None
    gone_since: float | None = None
    lease: Lease = NO_LEASE
    leased: bool = False
    index: IndexPosition | None = None
    ready_epoch: int = 0

    @property
    def gives_way(self) -> bool:
        """Whether it had better not be waited for, though it still acks."""
        return self.leaving or self.slow

    def may_join(self, floor: int) -> bool:
        """Whether it has all rows below `floor`, and reads at the leader need not wait for it.

        A leader without a time tells none with its leases: that is no reason. A follower keeps what
        had been promised before its stream began (`StreamOk.time_floor`), and nothing later is
        promised before it was told (`LeaderState.announced_time`).
        """
        return self.streaming and self.durable >= floor and self.leased

    def grant(self, lease: Lease) -> None:
        """Take its promise."""
        self.lease, self.leased = self.lease.merged(lease), True

    def stream_began(self) -> None:
        """Count nothing of an earlier stream: what it had acked on that it may have lost since.

        And what it was told: its node may have restarted.
        """
        self.durable, self.ready_epoch = -1, 0
        self.lease, self.leased = self.lease._replace(time=0), False
        self.streaming, self.gone_since, self.leaving = True, None, False

    def stream_ended(self, now: float) -> None:
        """Note that it streams no more."""
        self.streaming, self.leased, self.gone_since = False, False, now

    def count_no_lease(self) -> None:
        """Let it join on its next stream only, whatever it grants on this one."""
        self.leased = False

    def note_state(self, ack: FetchLog, *, slow: bool) -> bool:
        """Note what comes with an ack; whether the in-sync set may change by that.

        `slow`: its disk is slow, beside the leader's.
        """
        gives_way = ack.leaving > self.leaving or slow != self.slow
        first = self.durable < 0
        self.leaving, self.slow, self.sync_ms = ack.leaving, slow, ack.sync_ms
        self.index, self.ready_epoch = ack.index, ack.ready_epoch
        self.uncompared = ack.uncompared
        return first or gives_way

    def acked(self, durable: int, applied: int, now: float, log_end: int) -> None:
        """Note what it holds on disk, which never becomes less on one stream, and has applied."""
        self.durable = max(self.durable, durable)
        self.applied = applied
        self.waiting_since = now if durable < log_end else None

    def owing_since(self, now: float, log_end: int) -> float | None:
        """Return since when it owes an ack, `now` if it did not before; None while it owes none."""
        if self.streaming and self.durable >= log_end:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = now
        return self.waiting_since


@dataclass(slots=True)
class PendingWrite:
    """A write that is in the log and not yet committed."""

    end_offset: int
    commit_time: int
    opaque: int
    size: int
    reply: Reply


@dataclass
class LeaderState:
    """One leadership of one partition, from its epoch's start to its end."""

    node: NodeId
    state: LeaderAndIsr
    barrier: int
    committed: int
    settings: NodeSettings
    hold_until: float = NEVER
    followers: dict[NodeId, FollowerProgress] = field(default_factory=dict)
    proposal: IsrProposal | None = None
    proposed: tuple[NodeId, ...] = ()
    maximal: set[NodeId] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Start with the confirmed set, and with `proposed`: who was asked for before a restart.

        An old proposal may have been seen, so its opposite is proposed: the answer to that frees
        the writes from those nodes.
        """
        assert self.committed <= self.barrier, "committed beyond the log"  # noqa: S101 - invariant
        self.maximal = {*self.state.isr, *self.proposed}
        if not self.maximal <= set(self.state.isr):
            self.proposal = self._proposal(self.state.isr, self.state.iss)

    def confirm(self, state: LeaderAndIsr) -> None:
        """Take the coordinator's newer record of the same epoch; it answers the proposal."""
        assert state.leader_epoch == self.state.leader_epoch, "another epoch is another leadership"  # noqa: S101 - invariant
        if state.partition_epoch > self.state.partition_epoch:
            self.proposal = None
            self.maximal = set(state.isr)
        self.state = state
        known = {*state.replicas, *state.isr}
        self.followers = {n: follower for n, follower in self.followers.items() if n in known}

    def follower(self, node: NodeId) -> FollowerProgress:
        """Return what is known of a follower."""
        known = self.followers.get(node)
        if known is None:
            known = self.followers[node] = FollowerProgress()
        return known

    def acked(self, node: NodeId, durable: int, applied: int, now: float, log_end: int) -> None:
        """Note a follower's ack: what it holds on disk and what it has applied."""
        self.follower(node).acked(durable, applied, now, log_end)

    def require_open(self) -> None:
        """Refuse with NotReadyError while not all replicas of a new partition are open.

        Under the first epoch a node without the partition opens it empty and in sync. What was
        acknowledged then could be lost with one disk, so nothing is.
        """
        if self.state.partition_epoch <= FIRST_PARTITION_EPOCH:
            raise NotReadyError("the partition is being made: not all its replicas are open; retry")

    def require_enough(self, needed: int) -> None:
        """Refuse with NotEnoughReplicasError while fewer than `needed` replicas are confirmed.

        Not kept from the leadership's start: a zone's `minInSyncReplicas` may change meanwhile.
        """
        if not self._enough(needed):
            raise NotEnoughReplicasError(
                f"{len(self.state.isr)} replicas are in sync, {needed} are "
                "needed; wait until another one has caught up",
                in_sync=len(self.state.isr),
                needed=needed,
            )

    def _enough(self, needed: int) -> bool:
        """Whether anything may be committed: `needed` is what this node knows of the zone.

        The record is what the coordinator goes by when it looks for a leader. The two may come at
        different times, so both must allow it.
        """
        return len(self.state.isr) >= needed and not self.state.eligible

    def _held_by_all(self, own_durable: int) -> int:
        offset = own_durable
        for node in self.maximal:
            if node != self.node:
                known = self.followers.get(node)
                offset = min(offset, known.durable if known else -1)
        return offset

    def moves_on(self, own_durable: int, log_end: int) -> bool:
        """Whether an ack can have changed anything: the commit offset, or who is in which set."""
        isr, iss = self._asked
        return (
            self._held_by_all(own_durable) > self.committed
            or self._standbys(isr, log_end) != iss
            or not set(self.state.replicas) <= isr
        )

    @property
    def _asked(self) -> tuple[set[NodeId], set[NodeId]]:
        """The in-sync set and its standbys as last proposed, or as confirmed."""
        if self.proposal is None:
            return set(self.state.isr), set(self.state.iss)
        return set(self.proposal.new_isr), set(self.proposal.new_iss)

    def advance(self, own_durable: int, now: float, needed: int = 1) -> bool:
        """Move the commit offset as far as the in-sync set allows; whether it moved.

        Not while fewer than `needed` replicas are confirmed.
        """
        if now < self.hold_until or not self._enough(needed):
            return False
        offset = self._held_by_all(own_durable)
        if offset <= self.committed:
            return False
        self.committed = offset
        return True

    def can_commit(self, own_durable: int, now: float, needed: int = 1) -> bool:
        """Whether a write of now would be committed as soon as all in-sync replicas have it."""
        held_by_all = self._held_by_all(own_durable) >= self.barrier
        return held_by_all and now >= self.hold_until and self._enough(needed)

    @property
    def serving(self) -> bool:
        """Whether all that the leadership began with is committed; reads wait for that."""
        return self.committed >= self.barrier

    def granted(self, node: NodeId, lease: Lease) -> None:
        """Take a follower's promise."""
        self.follower(node).grant(lease)

    def vouched(self, now: float, since: float) -> bool:
        """Whether nobody can have led later when a read came at `since`, or until `now`."""
        return all(
            node == self.node
            or ((known := self.followers.get(node)) is not None and known.lease.covers(now, since))
            for node in self.maximal
        )

    @property
    def announced_time(self) -> float:
        """The latest time of day that whoever leads later knows may have been read at.

        Who streams may become a member before the next question.
        """
        streaming = {node for node, known in self.followers.items() if known.streaming}
        others = (self.maximal | streaming) - {self.node}
        return min((self.follower(n).lease.time for n in others), default=float("inf"))

    def needed_offsets(self) -> list[int]:
        """Return from where on followers in the set still need the log."""
        return [
            progress.durable
            for node, progress in self.followers.items()
            if node in self.maximal and progress.durable >= 0
        ]

    def catching_up(self) -> dict[NodeId, int]:
        """Return up to where those are durable that stream and are not in the set yet."""
        if len(self.state.replicas) <= len(self.maximal):
            return {}
        return {
            node: progress.durable
            for node, progress in self.followers.items()
            if node in self.state.replicas
            and node not in self.maximal
            and progress.streaming
            and progress.durable >= 0
        }

    def propose(self, now: float, log_end: int, needed: int = 1) -> bool:
        """Work out which set the coordinator should confirm; whether the proposal changed.

        A follower joins when it has everything committed and everything of earlier leaders; a
        member leaves when it has owed an ack, or has had no stream, for `replica_lag_ms_max`. One
        that is about to stop, or whose disk is slow, leaves at once, while it still acks, so that
        no write waits for it; one whose stream broke, as it does when its process dies, after
        `replica_gone_ms_max`.
        These two not, though, when fewer than `needed` would be left: a moment's fault of the
        network must not take the set below its minimum.
        """
        isr, _ = self._asked
        floor = max(self.committed, self.barrier)
        for node in self.state.replicas if now >= self.hold_until else ():
            known = self.followers.get(node)
            if node not in isr and known and known.may_join(floor):
                isr.add(node)
        isr -= {n for n in isr - {self.node} if self._lags(n, now, log_end)}
        isr -= self._leavers(isr, now, needed)
        iss = self._standbys(isr, log_end)
        # A proposal that may have been seen is replaced by its opposite, never just dropped.
        if self.proposal is None and isr == set(self.state.isr) and iss == set(self.state.iss):
            return False
        proposal = self._proposal(isr, iss)
        if proposal == self.proposal:
            return False
        self.proposal = proposal
        self.maximal |= isr
        return True

    def _proposal(self, isr: Iterable[NodeId], iss: Iterable[NodeId]) -> IsrProposal:
        return IsrProposal(
            new_isr=tuple(sorted(isr)),
            new_iss=tuple(sorted(iss)),
            leader_epoch=self.state.leader_epoch,
            partition_epoch=self.state.partition_epoch,
            coordinator_epoch=self.state.coordinator_epoch,
        )

    @property
    def lag_deadline(self) -> float:
        """When the next member will have owed an ack, or been gone, for too long; inf for never."""
        members = self.proposal.new_isr if self.proposal else self.state.isr
        known = [found for node in members if (found := self.followers.get(node))]
        owing = (f.waiting_since for f in known if f.waiting_since is not None)
        gone = (f.gone_since for f in known if f.gone_since is not None)
        return min(
            min(owing, default=float("inf")) + self.settings.replica_lag_ms_max / 1000,
            min(gone, default=float("inf")) + self.settings.replica_gone_ms_max / 1000,
        )

    def _leavers(self, isr: set[NodeId], now: float, needed: int) -> set[NodeId]:
        """Return who leaves a set without making it too small.

        Of those whose streams broke all or none: with one of them left nothing is committed either,
        and those that are out cannot take over from a leader that is cut off from all.
        """
        known = {node: self.follower(node) for node in sorted(isr - {self.node})}
        gone = {node for node, each in known.items() if self._is_gone(each, now)}
        spare = len(isr) - len(gone) - needed
        if spare < 0:
            return set()
        stopping = [node for node, each in known.items() if each.gives_way and node not in gone]
        # Who leaves waits until it may; a slow disk only costs time.
        stopping.sort(key=lambda node: not known[node].leaving)
        return gone.union(stopping[:spare])

    def _is_gone(self, known: FollowerProgress, now: float) -> bool:
        gone_ms = (now - known.gone_since) * 1000 if known.gone_since is not None else 0
        return gone_ms > self.settings.replica_gone_ms_max

    def _lags(self, node: NodeId, now: float, log_end: int) -> bool:
        since = self.follower(node).owing_since(now, log_end)
        return since is not None and (now - since) * 1000 > self.settings.replica_lag_ms_max

    def _standbys(self, isr: set[NodeId], log_end: int) -> set[NodeId]:
        asked = hot_standbys(self.state) - {self.node}
        return {node for node in asked & isr if self._is_hot(node, log_end)}

    def _is_hot(self, node: NodeId, log_end: int) -> bool:
        """Whether a standby's engine is near the log's end (HS-08).

        Of one that has not said anything in this leadership what was known before stands: it is
        in sync, and every change of the leader would make all standbys again.
        """
        member = node in self.state.iss
        known = self.followers.get(node)
        if known is None or not known.streaming or known.durable < 0:
            return member
        # In at the limit, out far beyond it: a standby at the edge would flap otherwise.
        return log_end - known.applied <= self.settings.standby_lag_rows_max * (10 if member else 1)
