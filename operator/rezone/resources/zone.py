"""DistributionZone (dz): a partitioned, replicated table and the nodes it may live on."""

import enum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rezone.resources.meta import Column as PrinterColumn
from rezone.resources.meta import CrdMeta, Rule, Scale
from rezone.resources.model import CustomObject, LabelKey, Model, NodeNumber
from rezone.resources.zone_status import DATA_NODES_MAX, DistributionZoneStatus
from rezone.wire.codec.schema import INDEXES_MAX, ColumnType
from rezone.wire.messages import EngineKind

MAINTENANCE_SECONDS_MIN = 60
MAINTENANCE_SECONDS_MAX = 604_800
MAINTENANCE_MAX = 64
"""So many data nodes of a zone may be named at one time."""


class ApprovalMode(enum.StrEnum):
    """Whether a plan runs at once or waits for a person."""

    AUTOMATIC = "Automatic"  # a plan runs at once
    MANUAL = "Manual"  # a plan waits until its RebalanceTask is approved


class ColumnSpec(Model):
    """One column of the table."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    ] = Field(description="The column's name.")
    type: ColumnType = Field(description="The column's Arrow type.")
    nullable: bool = Field(default=True, description="Whether null is allowed; never in the key.")


class IndexSpec(Model):
    """A secondary index: rows can be looked up by its columns, for equal values and ranges."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.columns.all(k, self.columns.exists_one(x, x == k))",
            message="a column may stand only once in an index: remove the repetition",
            field_path=".columns",
        ),
    )

    name: Annotated[
        str,
        Field(min_length=1, max_length=63, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"),
    ] = Field(description="The index's name; lookups ask for it.")
    # Atomic for the same reason as the primary key's columns.
    columns: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(min_length=1, max_length=8, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(description="The columns rows are looked up by, in order.")


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
        Rule(
            rule="self.primaryKey.all(k, self.primaryKey.exists_one(x, x == k))",
            message="a column may stand only once in primaryKey: remove the repetition",
            field_path=".primaryKey",
        ),
        Rule(
            rule="!has(self.indexes) || self.indexes.all(i, i.columns.all(k, "
            "self.columns.exists(c, c.name == k)))",
            message="every name in an index's columns must be the name of a column",
            field_path=".indexes",
        ),
        Rule(
            rule="!has(self.indexes) || self.indexes.all(i, i.columns.all(k, "
            "self.columns.all(c, c.name != k || !(c.type in ['float32', 'float64']))))",
            message="an index's column cannot be float32 or float64: use an integer or a string",
            field_path=".indexes",
        ),
        Rule(
            rule="!has(self.indexes) || self.indexes.all(i, i.columns != self.primaryKey)",
            message="an index of just the primary key's columns is none: rows are read by their "
            "key, remove it",
            field_path=".indexes",
        ),
    )

    columns: Annotated[
        tuple[ColumnSpec, ...],
        Field(min_length=1, max_length=256, json_schema_extra={"x-list-map-keys": ["name"]}),
    ] = Field(description="The columns, in order.")
    # Not a list of type set: server-side apply does not promise to keep a set's order.
    primary_key: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=128)], ...],
        Field(min_length=1, max_length=16, json_schema_extra={"x-list-type": "atomic"}),
    ] = Field(description="The columns that identify a row, in order.")
    indexes: Annotated[
        tuple[IndexSpec, ...],
        Field(max_length=INDEXES_MAX, json_schema_extra={"x-list-map-keys": ["name"]}),
    ] = Field(
        default=(),
        description="Secondary indexes. They can be added and removed while the zone is in use; "
        "one of the same name with other columns is another one. A new one is built in the "
        "background, and lookups by it are refused until its partition's leader has built it.",
    )


class VolumeClaimSpec(Model):
    """The volume of one data node; without one its data lives as long as its pod."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="quantity(self.size).isGreaterThan(quantity('0'))",
            message="size must be larger than 0, for example 10Gi",
            field_path=".size",
        ),
        Rule(
            rule="!quantity(self.size).isLessThan(quantity(oldSelf.size))",
            message="size can only grow, volumes do not shrink: make a new zone and copy the rows",
            field_path=".size",
        ),
        Rule(
            rule="has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            message="storageClassName cannot be changed: make a new zone and copy the rows",
            field_path=".storageClassName",
        ),
    )

    storage_class_name: (
        Annotated[
            str,
            Field(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"),
        ]
        | None
    ) = Field(default=None, description="The storage class; without one the cluster's default.")
    size: Annotated[
        str,
        Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$"),
    ] = Field(description="How much one data node may store, as a quantity such as 100Gi.")


class StorageSpec(Model):
    """Where and how rows are kept."""

    engine: EngineKind = Field(default=EngineKind.ROCKSDB, description="The storage engine.")
    version_retention_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = Field(
        default=3600,
        description="For how long rows can be read as they were; also the longest scan. They take "
        "room meanwhile. It can only be lowered.",
    )
    volume_claim_template: VolumeClaimSpec | None = None


class AutoAdjustSpec(Model):
    """How long a change of nodes must last before it starts a rebalance."""

    scale_up_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=0,
        description="How long a new data node must stand before partitions move to it.",
    )
    scale_down_seconds: Annotated[int, Field(ge=0, le=86_400)] = Field(
        default=300,
        description="How long a data node may be gone before its partitions move elsewhere.",
    )


class FeedSpec(Model):
    """A named change feed: partitions keep their log for it until it has acknowledged it."""

    name: Annotated[
        str,
        Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
    ] = Field(description="The feed's name; whoever acknowledges says it.")
    max_bytes: Annotated[int, Field(ge=1_048_576, le=4_294_967_296)] = Field(
        default=1_073_741_824,
        description="How much log of each partition is kept for it at most, in bytes.",
    )
    max_age_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = Field(
        default=86_400,
        description="How old the log is that is kept for it at most.",
    )


class UpdateMode(enum.StrEnum):
    """Who replaces pods that were made from an older template."""

    ROLLING_UPDATE = "RollingUpdate"  # the operator, one after the other
    ON_DELETE = "OnDelete"  # whoever deletes a pod


class UpdateStrategySpec(Model):
    """How pods are brought up to date when image, resources, template or settings change."""

    type: UpdateMode = Field(
        default=UpdateMode.ROLLING_UPDATE,
        description="Who replaces pods that were made from an older template.",
    )
    paused: bool = Field(
        default=False,
        description="True: no further pod is replaced; one that is being replaced goes on.",
    )
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        default=600,
        description="How long a replaced pod may take to catch up before the update stops.",
    )


class MaintenanceSpec(Model):
    """A data node that is about to be away for a while, and comes back with its data."""

    node: NodeNumber = Field(description="The data node's id.")
    duration_seconds: Annotated[
        int, Field(ge=MAINTENANCE_SECONDS_MIN, le=MAINTENANCE_SECONDS_MAX)
    ] = Field(
        default=3600,
        description="For how long, from when the operator sees it first. Afterwards the usual "
        "rules hold: a cordoned node is drained, one that is away is replaced.",
    )


class DataNodesSpec(Model):
    """Which data nodes the zone has: a count, or one on each matching Kubernetes node."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="has(self.count) != has(self.nodeSelector)",
            message="set exactly one of dataNodes.count and dataNodes.nodeSelector",
        ),
        Rule(
            rule="!has(self.nodeSelector) || self.nodeSelector.all(k, "
            "!format.qualifiedName().validate(k).hasValue() && "
            "!format.labelValue().validate(self.nodeSelector[k]).hasValue())",
            message="nodeSelector must hold valid Kubernetes labels, for example "
            "node.kubernetes.io/instance-type: large",
            field_path=".nodeSelector",
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
    failure_domain_key: LabelKey = Field(
        default="topology.kubernetes.io/zone",
        description="The node label whose values are failure domains.",
    )
    weight_key: LabelKey = Field(
        default="rezone.dev/weight",
        description="The node label that says how much a data node there holds beside the others: "
        "a number from 1 to 1000, and 1 where it is missing or no such number.",
    )
    auto_adjust: AutoAdjustSpec = AutoAdjustSpec()
    maintenance: Annotated[
        tuple[MaintenanceSpec, ...],
        Field(max_length=MAINTENANCE_MAX, json_schema_extra={"x-list-map-keys": ["node"]}),
    ] = Field(
        default=(),
        description="Data nodes in maintenance: their leaders leave, their data stays, and they "
        "are not replaced. The annotation rezone.dev/maintenance on a Kubernetes node asks the "
        "same for all data nodes there.",
    )
    update_strategy: UpdateStrategySpec = UpdateStrategySpec()
    pod_template: dict[str, Any] | None = Field(
        default=None,
        description="Overrides merged into the data node's pod template; takes all fields of a "
        "pod template, see `kubectl explain pod`.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class TargetFailurePolicy(enum.StrEnum):
    """What becomes of partitions whose target fails while they move."""

    REPLACE = "Replace"  # the next rebalance takes other data nodes, where there are as good ones
    FINISH = "Finish"  # they stay where they were; all else goes on


class RebalanceSpec(Model):
    """How partitions may be moved."""

    approval: ApprovalMode = Field(
        default=ApprovalMode.AUTOMATIC,
        description="Whether a plan runs at once or waits for a person.",
    )
    paused: bool = Field(default=False, description="No new moves start; running ones finish.")
    max_concurrent_migrations: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=8,
        description="How many partitions of the zone may move at once.",
    )
    max_migrations_per_node: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=4,
        description="How many partitions may move to or from one data node at once.",
    )
    max_concurrent_handovers: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=64,
        description="How many leaders a rebalance may move at once between replicas that are in "
        "sync already, in batches; 0: each of them by a RegionMigration, within the limits above.",
    )
    target_failure_policy: TargetFailurePolicy = Field(
        default=TargetFailurePolicy.REPLACE,
        description="What becomes of partitions whose target is lost while they move, or whose "
        "copy fails for good. What has moved stays in any case.",
    )
    copy_progress_deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        default=600,
        description="How long a copy that was begun may make no progress before its target counts "
        "as failed.",
    )
    max_bytes_per_second: Annotated[int, Field(ge=0, le=1 << 50)] = Field(
        default=0,
        description="The bulk copy rate of the whole zone; 0 is no limit.",
    )
    foreground_target_percent: Annotated[int, Field(ge=0, le=95)] = Field(
        default=80,
        description="About how much of their throughput readers and writers of a data node keep "
        "while its partitions are copied and followed; copies and change feeds are slower for it, "
        "but not beside clients that leave the node idle for half of the time. 0: they take what "
        "they get.",
    )


class SparkFallback(enum.StrEnum):
    """What a large copy does when its SparkApplication does not come to copy."""

    WAIT = "Wait"  # it waits, and its task is Stalled
    STREAM = "Stream"  # the application is deleted, and data nodes stream within the same limits


class TransferSpec(Model):
    """How bulk data travels."""

    spark_threshold_bytes: Annotated[int, Field(ge=0, le=1 << 50)] = Field(
        default=256 << 20,
        description="A task that copies or backfills less streams node to node, without starting "
        "Spark.",
    )
    when_spark_unavailable: SparkFallback = Field(
        default=SparkFallback.STREAM,
        description="What larger copies do when their SparkApplication copies nothing for "
        "sparkTimeoutSeconds: no spark-operator runs, its driver does not start, or the like.",
    )
    spark_timeout_seconds: Annotated[int, Field(ge=10, le=86_400)] = Field(
        default=300,
        description="How long a SparkApplication may be in a state in which it copies nothing; one "
        "that runs may for at least 900 seconds.",
    )
    spark_template: dict[str, Any] | None = Field(
        default=None,
        description="Overrides merged into the spec of the SparkApplication; takes all its "
        "fields, see `kubectl explain sparkapplication.spec`.",
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
            # Three assignments and a cancel intent stand in one status: tests/kube/test_kube_sizes.
            rule="self.partitions * self.replicas <= 49152",
            message="partitions times replicas may be at most 49152, or the assignments have no "
            "room in one object: lower one of the two, or make two zones",
        ),
        Rule(
            # The lists of names stand for the order, which a list of type map does not compare.
            rule="has(self.schema) == has(oldSelf.schema) && (!has(self.schema) || "
            "(self.schema.columns == oldSelf.schema.columns && "
            "self.schema.primaryKey == oldSelf.schema.primaryKey && "
            "self.schema.columns.map(c, c.name) == oldSelf.schema.columns.map(c, c.name)))",
            message="of schema only indexes can be changed, columns and primaryKey stay: "
            "make a new zone and copy the rows",
            field_path=".schema",
        ),
        Rule(
            rule="(has(self.storage) ? self.storage.engine : 'RocksDB') == "
            "(has(oldSelf.storage) ? oldSelf.storage.engine : 'RocksDB')",
            message="storage.engine cannot be changed: make a new zone and copy the rows",
            field_path=".storage",
        ),
        Rule(
            rule="(has(self.storage) ? self.storage.versionRetentionSeconds : 3600) <= "
            "(has(oldSelf.storage) ? oldSelf.storage.versionRetentionSeconds : 3600)",
            message="storage.versionRetentionSeconds can only be lowered, as versions that were "
            "removed do not come back: make a new zone and copy the rows",
            field_path=".storage",
        ),
        Rule(
            rule="(has(self.storage) && has(self.storage.volumeClaimTemplate)) == "
            "(has(oldSelf.storage) && has(oldSelf.storage.volumeClaimTemplate))",
            message="storage.volumeClaimTemplate cannot be added or removed: "
            "make a new zone and copy the rows",
            field_path=".storage",
        ),
    )

    partitions: Annotated[int, Field(ge=1, le=16_384)] = Field(
        description="Into how many hash ranges the rows are cut. Another number re-shards the zone "
        "while it is in use.",
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
    paused: bool = Field(
        default=False,
        description="True: the operator changes no leader and no replica by itself, not even when "
        "a leader is lost; RebalanceTasks and RegionMigrations that a person applies go on.",
    )
    table_schema: SchemaSpec | None = Field(default=None, alias="schema")
    storage: StorageSpec = StorageSpec()
    feeds: Annotated[
        tuple[FeedSpec, ...],
        Field(max_length=16, json_schema_extra={"x-list-map-keys": ["name"]}),
    ] = Field(
        default=(),
        description="Change feeds whose log is kept until they have acknowledged it, in limits.",
    )
    data_nodes: DataNodesSpec
    rebalance: RebalanceSpec = RebalanceSpec()
    transfer: TransferSpec = TransferSpec()

    @property
    def min_in_sync(self) -> int:
        """Return minInSyncReplicas or its default, a majority of the replicas."""
        return self.min_in_sync_replicas or self.replicas // 2 + 1


class DistributionZone(CustomObject[DistributionZoneSpec, DistributionZoneStatus]):
    """A partitioned, replicated table that is kept on the nodes that the spec wants."""

    # Services, pods and tasks carry the zone's name with a suffix, all within 63 characters.
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && "
            "size(self.metadata.name) <= 40",
            message="the name of a DistributionZone starts with a letter and has at most 40 "
            "characters, lower-case letters, digits and '-': choose another name",
            field_path=".metadata.name",
        ),
    )
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
