"""What a re-sharding sees of its zone, and what it asks for (docs/decisions/0120).

A *source* is an old partition, a *target* a new one that overlaps with it, a *range* what they
have in common.
"""

import collections
import dataclasses
import enum
import functools
from collections.abc import Mapping

from rezone.wire.layouts import Overlap, generation_of
from rezone.wire.messages import FIRST_PARTITION_EPOCH, LeaderAndIsr, NodeId, PartitionId


class RangePhase(enum.StrEnum):
    """How far a range is."""

    BACKFILLING = "Backfilling"  # rows that were there before are still to come
    FOLLOWING = "Following"  # it has them, and was not found to be equal yet
    VERIFIED = "Verified"  # it was equal at both sides as of one time
    SERVING = "Serving"  # the old side is sealed, and the new one serves it
    BROKEN = "Broken"  # it can only be pulled from the start, or differs


@dataclasses.dataclass(frozen=True, kw_only=True)
class RangeView:
    """What a target's leader says of one range.

    `backfilled`: all rows that were there when it began are in its log. `lag_rows` are those of the
    source's log that it has not pulled, None while nothing is known of that. `broken`: the
    source's log does not lead on from where it stands. `verified`: the range was equal at both
    sides as of one time (B-04), `differs`: it was not, `not_compared`: why that is not known.
    `sealed`: the pulled seal is committed, it serves. `write_gap_ms`: for how long the cut-over
    stopped writes to it, None while that is not known. Bytes and rows are estimates.
    `sealed_time`: with `sealed`, a commit time that is not before the seal's, nor before any of the
    target's by then.
    """

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

    @property
    def phase(self) -> RangePhase:
        """How far it is."""
        if self.sealed:
            return RangePhase.SERVING
        if self.broken or self.differs:
            return RangePhase.BROKEN
        if not self.backfilled:
            return RangePhase.BACKFILLING
        return RangePhase.VERIFIED if self.verified else RangePhase.FOLLOWING


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetView:
    """A new partition; `record` is None until the next layout's table is written.

    `nodes` are those of its target that are not lost; the first shall lead. `in_sync`: all of
    `nodes` are, their indexes too. `leader_epoch` is the epoch in which its leader reports, None
    while that does not answer as the leader of the record's epoch. `lost`: that has come back
    without its rows, and those that others have were never compared with it.
    """

    partition: PartitionId
    nodes: tuple[NodeId, ...]
    ranges: tuple[RangeView, ...]
    record: LeaderAndIsr | None = None
    in_sync: bool = False
    leader_epoch: int | None = None
    lost: bool = False

    @property
    def open(self) -> bool:
        """Whether all of its replicas have been opened, so that it takes entries."""
        return self.record is not None and self.record.partition_epoch > FIRST_PARTITION_EPOCH

    @property
    def serves(self) -> bool:
        """Whether clients' rows may be in it already."""
        return any(each.sealed for each in self.ranges)

    @property
    def broken(self) -> bool:
        """Whether a range can only be pulled from the start."""
        return any(each.broken for each in self.ranges)

    @property
    def differs(self) -> bool:
        """Whether a range that is not served yet is not what its source has."""
        return any(each.differs and not each.sealed for each in self.ranges)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceView:
    """An old partition.

    `sealed` is the word of the leader by this very record: True when its seal is committed, False
    when it has none and its whole in-sync set follows it (who does not may have one in its log, and
    lead later). None: nothing of the kind was heard under that epoch.
    """

    partition: PartitionId
    record: LeaderAndIsr
    sealed: bool | None = None

    @property
    def open(self) -> bool:
        """Whether it is sure that it is not sealed, and is not to be."""
        return self.sealed is False and not self.record.sealing and not self.record.sealed


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReshardingView:
    """One observation of a zone that is re-sharded.

    `holds_pending`: the zone's pending assignment is this one's; `done`: it is the stable one.
    `cancel_written`: the intent to cancel it stands in the zone's keys. `generation` is the next
    layout's. Its table stands as a whole or not at all: all targets have a record, or none has;
    `sources` are empty when the old one has been deleted, `grace_seconds` after the last cut-over.
    `others_left`: a third one is there still, of a re-sharding before. `held` are the partitions of
    which a data node that answers has a replica; `unreported` is how many nodes a new coordinator
    has not heard of yet, neither what they have nor that they are silent. `served_percent`: for how
    much of the time the busiest data node serves clients, None while that is unknown. `spark_state`
    is that of the task's SparkApplication, empty without one, which backfills where more than
    `spark_threshold_bytes` are left; `spark_taken`: its name is another's. `filled_by`: the
    overwrite whose job brings the rows, empty in any other re-sharding; `abandoned`: nobody has
    asked for it for long.
    """

    sources: Mapping[PartitionId, SourceView]
    targets: Mapping[PartitionId, TargetView]
    generation: int
    stable: tuple[tuple[NodeId, ...], ...]
    pending: tuple[tuple[NodeId, ...], ...]
    holds_pending: bool
    done: bool
    cancel_written: bool
    coordinator_epoch: int
    paused: bool
    hands_off: bool = False
    manual_approval: bool
    max_concurrent_cut_overs: int
    lag_rows_max: int
    grace_seconds: float
    others_left: bool = False
    held: frozenset[PartitionId] = frozenset()
    unreported: int = 0
    served_percent: int | None = None
    spark_name: str = ""
    spark_state: str = ""
    spark_error: str = ""
    spark_taken: bool = False
    spark_threshold_bytes: int = 1 << 50
    filled_by: str = ""
    abandoned: bool = False

    @functools.cached_property
    def ranges(self) -> Mapping[PartitionId, tuple[tuple[TargetView, RangeView], ...]]:
        """The targets of each source, each with the range that comes from it."""
        found: dict[PartitionId, list[tuple[TargetView, RangeView]]] = {p: [] for p in self.sources}
        for target in self.targets.values():
            for hash_range in target.ranges:
                if hash_range.overlap.old in found:
                    found[hash_range.overlap.old].append((target, hash_range))
        return {partition: tuple(pairs) for partition, pairs in found.items()}

    @functools.cached_property
    def cut_over(self) -> tuple[PartitionId, ...]:
        """The sources that have sealed, as far as anybody has heard: there is no way back."""
        return tuple(
            partition
            for partition, source in self.sources.items()
            if source.record.sealed
            or source.sealed
            or any(each.sealed for _, each in self.ranges[partition])
        )

    @property
    def phases(self) -> Mapping[RangePhase, int]:
        """How many ranges are how far."""
        return collections.Counter(
            each.phase for target in self.targets.values() for each in target.ranges
        )

    @property
    def created(self) -> bool:
        """Whether the next layout's table stands."""
        return any(target.record is not None for target in self.targets.values())

    @property
    def old_generation(self) -> int | None:
        """The generation of the old table, None when it has been deleted."""
        return next((generation_of(partition) for partition in self.sources), None)

    @property
    def old_held(self) -> int:
        """How many old partitions have a replica on a node that answers."""
        return sum(generation_of(partition) < self.generation for partition in self.held)

    @property
    def new_held(self) -> int:
        """How many targets have a replica on a node that answers."""
        return sum(generation_of(partition) == self.generation for partition in self.held)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CreateTargets:
    """Write the table of the next layout beside the old one, unless it is there.

    `nodes` has the replicas of each target in the order of their ids; the first leads.
    """

    generation: int
    nodes: tuple[tuple[NodeId, ...], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyRange:
    """Compare the digests of a range at both leaders as of one time (B-04).

    `leader_epoch` is the target's: what leads it later is compared again.
    """

    overlap: Overlap
    source: NodeId
    target: NodeId
    leader_epoch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestSeal:
    """Ask a source's leader to seal its log, if it leads in this epoch."""

    partition: PartitionId
    node: NodeId
    leader_epoch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropLayout:
    """Delete the table of a generation that is over, or was never served.

    Its replicas are stopped where they are reported without a record (`repairs.strays`).
    """

    generation: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnsureBackfill:
    """Create the SparkApplication `name` that backfills these ranges, unless it exists."""

    name: str
    ranges: tuple[Overlap, ...]


ReshardingAction = CreateTargets | VerifyRange | RequestSeal | DropLayout | EnsureBackfill
"""What only a re-sharding asks for."""
