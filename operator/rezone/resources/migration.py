"""RegionMigration (rgm): the leader of one partition moves (RM-01)."""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from rezone.resources.copy_progress import CopiesProgress
from rezone.resources.machine_status import MachineStatus, SparkCopies
from rezone.resources.meta import Column as PrinterColumn
from rezone.resources.meta import CrdMeta, Rule
from rezone.resources.model import (
    Count,
    CustomObject,
    Message,
    Model,
    Name,
    NodeNumber,
    Time,
)

RETAIN_OLD_LEADER_SECONDS_MAX = 30 * 24 * 3600


class OldLeaderPolicy(enum.StrEnum):
    """What becomes of the old leader (RM-07)."""

    RETAIN = "Retain"  # it stays a replica
    REMOVE = "Remove"  # it gives up its copy


class MigrationState(enum.StrEnum):
    """The nodes of the seed's diagram, the way out of a lost quorum, and the three ends."""

    SELECT_CANDIDATE = "SelectCandidate"
    OPEN_CANDIDATE = "OpenCandidate"
    UPDATE_METADATA_DOWN = "UpdateMetadataDown"
    DOWNGRADE_LEADER = "DowngradeLeader"
    UPGRADE_CANDIDATE = "UpgradeCandidate"
    UPDATE_METADATA_UP = "UpdateMetadataUp"
    UPDATE_METADATA_ROLLBACK = "UpdateMetadataRollback"
    UNCLEAN_ELECTION = "UncleanElection"
    CLOSE_OLD_LEADER = "CloseOldLeader"
    SUCCEEDED = "Succeeded"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"


TERMINAL_MIGRATION_STATES = frozenset(
    {MigrationState.SUCCEEDED, MigrationState.ROLLED_BACK, MigrationState.FAILED},
)


class RecoveryMode(enum.StrEnum):
    """From what a partition goes on whose quorum is lost."""

    MOST_COMPLETE = "MostComplete"  # from the replica that loses the least
    EMPTY = "Empty"  # from nothing, when no replica has any rows


class UncleanElectionSpec(Model):
    """Gives acknowledged rows up, so that a partition without its quorum has a leader again."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.acceptDataLoss",
            message="uncleanElection gives acknowledged rows up: set acceptDataLoss to true, "
            "or leave it out",
            field_path=".acceptDataLoss",
        ),
    )

    accept_data_loss: bool = Field(
        description="True: acknowledged rows may be lost by this; see status.recovery.",
    )
    mode: RecoveryMode = Field(
        default=RecoveryMode.MOST_COMPLETE,
        description="From what the partition goes on.",
    )
    lost_nodes: Annotated[
        tuple[NodeNumber, ...],
        Field(max_length=16, json_schema_extra={"x-list-type": "set"}),
    ] = Field(
        default=(),
        description="Data nodes that do not answer and never will again, with all they hold.",
    )


class RegionMigrationSpec(Model):
    """Which partition's leader moves, and where to."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.zoneName == oldSelf.zoneName",
            message="zoneName cannot be changed: apply a new RegionMigration",
            field_path=".zoneName",
        ),
        Rule(
            rule="self.partition == oldSelf.partition",
            message="partition cannot be changed: apply a new RegionMigration",
            field_path=".partition",
        ),
        Rule(
            rule="has(self.target) == has(oldSelf.target) && "
            "(!has(self.target) || self.target == oldSelf.target)",
            message="target cannot be changed: cancel this one and apply a new RegionMigration",
            field_path=".target",
        ),
        Rule(
            rule="self.oldLeaderPolicy == oldSelf.oldLeaderPolicy",
            message="oldLeaderPolicy cannot be changed: apply a new RegionMigration",
            field_path=".oldLeaderPolicy",
        ),
        Rule(
            rule="!(has(oldSelf.cancel) && oldSelf.cancel) || (has(self.cancel) && self.cancel)",
            message="a cancel cannot be taken back: apply a new RegionMigration",
            field_path=".cancel",
        ),
        Rule(
            rule="has(self.uncleanElection) == has(oldSelf.uncleanElection) && "
            "(!has(self.uncleanElection) || self.uncleanElection == oldSelf.uncleanElection)",
            message="uncleanElection cannot be changed: apply a new RegionMigration",
            field_path=".uncleanElection",
        ),
        Rule(
            rule="!has(self.retainOldLeaderSeconds) || self.oldLeaderPolicy == 'Retain'",
            message="an old leader that is removed is not retained for a time: leave "
            "retainOldLeaderSeconds or oldLeaderPolicy out",
            field_path=".retainOldLeaderSeconds",
        ),
        Rule(
            rule="!has(self.uncleanElection) || !has(self.retainOldLeaderSeconds)",
            message="uncleanElection has no old leader to keep: leave retainOldLeaderSeconds out",
            field_path=".retainOldLeaderSeconds",
        ),
        Rule(
            rule="!has(self.uncleanElection) || self.oldLeaderPolicy == 'Retain'",
            message="uncleanElection has no old leader to remove: leave oldLeaderPolicy out",
            field_path=".oldLeaderPolicy",
        ),
    )

    zone_name: Name = Field(description="The zone, in the migration's own namespace.")
    partition: Annotated[int, Field(ge=0, lt=16_384)] = Field(
        description="The partition whose leader moves.",
    )
    target: NodeNumber | None = Field(
        default=None,
        description="The data node that shall lead; without one the operator selects it.",
    )
    old_leader_policy: OldLeaderPolicy = Field(
        default=OldLeaderPolicy.RETAIN,
        description="What becomes of the old leader.",
    )
    retain_old_leader_seconds: (
        Annotated[int, Field(ge=0, le=RETAIN_OLD_LEADER_SECONDS_MAX)] | None
    ) = Field(
        default=None,
        description="How long the old leader stays a replica beside the partition's assignment, "
        "from the takeover on; without it, until a rebalance moves the partition. May be changed "
        "at any time, also afterwards: 0 removes it as soon as the assigned replicas are in sync. "
        "An old leader that is of the assignment stays.",
    )
    cancel: bool = Field(
        default=False,
        description="True: go back to the old leader, as long as the new one does not lead yet.",
    )
    unclean_election: UncleanElectionSpec | None = Field(
        default=None,
        description="Only for a partition that has lost its quorum: give acknowledged rows up.",
    )


class MigrationContext(Model):
    """All that a crash of the operator must not lose."""

    partition: Count = Field(
        description="The id of the partition whose leader moves: its index, and 16384 more for "
        "each re-sharding before.",
    )
    from_node: NodeNumber = Field(description="The data node that led at the start.")
    to_node: NodeNumber = Field(description="The data node that shall lead.")
    close_old_leader: bool = Field(
        default=False,
        description="The old leader gives up its copy at the end.",
    )
    leader_may_be_unreachable: bool = Field(
        default=False,
        description="The old leader may be unreachable: its end is its lease's, not its answer.",
    )
    route_version: Count = Field(
        default=0,
        description="The partition epoch after the last update.",
    )
    leader_epoch: Count = Field(default=0, description="The epoch the old leader led with.")
    next_epoch: Count = Field(default=0, description="The epoch the candidate may lead with.")
    last_entry_id: Count | None = Field(
        default=None,
        description="Where the old leader's log ended: the new one leads from this offset on. "
        "Written when it leads; absent when it led already.",
    )
    opened_candidate: bool = Field(
        default=False,
        description="The candidate's replica was made by this migration.",
    )
    retained_time: Time | None = Field(
        default=None,
        description="Since when the old leader is kept beside the assignment.",
    )


class RecoveryStatus(Model):
    """What an unclean election keeps, and what it may lose; offsets are of the partition's log."""

    empty: bool = Field(default=False, description="The partition starts over, without rows.")
    kept_offset: Count = Field(description="All acknowledged rows below this offset are kept.")
    log_end_offset: Count = Field(
        description="The new leader's log ends here: acknowledged rows from here on are lost.",
    )
    committed_offset: Count = Field(
        description="Rows below this offset are known to have been acknowledged, perhaps more.",
    )
    message: Message = Field(default="", description="The same in words.")


class RegionMigrationStatus(MachineStatus):
    """The persisted state machine of a migration."""

    context: MigrationContext | None = None
    recovery: RecoveryStatus | None = None
    copies: SparkCopies | None = None
    copy_progress: CopiesProgress | None = None
    write_unavailable_milliseconds: Count | None = Field(
        default=None,
        description="For how long the transfer stopped writes to the partition, as the new leader "
        "has measured it; absent where the old leader could not hand over.",
    )
    retain_old_leader_until_time: Time | None = Field(
        default=None,
        description="When the old leader, kept beside the assignment, is removed; what has become "
        "of it is in the zone's status.assignments.retained.",
    )


class RegionMigration(CustomObject[RegionMigrationSpec, RegionMigrationStatus]):
    """The move of one partition's leader to another data node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && "
            "size(self.metadata.name) <= 63",
            message="the name of a RegionMigration may have at most 63 characters, lower-case "
            "letters, digits and '-': choose another name",
            field_path=".metadata.name",
        ),
    )
    crd: ClassVar[CrdMeta] = CrdMeta(
        kind="RegionMigration",
        plural="regionmigrations",
        short_names=("rgm",),
        selectable_fields=(".spec.zoneName", ".spec.partition"),
        columns=(
            PrinterColumn(name="Zone", path=".spec.zoneName"),
            PrinterColumn(name="Partition", path=".spec.partition", type="integer"),
            PrinterColumn(name="From", path=".status.context.fromNode", type="integer"),
            PrinterColumn(name="To", path=".status.context.toNode", type="integer"),
            PrinterColumn(name="State", path=".status.state"),
            PrinterColumn(name="Waiting", path=".status.waitingReason"),
            PrinterColumn(
                name="Old leader until", path=".status.retainOldLeaderUntilTime", priority=1
            ),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    )
