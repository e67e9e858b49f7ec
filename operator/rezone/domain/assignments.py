"""The five assignment keys of a zone and the only ways in which they change.

A topology is written compactly in the zone's status: "0,1,2;1,2,3" is partition 0 on nodes 0, 1
and 2 and partition 1 on nodes 1, 2 and 3; the first of each is the preferred leader. `request`
and `complete` are the two pseudo-codes of the zone rebalance design (ZR-04, ZR-10),
`intend_cancel` is its third (ZR-19), and `clear_pending` ends a cancel;
`first` sets a new zone's.

All functions are pure and return new values; the caller writes the result by compare-and-set, so
that each of them is one atomic write. Whoever loses that race reads again and asks again.
"""

import enum
from typing import Final

from rezone.domain.world import Topology
from rezone.resources.zone import Assignment, Assignments, CancelIntent
from rezone.wire.keyspace import PARTITIONS_MAX

REPLICAS_MAX: Final = 7
NODE_ID_MAX: Final = 2**31 - 1
TEXT_LENGTH_MAX: Final = 600_000  # resources.model.CompactText


class Skip(enum.Enum):
    """The answer of a function that changes nothing; see each function for when."""

    SKIP = "skip"


SKIP: Final = Skip.SKIP


class TopologyError(ValueError):
    """A topology, or its compact text, that no zone can have; the message names the partition."""


def check_topology(topology: Topology) -> None:
    """Raise TopologyError unless the topology is within all bounds.

    Bounds: 1 to 16,384 partitions, 1 to 7 replicas each, node ids from 0 to 2**31 - 1, no node
    twice in a partition.
    """
    if not 1 <= len(topology) <= PARTITIONS_MAX:
        raise TopologyError(f"a topology has 1 to {PARTITIONS_MAX} partitions, not {len(topology)}")
    for partition, nodes in enumerate(topology):
        if not 1 <= len(nodes) <= REPLICAS_MAX:
            raise TopologyError(
                f"partition {partition} has {len(nodes)} replicas, not 1 to {REPLICAS_MAX}"
            )
        if len(set(nodes)) != len(nodes):
            raise TopologyError(f"partition {partition} names a node twice: {list(nodes)}")
        for node in nodes:
            if not 0 <= node <= NODE_ID_MAX:
                raise TopologyError(
                    f"partition {partition}: node id {node} is not 0 to {NODE_ID_MAX}"
                )


def compact(topology: Topology) -> str:
    """Return the compact text; equal topologies have equal texts. Raises TopologyError."""
    check_topology(topology)
    text = ";".join(",".join(map(str, nodes)) for nodes in topology)
    if len(text) > TEXT_LENGTH_MAX:
        raise TopologyError(
            f"the topology's text has {len(text)} characters, {TEXT_LENGTH_MAX} are the most: "
            "use fewer partitions or replicas"
        )
    return text


def parse(text: str) -> Topology:
    """Return the topology of a compact text; exactly what `compact` writes is accepted.

    Raises TopologyError, which names the partition and its text.
    """
    if len(text) > TEXT_LENGTH_MAX:
        raise TopologyError(f"the text has {len(text)} characters, {TEXT_LENGTH_MAX} are the most")
    topology = tuple(
        _parse_nodes(partition, nodes) for partition, nodes in enumerate(text.split(";"))
    )
    check_topology(topology)
    return topology


def _parse_nodes(partition: int, text: str) -> tuple[int, ...]:
    nodes = []
    for word in text.split(","):
        # int() would also take "+1", " 1", "1_0" and "01": one topology must have one text only,
        # because texts are compared and hashed.
        if not (word.isascii() and word.isdigit() and (word == "0" or word[0] != "0")):
            shown = text if len(text) <= 40 else text[:40] + "..."  # noqa: PLR2004
            raise TopologyError(f"partition {partition}: {shown!r} is not a list of node ids")
        nodes.append(int(word))
    return tuple(nodes)


def topology_of(assignment: Assignment | None) -> Topology | None:
    """Return the topology of one assignment key, None when the key is empty."""
    return None if assignment is None else parse(assignment.replicas)


def acting_revision(assignments: Assignments) -> int:
    """Return the revision of the trigger that is carried out now: what requests carry (ZR-17).

    A trigger that waits in `planned` has raised `change` already, but what is under way still
    belongs to `pending`: with the newer revision its own copies would be refused as outdated.
    The value never falls, for `change` is never below the revision of `pending`.
    """
    pending = assignments.pending
    return pending.revision if pending is not None else assignments.change


def first(assignments: Assignments, topology: Topology, revision: int) -> Assignments:
    """Return the keys of a new zone whose empty partitions were placed; nothing has to move.

    Keys that have a stable topology already come back as they are. Raises TopologyError.
    """
    if assignments.stable is not None:
        return assignments
    stable = Assignment(revision=revision, replicas=compact(topology))
    return _changed(assignments, stable=stable, change=max(assignments.change, revision))


def request(assignments: Assignments, new: Topology, revision: int) -> Assignments | Skip:
    """Return the keys after the trigger of `revision` asked for `new` (ZR-04, first pseudo-code).

    SKIP when the trigger is not newer than `change` (ZR-05). As in the seed, a trigger that asks
    for what is pending only takes back what was planned, and leaves `change` as it is.

    One line is read with care. Taken literally, a trigger that asks for what is stable while
    nothing is pending writes it to `planned`, where nothing ever completes before it; the next
    rebalance would then be followed by that older topology and the newest trigger would be lost.
    A planned topology with nothing to wait for, equal to the stable one, is done at once: so
    `planned` is left empty here, and `change` moves as the seed says.

    Raises TopologyError, and ValueError for a revision below 1 (0 is the empty `change`).
    """
    if revision < 1:
        raise ValueError(f"a trigger's revision is at least 1, not {revision}")
    wanted = compact(new)
    if not (assignments.change == 0 or assignments.change < revision):
        return SKIP
    assignment = Assignment(revision=revision, replicas=wanted)
    if assignments.pending is None and _differs(assignments.stable, wanted):
        return _changed(assignments, pending=assignment, change=revision)
    if assignments.pending is None:
        return _changed(assignments, planned=None, change=revision)
    if _differs(assignments.pending, wanted):
        return _changed(assignments, planned=assignment, change=revision)
    return _changed(assignments, planned=None)


def complete(assignments: Assignments, revision: int, new_peers: Topology) -> Assignments | Skip:
    """Return the keys after the rebalance of `revision` is done (ZR-10, second pseudo-code).

    `stable` becomes `new_peers`, `cancel` goes, and what was planned becomes pending. SKIP unless
    `pending.revision` is `revision`: the rebalance was completed or cancelled before.
    Raises TopologyError.
    """
    peers = compact(new_peers)
    if assignments.pending is None or assignments.pending.revision != revision:
        return SKIP
    stable = Assignment(revision=revision, replicas=peers)
    return _changed(
        assignments, stable=stable, cancel=None, pending=assignments.planned, planned=None
    )


def intend_cancel(
    assignments: Assignments, revision: int, old: Topology, new: Topology
) -> tuple[bool, Assignments]:
    """Return whether the cancel intent was written, and the keys (ZR-19).

    It is written only while `pending.revision` is the one to be cancelled; otherwise the
    rebalance is done already, and a later one must not be cancelled for it. A repeat writes the
    same again. Raises TopologyError.
    """
    topologies = compact(old), compact(new)
    if assignments.pending is None or assignments.pending.revision != revision:
        return False, assignments
    intent = CancelIntent(revision=revision, old=topologies[0], new=topologies[1])
    return True, _changed(assignments, cancel=intent)


def clear_pending(assignments: Assignments, revision: int) -> Assignments | Skip:
    """Return the keys after the cancel of `revision` was carried out: everything is as `stable`.

    What was planned becomes pending, else pending is empty; `cancel` goes. SKIP unless pending
    and cancel both have this revision, so that no rebalance is dropped without its intent.
    """
    pending, cancel = assignments.pending, assignments.cancel
    if pending is None or pending.revision != revision:
        return SKIP
    if cancel is None or cancel.revision != revision:
        return SKIP
    return _changed(assignments, pending=assignments.planned, planned=None, cancel=None)


def violations(assignments: Assignments) -> tuple[str, ...]:
    """Return what is wrong with the keys, in words; empty when nothing is."""
    found = []
    stable, pending, planned = assignments.stable, assignments.pending, assignments.planned
    if planned is not None and pending is None:
        found.append("planned is set without pending")
    if pending is not None and planned is not None and planned.revision <= pending.revision:
        found.append("planned is not newer than pending")
    if pending is not None and stable is not None and pending.revision <= stable.revision:
        found.append("pending is not newer than stable")
    newest = max((a.revision for a in (stable, pending, planned) if a is not None), default=0)
    if assignments.change < newest:
        found.append("change is older than an assignment")
    if assignments.cancel is not None and (
        pending is None or assignments.cancel.revision != pending.revision
    ):
        found.append("cancel is not for what is pending")
    return tuple(found)


def _differs(assignment: Assignment | None, wanted: str) -> bool:
    return assignment is None or assignment.replicas != wanted


def _changed(assignments: Assignments, **changes: object) -> Assignments:
    return assignments.model_copy(update=changes)
