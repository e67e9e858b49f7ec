"""The five assignment keys of a zone and the only ways in which they change.

A topology is written compactly in the zone's status, by `routing.topology_text`. `request` and
`complete` are the two pseudo-codes of the zone rebalance design (ZR-04, ZR-10), `intend_cancel` is
its third (ZR-19), `clear_pending` ends a cancel, `first` sets a new zone's keys, and `settle`
follows a leader that a person has moved. An assignment of another generation than the stable one is
a re-sharding (docs/decisions/0120); all other triggers ask for the generation that there will be.

All functions are pure and return new values; the caller writes the result by compare-and-set, so
that each of them is one atomic write. Whoever loses that race reads again and asks again.
"""

import enum
from datetime import datetime
from typing import Final

from rezone.domain.model.world import SettleLeader
from rezone.domain.routing.topology_text import (
    DECIMAL_LENGTH_MAX,
    Topology,
    TopologyError,
    compact,
    parse,
)
from rezone.resources.zone_status import (
    RETAINED_MAX,
    Assignment,
    Assignments,
    CancelIntent,
    Overwrite,
    RetainedReplica,
)
from rezone.wire.layouts import Layout, index_of
from rezone.wire.messages import NodeId

__all__ = [
    "SKIP",
    "Skip",
    "TopologyError",
    "acting_revision",
    "clear_pending",
    "compact",
    "complete",
    "first",
    "intend_cancel",
    "is_resharding",
    "parse",
    "request",
    "retain_until",
    "settle",
    "settle_declined",
    "topology_of",
    "violations",
]


class Skip(enum.Enum):
    """The answer of a function that changes nothing; see each function for when."""

    SKIP = "skip"


SKIP: Final = Skip.SKIP


def topology_of(assignment: Assignment | None) -> Topology | None:
    """Return the topology of one assignment key, None when the key is empty."""
    return None if assignment is None else parse(assignment.replicas)


def acting_revision(assignments: Assignments) -> int:
    """Return the revision of the trigger that is carried out now: what requests carry (ZR-17).

    A trigger that waits in `planned` has raised `change` already, but what is under way still
    belongs to `pending`: with the newer revision its own copies would be refused as outdated.
    The value never falls, for `change` is never below the revision of `pending`. The offset keeps
    that true for a zone whose status was put back to an earlier one (`domain.assignment.outdated`).
    """
    pending = assignments.pending
    revision = pending.revision if pending is not None else assignments.change
    return revision + assignments.revision_offset


def first(assignments: Assignments, topology: Topology, revision: int) -> Assignments:
    """Return the keys of a new zone whose empty partitions were placed; nothing has to move.

    Keys that have a stable topology already come back as they are. Raises TopologyError.
    """
    if assignments.stable is not None:
        return assignments
    stable = Assignment(revision=revision, replicas=compact(topology))
    return _changed(assignments, stable=stable, change=max(assignments.change, revision))


def request(
    assignments: Assignments,
    new: Topology,
    revision: int,
    generation: int | None = None,
    filled_by: str = "",
) -> Assignments | Skip:
    """Return the keys after the trigger of `revision` asked for `new` (ZR-04, first pseudo-code).

    `new` is of `generation`, by default that of the newest assignment; with `filled_by` the
    overwrite of that name brings its rows.

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
    newest = assignments.planned or assignments.pending or assignments.stable
    if generation is None:
        generation = newest.layout_version if newest is not None else 0
    assignment = Assignment(
        revision=revision, replicas=wanted, layout_version=generation, filled_by=filled_by
    )
    used = max(generation, assignments.last_layout_version)
    if assignments.pending is None and _differs(assignments.stable, assignment):
        return _changed(assignments, pending=assignment, change=revision, last_layout_version=used)
    if assignments.pending is None:
        return _changed(assignments, planned=None, change=revision)
    if _differs(assignments.pending, assignment):
        return _changed(assignments, planned=assignment, change=revision, last_layout_version=used)
    return _changed(assignments, planned=None)


def complete(
    assignments: Assignments, revision: int, new_peers: Topology, readable_from: int = 0
) -> Assignments | Skip:
    """Return the keys after the rebalance of `revision` is done (ZR-10, second pseudo-code).

    `stable` becomes `new_peers`, `cancel` goes, and what was planned becomes pending. SKIP unless
    `pending.revision` is `revision`: the rebalance was completed or cancelled before. Of an
    overwrite, `readable_from` goes into the keys in the same write. Raises TopologyError.
    """
    peers = compact(new_peers)
    if assignments.pending is None or assignments.pending.revision != revision:
        return SKIP
    pending = assignments.pending
    stable = Assignment(revision=revision, replicas=peers, layout_version=pending.layout_version)
    return _changed(
        assignments,
        stable=stable,
        cancel=None,
        pending=assignments.planned,
        planned=None,
        overwrite=_overwrite(assignments.overwrite, pending, readable_from),
    )


def _overwrite(last: Overwrite | None, done: Assignment, readable_from: int) -> Overwrite | None:
    """Return the last overwrite when an assignment is done, which may be one."""
    if not done.filled_by:
        return last
    return Overwrite(
        name=done.filled_by,
        layout_version=done.layout_version,
        readable_from=readable_from,
        old_readable_from=last.readable_from if last is not None else 0,
    )


def settle(assignments: Assignments, move: SettleLeader) -> Assignments | Skip:
    """Return the keys after a person has moved a leader to a node that `stable` does not have.

    The new leader takes the old one's place, or the first where the old one has none, and comes
    first. With a replacement the new leader has a place, and the old one's goes to that node.
    Replicas that have no place then are written down as kept, in the same write, as far as there is
    room for them. SKIP while anything is pending: that was planned without it and replaces `stable`
    as a whole; SKIP also when `stable` has the new leader, so that a repeat changes nothing. The
    revision is a new one, as for every other change of `stable`: what was planned before is stale.
    """
    partition, old_leader, new_leader = move.partition, move.old_leader, move.new_leader
    stable = topology_of(assignments.stable)
    if assignments.stable is None or stable is None or assignments.pending is not None:
        return SKIP
    if partition not in Layout(assignments.stable.layout_version, len(stable)).ids:
        return SKIP
    index = index_of(partition)
    nodes = stable[index]
    gone = old_leader if old_leader in nodes else nodes[0]
    if move.replacement is not None:
        if old_leader not in nodes or move.replacement in nodes:
            return SKIP
        after = _led_by(new_leader, nodes, old_leader, move.replacement)
    elif new_leader in nodes:
        return SKIP
    else:
        after = (new_leader, *(node for node in nodes if node != gone))
    revision = assignments.change + 1
    replicas = compact((*stable[:index], after, *stable[index + 1 :]))
    moved = assignments.stable.model_copy(update={"revision": revision, "replicas": replicas})
    kept = _retained_after(assignments.retained, move, beside={old_leader, gone} - set(after))
    return _changed(assignments, stable=moved, change=revision, retained=kept[:RETAINED_MAX])


def _led_by(
    leader: NodeId, nodes: tuple[NodeId, ...], gone: NodeId, replacement: NodeId
) -> tuple[NodeId, ...]:
    return (leader, *(node for node in nodes if node not in {leader, gone}), replacement)


def _retained_after(
    retained: tuple[RetainedReplica, ...], move: SettleLeader, *, beside: set[NodeId]
) -> tuple[RetainedReplica, ...]:
    """Return the retained replicas after a move: the new leader has a place, `beside` have none."""
    stay = beside & set(move.replicas)
    others = (
        each
        for each in retained
        if each.partition != move.partition or each.node not in {move.new_leader, *stay}
    )
    made = (
        RetainedReplica(
            partition=move.partition,
            node=node,
            migration=move.migration,
            retained_time=move.since,
            retain_until_time=move.until,
        )
        for node in sorted(stay)
    )
    return (*others, *made)


def retain_until(assignments: Assignments, migration: str, until: datetime | None) -> Assignments:
    """Return the keys with another end for what `migration` retains; unchanged if it is gone."""
    kept = tuple(
        each.model_copy(update={"retain_until_time": until})
        if each.migration == migration
        else each
        for each in assignments.retained
    )
    return _changed(assignments, retained=kept)


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
    intent = CancelIntent(
        revision=revision,
        old=_reference(topologies[0], assignments.stable),
        new=_reference(topologies[1], assignments.pending),
    )
    return True, _changed(assignments, cancel=intent)


def _reference(text: str, key: Assignment | None) -> str:
    """Return "" for a long text that stands in a key already: the status has a limit.

    Neither key changes while the intent stands: who completes or ends it takes it away too.
    """
    same = key is not None and key.replicas == text
    return "" if same and len(text) > DECIMAL_LENGTH_MAX else text


def clear_pending(
    assignments: Assignments, revision: int, ended: Topology | None = None
) -> Assignments | Skip:
    """Return the keys after the cancel of `revision` was carried out.

    `ended` is where the partitions live then: a group that was as `pending` says already cannot be
    cancelled any more (ZR-20), so `stable` takes it over in the same write. By default everything
    is as `stable` says. What was planned becomes pending, else pending is empty; `cancel` goes.
    SKIP unless pending and cancel both have this revision, so that no rebalance is dropped without
    its intent.

    Of a re-sharding: its number of partitions is declined until the spec asks for another one, and
    what was planned goes, for it was planned on its partitions; its trigger is found again. Of an
    overwrite its name is remembered, and not begun again.
    Raises TopologyError.
    """
    pending, cancel = assignments.pending, assignments.cancel
    if pending is None or pending.revision != revision:
        return SKIP
    if cancel is None or cancel.revision != revision:
        return SKIP
    if pending.filled_by:
        return _changed(
            assignments,
            pending=None,
            planned=None,
            cancel=None,
            cancelled_overwrite=pending.filled_by,
        )
    if is_resharding(assignments):
        declined = len(parse(pending.replicas))
        return _changed(
            assignments, pending=None, planned=None, cancel=None, cancelled_partitions=declined
        )
    stable = assignments.stable
    if ended is not None and stable is not None and stable.replicas != (text := compact(ended)):
        stable = stable.model_copy(update={"revision": revision, "replicas": text})
    return _changed(
        assignments, stable=stable, pending=assignments.planned, planned=None, cancel=None
    )


def settle_declined(assignments: Assignments, wanted: int) -> Assignments:
    """Return the keys after the spec was seen to ask for `wanted` partitions.

    Another number than the declined one, so that asking for that again means it.
    """
    if assignments.cancelled_partitions in {0, wanted}:
        return assignments
    return _changed(assignments, cancelled_partitions=0)


def is_resharding(assignments: Assignments) -> bool:
    """Return whether what is pending is of another generation of partitions than the stable one."""
    stable, pending = assignments.stable, assignments.pending
    return (
        stable is not None
        and pending is not None
        and stable.layout_version != pending.layout_version
    )


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
    there = [a for a in (stable, pending, planned) if a is not None]
    generations = [a.layout_version for a in there]
    if generations != sorted(generations):
        found.append("an assignment is of an older generation than the one before it")
    if assignments.last_layout_version < max(generations, default=0):
        found.append("a generation is not counted as used")
    newest = max((a.revision for a in there), default=0)
    if assignments.change < newest:
        found.append("change is older than an assignment")
    if assignments.cancel is not None and (
        pending is None or assignments.cancel.revision != pending.revision
    ):
        found.append("cancel is not for what is pending")
    return tuple(found)


def _differs(assignment: Assignment | None, wanted: Assignment) -> bool:
    if assignment is None:
        return True
    there = (assignment.layout_version, assignment.replicas)
    return there != (wanted.layout_version, wanted.replicas)


def _changed(assignments: Assignments, **changes: object) -> Assignments:
    return assignments.model_copy(update=changes)
