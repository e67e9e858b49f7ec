"""DistributionZone (dz): a partitioned, replicated table and the nodes it may live on."""

import enum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rezone.resources.conditions import Condition
from rezone.resources.meta import Column as PrinterColumn
from rezone.resources.meta import CrdMeta, Rule, Scale
from rezone.resources.model import CompactText, CustomObject, Model, Name, ShortText, Time
from rezone.wire.messages import EngineKind
from rezone.wire.schema import ColumnType

DATA_NODES_MAX = 1024


class ApprovalMode(enum.StrEnum):
    """Whether a plan runs at once or waits for a person."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class Durability(enum.StrEnum):
    """When a replica answers for a write."""

    FSYNC = "Fsync"


class ColumnSpec(Model):
    """One column of the table."""

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
    type: ColumnType = Field(description="The column's Arrow type.")
    nullable: bool = Field(default=True, description="Whether null is allowed; never in the key.")


class SchemaSpec(Model):
    """The columns of the table; without a schema the zone holds binary keys and values."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.primaryKey.all(k, self.columns.exists(c, c.name == k))",
            message="every name in primaryKey must be the name of a column",
            field_path=".primaryKey",
        ),
        Rule(
            rule=(
                "self.primaryKey.all(k, self.columns.all(c, c.name != k || "
                "!(c.type in ['float32', 'float64'])))"
            ),
            message="a primary key column cannot be float32 or float64: use an integer or a string",
            field_path=".primaryKey",
        ),
    )

    columns: Annotated[
        tuple[ColumnSpec, ...],
        Field(min_length=1, max_length=256, json_schema_extra={"x-list-map-keys": ["name"]}),
    ]
    primary_key: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(min_length=1, max_length=16, json_schema_extra={"x-list-type": "set"}),
    ] = Field(description="The columns that identify a row, in order.")


class VolumeClaimSpec(Model):
    """The volume of one data node; without one its data lives as long as its pod."""

    storage_class_name: ShortText | None = None
    size: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$")]


class StorageSpec(Model):
    """Where and how rows are kept."""

    engine: EngineKind = Field(default=EngineKind.ROCKSDB, description="The storage engine.")
    durability: Durability = Field(
        default=Durability.FSYNC,
        description="Fsync: a replica answers for a write when it is on its disk.",
    )
    volume_claim_template: VolumeClaimSpec | None = None


class AutoAdjustSpec(Model):
    """How long a change of nodes must last before it starts a rebalance."""

    scale_up_seconds: Annotated[int, Field(ge=0, le=86_400)] = 0
    scale_down_seconds: Annotated[int, Field(ge=0, le=86_400)] = 300


class DataNodesSpec(Model):
    """Which data nodes the zone has: a count, or one on each matching Kubernetes node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.count) != has(self.nodeSelector)",
            message="set exactly one of dataNodes.count and dataNodes.nodeSelector",
        ),
    )

    count: Annotated[int, Field(ge=1, le=DATA_NODES_MAX)] | None = Field(
        default=None,
        description="How many data nodes; the target of /scale.",
    )
    node_selector: (
        Annotated[
            dict[
                str,
                Annotated[str, Field(max_length=63)],
            ],
            Field(min_length=1, max_length=16),
        ]
        | None
    ) = Field(
        default=None,
        description="Labels of Kubernetes nodes; each matching node gets one data node.",
    )
    failure_domain_key: Annotated[str, Field(max_length=317)] = Field(
        default="topology.kubernetes.io/zone",
        description="The node label whose values are failure domains.",
    )
    auto_adjust: AutoAdjustSpec = AutoAdjustSpec()
    pod_template: dict[str, Any] | None = Field(
        default=None,
        description="Overrides merged into the data node's pod template.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class RebalanceSpec(Model):
    """How partitions may be moved."""

    approval: ApprovalMode = Field(
        default=ApprovalMode.AUTOMATIC,
        description="Manual: a plan waits until its RebalanceTask is approved.",
    )
    paused: bool = Field(default=False, description="No new moves start; running ones finish.")
    max_concurrent_migrations: Annotated[int, Field(ge=1, le=1000)] = 8
    max_migrations_per_node: Annotated[int, Field(ge=1, le=1000)] = 4
    max_bytes_per_second: Annotated[int, Field(ge=0, le=1 << 50)] = Field(
        default=0,
        description="The bulk copy rate of the whole zone; 0 is no limit.",
    )


class TransferSpec(Model):
    """How bulk data travels."""

    spark_threshold_bytes: Annotated[int, Field(ge=0, le=1 << 50)] = Field(
        default=256 << 20,
        description="A task that copies less streams node to node, without starting Spark.",
    )
    spark_template: dict[str, Any] | None = Field(
        default=None,
        description="Overrides merged into the spec of the SparkApplication.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class DistributionZoneSpec(Model):
    """What the table is and where it may live."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="!has(self.minInSyncReplicas) || self.minInSyncReplicas <= self.replicas",
            message="minInSyncReplicas cannot be larger than replicas: lower it or raise replicas",
            field_path=".minInSyncReplicas",
        ),
        Rule(
            rule="!has(self.hotStandbys) || self.hotStandbys < self.replicas",
            message="hotStandbys must be smaller than replicas: one replica is the leader",
            field_path=".hotStandbys",
        ),
        Rule(
            rule="has(self.schema) == has(oldSelf.schema) && (!has(self.schema) || "
            "self.schema == oldSelf.schema)",
            message="schema cannot be changed: make a new zone and copy the rows",
            field_path=".schema",
        ),
        Rule(
            rule="(has(self.storage) ? self.storage.engine : 'RocksDB') == "
            "(has(oldSelf.storage) ? oldSelf.storage.engine : 'RocksDB')",
            message="storage.engine cannot be changed: make a new zone and copy the rows",
            field_path=".storage",
        ),
    )

    partitions: Annotated[int, Field(ge=1, le=16_384)] = Field(
        description="Into how many hash ranges the rows are cut.",
    )
    replicas: Annotated[int, Field(ge=1, le=7)] = Field(
        description="On how many data nodes each partition is kept.",
    )
    min_in_sync_replicas: Annotated[int, Field(ge=1, le=7)] | None = Field(
        default=None,
        description="Fewer in-sync replicas refuse writes; default: a majority of replicas.",
    )
    hot_standbys: Annotated[int, Field(ge=0, le=6)] = Field(
        default=0,
        description="Replicas per partition that stay ready to lead at once.",
    )
    table_schema: SchemaSpec | None = Field(default=None, alias="schema")
    storage: StorageSpec = StorageSpec()
    data_nodes: DataNodesSpec
    rebalance: RebalanceSpec = RebalanceSpec()
    transfer: TransferSpec = TransferSpec()

    @property
    def min_in_sync(self) -> int:
        """Return minInSyncReplicas or its default, a majority of the replicas."""
        return self.min_in_sync_replicas or self.replicas // 2 + 1


class DataNodeState(enum.StrEnum):
    """The life of a data node."""

    STARTING = "Starting"
    ACTIVE = "Active"
    DRAINING = "Draining"
    LOST = "Lost"


class DataNodeStatus(Model):
    """One data node: its id, pod and place."""

    id: int
    pod_name: ShortText
    node_name: ShortText = ""
    address: ShortText = ""
    failure_domain: ShortText = ""
    state: DataNodeState = DataNodeState.STARTING


class Assignment(Model):
    """Which data nodes hold each partition, written compactly: "0,1,2;1,2,3" (partition 0, 1).

    The first of a partition's nodes is its preferred leader. `revision` is the revision of the
    trigger that made it; it compares like ZR-04's timestamps.
    """

    revision: int
    replicas: CompactText


class CancelIntent(Model):
    """ZR-19: the pair of topologies of the rebalance to be cancelled, by pending's revision."""

    revision: int
    old: CompactText
    new: CompactText


class Assignments(Model):
    """The five assignment keys of the seed (ZR-04, ZR-10, ZR-19)."""

    stable: Assignment | None = None
    pending: Assignment | None = None
    planned: Assignment | None = None
    change: int = 0
    cancel: CancelIntent | None = None


class DistributionZoneStatus(Model):
    """What the operator has observed and decided."""

    conditions: Annotated[
        tuple[Condition, ...],
        Field(max_length=8, json_schema_extra={"x-list-map-keys": ["type"]}),
    ] = ()
    observed_generation: int = 0
    replicas: int = Field(default=0, description="Data nodes that exist; read by /scale.")
    selector: ShortText = ""
    ready_data_nodes: int = 0
    partitions_ready: int = Field(default=0, description="Partitions with all replicas in sync.")
    under_replicated: int = 0
    current_task: ShortText = ""
    next_node_id: int = Field(default=0, description="The id the next data node gets; ids are never used again.")
    data_nodes: Annotated[
        tuple[DataNodeStatus, ...],
        Field(max_length=DATA_NODES_MAX, json_schema_extra={"x-list-map-keys": ["id"]}),
    ] = ()
    assignments: Assignments = Assignments()
    trigger_time: Time | None = Field(
        default=None,
        description="Since when the wanted data nodes differ from the assigned ones.",
    )


class DistributionZone(CustomObject[DistributionZoneSpec, DistributionZoneStatus]):
    """A partitioned, replicated table that is kept on the nodes that the spec wants."""

    crd: ClassVar[CrdMeta] = CrdMeta(
        kind="DistributionZone",
        plural="distributionzones",
        short_names=("dz",),
        scale=Scale(
            spec_path=".spec.dataNodes.count",
            status_path=".status.replicas",
            selector_path=".status.selector",
        ),
        columns=(
            PrinterColumn(name="Ready", path='.status.conditions[?(@.type=="Ready")].status'),
            PrinterColumn(name="Partitions", path=".spec.partitions", type="integer"),
            PrinterColumn(name="In-Sync", path=".status.partitionsReady", type="integer"),
            PrinterColumn(name="Nodes", path=".status.readyDataNodes", type="integer"),
            PrinterColumn(name="Task", path=".status.currentTask"),
            PrinterColumn(
                name="Reason",
                path='.status.conditions[?(@.type=="Ready")].reason',
                priority=1,
            ),
            PrinterColumn(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    )
