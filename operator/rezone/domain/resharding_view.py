"""What a re-sharding sees of its zone, and what it asks for (docs/decisions/0120).

A *source* is an old partition, an *heir* a new one that overlaps with it, a *part* what they have
in common.
"""

import dataclasses
import enum
import functools
from collections.abc import Mapping

from rezone.wire.layouts import Overlap
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId


class Seed(enum.Enum):
    """How far the first replica of an heir is, before it leads."""

    NONE = enum.auto()  # no node has it open
    OPEN = enum.auto()  # it may be filled, and perhaps is just now
    FILLED = enum.auto()  # all parts are durable there


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartView:
    """What an heir's leader says of one part.

    `lag_rows` are those of the source that it has not imported, None while it imports nothing.
    `broken`: the source's log does not lead on from where it stands. `verified`: the part was equal
    at both sides as of one time (B-04). `sealed`: the seal's import is committed, it serves.
    """

    overlap: Overlap
    lag_rows: int | None = None
    broken: bool = False
    verified: bool = False
    sealed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeirView:
    """A new partition; `record` is None until its seed is filled.

    `nodes` are those of its target that are not lost, the first shall be its seed; `seed` is that
    one's state. `in_sync`: all of `nodes` are, their indexes and standbys too.
    """

    partition: PartitionId
    nodes: tuple[NodeId, ...]
    parts: tuple[PartView, ...]
    record: LeaderAndIsr | None = None
    seed: Seed = Seed.NONE
    in_sync: bool = False

    @property
    def serves(self) -> bool:
        """Whether clients' rows may be in it already."""
        return any(part.sealed for part in self.parts)

    @property
    def broken(self) -> bool:
        """Whether a part can only be imported from the start."""
        return any(part.broken for part in self.parts)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReshardingView:
    """One observation of a zone that is re-sharded.

    `holds_pending`: the zone's pending assignment is this one's; `done`: it is the stable one.
    `cancel_written`: the intent to cancel it stands in the zone's keys. `old_left` are partitions
    of the old layout that have a record or a replica still.
    """

    sources: Mapping[PartitionId, SourceView]
    heirs: Mapping[PartitionId, HeirView]
    holds_pending: bool
    done: bool
    cancel_written: bool
    coordinator_epoch: int
    paused: bool
    manual_approval: bool
    max_concurrent_fills: int
    max_concurrent_cut_overs: int
    lag_rows_max: int
    old_left: tuple[PartitionId, ...] = ()

    @functools.cached_property
    def parts(self) -> Mapping[PartitionId, tuple[tuple[HeirView, PartView], ...]]:
        """The heirs of each source, each with the part that comes from it."""
        found: dict[PartitionId, list[tuple[HeirView, PartView]]] = {p: [] for p in self.sources}
        for heir in self.heirs.values():
            for part in heir.parts:
                found[part.overlap.old].append((heir, part))
        return {partition: tuple(pairs) for partition, pairs in found.items()}

    @functools.cached_property
    def cut_over(self) -> tuple[PartitionId, ...]:
        """The sources that have sealed, as far as anybody has heard: there is no way back."""
        return tuple(
            partition
            for partition, source in self.sources.items()
            if source.record.sealed
            or source.sealed
            or any(part.sealed for _, part in self.parts[partition])
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpenSeed:
    """Open the first replica of an heir on a node, to be filled."""

    partition: PartitionId
    node: NodeId


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillSeed:
    """Copy the parts of an heir to its seed, going on where an earlier try has stopped."""

    partition: PartitionId
    node: NodeId
    parts: tuple[Overlap, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyPart:
    """Compare the digests of a part at both sides as of one time (B-04)."""

    overlap: Overlap


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReimportPart:
    """Have an heir that serves other parts drop this one, and import it anew through its log."""

    overlap: Overlap


@dataclasses.dataclass(frozen=True, kw_only=True)
class DropHeir:
    """Delete an heir that serves nothing: its record first, then its replicas."""

    partition: PartitionId


@dataclasses.dataclass(frozen=True, kw_only=True)
class RequestSeal:
    """Ask a source's leader to seal its log, if it leads in this epoch."""

    partition: PartitionId
    node: NodeId
    leader_epoch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoveOld:
    """Stop the replicas of old partitions and delete their records."""

    partitions: tuple[PartitionId, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompleteResharding:
    """ZR-10 with the next generation: `stable` becomes what is pending with `revision`."""

    revision: int


ReshardingAction = (
    OpenSeed
    | FillSeed
    | VerifyPart
    | ReimportPart
    | DropHeir
    | RequestSeal
    | RemoveOld
    | CompleteResharding
)
