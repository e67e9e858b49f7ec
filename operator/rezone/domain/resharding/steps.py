"""What is done for each target and each source of a re-sharding while it runs.

A target backfills and pulls by itself; its ranges are verified, and one that is broken is begun
again, unless it serves or a source of it may be sealing. A source: when all its targets are ready
it is authorized to seal, in its record, and asked in the next pass; when its leader says that the
seal is committed, the record says so too. Suspended, nothing is begun, but what was authorized
comes to its end.

In an overwrite (`ReshardingView.filled_by`) sources seal together, when all targets are ready.
"""

import collections

from rezone.domain.machines.statuses import with_error
from rezone.domain.model.changes import change_of
from rezone.domain.model.resharding_view import (
    RangeView,
    RequestSeal,
    ReshardingView,
    SourceView,
    TargetView,
    VerifyRange,
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
_BROKEN = "Broken: a range that cannot be pulled, of a new partition that serves"
_DIFFERS = "Broken: a range that differs from its source"
_STUCK = (_NO_NODE, _BROKEN, _DIFFERS)

BACKFILLS_MAX = 3
"""How often in a re-sharding new partitions are backfilled again because they differ."""


class Targets:
    """What a pass has found: ranges that are not backfilled, and why the rest waits (B-14)."""

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
    room = _room(view)
    for source in view.sources.values():
        change = _cut_over(run, source, found, may_begin=room > 0 and not run.paused)
        room -= change is not None and change.state.sealing
        changes.append(change)
    made = tuple(change for change in changes if change is not None)
    if made:
        run.act(ChangeRoutes(changes=made))
    return found


def _room(view: ReshardingView) -> int:
    """Return how many sources may be authorized to seal now.

    Of an overwrite all, once all parts have their rows: the new partitions serve together.
    """
    sources = view.sources.values()
    if not view.filled_by:
        return view.max_concurrent_cut_overs - sum(s.record.sealing for s in sources)
    waits = (s for s in sources if not (s.sealed or s.record.sealed or s.record.sealing))
    return 0 if any(_not_ready(view, source) for source in waits) else len(sources)


def _look_after(run: ReshardingRun, target: TargetView, found: Targets) -> RouteChange | None:
    """Verify a target's ranges; return the record by which it is begun again, if it has to be."""
    if not target.nodes:
        found.waits(_NO_NODE)
        found.not_backfilled += not target.serves
        return None
    if target.leader_epoch is None and target.open:
        if target.lost and all(_is_idle(run.view, each) for each in target.ranges):
            return _mend(run, target, found)  # its sources still have all that it had
        # What it has backfilled is not known: that is no reason to go back to the state before.
        found.waits(_SILENT)
        return None
    not_backfilled = sum(not each.backfilled and not each.sealed for each in target.ranges)
    found.not_backfilled += not_backfilled
    if target.broken:
        return _mend(run, target, found)
    if target.differs and run.view.cut_over:
        return _backfill_again(run, target, found)
    if not target.open:
        found.waits("Opening")
    elif not_backfilled:
        found.waits("Copying")
    for hash_range in target.ranges:
        if not hash_range.verified and not hash_range.sealed and _is_near(run.view, hash_range):
            found.waits("Verifying", hash_range.not_compared)
            _verify(run, target, hash_range)
    return None


def _verify(run: ReshardingRun, target: TargetView, hash_range: RangeView) -> None:
    source = run.view.sources.get(hash_range.overlap.old)
    if source is None or target.record is None or target.leader_epoch is None:
        return
    run.act(
        VerifyRange(
            overlap=hash_range.overlap,
            source=source.record.leader,
            target=target.record.leader,
            leader_epoch=target.leader_epoch,
        )
    )


def _mend(run: ReshardingRun, target: TargetView, found: Targets) -> RouteChange | None:
    """Return the record by which a broken or lost target begins again, None while it must not.

    Not while another range may begin to be served by the next word of its source: then clients'
    rows would be in it. One that is broken cannot.
    """
    found.not_backfilled += not target.serves
    if target.serves:
        found.waits(_BROKEN)
        return None
    found.waits("Copying again")
    record = target.record
    if record is None or record.next_leader is not None:
        return None
    if target.leader_epoch is None and not target.lost:
        return None
    if (
        not target.nodes
        or run.paused
        or not all(_is_idle(run.view, each) for each in target.ranges)
    ):
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
        wrong = next(each.overlap for each in target.ranges if each.differs and not each.sealed)
        run.update(attempt=attempt)
        wrong_text = f"{differing(wrong)}; it is backfilled again"
        run.status = with_error(run.status, Reason.FAILED, wrong_text)
    return change


def differing(overlap: Overlap) -> str:
    """Return what is said of a range that differs from its source."""
    pair = f"{index_of(overlap.new)} differs from old partition {index_of(overlap.old)}"
    return f"new partition {pair} in the range that they have in common"


def _is_idle(view: ReshardingView, hash_range: RangeView) -> bool:
    source = view.sources.get(hash_range.overlap.old)
    return hash_range.broken or (source is not None and source.open)


def _cut_over(
    run: ReshardingRun, source: SourceView, found: Targets, *, may_begin: bool
) -> RouteChange | None:
    """Bring one source to its seal; return the change of its record that is due."""
    record, epoch = source.record, run.view.coordinator_epoch
    ranges = run.view.ranges[source.partition]
    # A target pulls what is committed, so its word counts as much: the source may be lost by
    # then.
    if source.sealed or record.sealed or any(each.sealed for _, each in ranges):
        if not record.sealed or any(not each.sealed for _, each in ranges):
            found.waits("CuttingOver")
        return change_of(source.partition, record, epoch, route_seals.note_sealed)
    if record.sealing:
        why = _not_ready(run.view, source)
        found.waits(why or "CuttingOver")
        if why and why != _FAR:
            # It would seal for a target that cannot take its rows over, or that could not be begun
            # again any more for the sake of another range.
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
    ranges = view.ranges[source.partition]
    # It is authorized when it is verified: which this process may not remember.
    verified = source.record.sealing
    found = (_why_not(view, target, each, verified=verified) for target, each in ranges)
    return next(filter(None, found), "")


def _why_not(
    view: ReshardingView, target: TargetView, hash_range: RangeView, *, verified: bool
) -> str:
    """Return why a target cannot take a range over yet, "" when it can."""
    if target.open and target.leader_epoch is None:
        return _SILENT
    # Of every range, not only this one: a target that serves can be begun again no more.
    if not target.open or any(not (_is_whole(p) or p.sealed) for p in target.ranges):
        return "Copying"
    if not target.in_sync:
        return "CatchingUp: followers of new partitions"
    if hash_range.differs or not (hash_range.verified or verified):
        return "Verifying"
    return "" if _is_near(view, hash_range) else _FAR


def _is_whole(hash_range: RangeView) -> bool:
    return hash_range.backfilled and not hash_range.broken and hash_range.lag_rows is not None


def _is_near(view: ReshardingView, hash_range: RangeView) -> bool:
    return (
        _is_whole(hash_range)
        and hash_range.lag_rows is not None
        and hash_range.lag_rows <= view.lag_rows_max
    )
