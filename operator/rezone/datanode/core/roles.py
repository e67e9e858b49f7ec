"""What role a replica has, and in which record it stands: what is persisted, then what follows.

What a change depends on is on the disk before it takes effect: epochs and the record (ZR-17), a
leadership's new branch of history, and "dead" (DCP-10), which is stored as the role Follower beside
a record that names this node. So of the effects of an event `Persist` is the first; only `Reset`
comes before it, which a crash interrupts without harm: such a replica still needs a copy. A call of
the coordinator that is repeated, after a crash too, ends where one call does (ZR-13).

Pure: `step` takes an event and what the replica sees of itself; `replication.roles` does what
follows. Transcripts, with each crash: `tests/datanode/transcripts/roles.txt`.
"""

from typing import Any, NamedTuple

import msgspec

from rezone.datanode.commit.fencing import check_fence, check_record
from rezone.datanode.commit.lease import NEVER
from rezone.datanode.core.transfer import Transfer
from rezone.storage.state.history import with_new_branch
from rezone.storage.state.meta import PartitionMeta
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError, StaleEpochError
from rezone.wire.messages import Fence, LeaderAndIsr, NodeId, Role, SetState, UpgradeCandidate


class Sees(NamedTuple):
    """What a replica sees of itself: `meta` is what its disk knows, or is about to.

    `record` and `role` are those it acts by; `leads`: it has a leadership, a dead one included;
    `over`: it stops or has failed. A leadership that begins now names its history `branch`, and
    gives no row `floor` or an earlier time. `now` is monotonic.
    """

    node: NodeId
    meta: PartitionMeta
    record: LeaderAndIsr
    role: Role
    leads: bool
    transfer: Transfer
    over: bool
    log_end: int
    floor: int
    branch: str
    now: float


class Resumed(NamedTuple):
    """The replica was opened again."""


class Notified(NamedTuple):
    """The coordinator says in which record the replica stands (HS-02)."""

    fence: Fence
    record: LeaderAndIsr


class Upgraded(NamedTuple):
    """The coordinator says that this replica leads next (RM-05); `lacks`: what its index lacks."""

    request: UpgradeCandidate
    lacks: str


class Emptied(NamedTuple):
    """The coordinator says that this replica leads without rows, which a person has given up."""

    fence: Fence
    record: LeaderAndIsr


class Named(NamedTuple):
    """The leader before has named the next one."""

    leader: NodeId
    leader_epoch: int


class HandedOver(NamedTuple):
    """This leader has sent its last message: its candidate leads."""

    leader: NodeId
    leader_epoch: int


class TookOver(NamedTuple):
    """The last message of the leader before has come, and all its rows: this candidate leads.

    `hold_until`: nothing is committed before (monotonic).
    """

    message: SetState
    hold_until: float


class Refuse(NamedTuple):
    """Refuse what was asked for."""

    error: RezoneError


class Reset(NamedTuple):
    """Drop all rows."""


class Persist(NamedTuple):
    """Bring these facts to the disk; without `durable` with what is persisted next.

    Without it a crash makes it as if the event had not come, so no other node may count on it.
    """

    changes: dict[str, Any]
    durable: bool


class ForgetTransfer(NamedTuple):
    """Have no part in a leader transfer any more: the coordinator has decided again."""


class MakeUnreadable(NamedTuple):
    """Let nothing be read: the rows are about to be dropped."""


class Take(NamedTuple):
    """Stand in the record, with this role; look at what was promised to the leader before."""

    record: LeaderAndIsr
    role: Role


class Confirm(NamedTuple):
    """Lead on by the record."""

    record: LeaderAndIsr


class Lead(NamedTuple):
    """Begin a leadership; `saved`: what it depends on is on the disk.

    Nothing is committed before `hold_until` (monotonic): without it, before what this replica has
    promised to earlier leaders is over. `dead`: only to hand over.
    """

    record: LeaderAndIsr
    hold_until: float | None
    saved: bool
    dead: bool


class EndStreams(NamedTuple):
    """End the leadership, and name the next leader to all followers and writers."""

    leader: NodeId
    leader_epoch: int


class Follow(NamedTuple):
    """Follow the record's leader, by the coordinator's word (`by_record`) or the leader before."""

    by_record: bool


Event = Resumed | Notified | Upgraded | Emptied | Named | HandedOver | TookOver
Effect = (
    Refuse
    | Reset
    | Persist
    | ForgetTransfer
    | MakeUnreadable
    | Take
    | Confirm
    | Lead
    | EndStreams
    | Follow
)


def step(event: Event, sees: Sees) -> list[Effect]:
    """Return what is to be done because of an event, in that order."""
    try:
        match event:
            case Notified(fence, record):
                return _notified(fence, record, sees)
            case Upgraded(request, lacks):
                return _upgraded(request, lacks, sees)
            case Emptied(fence, record):
                return _emptied(fence, record, sees)
            case _:
                return _moved(event, sees)
    except RezoneError as error:
        return [Refuse(error)]


def _moved(event: Resumed | Named | HandedOver | TookOver, sees: Sees) -> list[Effect]:
    """Return what follows from a restart, or from the word of the leader before.

    In the write gap nothing waits for the disk: it comes in before the first ack to a new leader,
    and before anything is committed in a new epoch.
    """
    match event:
        case Resumed():
            return _resumed(sees)
        case Named(leader, epoch):
            known = leader == sees.node or epoch <= sees.meta.leader_epoch
            if known or sees.role is Role.LEADER:
                return []
            return _follow(led_by(sees.record, leader, epoch), sees, durable=False)
        case HandedOver(leader, epoch):
            return _follow(led_by(sees.record, leader, epoch), sees, durable=False)
        case TookOver(message, hold_until):
            record = led_by(
                sees.record,
                sees.node,
                message.next_epoch,
                isr=message.isr,
                replicas=message.replicas,
                eligible=message.eligible,
            )
            return _lead(record, sees, hold_until=hold_until, durable=False)


def led_by(record: LeaderAndIsr, leader: NodeId, epoch: int, **changes: Any) -> LeaderAndIsr:
    """Return the record with another leader: who was authorised to be the next one is it, or not.

    The coordinator writes the same; its record has a later partition epoch.
    """
    return msgspec.structs.replace(
        record, leader=leader, leader_epoch=epoch, next_leader=None, next_epoch=None, **changes
    )


def _resumed(sees: Sees) -> list[Effect]:
    """Go on with what was known before a restart (B-09)."""
    meta, record = sees.meta, sees.record
    if meta.leader_and_isr is None:
        return []
    role = Role.LEARNER if meta.needs_snapshot else meta.role or Role.LEARNER
    if record.leader != sees.node or meta.needs_snapshot:
        return [Take(record, role)]
    # A new branch: what had been streamed and was lost with this node is nobody's history.
    hold_until = NEVER if meta.settled_epoch == meta.leader_epoch else None
    return _lead(record, sees, hold_until=hold_until, dead=role is not Role.LEADER)


# --- what the coordinator decides ----------------------------------------------------------------


def _checked(fence: Fence, record: LeaderAndIsr, sees: Sees) -> dict[str, Any]:
    """Refuse what is older than what is known; return what to persist of the fence."""
    persisted = check_fence(sees.meta, fence)
    check_record(sees.meta, record.leader_epoch, record.partition_epoch)
    return persisted


def _notified(fence: Fence, record: LeaderAndIsr, sees: Sees) -> list[Effect]:
    if sees.over:
        where = sees.meta.partition
        raise NotReadyError(f"the replica of partition {where} is stopping, or has failed")
    fenced = _checked(fence, record, sees)
    newer = record.leader_epoch > sees.meta.leader_epoch
    if record.leader == sees.node:
        if newer or not sees.leads:
            return _lead(record, sees, fenced)
        return _confirm(record, sees, fenced)
    later = record.partition_epoch > sees.record.partition_epoch
    # A candidate goes on being one while its leader only changes the in-sync set.
    forgets = newer or sees.role is Role.LEADER or (later and not sees.transfer.eager)
    return _follow(record, sees, fenced, by_record=True, forgets=forgets)


def _confirm(record: LeaderAndIsr, sees: Sees, fenced: dict[str, Any]) -> list[Effect]:
    transfer = sees.transfer
    handing_over = transfer.blocks_writes or (
        transfer.hands_over and record.next_leader is not None
    )
    role = Role.FOLLOWER if handing_over else Role.LEADER
    forgets = record.next_leader is None and not transfer.blocks_writes
    return [
        _persist(record, role, sees, fenced),
        Take(record, Role.LEADER),
        Confirm(record),
        *[ForgetTransfer()] * forgets,
    ]


def _upgraded(request: UpgradeCandidate, lacks: str, sees: Sees) -> list[Effect]:
    fenced = check_fence(sees.meta, request.fence)
    epoch = sees.meta.leader_epoch
    if sees.role is Role.LEADER and epoch == request.next_epoch:
        return []
    if epoch >= request.next_epoch:
        raise StaleEpochError(f"the leader epoch is {epoch}", leader_epoch=epoch)
    if request.last_offset is not None and sees.log_end < request.last_offset:
        raise NotReadyError(
            f"the log ends at {sees.log_end}, before {request.last_offset}", log_end=sees.log_end
        )
    if sees.node not in sees.record.isr:
        raise ConflictError(f"node {sees.node} is not in sync")
    if lacks:
        raise NotReadyError(lacks)
    return _lead(led_by(sees.record, sees.node, request.next_epoch), sees, fenced)


def _emptied(fence: Fence, record: LeaderAndIsr, sees: Sees) -> list[Effect]:
    fenced, meta = _checked(fence, record, sees), sees.meta
    if record.leader != sees.node:
        raise ConflictError(f"node {record.leader} leads, not node {sees.node}")
    if sees.leads and meta.leader_epoch == record.leader_epoch:
        return []
    if not meta.needs_snapshot:
        raise ConflictError(f"node {sees.node} has rows of {meta.partition}")
    # One record of it all: without rows, and not known to lead, it would seem to have them all.
    empty = {"needs_snapshot": False, "uncompared": "", "failover_log": ()}
    emptied = sees._replace(meta=msgspec.structs.replace(meta, **empty), log_end=0)
    return [Reset(), *_lead(record, emptied, {**fenced, **empty})]


# --- the changes ---------------------------------------------------------------------------------


def _lead(
    record: LeaderAndIsr,
    sees: Sees,
    persisted: dict[str, Any] | None = None,
    *,
    hold_until: float | None = None,
    dead: bool = False,
    durable: bool = True,
) -> list[Effect]:
    """Lead with the record's epoch: a new branch of history begins at the log's end."""
    meta = sees.meta
    if meta.needs_snapshot:
        raise ConflictError(f"partition {meta.partition} is not copied to this node yet")
    changes = {
        **(persisted or {}),
        "failover_log": with_new_branch(meta.failover_log, sees.log_end, sees.branch),
        "partition_uuid": sees.branch,
    }
    if hold_until is not None and hold_until <= sees.now:
        changes["settled_epoch"] = record.leader_epoch
    role = Role.FOLLOWER if dead else Role.LEADER
    return [
        _persist(record, role, sees, changes, durable=durable),
        ForgetTransfer(),
        Take(record, Role.LEADER),
        Lead(record, hold_until, saved=durable, dead=dead),
    ]


def _follow(
    record: LeaderAndIsr,
    sees: Sees,
    persisted: dict[str, Any] | None = None,
    *,
    durable: bool = True,
    by_record: bool = False,
    forgets: bool = False,
) -> list[Effect]:
    """Follow the record's leader; unanswered writes are sent there."""
    changes, damaged = persisted or {}, bool(sees.meta.damage)
    if damaged:
        # It has led on with what it could read; now others have all of it.
        changes = {**changes, "needs_snapshot": True}
    role = Role.FOLLOWER if sees.node in record.isr else Role.LEARNER
    if sees.meta.needs_snapshot or damaged:
        role = Role.LEARNER
    return [
        _persist(record, role, sees, changes, durable=durable),
        *[ForgetTransfer()] * forgets,
        *[MakeUnreadable()] * damaged,
        Take(record, role),
        *[EndStreams(record.leader, record.leader_epoch)] * sees.leads,
        Follow(by_record),
    ]


def _persist(
    record: LeaderAndIsr,
    role: Role,
    sees: Sees,
    changes: dict[str, Any],
    *,
    durable: bool = True,
) -> Persist:
    """Return what the disk is to know of a record."""
    assert record.leader_epoch >= sees.meta.leader_epoch, "a leader epoch never falls"  # noqa: S101 - invariant
    known = (sees.record.leader_epoch, sees.record.partition_epoch)
    if (record.leader_epoch, record.partition_epoch) > known:
        # Every proposal was of the record before: it is answered, or refused as too old.
        changes = {**changes, "proposed": ()}
    facts = {
        "time_floor": sees.floor,
        "role": role,
        "leader_epoch": record.leader_epoch,
        "partition_epoch": record.partition_epoch,
        "leader_and_isr": record,
    }
    return Persist({**changes, **facts}, durable)
