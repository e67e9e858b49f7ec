"""What is done for each target and each source of a re-sharding while it runs.

A target backfills and pulls by itself; its parts are verified, and one that is broken is begun
again, unless it serves or a source of it may be sealing. A source: when all its targets are ready
it is authorized to seal, in its record, and asked in the next pass; when its leader says that the
seal is committed, the record says so too. Suspended, nothing is begun, but what was authorized
comes to its end.
"""

import collections

from rezone.domain.machines.statuses import with_error
from rezone.domain.model.changes import change_of
from rezone.domain.model.resharding_view import (
    PartView,
    RequestSeal,
    ReshardingView,
    SourceView,
    TargetView,
    VerifyPart,
)
from rezone.domain.model.world import ChangeRoutes, RouteChange
from rezone.domain.resharding.run import ReshardingRun
from rezone.domain.routing import route_seals, routes
from rezone.resources.conditions import Reason
from rezone.wire.layouts import Overlap, index_of
from rezone.wire.messages import LeaderAndIsr

_NO_NODE = "Unreachable: no node of a new partition is left"
_FAR = "CatchingUp: reshard streams"
_SILENT = "Unreachable: leaders of new partitions"
_BROKEN = "Broken: a part that cannot be pulled, of a new partition that serves"
_DIFFERS = "Broken: a part that differs from its source"
_STUCK = (_NO_NODE, _BROKEN, _DIFFERS)

BACKFILLS_MAX = 3
"""How often in a re-sharding new partitions are backfilled again because they differ."""


class Targets:
    """What a pass has found: parts that are not backfilled, and why the rest is not over (B-14)."""

    def __init__(self) -> None:
        self.not_backfilled = 0
        self._reasons: collections.Counter[str] = collections.Counter()
        self._examples: dict[str, str] = {}

    def waits(self, why: str, example: str = "") -> None:
        """Count one reason for waiting; the first example of each is told."""
        self._reasons[why] += 1
        if example:
            self._examples.setdefault(why, f" ({example})")

    @property
    def stuck(self) -> bool:
        """Whether only a person can help."""
        return any(why in self._reasons for why in _STUCK)

    @property
    def waiting(self) -> str:
        """Return the reasons with their counts, empty when nothing is left to do.

        What only a person can help comes first.
        """
        found = sorted(self._reasons.items(), key=lambda each: (each[0] not in _STUCK, each[0]))
        return ", ".join(f"{why}: {count}{self._examples.get(why, '')}" for why, count in found)


def advance(run: ReshardingRun) -> Targets:
    """Do what is due for all targets and sources; return what is left."""
    view, found = run.view, Targets()
    changes = [_look_after(run, target, found) for target in view.targets.values()]
    room = view.max_concurrent_cut_overs - sum(s.record.sealing for s in view.sources.values())
    for source in view.sources.values():
        change = _cut_over(run, source, found, may_begin=room > 0 and not run.paused)
        room -= change is not None and change.state.sealing
        changes.append(change)
    made = tuple(change for change in changes if change is not None)
    if made:
        run.act(ChangeRoutes(changes=made))
    return found


def _look_after(run: ReshardingRun, target: TargetView, found: Targets) -> RouteChange | None:
    """Verify a target's parts; return the record by which it is begun again, where it has to be."""
    if not target.nodes:
        found.waits(_NO_NODE)
        found.not_backfilled += not target.serves
        return None
    if target.leader_epoch is None and target.open:
        # What it has backfilled is not known: that is no reason to go back to the state before.
        found.waits(_SILENT)
        return None
    not_backfilled = sum(not part.backfilled and not part.sealed for part in target.parts)
    found.not_backfilled += not_backfilled
    if target.broken:
        return _mend(run, target, found)
    if target.differs and run.view.cut_over:
        return _backfill_again(run, target, found)
    if not target.open:
        found.waits("Opening")
    elif not_backfilled:
        found.waits("Copying")
    for part in target.parts:
        if not part.verified and not part.sealed and _is_near(run.view, part):
            found.waits("Verifying", part.not_compared)
            _verify(run, target, part)
    return None


def _verify(run: ReshardingRun, target: TargetView, part: PartView) -> None:
    source = run.view.sources.get(part.overlap.old)
    if source is None or target.record is None or target.leader_epoch is None:
        return
    run.act(
        VerifyPart(
            overlap=part.overlap,
            source=source.record.leader,
            target=target.record.leader,
            leader_epoch=target.leader_epoch,
        )
    )


def _mend(run: ReshardingRun, target: TargetView, found: Targets) -> RouteChange | None:
    """Return the record by which a broken target begins again, None while it must not.

    Not while another part may begin to be served by the next word of its source: then clients'
    rows would be in it. One that is broken cannot.
    """
    found.not_backfilled += not target.serves
    if target.serves:
        found.waits(_BROKEN)
        return None
    found.waits("Copying again")
    record = target.record
    if record is None or record.next_leader is not None or target.leader_epoch is None:
        return None
    if not target.nodes or run.paused or not all(_is_idle(run.view, part) for part in target.parts):
        return None
    state = routes.begin_again(record, target.nodes, run.view.coordinator_epoch)
    if isinstance(state, routes.Refusal):
        return None
    before = record.partition_epoch
    return RouteChange(partition=target.partition, expected_epoch=before, state=state)


def _backfill_again(run: ReshardingRun, target: TargetView, found: Targets) -> RouteChange | None:
    """Return the record by which a target whose rows are wrong begins again, a few times in all.

    Only when there is no way back any more; that it differed is kept in the status, written before
    the record. What has clients' rows, and what differs again, is a person's.
    """
    # A pass may come here twice, and counts once.
    attempt = run.before.attempt + 1
    if target.serves or attempt > BACKFILLS_MAX:
        found.waits(_DIFFERS)
        return None
    change = _mend(run, target, found)
    if change is not None:
        wrong = next(part.overlap for part in target.parts if part.differs and not part.sealed)
        run.update(attempt=attempt)
        wrong_text = f"{differing(wrong)}; it is backfilled again"
        run.status = with_error(run.status, Reason.FAILED, wrong_text)
    return change


def differing(overlap: Overlap) -> str:
    """Return what is said of a part that differs from its source."""
    pair = f"{index_of(overlap.new)} differs from old partition {index_of(overlap.old)}"
    return f"new partition {pair} in the range that they have in common"


def _is_idle(view: ReshardingView, part: PartView) -> bool:
    source = view.sources.get(part.overlap.old)
    return part.broken or (source is not None and source.open)


def _cut_over(
    run: ReshardingRun, source: SourceView, found: Targets, *, may_begin: bool
) -> RouteChange | None:
    """Bring one source to its seal; return the change of its record that is due."""
    record, epoch = source.record, run.view.coordinator_epoch
    parts = run.view.parts[source.partition]
    # A target pulls what is committed, so its word counts as much: the source may be lost by
    # then.
    if source.sealed or record.sealed or any(part.sealed for _, part in parts):
        if not record.sealed or any(not part.sealed for _, part in parts):
            found.waits("CuttingOver")
        return change_of(source.partition, record, epoch, route_seals.note_sealed)
    if record.sealing:
        why = _not_ready(run.view, source)
        found.waits(why or "CuttingOver")
        if why and why != _FAR:
            # It would seal for a target that cannot take its rows over, or that could not be begun
            # again any more for the sake of another part.
            return change_of(source.partition, record, epoch, route_seals.revoke_seal)
        if not why:
            _request_seal(run, source.partition, record)
        return None
    why = _not_ready(run.view, source)
    found.waits(why or "CuttingOver")
    if why or not may_begin:
        return None
    return change_of(source.partition, record, epoch, route_seals.authorize_seal)


def _request_seal(run: ReshardingRun, partition: int, record: LeaderAndIsr) -> None:
    epoch = record.leader_epoch
    run.act(RequestSeal(partition=partition, node=record.leader, leader_epoch=epoch))


def _not_ready(view: ReshardingView, source: SourceView) -> str:
    """Return why a source cannot be sealed yet, "" when it can."""
    if source.record.next_leader is not None:
        return "Switching: a leader is on its way"
    parts = view.parts[source.partition]
    # It is authorized when it is verified: which this process may not remember.
    verified = source.record.sealing
    found = (_why_not(view, target, part, verified=verified) for target, part in parts)
    return next(filter(None, found), "")


def _why_not(view: ReshardingView, target: TargetView, part: PartView, *, verified: bool) -> str:
    """Return why a target cannot take a part over yet, "" when it can."""
    if target.open and target.leader_epoch is None:
        return _SILENT
    # Of every part, not only this one: a target that serves can be begun again no more.
    if not target.open or any(not (_is_whole(p) or p.sealed) for p in target.parts):
        return "Copying"
    if not target.in_sync:
        return "CatchingUp: followers of new partitions"
    if part.differs or not (part.verified or verified):
        return "Verifying"
    return "" if _is_near(view, part) else _FAR


def _is_whole(part: PartView) -> bool:
    return part.backfilled and not part.broken and part.lag_rows is not None


def _is_near(view: ReshardingView, part: PartView) -> bool:
    return _is_whole(part) and part.lag_rows is not None and part.lag_rows <= view.lag_rows_max
