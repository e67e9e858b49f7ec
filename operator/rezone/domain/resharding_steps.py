"""What is done for each heir and each source of a re-sharding while it runs.

An heir: its seed is opened and filled, the record that makes it lead is written, its followers
are added, its parts are verified; one that breaks is dropped and begun anew, unless it serves.
A source: when all its heirs are ready it is authorized to seal, in its record, and asked in the
next pass; when its leader says that the seal is committed, the record says so too. Suspended,
nothing is begun, but what was authorized comes to its end.
"""

import collections

from rezone.domain import route_seals, routes
from rezone.domain.changes import change_of
from rezone.domain.resharding_run import ReshardingRun
from rezone.domain.resharding_view import (
    DropHeir,
    FillSeed,
    HeirView,
    OpenSeed,
    PartView,
    ReimportPart,
    RequestSeal,
    ReshardingView,
    Seed,
    SourceView,
    VerifyPart,
)
from rezone.domain.world import ChangeRoutes, RouteChange
from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr

_NO_NODE = "Unreachable: no node of a new partition is left"


class Heirs:
    """What a pass has found: heirs that are not filled, and why the rest is not over (B-14)."""

    def __init__(self) -> None:
        self.unfilled = 0
        self.stuck = False
        self._reasons: collections.Counter[str] = collections.Counter()

    def waits(self, why: str) -> None:
        """Count one reason for waiting."""
        self._reasons[why] += 1

    @property
    def waiting(self) -> str:
        """Return the reasons with their counts, empty when nothing is left to do.

        What only a person can help comes first.
        """
        found = sorted(self._reasons.items(), key=lambda each: (each[0] != _NO_NODE, each[0]))
        return ", ".join(f"{why}: {count}" for why, count in found)


def advance(run: ReshardingRun) -> Heirs:
    """Do what is due for all heirs and sources; return what is left."""
    view, found = run.view, Heirs()
    changes: list[RouteChange | None] = []
    fills = view.max_concurrent_fills
    for heir in view.heirs.values():
        if heir.record is None:
            found.unfilled += 1
            filling = heir.seed is Seed.OPEN and fills > 0
            fills -= filling
            changes.append(_seed(run, heir, found, may_fill=filling))
        else:
            changes.append(_follow(run, heir, heir.record, found))
    room = view.max_concurrent_cut_overs - sum(s.record.sealing for s in view.sources.values())
    for source in view.sources.values():
        change = _cut_over(run, source, found, may_begin=room > 0 and not run.paused)
        room -= change is not None and change.state.sealing
        changes.append(change)
    made = tuple(change for change in changes if change is not None)
    if made:
        run.act(ChangeRoutes(changes=made))
    return found


def _seed(
    run: ReshardingRun, heir: HeirView, found: Heirs, *, may_fill: bool
) -> RouteChange | None:
    """Open and fill the seed; return the record by which it leads, alone in sync, when it may."""
    if not heir.nodes:
        found.stuck = True
        found.waits(_NO_NODE)
    elif heir.seed is Seed.FILLED:
        found.waits("Opening")
        state = routes.initial(heir.nodes[:1], run.view.coordinator_epoch)
        before = FIRST_PARTITION_EPOCH - 1
        return RouteChange(partition=heir.partition, expected_epoch=before, state=state)
    elif heir.seed is Seed.NONE:
        found.waits("Opening")
        if not run.paused:
            run.act(OpenSeed(partition=heir.partition, node=heir.nodes[0]))
    else:
        found.waits("Copying" if may_fill else "Limit: new partitions are filled in turn")
        if may_fill and not run.paused:
            parts = tuple(part.overlap for part in heir.parts)
            run.act(FillSeed(partition=heir.partition, node=heir.nodes[0], parts=parts))
    return None


def _follow(
    run: ReshardingRun, heir: HeirView, record: LeaderAndIsr, found: Heirs
) -> RouteChange | None:
    """Add an heir's followers and verify its parts; one that is broken is begun anew."""
    if heir.broken and not heir.serves:
        found.waits("Copying anew")
        run.act(DropHeir(partition=heir.partition))
        return None
    for part in heir.parts:
        if part.broken:
            # Its other parts have clients' rows: only this one can be replaced.
            found.waits("Copying anew")
            run.act(ReimportPart(overlap=part.overlap))
        elif not part.verified and not part.sealed and _is_near(run.view, part):
            found.waits("Verifying")
            run.act(VerifyPart(overlap=part.overlap))
    if run.paused:
        return None
    return change_of(
        heir.partition,
        record,
        run.view.coordinator_epoch,
        lambda r: routes.add_replicas(r, heir.nodes),
    )


def _cut_over(
    run: ReshardingRun, source: SourceView, found: Heirs, *, may_begin: bool
) -> RouteChange | None:
    """Bring one source to its seal; return the change of its record that is due."""
    record, epoch = source.record, run.view.coordinator_epoch
    if source.sealed or record.sealed:
        if any(not part.sealed for _, part in run.view.parts[source.partition]):
            found.waits("CuttingOver")
        return change_of(source.partition, record, epoch, route_seals.note_sealed)
    if record.sealing:
        found.waits("CuttingOver")
        if any(part.broken for _, part in run.view.parts[source.partition]):
            # It would seal for an heir that cannot take its rows over.
            return change_of(source.partition, record, epoch, route_seals.revoke_seal)
        run.act(
            RequestSeal(
                partition=source.partition, node=record.leader, leader_epoch=record.leader_epoch
            )
        )
        return None
    why = _not_ready(run.view, source)
    found.waits(why or "CuttingOver")
    if why or not may_begin:
        return None
    return change_of(source.partition, record, epoch, route_seals.authorize_seal)


def _not_ready(view: ReshardingView, source: SourceView) -> str:
    """Return why a source cannot be sealed yet, "" when it can."""
    if source.record.next_leader is not None:
        return "Switching: a leader is on its way"
    for heir, part in view.parts[source.partition]:
        # Of every part, not only this source's: an heir that serves can be begun anew no more.
        if heir.record is None or any(p.broken or p.lag_rows is None for p in heir.parts):
            return "Copying"
        if not heir.in_sync:
            return "CatchingUp: followers of new partitions"
        if not part.verified:
            return "Verifying"
        if not _is_near(view, part):
            return "CatchingUp: imports"
    return ""


def _is_near(view: ReshardingView, part: PartView) -> bool:
    return part.lag_rows is not None and part.lag_rows <= view.lag_rows_max
