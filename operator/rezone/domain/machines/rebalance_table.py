"""The states of a RebalanceTask and its edges, as a table."""

from rezone.domain.machines.machine import DEADLINE, Command, Edge, State, Table
from rezone.resources.task import TaskState as S

CANCEL = Command.CANCEL.value
AWAITING_SECONDS_MAX = 1800.0
STOPPING_SECONDS_MAX = 600.0

RUNNING = (Command.CANCEL, Command.SUSPEND)

TABLE = Table(
    title="RebalanceTask: the states",
    names=S,
    states=(
        State(
            name=S.PLANNED,
            does="plans, and under manual approval waits for a person's word on exactly that plan",
            commands=(Command.APPROVE, *RUNNING),
        ),
        State(
            name=S.APPROVED,
            does="waits until the zone's pending assignment is this task's",
            commands=RUNNING,
        ),
        State(
            name=S.AWAITING_REPLICAS,
            does="adds the new replicas to the routes and waits until all of them are open",
            deadline_seconds=AWAITING_SECONDS_MAX,
            commands=RUNNING,
        ),
        State(
            name=S.TRANSFERRING,
            does="copies by Spark or node to node; partitions that are ready already switch",
            commands=RUNNING,
        ),
        State(
            name=S.SWITCHING,
            does="verifies copies and moves leaders within the limits: in batches where only the "
            "takeover is left to do, else one RegionMigration each",
            commands=RUNNING,
        ),
        State(
            name=S.FINALIZING,
            does="writes the zone's stable assignment in one atomic write",
            commands=RUNNING,
        ),
        State(
            name=S.STOPPING_REDUNDANT,
            does="takes replicas that are no longer assigned out of the routes and stops them",
            deadline_seconds=STOPPING_SECONDS_MAX,
            commands=(Command.SUSPEND,),
        ),
        State(name=S.SUCCEEDED, does="every partition lives where it was planned", terminal=True),
        State(
            name=S.CANCELLING,
            does="stops what runs and brings every partition back to the old assignment",
            deadline_seconds=STOPPING_SECONDS_MAX,
        ),
        State(name=S.CANCELLED, does="the old assignment stands again", terminal=True),
        State(
            name=S.FAILED,
            does="ended before anything was moved, or with what was done when targets failed",
            terminal=True,
        ),
    ),
    edges=(
        Edge(S.PLANNED, "approved", S.APPROVED),
        Edge(S.PLANNED, "stale", S.FAILED),
        Edge(S.PLANNED, "no plan", S.FAILED),
        Edge(S.PLANNED, "superseded", S.CANCELLING),
        Edge(S.PLANNED, CANCEL, S.CANCELLING),
        Edge(S.APPROVED, "pending is ours", S.AWAITING_REPLICAS),
        Edge(S.APPROVED, "stale", S.FAILED),
        Edge(S.APPROVED, "superseded", S.CANCELLING),
        Edge(S.APPROVED, CANCEL, S.CANCELLING),
        Edge(S.AWAITING_REPLICAS, "all open", S.TRANSFERRING),
        Edge(S.AWAITING_REPLICAS, "superseded", S.CANCELLING),
        Edge(S.AWAITING_REPLICAS, DEADLINE, S.CANCELLING),
        Edge(S.AWAITING_REPLICAS, CANCEL, S.CANCELLING),
        Edge(S.TRANSFERRING, "all copied", S.SWITCHING),
        Edge(S.TRANSFERRING, "unrecoverable", S.CANCELLING),
        Edge(S.TRANSFERRING, "superseded", S.CANCELLING),
        Edge(S.TRANSFERRING, CANCEL, S.CANCELLING),
        Edge(S.SWITCHING, "all switched", S.FINALIZING),
        Edge(S.SWITCHING, "copy lost", S.TRANSFERRING),
        Edge(S.SWITCHING, "superseded", S.CANCELLING),
        Edge(S.SWITCHING, CANCEL, S.CANCELLING),
        Edge(S.FINALIZING, "stable is written", S.STOPPING_REDUNDANT),
        Edge(S.FINALIZING, "not in sync any more", S.SWITCHING),
        Edge(S.FINALIZING, "superseded", S.CANCELLING),
        Edge(S.FINALIZING, CANCEL, S.CANCELLING),
        Edge(S.STOPPING_REDUNDANT, "all stopped", S.SUCCEEDED),
        Edge(S.STOPPING_REDUNDANT, DEADLINE, S.SUCCEEDED),
        Edge(S.STOPPING_REDUNDANT, "targets failed", S.FAILED),
        Edge(S.CANCELLING, "already new", S.STOPPING_REDUNDANT),
        Edge(S.CANCELLING, "all is as before", S.CANCELLED),
        Edge(S.CANCELLING, DEADLINE, S.CANCELLED),
    ),
)

INTRODUCTION = """
One rebalance of a zone. Transferring and switching overlap: a partition switches as soon as its own
copies have caught up and are verified. Every state is persisted when it is entered; a coordinator
that dies looks at the cluster again and goes on from there.
"""
