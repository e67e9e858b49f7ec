"""What a leader does about its group: commits, and asks for another in-sync set.

A protocol (`commit.protocol`) knows who has what, and so what is committed and whom the coordinator
should confirm. `step` feeds it with events, and returns what follows; `replication.leader` carries
that out. Pure: no lock, clock or store. Transcripts: `tests/datanode/transcripts/in_sync.txt`.
"""

from typing import NamedTuple

from rezone.datanode.commit.lease import Lease
from rezone.datanode.commit.protocol import Leadership
from rezone.wire.messages import FetchLog, IsrProposal, LeaderAndIsr, NodeId


class Sees(NamedTuple):
    """What the leader sees of itself.

    How far its log is, and is durable; how many members the zone asks for. `frozen`: it hands over,
    and asks for nothing more. `settled`: it is known that no earlier leader has a lease.
    """

    durable: int
    log_end: int
    needed: int
    frozen: bool
    settled: bool


class Synced(NamedTuple):
    """The leader's job has run: what was appended before is on the leader's disk."""


class Ticked(NamedTuple):
    """Time has passed."""


class Acked(NamedTuple):
    """A follower has acked; `slow`: its disk is slow in comparison with the leader's."""

    node: NodeId
    ack: FetchLog
    slow: bool


class Granted(NamedTuple):
    """A follower has granted a lease; one that does not count makes it join on its next stream."""

    node: NodeId
    lease: Lease
    counts: bool


class Opened(NamedTuple):
    """A follower has opened a stream."""

    node: NodeId


class Ended(NamedTuple):
    """A follower's stream has ended."""

    node: NodeId


class Recorded(NamedTuple):
    """The coordinator has written a record of this leadership."""

    record: LeaderAndIsr


class Settle(NamedTuple):
    """Note for the next restart that no earlier leader has a lease."""


class Commit(NamedTuple):
    """All rows below the offset are committed."""

    offset: int


class Propose(NamedTuple):
    """Ask the coordinator for this set; first remember whom that may bind (`maximal`)."""

    proposal: IsrProposal | None
    maximal: tuple[NodeId, ...]


class RunJob(NamedTuple):
    """Have the leader's job run: the event may have changed what is committed or asked for."""


class LookAgain(NamedTuple):
    """Look again at this time, or before (monotonic)."""

    at: float


class Keep(NamedTuple):
    """End the streams of all nodes but these."""

    nodes: frozenset[NodeId]


Event = Synced | Ticked | Acked | Granted | Opened | Ended | Recorded
Effect = Settle | Commit | Propose | RunJob | LookAgain | Keep


def step(group: Leadership, event: Event, sees: Sees, now: float) -> list[Effect]:
    """Return what is to be done because of an event, in that order."""
    match event:
        case Acked(node, ack, slow):
            return _take_ack(group, node, ack, sees, now, slow=slow)
        case Synced():
            return _commit(group, sees, now)
        case Ticked():
            return _tick(group, sees, now)
        case Granted(node, lease, counts):
            return _take_lease(group, node, lease, counts=counts)
        case _:
            return _note(group, event, now)


def _note(group: Leadership, event: Opened | Ended | Recorded, now: float) -> list[Effect]:
    match event:
        case Opened(node):
            group.follower(node).stream_began()
            return []
        case Ended(node):
            group.follower(node).stream_ended(now)
            return [RunJob()]
        case Recorded(record):
            group.confirm(record)
            return [Keep(frozenset({*record.replicas, *record.isr}))]


def _take_ack(
    group: Leadership, node: NodeId, ack: FetchLog, sees: Sees, now: float, *, slow: bool
) -> list[Effect]:
    """Note an ack. Of the acks of one write only the last one changes anything."""
    news = group.follower(node).note_state(ack, slow=slow)
    group.acked(node, ack.fetch_offset, ack.kv_applied_offset, now, sees.log_end)
    return [RunJob()] if news or group.moves_on(sees.durable, sees.log_end) else []


def _take_lease(group: Leadership, node: NodeId, lease: Lease, *, counts: bool) -> list[Effect]:
    group.granted(node, lease)
    if not counts:
        group.follower(node).count_no_lease()
    return [] if node in group.maximal else [RunJob()]


def _commit(group: Leadership, sees: Sees, now: float) -> list[Effect]:
    effects: list[Effect] = []
    if not sees.settled and now >= group.hold_until:
        effects.append(Settle())
    if group.advance(sees.durable, now, sees.needed):
        effects.append(Commit(group.committed))
    return effects + _propose(group, sees, now)


def _tick(group: Leadership, sees: Sees, now: float) -> list[Effect]:
    effects: list[Effect] = []
    if not sees.settled:
        held = now < group.hold_until
        effects.append(LookAgain(group.hold_until) if held else RunJob())
    return effects + _propose(group, sees, now)


def _propose(group: Leadership, sees: Sees, now: float) -> list[Effect]:
    if sees.frozen:
        return []
    effects: list[Effect] = []
    if group.propose(now, sees.log_end, sees.needed):
        effects.append(Propose(group.proposal, tuple(sorted(group.maximal))))
    return [*effects, LookAgain(group.lag_deadline)]
