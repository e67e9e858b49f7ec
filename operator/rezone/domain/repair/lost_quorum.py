"""What is known of a partition that nobody may lead, and which survivor would lose the least.

Who may lead holds every acknowledged row: members of the in-sync set, and who is eligible. When
none of them has its rows any more, what is left are replicas that fell behind, or none at all.
Whatever leads from them gives acknowledged rows up, so nothing here happens by itself: a person
asks for it (`migration_recovery`), and is refused for as long as somebody may come back that has
all rows, unless that one is named as lost.

All functions are pure.
"""

import dataclasses
from collections.abc import Sequence

from rezone.domain.model.world import ZoneView
from rezone.domain.observed.readiness import uncompared
from rezone.domain.repair.repairs import able_to_lead, without_data
from rezone.resources.migration import RecoveryMode, UncleanElectionSpec
from rezone.wire.messages import NodeId, PartitionId

PARTITIONS_TOLD_MAX = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Survivor:
    """A replica with rows that may lack acknowledged ones.

    `complete`: it is eligible or in sync, and lacks none. `uncompared`: nobody has compared its
    copy, so whether that is right is not known (B-04). `last_epoch` is the leader epoch of its last
    row, `log_end` the offset after it, `committed` up to where it knows its rows as committed.
    """

    node: NodeId
    complete: bool
    last_epoch: int
    log_end: int
    committed: int
    uncompared: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loss:
    """A partition that nobody leads and nobody takes over by itself; `name` is for people.

    `gone` are those who held all rows and say that they have lost them, `silent` those that do
    not answer. `survivors` answer and have rows, the best first; `empty` answer and have none.
    `committed` is the highest commit offset that anybody tells of.
    """

    partition: PartitionId
    name: str
    gone: tuple[NodeId, ...]
    silent: tuple[NodeId, ...]
    given_up: bool
    survivors: tuple[Survivor, ...]
    empty: tuple[NodeId, ...]
    committed: int

    @property
    def text(self) -> str:
        """What is known, for people."""
        parts = [f"{self.name}:"]
        if self.gone:
            parts.append(f"nodes {list(self.gone)} have lost their data,")
        if self.silent:
            parts.append(f"nodes {list(self.silent)} do not answer,")
        if not self.survivors:
            return " ".join((*parts, "no other replica has rows"))
        best = self.survivors[0]
        whole = "all acknowledged rows" if best.complete else f"rows up to offset {best.log_end}"
        doubt = ", in a copy that was never compared with another" if best.uncompared else ""
        return " ".join((*parts, f"node {best.node} has {whole}{doubt}"))


def loss_of(view: ZoneView, partition: PartitionId) -> Loss | None:
    """Return what is known of a partition that nobody may lead now, None when somebody may."""
    record = view.routes[partition]
    has_rows = able_to_lead(view, partition)
    doubtful = has_rows & uncompared(view, partition, record)
    able = has_rows - doubtful
    lost = without_data(view, partition, among=record.replicas)
    candidates = able & {*record.eligible}
    if able & {*record.isr} or (candidates and {*record.isr} <= lost):
        return None
    # Beside an candidate, which has all rows, it is only the members of the set that may still
    # lead.
    counted = record.isr if candidates else (*record.isr, *record.eligible)
    silent = tuple(n for n in counted if n not in lost and n not in doubtful)
    reports = ((n, view.report(partition, n)) for n in record.replicas)
    answers = [(n, report) for n, report in reports if report is not None]
    survivors = [
        Survivor(
            node=node,
            complete=node in candidates or node in doubtful,
            uncompared=node in doubtful,
            last_epoch=report.last_epoch,
            log_end=report.log_end_offset,
            committed=report.committed_offset,
        )
        for node, report in answers
        if node in has_rows
    ]
    survivors.sort(key=lambda s: (not s.complete, s.uncompared, -s.last_epoch, -s.log_end, s.node))
    return Loss(
        partition=partition,
        name=view.routes.name_of(partition),
        gone=tuple(n for n in counted if n in lost),
        silent=silent,
        given_up=all(n not in view.nodes or view.nodes[n].lost for n in silent),
        survivors=tuple(survivors),
        empty=tuple(n for n, _ in answers if n in lost),
        committed=max((report.committed_offset for _, report in answers), default=0),
    )


def summary(losses: Sequence[Loss]) -> str:
    """Return what is known of some partitions, at most as much as fits a condition."""
    more = len(losses) - PARTITIONS_TOLD_MAX
    texts = [loss.text for loss in losses[:PARTITIONS_TOLD_MAX]]
    return "; ".join([*texts, f"and {more} more"] if more > 0 else texts)


def refusal(
    view: ZoneView,
    partition: PartitionId,
    unclean_election: UncleanElectionSpec,
    target: NodeId | None,
) -> str:
    """Return why rows must not be given up as asked, "" when they may."""
    loss = loss_of(view, partition)
    if loss is None:
        return "not needed: a replica with every acknowledged row leads, or takes over by itself"
    wrong = _wrongly_lost(view, loss, unclean_election)
    if wrong:
        return wrong
    awaited = [n for n in loss.silent if n not in unclean_election.lost_nodes]
    if awaited:
        return (
            f"nodes {awaited} do not answer, and may come back with every acknowledged row: bring "
            "them back, or name them in uncleanElection.lostNodes if they never will"
        )
    return _wrong_mode(loss, unclean_election.mode) or _wrong_target(
        loss, unclean_election.mode, target
    )


def _wrongly_lost(view: ZoneView, loss: Loss, unclean_election: UncleanElectionSpec) -> str:
    replicas = view.routes[loss.partition].replicas
    strangers = [n for n in unclean_election.lost_nodes if n not in replicas]
    if strangers:
        return (
            f"nodes {strangers} of uncleanElection.lostNodes hold no replica: {list(replicas)} do"
        )
    alive = [n for n in unclean_election.lost_nodes if n in {s.node for s in loss.survivors}]
    return f"nodes {alive} of uncleanElection.lostNodes answer, and have rows" if alive else ""


def _wrong_mode(loss: Loss, mode: RecoveryMode) -> str:
    if mode is RecoveryMode.EMPTY and loss.survivors:
        best = loss.survivors[0]
        return (
            f"node {best.node} has rows up to offset {best.log_end}: mode MostComplete keeps them"
        )
    if mode is RecoveryMode.EMPTY and not loss.empty:
        return "no data node of the partition answers"
    if mode is RecoveryMode.MOST_COMPLETE and not loss.survivors:
        return "no replica that answers has rows: mode Empty begins the partition again"
    return ""


def _wrong_target(loss: Loss, mode: RecoveryMode, target: NodeId | None) -> str:
    nodes = candidates(loss, mode)
    if target is None or target in nodes:
        return ""
    return f"node {target} cannot lead the partition: {list(nodes)} can"


def candidates(loss: Loss, mode: RecoveryMode) -> tuple[NodeId, ...]:
    """Return who may lead in this mode, the best first; only who has all rows, if anybody has."""
    if mode is RecoveryMode.EMPTY:
        return loss.empty
    whole = [s for s in loss.survivors if s.complete]
    return tuple(s.node for s in whole or loss.survivors)
