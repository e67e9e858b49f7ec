"""The states of a RebalanceTask and its edges, as a table."""

from rezone.domain.machines.machine import DEADLINE, Edge
from rezone.domain.machines.task_table import (
    AWAITING_SECONDS_MAX,
    CANCEL,
    STOPPING_SECONDS_MAX,
    task_table,
)
from rezone.resources.task import TaskState as S

TABLE = task_table(
    "RebalanceTask: the states",
    Edge(S.PLANNED, "no plan", S.FAILED),
    Edge(S.PLANNED, "superseded", S.CANCELLING),
    Edge(S.APPROVED, "pending is ours", S.AWAITING_REPLICAS),
    Edge(S.APPROVED, "stale", S.FAILED),
    Edge(S.APPROVED, "superseded", S.CANCELLING),
    Edge(S.AWAITING_REPLICAS, "superseded", S.CANCELLING),
    Edge(S.TRANSFERRING, "all copied", S.SWITCHING),
    Edge(S.TRANSFERRING, "superseded", S.CANCELLING),
    Edge(S.SWITCHING, "all switched", S.FINALIZING),
    Edge(S.SWITCHING, "superseded", S.CANCELLING),
    Edge(S.FINALIZING, "not in sync any more", S.SWITCHING),
    Edge(S.FINALIZING, "superseded", S.CANCELLING),
    Edge(S.FINALIZING, CANCEL, S.CANCELLING),
    Edge(S.STOPPING_REDUNDANT, "targets failed", S.FAILED),
    Edge(S.CANCELLING, "already new", S.STOPPING_REDUNDANT),
    Edge(S.CANCELLING, DEADLINE, S.CANCELLED),
    does={
        S.PLANNED: "plans, and under manual approval waits for a person's word on exactly that "
        "plan",
        S.APPROVED: "waits until the zone's pending assignment is this task's",
        S.AWAITING_REPLICAS: "adds the new replicas to the routes and waits until all of them are "
        "open",
        S.TRANSFERRING: "copies by Spark or node to node; partitions that are ready already switch",
        S.SWITCHING: "verifies copies and moves leaders within the limits: in batches where only "
        "the takeover is left to do, else one RegionMigration each",
        S.FINALIZING: "writes the zone's stable assignment in one atomic write",
        S.STOPPING_REDUNDANT: "takes replicas that are no longer assigned out of the routes and "
        "stops them",
        S.SUCCEEDED: "every partition lives where it was planned",
        S.CANCELLING: "stops what runs and brings every partition back to the old assignment",
        S.CANCELLED: "the old assignment stands again",
        S.FAILED: "ended before anything was moved, or with what was done when targets failed",
    },
    deadlines={
        S.AWAITING_REPLICAS: AWAITING_SECONDS_MAX,
        S.STOPPING_REDUNDANT: STOPPING_SECONDS_MAX,
        S.CANCELLING: STOPPING_SECONDS_MAX,
    },
)

INTRODUCTION = """
One rebalance of a zone. Transferring and switching overlap: a partition switches as soon as its own
copies have caught up and are verified. Every state is persisted when it is entered; a coordinator
that dies looks at the cluster again and goes on from there.
"""
