"""RegionMigration (rgm): the leader of one partition moves (RM-01)."""

import enum
from typing import Annotated, ClassVar

from pydantic import Field

from rezone.resources.conditions import Condition
from rezone.resources.meta import Column as PrinterColumn
from rezone.resources.meta import CrdMeta, Rule
from rezone.resources.model import CustomObject, Message, Model, Name, ShortText, Time
from rezone.resources.task import LastError, Transition


class OldLeader(enum.StrEnum):
    """What becomes of the old leader (RM-07)."""

    FOLLOWER = "Follower"
    REMOVED = "Removed"


class MigrationState(enum.StrEnum):
    """The nodes of the seed's diagram, and the three ends."""

    SELECT_CANDIDATE = "SelectCandidate"
    OPEN_CANDIDATE = "OpenCandidate"
    UPDATE_METADATA_DOWN = "UpdateMetadataDown"
    DOWNGRADE_LEADER = "DowngradeLeader"
    UPGRADE_CANDIDATE = "UpgradeCandidate"
    UPDATE_METADATA_UP = "UpdateMetadataUp"
    UPDATE_METADATA_ROLLBACK = "UpdateMetadataRollback"
    CLOSE_OLD_LEADER = "CloseOldLeader"
    SUCCEEDED = "Succeeded"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"


TERMINAL_MIGRATION_STATES = frozenset(
    {MigrationState.SUCCEEDED, MigrationState.ROLLED_BACK, MigrationState.FAILED},
)


class RegionMigrationSpec(Model):
    """Which partition's leader moves, and where to."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.zoneName == oldSelf.zoneName && self.partition == oldSelf.partition && "
            "has(self.target) == has(oldSelf.target) && "
            "(!has(self.target) || self.target == oldSelf.target)",
            message="zoneName, partition and target cannot be changed: apply a new RegionMigration",
        ),
    )

    zone_name: Name = Field(description="The zone, in the migration's own namespace.")
    partition: Annotated[int, Field(ge=0, lt=16_384)]
    target: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="The data node that shall lead; without one the operator selects it.",
    )
    old_leader: OldLeader = Field(
        default=OldLeader.FOLLOWER,
        description="Follower: the old leader stays a replica. Removed: it gives up its copy.",
    )
    cancel: bool = False


class MigrationContext(Model):
    """The persistent context of RM-02: all that a crash must not lose."""

    partition: int
    from_node: int
    to_node: int
    close_old_leader: bool = False
    leader_may_unreachable: bool = False
    route_version: int = Field(default=0, description="The partition epoch after the last update.")
    leader_epoch: int = 0
    next_epoch: int = 0
    opened_candidate: bool = Field(
        default=False,
        description="The candidate's replica was made by this migration.",
    )


class RegionMigrationStatus(Model):
    """The persisted state machine of a migration."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(max_length=8, json_schema_extra={"x-list-map-keys": ["type"]}),
    ] = ()
    observed_generation: int = 0
    state: ShortText = ""
    context: MigrationContext | None = None
    attempt: int = 0
    started_time: Time | None = None
    finished_time: Time | None = None
    deadline_time: Time | None = None
    waiting_for: Message = ""
    last_error: LastError | None = None
    history: Annotated[
        tuple[Transition, ...],
        Field(max_length=32, json_schema_extra={"x-list-type": "atomic"}),
    ] = ()


class RegionMigration(CustomObject[RegionMigrationSpec, RegionMigrationStatus]):
    """The move of one partition's leader."""

    crd: ClassVar[CrdMeta] = CrdMeta(
        kind="RegionMigration",
        plural="regionmigrations",
        short_names=("rgm",),
        columns=(
            PrinterColumn(name="Zone", path=".spec.zoneName"),
            PrinterColumn(name="Partition", path=".spec.partition", type="integer"),
            PrinterColumn(name="From", path=".status.context.fromNode", type="integer"),
            PrinterColumn(name="To", path=".status.context.toNode", type="integer"),
            PrinterColumn(name="State", path=".status.state"),
            PrinterColumn(name="Waiting", path=".status.waitingFor", priority=1),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    )
