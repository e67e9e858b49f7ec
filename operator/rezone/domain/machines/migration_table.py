"""The states of a RegionMigration and its edges: the diagram of RM-01 as a table.

Two edges of the seed's diagram are drawn wider here. `UpdateMetadataRollback` also takes back a
candidate that this migration opened and could not use, and it may lead back to
`UpdateMetadataDown`, because after a mismatch both sides are restored and the takeover starts
again (DCP-11). `UncleanElection` is not in the seed: the way out of a lost quorum. Caches are
invalidated by the notification that follows each route change (RM-10).
"""

from rezone.domain.machines.machine import DEADLINE, Command, Edge, State, Table
from rezone.domain.model.world import MigrationView
from rezone.resources.migration import MigrationState as S

CANCEL = Command.CANCEL.value
TAKEOVER_SECONDS_MAX = 20.0
"""How long a partition may be between two leaders before the old one is restored; the lease of
an unreachable leader comes on top."""

NOT_BEGUN = frozenset({"", S.SELECT_CANDIDATE.value})
"""The states in which a migration has changed nothing yet; "" before the first visit."""


def is_under_way(migration: MigrationView) -> bool:
    """Return whether a migration has begun and has not ended."""
    return not migration.terminal and migration.state not in NOT_BEGUN


TABLE = Table(
    title="RegionMigration: the states",
    names=S,
    states=(
        State(
            name=S.SELECT_CANDIDATE,
            does="chooses the data node that shall lead, or checks the one asked for",
            commands=(Command.CANCEL,),
        ),
        State(
            name=S.OPEN_CANDIDATE,
            does="opens the candidate's replica, copies, verifies and waits until it is close",
            deadline_seconds=6 * 3600.0,
            commands=(Command.CANCEL,),
        ),
        State(
            name=S.UPDATE_METADATA_DOWN,
            does="writes the intent: the old leader may hand over, to this node, with this epoch",
            deadline_seconds=300.0,
            commands=(Command.CANCEL,),
        ),
        State(
            name=S.DOWNGRADE_LEADER,
            does="asks the old leader to drain and hand over; one that is gone is left behind",
            behind=True,
            deadline_seconds=TAKEOVER_SECONDS_MAX,
            commands=(Command.CANCEL,),
        ),
        State(
            name=S.UPGRADE_CANDIDATE,
            does="waits until the candidate leads; tells it to when the old leader cannot",
            behind=True,
            deadline_seconds=TAKEOVER_SECONDS_MAX,
            commands=(Command.CANCEL,),
        ),
        State(
            name=S.UPDATE_METADATA_UP,
            does="writes that the candidate leads; the zone's assignment follows a person's move",
        ),
        State(
            name=S.UPDATE_METADATA_ROLLBACK,
            does="fences with a higher epoch, makes the old leader lead again, removes what "
            "this migration opened",
        ),
        State(
            name=S.UNCLEAN_ELECTION,
            does="makes a survivor of a lost quorum lead (`spec.uncleanElection`); gives rows up",
            commands=(Command.CANCEL,),
        ),
        State(
            name=S.CLOSE_OLD_LEADER,
            does="stops the old leader's replica; gone or unreachable is ignored",
            persists=False,
        ),
        State(name=S.SUCCEEDED, does="the candidate leads", terminal=True),
        State(name=S.ROLLED_BACK, does="the old leader leads as before", terminal=True),
        State(name=S.FAILED, does="ended before anything was handed over", terminal=True),
    ),
    edges=(
        Edge(S.SELECT_CANDIDATE, "available", S.UPDATE_METADATA_DOWN),
        Edge(S.SELECT_CANDIDATE, "not available", S.OPEN_CANDIDATE),
        Edge(S.SELECT_CANDIDATE, "refused", S.FAILED),
        Edge(S.SELECT_CANDIDATE, "leads already", S.SUCCEEDED),
        Edge(S.SELECT_CANDIDATE, CANCEL, S.ROLLED_BACK),
        Edge(S.SELECT_CANDIDATE, "unclean election", S.UNCLEAN_ELECTION),
        Edge(S.OPEN_CANDIDATE, "candidate is close", S.UPDATE_METADATA_DOWN),
        Edge(S.OPEN_CANDIDATE, "candidate leads", S.UPDATE_METADATA_UP),
        Edge(S.OPEN_CANDIDATE, "candidate failed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.OPEN_CANDIDATE, DEADLINE, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.OPEN_CANDIDATE, CANCEL, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPDATE_METADATA_DOWN, "written", S.DOWNGRADE_LEADER),
        Edge(S.UPDATE_METADATA_DOWN, "candidate leads", S.UPDATE_METADATA_UP),
        Edge(S.UPDATE_METADATA_DOWN, "candidate failed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPDATE_METADATA_DOWN, DEADLINE, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPDATE_METADATA_DOWN, CANCEL, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.DOWNGRADE_LEADER, "handing over", S.UPGRADE_CANDIDATE),
        Edge(S.DOWNGRADE_LEADER, "leader is gone", S.UPGRADE_CANDIDATE),
        Edge(S.DOWNGRADE_LEADER, "takeover failed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.DOWNGRADE_LEADER, "route has changed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.DOWNGRADE_LEADER, DEADLINE, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.DOWNGRADE_LEADER, CANCEL, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPGRADE_CANDIDATE, "candidate leads", S.UPDATE_METADATA_UP),
        Edge(S.UPGRADE_CANDIDATE, "takeover failed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPGRADE_CANDIDATE, "candidate failed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPGRADE_CANDIDATE, DEADLINE, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPGRADE_CANDIDATE, CANCEL, S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPDATE_METADATA_UP, "written", S.CLOSE_OLD_LEADER),
        Edge(S.UPDATE_METADATA_UP, "route has changed", S.UPDATE_METADATA_ROLLBACK),
        Edge(S.UPDATE_METADATA_ROLLBACK, "try again", S.UPDATE_METADATA_DOWN),
        Edge(S.UPDATE_METADATA_ROLLBACK, "candidate leads", S.UPDATE_METADATA_UP),
        Edge(S.UPDATE_METADATA_ROLLBACK, "restored", S.ROLLED_BACK),
        Edge(S.UPDATE_METADATA_ROLLBACK, "cleaned", S.FAILED),
        Edge(S.UNCLEAN_ELECTION, "recovered", S.SUCCEEDED),
        Edge(S.UNCLEAN_ELECTION, "refused", S.FAILED),
        Edge(S.UNCLEAN_ELECTION, "route has changed", S.FAILED),
        Edge(S.UNCLEAN_ELECTION, CANCEL, S.ROLLED_BACK),
        Edge(S.CLOSE_OLD_LEADER, "closed", S.SUCCEEDED),
    ),
)
"""RM-01."""

INTRODUCTION = """
How the leader of one partition moves. The states that persist write their success to the object's
status. Those that persist behind write it in one write when the candidate leads, so that no API
write stands between the old leader's last write and the new leader's first. A coordinator that dies
goes on from the last state that was written and repeats its calls, which are answered as already
done.
"""
