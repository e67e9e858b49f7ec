"""The seal of a partition's log: whether its leader may append it now, and how far the seal is.

The seal is an entry of the log, so the log alone says how far it is. Pure: `step` takes what was
asked and what the leader sees, and returns what follows; `ownership.sealing` carries it out.
Transcripts are in `tests/datanode/transcripts/seal.txt`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rezone.wire.errors import ConflictError, NotReadyError, RezoneError, StaleEpochError
from rezone.wire.messages import NodeId, PartitionId, SealState


@dataclass(frozen=True, slots=True)
class Leads:
    """What a leader sees of its followers.

    `missing`: for each other member of the maximal in-sync set how many rows it lacks, None without
    a stream. `electable`: who else may lead next, `streaming`: who has a stream. `serving`: all
    that the leadership began with is committed.
    """

    serving: bool
    missing: Mapping[NodeId, int | None]
    electable: frozenset[NodeId]
    streaming: frozenset[NodeId]


@dataclass(frozen=True, slots=True)
class Sees:
    """What a replica sees: its seal's end in the log, the commit offset, its record's permission.

    `leads` is None for a follower, `rows_max` how many rows a member of the in-sync set may lack.
    """

    partition: PartitionId
    leader_epoch: int
    seal_end: int | None
    committed: int
    authorized: bool
    transferring: bool
    rows_max: int
    leads: Leads | None

    @property
    def is_sealed(self) -> bool:
        """Whether the seal is committed, and so is there to stay."""
        return self.seal_end is not None and self.seal_end <= self.committed


class Asked(NamedTuple):
    """The coordinator has asked the leader of an epoch to seal."""

    leader_epoch: int


class Committed(NamedTuple):
    """The seal that this leader has appended is committed, and ends there."""

    end_offset: int


class Lost(NamedTuple):
    """This replica leads no more, and does not know what became of its seal."""


class Append(NamedTuple):
    """Abort the open transactions, and append the seal: nothing is written after it."""


class Announce(NamedTuple):
    """Report the seal at once: the coordinator waits for it."""

    end_offset: int


class Refuse(NamedTuple):
    """Refuse the request; the leader goes on as if nobody had asked."""

    error: RezoneError


class SendOn(NamedTuple):
    """Refuse the request, and name the leader."""


Event = Asked | Committed | Lost
Effect = Append | Announce | Refuse | SendOn


def step(event: Event, sees: Sees) -> Effect | None:
    """Return what follows from an event; None for nothing."""
    match event:
        case Asked(epoch):
            return _asked(epoch, sees)
        case Committed(end_offset):
            return Announce(end_offset)
        case Lost():
            return None


def _asked(epoch: int, sees: Sees) -> Effect | None:
    """Append the seal if nobody has to be waited for: every write would wait as long."""
    if sees.leader_epoch != epoch:
        return Refuse(
            StaleEpochError(
                f"the leader epoch is {sees.leader_epoch}, not {epoch}",
                leader_epoch=sees.leader_epoch,
            )
        )
    if sees.leads is None:
        return SendOn()
    if sees.seal_end is not None:
        return None
    error = _forbidden(sees) or _lacks(sees.leads, sees.rows_max)
    return Append() if error is None else Refuse(error)


def _forbidden(sees: Sees) -> ConflictError | None:
    """Return why the leader may not seal; None when it may."""
    if not sees.authorized:
        return ConflictError(f"partition {sees.partition} is not authorised to seal")
    return ConflictError("a takeover is under way") if sees.transferring else None


def _lacks(leads: Leads, rows_max: int) -> NotReadyError | None:
    """Return why the seal would not be committed at once; None when it would."""
    if not leads.serving:
        return NotReadyError("this leader has not committed what it began with")
    for node, missing in leads.missing.items():
        if missing is None:
            return NotReadyError(f"node {node} is in sync and has no stream")
        if missing > rows_max:
            return NotReadyError(f"node {node} is in sync and misses {missing} rows")
    return None


def state_of(sees: Sees) -> SealState:
    """Return what a replica can tell the coordinator of the seal.

    NONE only where no other replica can have one: whoever streams has no entry that is not here,
    any other may have an earlier leader's seal, and lead with it.
    """
    if sees.leads is None or (sees.seal_end is not None and not sees.is_sealed):
        return SealState.UNKNOWN
    if sees.is_sealed:
        return SealState.SEALED
    return SealState.NONE if sees.leads.electable <= sees.leads.streaming else SealState.UNKNOWN
