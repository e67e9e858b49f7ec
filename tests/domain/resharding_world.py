"""A zone that is re-sharded, as far as its machine can tell: logs with seals, targets that pull.

Actions are carried out as data nodes and the API server would: with their guards, at once.
"""

import dataclasses
from datetime import UTC, datetime, timedelta

import msgspec

from rezone.domain.machines.resharding_table import GRACE_SECONDS
from rezone.domain.machines.statuses import Decision
from rezone.domain.model import resharding_view as views
from rezone.domain.model import world
from rezone.domain.model.resharding_view import RangeView, ReshardingView, SourceView, TargetView
from rezone.domain.rebalance.run import NoPlan, Planned
from rezone.domain.resharding import decide as resharding
from rezone.domain.routing import routes
from rezone.resources.task import PlanSummary, RebalanceTaskSpec, RebalanceTaskStatus
from rezone.wire.layouts import Layout, Overlap, sources_of, targets_of
from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr, PartitionId

REVISION = 7
LAG_ROWS_MAX = 100
NODES = (0, 1, 2)


@dataclasses.dataclass
class OldPartition:
    """A source: its record, and whether its log has a seal that is committed or may be lost."""

    record: LeaderAndIsr
    seal: str = ""  # "", "appended", "committed"
    reachable: bool = True


@dataclasses.dataclass
class NewRange:
    """A range as its target has it; `lag_rows` None: nothing is known of its source."""

    overlap: Overlap
    backfilled: bool = False
    lag_rows: int | None = None
    broken: bool = False
    verified: bool = False
    differs: bool = False
    not_compared: str = ""
    sealed: bool = False
    sealed_time: int = 0
    write_gap_ms: int | None = None
    bytes_done: int = 0
    bytes_total: int = 0
    rows_done: int = 0
    rows_total: int = 0


@dataclasses.dataclass
class NewPartition:
    """A target; `held`: nodes have replicas of it; `lost`: nobody may lead it."""

    ranges: list[NewRange]
    record: LeaderAndIsr | None = None
    in_sync: bool = False
    nodes: tuple[int, ...] = NODES
    held: bool = False
    lost: bool = False

    @property
    def open(self) -> bool:
        """Whether it takes entries."""
        return self.record is not None and self.record.partition_epoch > FIRST_PARTITION_EPOCH

    @property
    def serves(self) -> bool:
        """Whether clients' rows may be in it."""
        return any(hash_range.sealed for hash_range in self.ranges)


class Zone:
    """The zone, its task's spec and status, and the time."""

    def __init__(self, first: int, second: int) -> None:
        old = Layout(0, first)
        new = old.next(second)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.spec = RebalanceTaskSpec(zone_name="z", revision=REVISION)
        self.status = RebalanceTaskStatus()
        self.sources = {p: OldPartition(routes.initial(NODES, 1)) for p in old.ids}
        self.targets = {
            p: NewPartition([NewRange(overlap) for overlap in sources_of(p, old, new)])
            for p in new.ids
        }
        self.overlaps = {p: tuple(targets_of(p, old, new)) for p in old.ids}
        self.pending, self.done, self.cancel_written = True, False, False
        self.old_held = set(old.ids)
        self.unreported = 0
        self.paused = self.manual_approval = False
        self.others_left, self.backfills = False, True
        self.no_plan: NoPlan | None = None
        self.cut_overs_max = 2
        self.threshold, self.part_bytes = 1 << 50, 100
        self.applications: dict[str, str] = {}
        self.asked_for: list[views.EnsureBackfill] = []
        self.filled_by, self.abandoned = "", False
        self.readable_from = 0

    # --- what the machine sees ---------------------------------------------------------------

    def view(self) -> ReshardingView:
        """Return one observation."""
        return ReshardingView(
            sources={
                p: SourceView(partition=p, record=s.record, sealed=self._word(s))
                for p, s in self.sources.items()
            },
            targets={
                p: TargetView(
                    partition=p,
                    nodes=h.nodes,
                    ranges=tuple(self._range_view(h, hash_range) for hash_range in h.ranges),
                    record=h.record,
                    in_sync=h.in_sync,
                    leader_epoch=h.record.leader_epoch if h.record and not h.lost else None,
                    lost=h.lost,
                )
                for p, h in self.targets.items()
            },
            generation=1,
            stable=(NODES,),
            pending=(NODES,),
            holds_pending=self.pending,
            done=self.done,
            cancel_written=self.cancel_written,
            coordinator_epoch=1,
            paused=self.paused,
            manual_approval=self.manual_approval,
            max_concurrent_cut_overs=self.cut_overs_max,
            lag_rows_max=LAG_ROWS_MAX,
            grace_seconds=GRACE_SECONDS,
            others_left=self.others_left,
            held=frozenset({*self.old_held, *(p for p, h in self.targets.items() if h.held)}),
            unreported=self.unreported,
            spark_name=self.status.spark_application,
            spark_state=self.applications.get(self.status.spark_application, ""),
            spark_error="it fell over",
            spark_threshold_bytes=self.threshold,
            filled_by=self.filled_by if self.pending else "",
            abandoned=self.abandoned,
        )

    def _range_view(self, target: NewPartition, hash_range: NewRange) -> RangeView:
        if target.lost:
            return RangeView(overlap=hash_range.overlap)
        if self.filled_by:
            hash_range.verified = hash_range.backfilled  # as `observe` has it
        if hash_range.bytes_total:
            return RangeView(**vars(hash_range))
        done = self.part_bytes if hash_range.backfilled else 0
        return RangeView(
            **(vars(hash_range) | {"bytes_done": done, "bytes_total": self.part_bytes})
        )

    @staticmethod
    def _word(source: OldPartition) -> bool | None:
        if not source.reachable or source.seal == "appended":
            return None
        return source.seal == "committed"

    def decide(self) -> Decision[RebalanceTaskStatus]:
        """Decide once, without persisting anything."""
        plan = self.no_plan or Planned(
            (NODES,) * len(self.targets), PlanSummary(hash="good", moves=1, moves_lower_bound=1)
        )
        decision = resharding.decide(
            self.spec, self.status, self.view(), self.now, 1, name="task", plan=lambda: plan
        )
        waits = decision.status.waiting_reason is not None
        assert waits == bool(decision.status.waiting_for), "a wait has one word of a closed set"
        return decision

    def run(self, lost: frozenset[int] = frozenset()) -> tuple[world.Action, ...]:
        """Decide, persist, and carry out all actions but the lost ones."""
        decision = self.decide()
        self.status = decision.status
        self.now += timedelta(seconds=decision.wake_seconds or 0)
        for number, action in enumerate(decision.actions):
            if number not in lost:
                self.carry_out(action)
        return decision.actions

    # --- what actions do ---------------------------------------------------------------------

    def carry_out(self, action: world.Action) -> None:  # noqa: C901, PLR0912 - a case per kind
        """Do what an action asks for, if its guard lets it."""
        match action:
            case views.CreateTargets(nodes=nodes):
                for target, row in zip(self.targets.values(), nodes, strict=True):
                    target.record = target.record or routes.initial(row, 1)
                    target.held = True
            case world.ChangeRoutes(changes=changes):
                for change in changes:
                    self._write(change)
            case views.VerifyRange(overlap=overlap):
                assert not self.filled_by, "new rows are compared with the old ones"
                hash_range = next(
                    x for x in self.targets[overlap.new].ranges if x.overlap == overlap
                )
                hash_range.verified = hash_range.backfilled and not hash_range.broken
            case views.DropLayout(generation=generation):
                self._drop(generation)
            case views.RequestSeal():
                self._seal(action)
            case views.EnsureBackfill(name=name):
                assert not self.filled_by, "a job brings the old rows"
                assert self.status.spark_application == name, "it is not persisted yet"
                self.asked_for.append(action)
                self.applications.setdefault(name, "RUNNING")
            case world.DeleteSparkApplication(name=name):
                self.applications.pop(name, None)
            case world.WriteCancel():
                self.cancel_written = self.pending
            case world.ClearPending():
                assert self.cancel_written
                self.pending = False
            case world.WriteStable(revision=revision, readable_from=readable_from):
                assert revision == REVISION
                self.readable_from = readable_from
                times = [x.sealed_time for h in self.targets.values() for x in h.ranges]
                assert readable_from == (max(times) + 1 if self.filled_by else 0)
                assert all(
                    hash_range.sealed for h in self.targets.values() for hash_range in h.ranges
                )
                assert all(source.record.sealed for source in self.sources.values())
                self.done, self.pending = True, False
            case _:
                raise AssertionError(action)

    def _write(self, change: world.RouteChange) -> None:
        p = change.partition
        holder = self.sources.get(p) or self.targets[p]
        if holder.record is None or holder.record.partition_epoch != change.expected_epoch:
            return
        if change.state.partition_epoch == FIRST_PARTITION_EPOCH:
            assert isinstance(holder, NewPartition)
            assert not holder.serves, "rows that clients wrote are deleted"
            assert change.state.leader_epoch > holder.record.leader_epoch, "nodes would keep rows"
            ranges = [NewRange(hash_range.overlap) for hash_range in holder.ranges]
            self.targets[p] = NewPartition(
                ranges, nodes=holder.nodes, held=True, record=change.state
            )
            return
        holder.record = change.state

    def _drop(self, generation: int) -> None:
        if generation == 0:
            assert self.done, "rows of the old layout are deleted before the new one is stable"
            self.sources = {}
            return
        for p, target in self.targets.items():
            assert not target.serves, "rows that clients wrote are deleted"
            ranges = [NewRange(hash_range.overlap) for hash_range in target.ranges]
            self.targets[p] = NewPartition(ranges, nodes=target.nodes, held=target.held)

    def _seal(self, request: views.RequestSeal) -> None:
        source = self.sources[request.partition]
        record = source.record
        if not record.sealing or record.leader_epoch != request.leader_epoch or source.seal:
            return
        for overlap in self.overlaps[request.partition]:
            target = self.targets[overlap.new]
            hash_range = next(x for x in target.ranges if x.overlap == overlap)
            verified = hash_range.verified or bool(self.filled_by)
            if hash_range.broken or not verified or not target.open or target.lost:
                return  # the leader has no target that is near
        source.seal = "appended"

    # --- what happens by itself --------------------------------------------------------------

    def settle(self) -> None:
        """Let everything that runs come as far as it can."""
        for source in self.sources.values():
            source.reachable = True
            if source.seal:
                source.seal = "committed"
        if not self.sources:
            self.old_held.clear()
        for target in self.targets.values():
            target.held = target.record is not None
            if target.record is not None:
                self._settle(target, target.record)

    def _settle(self, target: NewPartition, record: LeaderAndIsr) -> None:
        if target.lost:
            return
        if not target.open:
            opened = routes.confirm(record)
            assert isinstance(opened, LeaderAndIsr)
            target.record = opened
        target.in_sync = record.replicas == target.nodes
        for hash_range in target.ranges:
            if hash_range.broken:
                continue
            hash_range.backfilled, hash_range.lag_rows = hash_range.backfilled or self.backfills, 0
            if not hash_range.backfilled:
                continue
            source = self.sources.get(hash_range.overlap.old)
            hash_range.sealed = hash_range.sealed or (
                source is not None and source.seal == "committed"
            )
            if hash_range.sealed:
                hash_range.sealed_time = 100 + hash_range.overlap.new

    def fail_over(self, partition: PartitionId, *, keeps_seal: bool) -> None:
        """Give a source another leader; a seal that is not committed may be lost with the old."""
        source = self.sources[partition]
        source.record = msgspec.structs.replace(
            source.record,
            leader=(source.record.leader + 1) % len(NODES),
            leader_epoch=source.record.leader_epoch + 1,
            partition_epoch=source.record.partition_epoch + 1,
        )
        if source.seal == "appended" and not keeps_seal:
            source.seal = ""
