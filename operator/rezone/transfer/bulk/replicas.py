"""The replicas of one zone are compared with each other as of one time (SP-07).

Each data node is a side with what it holds. Ranges are even cuts of the partitions, so each is of
one partition: the rows of its leader are the first ones, those of every other replica are compared
with them. A replica that is behind, because it is copied or catches up, is told and not read.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from rezone.client import PartitionReplicas, TableClient
from rezone.client.requests.batches import conform
from rezone.transfer.bulk import comparing
from rezone.transfer.bulk.comparing import LISTED_MAX, Difference, RowsById
from rezone.transfer.bulk.digests import RANGES_MAX, RangeDigests, hashes_of
from rezone.transfer.bulk.sides import overlaps
from rezone.transfer.bulk.units import Runner
from rezone.transfer.source.options import SourceOptions
from rezone.wire.codec.keyspace import hash_in, partition_of
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import HashRange, Layout, index_of, layout_of
from rezone.wire.messages import NodeId, PartitionId


class ReplicasNotComparedError(ValueError):
    """Raised when replicas cannot be compared as they are; says which, and why."""


@dataclasses.dataclass(frozen=True)
class Held:
    """Who holds the partitions of a layout, in hash order, and how many ranges each is cut into."""

    layout: Layout
    replicas: tuple[PartitionReplicas, ...]
    cuts: int

    @property
    def ranges(self) -> int:
        """The even cuts of all hashes."""
        return len(self.replicas) * self.cuts

    @property
    def nodes(self) -> list[NodeId]:
        """The data nodes that are read, in ascending order."""
        return sorted({node for each in self.replicas for node in each.in_sync})

    @property
    def behind(self) -> list[tuple[PartitionId, NodeId]]:
        """The replicas that are not read."""
        return [(each.partition, node) for each in self.replicas for node in each.behind]

    def of_range(self, index: int) -> PartitionReplicas:
        """Return who holds a range."""
        return self.replicas[index // self.cuts]


def held_in(client: TableClient, ranges: int) -> Held:
    """Return who holds a zone, cut into about so many ranges. Raises ReplicasNotComparedError."""
    found, config = client.replicas(), client.config
    if config.next_partitions:
        raise ReplicasNotComparedError(
            f"zone {config.zone} is being re-sharded; compare its replicas once that has ended"
        )
    layout = layout_of(config)
    by_id = {each.partition: each for each in found}
    for partition in layout.ids:
        if partition not in by_id or by_id[partition].leader < 0:
            raise ReplicasNotComparedError(f"partition {index_of(partition)} has no leader now")
    replicas = tuple(by_id[partition] for partition in layout.ids)
    if not any(each.in_sync[1:] or each.behind for each in replicas):
        raise ReplicasNotComparedError(
            f"zone {config.zone} has one replica of each partition: nothing to compare it with"
        )
    most = max(1, RANGES_MAX // layout.partitions)
    return Held(layout, replicas, min(most, -(-ranges // layout.partitions)))


@dataclasses.dataclass(frozen=True)
class ReplicaSide:
    """What one data node holds of a zone as of one time, each partition in so many parts."""

    options: SourceOptions
    as_of: int
    table: TableSchema
    node: NodeId
    partitions: tuple[PartitionId, ...]
    layout: Layout
    parts_each: int

    def parts(self) -> list[Any]:
        """Return even ranges of hashes, each with its partition."""
        count = self.layout.partitions * self.parts_each
        return [
            (partition, index_of(partition) * self.parts_each + part, count)
            for partition in self.partitions
            for part in range(self.parts_each)
        ]

    def batches(self, part: Any) -> Iterator[Any]:
        """Yield the rows that the node has of a range. Raises ReplicasNotComparedError."""
        partition, *cut = part
        schema = arrow_schema_of(self.table)
        try:
            with self.options.client() as client:
                found = client.stream_replica(
                    self.node, partition, hashes_of(*cut), as_of=self.as_of
                )
                for batch in found:
                    yield conform(batch, schema)
        except RezoneError as error:
            raise ReplicasNotComparedError(
                f"partition {index_of(partition)} on data node {self.node} cannot be read as of "
                f"{self.as_of}: {type(error).__name__}: {error}"
            ) from error

    def may_have(self, part: Any, ranges: Sequence[HashRange]) -> bool:
        """Whether the ranges overlap with the part's."""
        _, *cut = part
        return overlaps(hashes_of(*cut), ranges)


def sides_of(
    options: SourceOptions, held: Held, as_of: int, table: TableSchema, tasks: int
) -> list[ReplicaSide]:
    """Return a side for each data node, in the order of `held.nodes`; `tasks` parts or more."""
    partitions: dict[NodeId, list[PartitionId]] = {node: [] for node in held.nodes}
    for each in held.replicas:
        for node in each.in_sync:
            partitions[node].append(each.partition)
    parts_each = -(-tasks // sum(map(len, partitions.values())))
    return [
        ReplicaSide(options, as_of, table, node, tuple(those), held.layout, parts_each)
        for node, those in partitions.items()
    ]


class Compared(NamedTuple):
    """The digests of the leaders, and in which ranges each data node differs from them."""

    leaders: RangeDigests
    by_node: dict[NodeId, RangeDigests]
    differing: dict[NodeId, list[int]]

    @property
    def ranges(self) -> list[int]:
        """The ranges in which some replica differs, in hash order."""
        return sorted({index for those in self.differing.values() for index in those})


def compared(held: Held, found: dict[NodeId, RangeDigests]) -> Compared:
    """Compare what each data node has with what the leaders have."""
    leaders = RangeDigests(held.ranges)
    for place, each in enumerate(held.replicas):
        here = slice(place * held.cuts, (place + 1) * held.cuts)
        leaders.rows[here] = found[each.leader].rows[here]
        leaders.sums[here] = found[each.leader].sums[here]
    differing = {
        node: [index for index in leaders.differing(theirs) if node in held.of_range(index).in_sync]
        for node, theirs in found.items()
    }
    return Compared(leaders, found, differing)


def to_narrow(held: Held, found: Compared) -> tuple[int, ...]:
    """Return the ranges that differ, from the first one on, as long as they have few rows."""

    def rows_of(index: int) -> int:
        return sum(int(found.by_node[node].rows[index]) for node in held.of_range(index).in_sync)

    return comparing.while_few((index, rows_of(index)) for index in found.ranges)


class ReplicaDifference(NamedTuple):
    """A row that a replica does not have as its leader has it, and on which data node."""

    difference: Difference
    node: NodeId
    leader: NodeId


def differences(
    held: Held, rows: dict[NodeId, RowsById], chosen: Iterable[int]
) -> list[ReplicaDifference]:
    """Return the rows of some ranges that differ, in the order of row ids."""
    by_range: dict[tuple[NodeId, int], RowsById] = {}
    for node, theirs in rows.items():
        for row_id, digests in theirs.items():
            index = partition_of(hash_in(row_id), held.ranges)
            by_range.setdefault((node, index), {})[row_id] = digests
    found = [
        ReplicaDifference(each, node, one.leader)
        for index in chosen
        for one in [held.of_range(index)]
        for node in one.in_sync[1:]
        for each in comparing.differences_of(
            by_range.get((one.leader, index), {}), by_range.get((node, index), {})
        )
    ]
    return sorted(found)


def verified(
    run: Runner,
    options: SourceOptions,
    *,
    as_of: int,
    table: TableSchema,
    held: Held,
    tasks: int,
) -> dict[str, Any]:
    """Compare the replicas of a zone, and return what a job says of that."""
    sides = sides_of(options, held, as_of, table, tasks)
    digests = comparing.digested(run, "reading", sides, table, held.ranges)
    found = compared(held, dict(zip(held.nodes, digests, strict=True)))
    said: dict[str, Any] = {
        "first": {"rows": found.leaders.total_rows, "digest": found.leaders.digest},
        "ranges": held.ranges,
        "replicas": [
            {
                "node": side.node,
                "partitions": len(side.partitions),
                "rows": found.by_node[side.node].total_rows,
                "differingRanges": len(found.differing[side.node]),
            }
            for side in sides
        ],
        "notCompared": [
            {"partition": index_of(partition), "node": node} for partition, node in held.behind
        ][:LISTED_MAX],
        "equal": not found.ranges,
        "differingRanges": len(found.ranges),
        "differing": _listed_ranges(held, found),
    }
    chosen = to_narrow(held, found)
    if chosen:
        rows = comparing.rows_in(run, sides, table, held.ranges, chosen)
        listed = differences(held, dict(zip(held.nodes, rows, strict=True)), chosen)
        said |= {
            "narrowedRanges": len(chosen),
            "differingRows": len({each.difference.row_id for each in listed}),
            "differences": _listed_rows(table, listed[:LISTED_MAX]),
        }
    return said


def _listed_ranges(held: Held, found: Compared) -> list[dict[str, Any]]:
    pairs = [
        (index, node)
        for index in found.ranges
        for node in held.of_range(index).in_sync
        if index in found.differing[node]
    ]
    return [
        {
            "hashes": comparing.bounds_of(index, held.ranges),
            "partition": index_of(held.of_range(index).partition),
            "leader": held.of_range(index).leader,
            "node": node,
            "firstRows": int(found.leaders.rows[index]),
            "otherRows": int(found.by_node[node].rows[index]),
            "otherDigest": found.by_node[node].text(index),
        }
        for index, node in pairs[:LISTED_MAX]
    ]


def _listed_rows(table: TableSchema, listed: Sequence[ReplicaDifference]) -> list[dict[str, Any]]:
    keys = comparing.keys_of(table, [each.difference for each in listed])
    return [
        {"key": key, "is": each.difference.kind, "node": each.node, "leader": each.leader}
        for key, each in zip(keys, listed, strict=True)
    ]
