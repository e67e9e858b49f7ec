"""What new partitions have to do before rows of an old one are given up (docs/decisions/0172).

While a zone is re-sharded its new partitions, the targets, have pulled rows of the old ones. An
old partition whose quorum is lost may be led unsafely by a survivor that lacks some of these, and
perhaps the seal, too: then both sides would serve the same range. So each target says first that it
does not serve that range, and begins again if it has anything of it: nothing that is given up, nor
a seal that nobody has heard of yet, outlives that in any of its replicas. One that serves rows of
another old partition cannot begin again, and keeps what it has.

All functions are pure.
"""

import dataclasses
from collections.abc import Iterator

from rezone.domain.model.world import RouteChange, ZoneView
from rezone.domain.repair.lost_quorum import loss_of
from rezone.domain.routing import routes
from rezone.resources.migration import UncleanElectionSpec
from rezone.wire.layouts import Layout, Overlap, index_of, sources_of, targets_of
from rezone.wire.messages import NodeId, PartitionId


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetsAnswer:
    """What stands between an old partition and an unclean election; empty when nothing does.

    `refused`: it must not be. `waits`: not yet, and `changes` make targets begin again. `told`:
    what a person must know of it.
    """

    refused: str = ""
    waits: str = ""
    told: str = ""
    changes: tuple[RouteChange, ...] = ()


def targets_answer(
    view: ZoneView, partition: PartitionId, unclean_election: UncleanElectionSpec
) -> TargetsAnswer:
    """Return what the targets of an old partition say before rows of it are given up.

    Nothing where the zone is not re-sharded, or the new partitions are not there yet.
    """
    layouts = _layouts(view)
    if layouts is None or partition not in layouts[0].ids:
        return TargetsAnswer()
    found = [
        _word(view, layouts, overlap, unclean_election)
        for overlap in targets_of(partition, *layouts)
        if overlap.new in view.routes
    ]
    return TargetsAnswer(
        refused=next((each.refused for each in found if each.refused), ""),
        waits=next((each.waits for each in found if each.waits), ""),
        told="; ".join(each.told for each in found if each.told),
        changes=tuple(change for each in found for change in each.changes),
    )


def _layouts(view: ZoneView) -> tuple[Layout, Layout] | None:
    if not view.resharding or view.pending is None:
        return None
    return view.layout, Layout(view.pending_generation, len(view.pending))


def _word(
    view: ZoneView,
    layouts: tuple[Layout, Layout],
    overlap: Overlap,
    unclean_election: UncleanElectionSpec,
) -> TargetsAnswer:
    source, target = overlap.old, overlap.new
    name = f"new partition {index_of(target)}"
    report = view.leader_report(target)
    said = {each.source: each for each in report.reshard_progress} if report is not None else {}
    if source not in said:
        if _is_lost(view, target, unclean_election) and not _has_other_seals(
            view, layouts, overlap
        ):
            return _begin_again(view, target, unclean_election)
        return TargetsAnswer(waits=f"the leader of {name} has not said what it has of it")
    if said[source].sealed:
        return TargetsAnswer(refused=f"{name} serves its range, with all its rows")
    if not said[source].begun:
        return TargetsAnswer()
    if any(each.sealed for each in said.values()):
        told = f"{name} serves other rows already and keeps what it has pulled of these"
        return TargetsAnswer(told=told)
    return _begin_again(view, target, unclean_election)


def _is_lost(view: ZoneView, target: PartitionId, unclean_election: UncleanElectionSpec) -> bool:
    """Return whether nobody may lead a target any more: it went with the same nodes."""
    loss = loss_of(view, target)
    return loss is not None and {*loss.silent} <= {*unclean_election.lost_nodes}


def _has_other_seals(view: ZoneView, layouts: tuple[Layout, Layout], overlap: Overlap) -> bool:
    """Return whether a target may have pulled the seal of another source of it."""
    records = (
        view.routes[each.old] for each in sources_of(overlap.new, *layouts) if each != overlap
    )
    return any(record.sealing or record.sealed for record in records)


def _begin_again(
    view: ZoneView, target: PartitionId, unclean_election: UncleanElectionSpec
) -> TargetsAnswer:
    record = view.routes[target]
    waits = f"new partition {index_of(target)} begins again: it may have rows that are given up"
    nodes = tuple(_nodes_left(view, target, unclean_election))
    state = routes.begin_again(record, nodes, view.coordinator_epoch) if nodes else None
    if state is None or isinstance(state, routes.Refusal) or record.next_leader is not None:
        return TargetsAnswer(waits=waits)
    before = record.partition_epoch
    change = RouteChange(partition=target, expected_epoch=before, state=state)
    return TargetsAnswer(waits=waits, changes=(change,))


def _nodes_left(
    view: ZoneView, target: PartitionId, unclean_election: UncleanElectionSpec
) -> Iterator[NodeId]:
    for node in view.assigned(target) or ():
        seen = view.nodes.get(node)
        if seen is not None and not seen.lost and node not in unclean_election.lost_nodes:
            yield node
