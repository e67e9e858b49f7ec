"""What is asked of the planner and what it answers; see `planner` for the rules."""

import dataclasses
import enum
from collections.abc import Mapping

from rezone.domain.routing.topology_text import Topology
from rezone.resources.task import Why
from rezone.wire.messages import NodeId, PartitionId


class NotPlaceableError(ValueError):
    """No assignment can satisfy the request; the message says what to do about it."""


class Goal(enum.StrEnum):
    """What a plan is for."""

    BALANCE = "Balance"  # bring the whole zone to its best assignment
    DRAIN = "Drain"  # only move off unavailable nodes; what else is uneven stays as it is
    LEADERS = "Leaders"  # even out leaders, copy nothing
    MOVES = "Moves"  # only what is pinned changes


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeInfo:
    """A data node as the planner sees it; unavailable ones (gone, draining) hold nothing after.

    `frozen` ones (away for a while) keep what they have, get nothing and lead nothing.
    """

    id: NodeId
    weight: int = 1
    failure_domain: str = ""
    available: bool = True
    frozen: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What to plan.

    `current` is None for the first placement. `leaders[p]` leads now (default: the first of
    current). `partition_bytes` lets the smaller of two partitions move. `pinned` partitions get
    exactly these nodes, the first as leader. Nodes that `current` names and `nodes` does not are
    gone. `revision` is the trigger's and is part of the plan's hash.
    """

    partitions: int
    replicas: int
    nodes: tuple[NodeInfo, ...]
    current: Topology | None = None
    leaders: tuple[NodeId, ...] | None = None
    partition_bytes: tuple[int, ...] | None = None
    pinned: Mapping[PartitionId, tuple[NodeId, ...]] = dataclasses.field(default_factory=dict)
    goal: Goal = Goal.BALANCE
    revision: int = 0


@dataclasses.dataclass(frozen=True)
class Move:
    """One partition's change of nodes; each added node copies it."""

    partition: PartitionId
    added: tuple[NodeId, ...]
    removed: tuple[NodeId, ...]
    why: Why


@dataclasses.dataclass(frozen=True)
class LeaderMove:
    """One partition's change of leader; `source` is None when it has none now."""

    partition: PartitionId
    source: NodeId | None
    target: NodeId


@dataclasses.dataclass(frozen=True)
class Imbalance:
    """How uneven an assignment is; available nodes only.

    `replicas_off`: the most replicas by which a node is outside the floor and ceiling of its fair
    share. `leaders_off`: the same for leaders. `domain_conflicts`: partitions that are less
    spread over the failure domains than they could be. `missing`: replicas on no available node.
    """

    replicas_off: int
    leaders_off: int
    domain_conflicts: int
    missing: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The next assignment and what it takes to get there.

    `copies` counts the replicas to be copied, `lower_bound` the fewest that any plan for the same
    request could need. `hash` is over source, target and revision.
    """

    target: Topology
    moves: tuple[Move, ...]
    leader_moves: tuple[LeaderMove, ...]
    copies: int
    lower_bound: int
    bytes_moved: int
    before: Imbalance | None
    after: Imbalance
    hash: str
