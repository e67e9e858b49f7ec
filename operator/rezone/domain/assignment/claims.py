"""Who goes first when several objects want to move the same partition.

Every wait for another object's claim leads down one order, so no circle of waits can be made: a
migration that has begun, then one that a task has made, then the rebalance that is pending, then
one that a person has applied. Within a rank the names decide. A task waits for its own
migrations, its migrations wait for those that have begun, and those that have begun wait for
nobody's claim.
"""

import enum
from typing import NamedTuple

from rezone.domain.machines.migration_table import is_under_way
from rezone.domain.model.world import MigrationView, ZoneView
from rezone.wire.messages import PartitionId


class Rank(enum.IntEnum):
    """The order of claims on one partition; a claim waits only for lower ones."""

    BEGUN = 0
    OF_TASK = 1
    REBALANCE = 2
    OF_PERSON = 3


class Claim(NamedTuple):
    """A claim on a partition; claims are compared, the lower one goes first."""

    rank: Rank
    name: str


def claim_of(migration: MigrationView) -> Claim:
    """Return the claim of a migration that has not ended."""
    if is_under_way(migration):
        return Claim(Rank.BEGUN, migration.name)
    return Claim(Rank.OF_TASK if migration.owner_task else Rank.OF_PERSON, migration.name)


def goes_first(other: MigrationView, own: Claim, partition: PartitionId) -> bool:
    """Return whether another migration moves the same partition before the one with `own`."""
    if other.terminal or other.partition != partition:
        return False
    return claim_of(other) < own


def awaited_rebalance(view: ZoneView, partition: PartitionId, own: Claim) -> str:
    """Return which pending rebalance a migration waits for before it begins, "" for none."""
    if own.rank < Rank.REBALANCE:
        return ""
    if view.resharding:
        return "the zone is re-sharded: leaders move when its partitions are those of the spec"
    target = view.target(partition)
    if target is None or target == view.assigned(partition):
        return ""
    return "the zone's pending rebalance moves the same partition"
