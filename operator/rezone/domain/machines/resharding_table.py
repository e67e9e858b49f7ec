"""The states of a re-sharding, which is a RebalanceTask too, and its edges, as a table."""

from rezone.domain.machines.machine import Edge
from rezone.domain.machines.task_table import AWAITING_SECONDS_MAX, STOPPING_SECONDS_MAX, task_table
from rezone.resources.task import TaskState as S

GRACE_SECONDS = 300.0
"""So long old partitions stay after the last cut-over, for scans that began before it, unless the
operator's settings say otherwise."""

TABLE = task_table(
    "Re-sharding: the states",
    Edge(S.PLANNED, "no plan", S.CANCELLING),
    Edge(S.APPROVED, "goes on", S.AWAITING_REPLICAS),
    Edge(S.TRANSFERRING, "all backfilled", S.SWITCHING),
    Edge(S.SWITCHING, "all cut over", S.FINALIZING),
    Edge(S.SWITCHING, "unrecoverable", S.CANCELLING),
    Edge(S.CANCELLING, "already new", S.SWITCHING),
    does={
        S.PLANNED: "plans, and under manual approval waits for a person's word on exactly that "
        "plan",
        S.APPROVED: "waits while the zone is paused, or has old partitions of a re-sharding before",
        S.AWAITING_REPLICAS: "makes the new partitions, empty, and waits until all their replicas "
        "are in sync",
        S.TRANSFERRING: "lets new partitions backfill, and pull what old ones go on writing; "
        "verifies them, and cuts over old partitions whose targets are ready",
        S.SWITCHING: "cuts over the rest, one old partition at a time by itself",
        S.FINALIZING: "writes the new layout's assignment as the stable one, in one atomic write",
        S.STOPPING_REDUNDANT: "deletes the old partitions, after a while for scans that began "
        "before",
        S.SUCCEEDED: "the new partitions serve all rows",
        S.CANCELLING: "revokes seals that have come to nothing, asks every old leader, and when "
        "none has sealed removes the new partitions",
        S.CANCELLED: "the old layout stands as before",
        S.FAILED: "ended before anything was begun",
    },
    deadlines={
        S.AWAITING_REPLICAS: AWAITING_SECONDS_MAX,
        S.STOPPING_REDUNDANT: GRACE_SECONDS + STOPPING_SECONDS_MAX,
    },
)

INTRODUCTION = """
A re-sharding of a zone: `spec.partitions` has changed. The states are those of every other
RebalanceTask, what is done in them is not. Every state is persisted when it is entered; a
coordinator that dies looks at the cluster again and goes on from there.
[re-sharding.md](re-sharding.md) goes through it step by step.
"""
