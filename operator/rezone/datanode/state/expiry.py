"""How long ago a read may be: versions are kept for the zone's `version_retention_seconds`.

Who read further back could miss rows that were changed since, and would not know it (decision
0187). Each replica collects by its own clock, and a copy or a target has what its source has left.
So versions are collected a share of the retention later than reads of them are refused: replicas
whose clocks differ by less than that, and their copies, never lack a version that any of them
may be asked for. What counts is the latest time that a node ever had: were its clock set back,
what was collected would not be there again.

Until when a read's rows are whole is decided by `core.reads`.

Concurrency: any thread may call what is here.
"""

from typing import NamedTuple

from rezone.datanode.state.replica_state import ReplicaState
from rezone.wire.errors import VersionsExpiredError

_COLLECTED_LATER_SHARE = 0.1


def retention_micros(replica: ReplicaState) -> int:
    """Return for how long versions are kept that reads may ask for."""
    return replica.config.version_retention_seconds * 1_000_000


def oldest_kept(replica: ReplicaState) -> int:
    """Return the earliest time as of which reads may be, for now."""
    return replica.clock.highest - retention_micros(replica)


def collected_before(replica: ReplicaState) -> int:
    """Return the time that nobody reads at any more: what was covered by then may be removed."""
    kept = retention_micros(replica) * (1 + _COLLECTED_LATER_SHARE)
    return replica.clock.highest - int(kept)


class Kept(NamedTuple):
    """Until when the rows as of a time are whole here, by this replica's clock."""

    as_of: int
    until: int

    def require(self, replica: ReplicaState) -> None:
        """Raise VersionsExpiredError when versions may have been collected that are needed.

        NotReadyError while the node does not know the time.
        """
        replica.clock.require()
        if replica.clock.highest > self.until:
            raise expired(replica, self.as_of)


def expired(replica: ReplicaState, as_of: int) -> VersionsExpiredError:
    """Return the error of a read as of a time that is too long ago."""
    seconds = replica.config.version_retention_seconds
    return VersionsExpiredError(
        f"rows as of {as_of} are asked for; versions are kept for {seconds} s",
        as_of=as_of,
        oldest=oldest_kept(replica),
    )


def overwritten(replica: ReplicaState, as_of: int) -> VersionsExpiredError:
    """Return the error of a read as of a time before the zone was overwritten."""
    return VersionsExpiredError(
        f"rows as of {as_of} are asked for; the zone was overwritten after that",
        as_of=as_of,
        oldest=replica.readable_from,
    )
