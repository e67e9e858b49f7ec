"""The states of a re-sharding, which is a RebalanceTask too, and its edges, as a table."""

from rezone.domain.machines.machine import DEADLINE, Command, Edge, State, Table
from rezone.domain.machines.rebalance_table import (
    AWAITING_SECONDS_MAX,
    CANCEL,
    RUNNING,
    STOPPING_SECONDS_MAX,
)
from rezone.resources.task import TaskState as S

GRACE_SECONDS = 300.0
"""So long old partitions stay after the last cut-over, for scans that began before it, unless the
operator's settings say otherwise."""

TABLE = Table(
    title="Re-sharding: the states",
    names=S,
    states=(
        State(
            name=S.PLANNED,
            does="plans, and under manual approval waits for a person's word on exactly that plan",
            commands=(Command.APPROVE, *RUNNING),
        ),
        State(
            name=S.APPROVED,
            does="waits while the zone is paused, or has old partitions of a re-sharding before",
            commands=RUNNING,
        ),
        State(
            name=S.AWAITING_REPLICAS,
            does="makes the new partitions, empty, and waits until all their replicas are in sync",
            deadline_seconds=AWAITING_SECONDS_MAX,
            commands=RUNNING,
        ),
        State(
            name=S.TRANSFERRING,
            does="lets new partitions fill, and import what old ones go on writing; verifies them, "
            "and cuts over old partitions whose heirs are ready",
            commands=RUNNING,
        ),
        State(
            name=S.SWITCHING,
            does="cuts over the rest, one old partition at a time by itself",
            commands=RUNNING,
        ),
        State(
            name=S.FINALIZING,
            does="writes the new layout's assignment as the stable one, in one atomic write",
            commands=(Command.SUSPEND,),
        ),
        State(
            name=S.STOPPING_REDUNDANT,
            does="deletes the old partitions, after a while for scans that began before",
            deadline_seconds=GRACE_SECONDS + STOPPING_SECONDS_MAX,
            commands=(Command.SUSPEND,),
        ),
        State(name=S.SUCCEEDED, does="the new partitions serve all rows", terminal=True),
        State(
            name=S.CANCELLING,
            does="revokes seals that have come to nothing, asks every old leader, and when none "
            "has sealed removes the new partitions",
        ),
        State(name=S.CANCELLED, does="the old layout stands as before", terminal=True),
        State(name=S.FAILED, does="ended before anything was begun", terminal=True),
    ),
    edges=(
        Edge(S.PLANNED, "approved", S.APPROVED),
        Edge(S.PLANNED, "stale", S.FAILED),
        Edge(S.PLANNED, "no plan", S.CANCELLING),
        Edge(S.PLANNED, CANCEL, S.CANCELLING),
        Edge(S.APPROVED, "goes on", S.AWAITING_REPLICAS),
        Edge(S.APPROVED, CANCEL, S.CANCELLING),
        Edge(S.AWAITING_REPLICAS, "all open", S.TRANSFERRING),
        Edge(S.AWAITING_REPLICAS, DEADLINE, S.CANCELLING),
        Edge(S.AWAITING_REPLICAS, CANCEL, S.CANCELLING),
        Edge(S.TRANSFERRING, "all filled", S.SWITCHING),
        Edge(S.TRANSFERRING, "unrecoverable", S.CANCELLING),
        Edge(S.TRANSFERRING, CANCEL, S.CANCELLING),
        Edge(S.SWITCHING, "all cut over", S.FINALIZING),
        Edge(S.SWITCHING, "copy lost", S.TRANSFERRING),
        Edge(S.SWITCHING, "unrecoverable", S.CANCELLING),
        Edge(S.SWITCHING, CANCEL, S.CANCELLING),
        Edge(S.FINALIZING, "stable is written", S.STOPPING_REDUNDANT),
        Edge(S.STOPPING_REDUNDANT, "all stopped", S.SUCCEEDED),
        Edge(S.STOPPING_REDUNDANT, DEADLINE, S.SUCCEEDED),
        Edge(S.CANCELLING, "already new", S.SWITCHING),
        Edge(S.CANCELLING, "all is as before", S.CANCELLED),
    ),
)

INTRODUCTION = """
A re-sharding of a zone: `spec.partitions` has changed. The states are those of every other
RebalanceTask, what is done in them is not. Every state is persisted when it is entered; a
coordinator that dies looks at the cluster again and goes on from there.
[re-sharding.md](re-sharding.md) goes through it step by step.
"""
