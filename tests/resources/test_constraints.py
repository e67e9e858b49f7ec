"""Every constraint of the three kinds on a real API server: one manifest it takes, one it refuses.

`test_table_is_complete` compares the table with the compiled definitions, so a constraint cannot
be added, or lost by the compiler, without a row here.
"""

# ruff: noqa: E501 - one row, one line: the table is read by its columns

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from resource_server import NAMESPACE, Server

from rezone.resources import API_VERSION
from rezone.resources.crd import LIST_TYPE, RULES, custom_resource_definitions

pytestmark = pytest.mark.apiserver

Json = dict[str, Any]
REMOVED = object()

KEYWORDS = (
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "enum",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
)
SCHEMA = {"columns": [{"name": "id", "type": "int64"}], "primaryKey": ["id"]}
VOLUME = {"storageClassName": "fast", "size": "10Gi"}
BASES: dict[str, Json] = {
    "DistributionZone": {"partitions": 8, "replicas": 3, "dataNodes": {"count": 3}},
    "RebalanceTask": {"zoneName": "orders"},
    "RegionMigration": {"zoneName": "orders", "partition": 0},
}


@dataclass(frozen=True)
class Row:
    """A constraint on a field, a value the server takes there and one it refuses, and its words."""

    kind: str
    path: str
    keyword: str
    good: Any
    bad: Any
    says: str
    given: Json = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.kind}-{self.path}-{self.keyword}"


UNCLEAN: Json = {"acceptDataLoss": True}


@dataclass(frozen=True)
class RuleRow:
    """A CEL rule: edits of an object that keep it and that break it.

    A transition rule has `before`, the edits the stored object was made with.
    """

    kind: str
    says: str
    good: Json
    bad: Json
    before: Json | None = None

    def __str__(self) -> str:
        return f"{self.kind}-{re.sub('[^a-zA-Z]+', '-', self.says)[:60]}"


def dz(path: str, keyword: str, good: Any, bad: Any, says: str, **given: Any) -> Row:
    """Return a row about zones; in `given`, two underscores stand for a dot."""
    return Row("DistributionZone", path, keyword, good, bad, says, _dotted(given))


def rbt(path: str, keyword: str, good: Any, bad: Any, says: str, **given: Any) -> Row:
    """Return a row about tasks."""
    return Row("RebalanceTask", path, keyword, good, bad, says, _dotted(given))


def rgm(path: str, keyword: str, good: Any, bad: Any, says: str) -> Row:
    """Return a row about migrations."""
    return Row("RegionMigration", path, keyword, good, bad, says)


def unclean(path: str, keyword: str, good: Any, bad: Any, says: str) -> Row:
    """Return a row about the way out of a lost quorum."""
    given = {"spec.uncleanElection": UNCLEAN}
    return Row("RegionMigration", f"spec.uncleanElection.{path}", keyword, good, bad, says, given)


def _dotted(given: Json) -> Json:
    return {path.replace("__", "."): value for path, value in given.items()}


def columns(count: int) -> list[Json]:
    """Return so many columns, the first of them `id`."""
    return [{"name": f"c{n}" if n else "id", "type": "int64"} for n in range(count)]


def indexes(count: int) -> list[Json]:
    """Return so many indexes."""
    return [{"name": f"i{n}", "columns": ["c1"]} for n in range(count)]


def feeds(count: int) -> list[Json]:
    """Return so many named feeds."""
    return [{"name": f"f{n}"} for n in range(count)]


def labels(count: int) -> dict[str, str]:
    """Return so many node labels."""
    return {f"label-{n}": "x" for n in range(count)}


def moves(count: int) -> list[Json]:
    """Return so many moves."""
    return [{"partition": n, "replicas": [0]} for n in range(count)]


NODES = {"spec__dataNodes__count": REMOVED}
TABLE = {"spec__schema": SCHEMA}
INDEXED = {
    "spec__schema": {"columns": columns(20), "primaryKey": ["id"], "indexes": indexes(1)},
}
FED = {"spec__feeds": [{"name": "a"}]}
MAINTAINED = {"spec__dataNodes__maintenance": [{"node": 0}, {"node": 1}]}
DISK = {"spec__storage": {"volumeClaimTemplate": VOLUME}}
WIDE = {"spec__replicas": 7}
DRAIN = {"spec__type": "Drain"}
MOVES = {"spec__type": "Moves", "spec__moves": moves(1)}
AT_LEAST_0 = "should be greater than or equal to 0"
AT_LEAST_1 = "should be greater than or equal to 1"
LAST_PARTITION = "should be less than or equal to 16383"
NUMBER_MAX, COUNT_MAX = 2_147_483_647, 1 << 50
LAST_NODE = f"should be less than or equal to {NUMBER_MAX}"
UP_TO = "should be less than or equal to {}"

# fmt: off
ROWS: tuple[Row, ...] = (
    dz("spec", "required", BASES["DistributionZone"], REMOVED, "spec: Required value"),
    dz("spec.partitions", "required", 8, REMOVED, "spec.partitions: Required value"),
    dz("spec.partitions", "minimum", 1, 0, AT_LEAST_1),
    dz("spec.partitions", "maximum", 16_384, 16_385, UP_TO.format(16384)),
    dz("spec.replicas", "required", 3, REMOVED, "spec.replicas: Required value"),
    dz("spec.replicas", "minimum", 1, 0, AT_LEAST_1),
    dz("spec.replicas", "maximum", 7, 8, UP_TO.format(7)),
    dz("spec.minInSyncReplicas", "minimum", 1, 0, AT_LEAST_1),
    dz("spec.minInSyncReplicas", "maximum", 7, 8, UP_TO.format(7), **WIDE),
    dz("spec.hotStandbys", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.hotStandbys", "maximum", 6, 7, UP_TO.format(6), **WIDE),
    dz("spec.schema.columns", "required", columns(1), REMOVED, "columns: Required value", **TABLE),
    dz("spec.schema.columns", "minItems", columns(1), [], "should have at least 1 items", **TABLE),
    dz("spec.schema.columns", "maxItems", columns(256), columns(257), "must have at most 256 items", **TABLE),
    dz("spec.schema.columns", "repeat", columns(2), columns(1) * 2, 'Duplicate value: {"name":"id"}', **TABLE),
    dz("spec.schema.columns[].name", "required", "id", REMOVED, "name: Required value", **TABLE),
    dz("spec.schema.columns[].name", "minLength", "id", "", "at least 1 chars", **TABLE),
    dz("spec.schema.columns.1.name", "maxLength", "x" * 128, "x" * 129, "may not be more than 128 bytes",
       spec__schema={"columns": columns(2), "primaryKey": ["id"]}),
    dz("spec.schema.columns.1.name", "pattern", "_x1", "1-x", "should match '^[A-Za-z_][A-Za-z0-9_]*$'",
       spec__schema={"columns": columns(2), "primaryKey": ["id"]}),
    dz("spec.schema.columns[].type", "required", "int64", REMOVED, "type: Required value", **TABLE),
    dz("spec.schema.columns[].type", "enum", "timestamp[us]", "datetime", 'supported values: "bool"', **TABLE),
    dz("spec.schema.primaryKey", "required", ["id"], REMOVED, "primaryKey: Required value", **TABLE),
    dz("spec.schema.primaryKey", "minItems", ["id"], [], "should have at least 1 items", **TABLE),
    dz("spec.schema.primaryKey", "maxItems", ["id"] + [f"c{n}" for n in range(1, 16)],
       ["id"] + [f"c{n}" for n in range(1, 17)], "must have at most 16 items",
       spec__schema={"columns": columns(20), "primaryKey": ["id"]}),
    dz("spec.schema.primaryKey[]", "minLength", "id", "", "at least 1 chars", **TABLE),
    dz("spec.schema.primaryKey[]", "maxLength", "id", "x" * 129, "may not be more than 128 bytes", **TABLE),
    dz("spec.feeds", "maxItems", feeds(16), feeds(17), "must have at most 16 items"),
    dz("spec.feeds", "repeat", feeds(2), feeds(1) * 2, 'Duplicate value: {"name":"f0"}'),
    dz("spec.feeds[].name", "required", "x", REMOVED, "name: Required value", **FED),
    dz("spec.feeds[].name", "minLength", "x", "", "at least 1 chars", **FED),
    dz("spec.feeds[].name", "maxLength", "x" * 63, "x" * 64, "may not be more than 63 bytes", **FED),
    dz("spec.feeds[].name", "pattern", "a-1", "A_1", "should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'", **FED),
    dz("spec.feeds[].maxBytes", "minimum", 1 << 20, (1 << 20) - 1, "greater than or equal to 1048576", **FED),
    dz("spec.feeds[].maxBytes", "maximum", 1 << 32, (1 << 32) + 1, UP_TO.format(4294967296), **FED),
    dz("spec.feeds[].maxAgeSeconds", "minimum", 60, 59, "greater than or equal to 60", **FED),
    dz("spec.feeds[].maxAgeSeconds", "maximum", 2_592_000, 2_592_001, UP_TO.format(2592000), **FED),
    dz("spec.schema.indexes", "maxItems", indexes(16), indexes(17), "must have at most 16 items", **INDEXED),
    dz("spec.schema.indexes", "repeat", indexes(2), indexes(1) * 2, 'Duplicate value: {"name":"i0"}', **INDEXED),
    dz("spec.schema.indexes[].name", "required", "x", REMOVED, "name: Required value", **INDEXED),
    dz("spec.schema.indexes[].name", "minLength", "x", "", "at least 1 chars", **INDEXED),
    dz("spec.schema.indexes[].name", "maxLength", "x" * 63, "x" * 64, "may not be more than 63 bytes", **INDEXED),
    dz("spec.schema.indexes[].name", "pattern", "_x1", "1-x", "should match '^[A-Za-z_][A-Za-z0-9_]*$'", **INDEXED),
    dz("spec.schema.indexes[].columns", "required", ["c1"], REMOVED, "columns: Required value", **INDEXED),
    dz("spec.schema.indexes[].columns", "minItems", ["c1"], [], "should have at least 1 items", **INDEXED),
    dz("spec.schema.indexes[].columns", "maxItems", [f"c{n}" for n in range(1, 9)],
       [f"c{n}" for n in range(1, 10)], "must have at most 8 items", **INDEXED),
    dz("spec.schema.indexes[].columns[]", "minLength", "c1", "", "at least 1 chars", **INDEXED),
    dz("spec.schema.indexes[].columns[]", "maxLength", "c1", "x" * 129, "may not be more than 128 bytes", **INDEXED),
    dz("spec.storage.engine", "enum", "Memory", "memory", 'supported values: "RocksDB", "Memory"'),
    dz("spec.storage.versionRetentionSeconds", "minimum", 60, 59, "should be greater than or equal to 60"),
    dz("spec.storage.versionRetentionSeconds", "maximum", 2_592_000, 2_592_001, UP_TO.format(2592000)),
    dz("spec.storage.volumeClaimTemplate.size", "required", "1Gi", REMOVED, "size: Required value", **DISK),
    dz("spec.storage.volumeClaimTemplate.size", "maxLength", "1" * 17 + "." + "5" * 12 + "Ti", "1" * 33, "may not be more than 32 bytes", **DISK),
    dz("spec.storage.volumeClaimTemplate.size", "pattern", "1.5Ti", "10 GB", "should match '^[0-9]+", **DISK),
    dz("spec.storage.volumeClaimTemplate.storageClassName", "maxLength", "x" * 253, "x" * 254, "may not be more than 253 bytes", **DISK),
    dz("spec.storage.volumeClaimTemplate.storageClassName", "pattern", "fast.ssd", "Fast", "should match '^[a-z0-9]", **DISK),
    dz("spec.dataNodes", "required", {"count": 3}, REMOVED, "spec.dataNodes: Required value"),
    dz("spec.dataNodes.count", "minimum", 1, 0, AT_LEAST_1),
    dz("spec.dataNodes.count", "maximum", 1024, 1025, UP_TO.format(1024)),
    dz("spec.dataNodes.nodeSelector", "minProperties", labels(1), {}, "should have at least 1 properties", **NODES),
    dz("spec.dataNodes.nodeSelector", "maxProperties", labels(16), labels(17), "must have at most 16 items", **NODES),
    dz("spec.dataNodes.nodeSelector{}", "maxLength", "x" * 63, "x" * 64, "may not be more than 63 bytes", **NODES),
    dz("spec.dataNodes.failureDomainKey", "minLength", "r", "", "at least 1 chars"),
    dz("spec.dataNodes.failureDomainKey", "maxLength", "d" * 253 + "/" + "n" * 63, "d" * 254 + "/" + "n" * 63, "may not be more than 317 bytes"),
    dz("spec.dataNodes.failureDomainKey", "pattern", "example.com/rack", "rack number", "should match '^("),
    dz("spec.dataNodes.weightKey", "minLength", "w", "", "at least 1 chars"),
    dz("spec.dataNodes.weightKey", "maxLength", "d" * 253 + "/" + "n" * 63, "d" * 254 + "/" + "n" * 63, "may not be more than 317 bytes"),
    dz("spec.dataNodes.weightKey", "pattern", "example.com/weight", "weight of it", "should match '^("),
    dz("spec.dataNodes.autoAdjust.scaleUpSeconds", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.dataNodes.autoAdjust.scaleUpSeconds", "maximum", 86_400, 86_401, UP_TO.format(86400)),
    dz("spec.dataNodes.autoAdjust.scaleDownSeconds", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.dataNodes.autoAdjust.scaleDownSeconds", "maximum", 86_400, 86_401, UP_TO.format(86400)),
    dz("spec.dataNodes.maintenance", "maxItems", [{"node": n} for n in range(64)], [{"node": n} for n in range(65)], "must have at most 64 items"),
    dz("spec.dataNodes.maintenance", "repeat", [{"node": 0}, {"node": 1}], [{"node": 0}] * 2, 'Duplicate value: {"node":0}'),
    dz("spec.dataNodes.maintenance[].node", "required", 2, REMOVED, "node: Required value", **MAINTAINED),
    dz("spec.dataNodes.maintenance[].node", "minimum", 2, -1, AT_LEAST_0, **MAINTAINED),
    dz("spec.dataNodes.maintenance[].node", "maximum", 2_147_483_647, 2_147_483_648, UP_TO.format(2147483647), **MAINTAINED),
    dz("spec.dataNodes.maintenance[].durationSeconds", "minimum", 60, 59, "should be greater than or equal to 60", **MAINTAINED),
    dz("spec.dataNodes.maintenance[].durationSeconds", "maximum", 604_800, 604_801, UP_TO.format(604800), **MAINTAINED),
    dz("spec.dataNodes.updateStrategy.type", "enum", "OnDelete", "Recreate", 'supported values: "RollingUpdate", "OnDelete"'),
    dz("spec.dataNodes.updateStrategy.progressDeadlineSeconds", "minimum", 10, 9, "should be greater than or equal to 10"),
    dz("spec.dataNodes.updateStrategy.progressDeadlineSeconds", "maximum", 86_400, 86_401, UP_TO.format(86400)),
    dz("spec.rebalance.targetFailurePolicy", "enum", "Finish", "Retry", 'supported values: "Replace", "Finish"'),
    dz("spec.transfer.whenSparkUnavailable", "enum", "Wait", "Fail", 'supported values: "Wait", "Stream"'),
    dz("spec.rebalance.copyProgressDeadlineSeconds", "minimum", 10, 9, "should be greater than or equal to 10"),
    dz("spec.rebalance.copyProgressDeadlineSeconds", "maximum", 86_400, 86_401, UP_TO.format(86400)),
    dz("spec.transfer.sparkTimeoutSeconds", "minimum", 10, 9, "should be greater than or equal to 10"),
    dz("spec.transfer.sparkTimeoutSeconds", "maximum", 86_400, 86_401, UP_TO.format(86400)),
    dz("spec.rebalance.approval", "enum", "Manual", "Never", 'supported values: "Automatic", "Manual"'),
    dz("spec.rebalance.maxConcurrentHandovers", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.rebalance.maxConcurrentHandovers", "maximum", 1024, 1025, UP_TO.format(1024)),
    dz("spec.rebalance.maxConcurrentMigrations", "minimum", 1, 0, AT_LEAST_1),
    dz("spec.rebalance.maxConcurrentMigrations", "maximum", 1000, 1001, UP_TO.format(1000)),
    dz("spec.rebalance.maxConcurrentHandovers", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.rebalance.maxConcurrentHandovers", "maximum", 1024, 1025, UP_TO.format(1024)),
    dz("spec.rebalance.maxMigrationsPerNode", "minimum", 1, 0, AT_LEAST_1),
    dz("spec.rebalance.maxMigrationsPerNode", "maximum", 1000, 1001, UP_TO.format(1000)),
    dz("spec.rebalance.maxBytesPerSecond", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.rebalance.maxBytesPerSecond", "maximum", COUNT_MAX, COUNT_MAX + 1, UP_TO.format(COUNT_MAX)),
    dz("spec.rebalance.foregroundTargetPercent", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.rebalance.foregroundTargetPercent", "maximum", 95, 96, UP_TO.format(95)),
    dz("spec.transfer.sparkThresholdBytes", "minimum", 0, -1, AT_LEAST_0),
    dz("spec.transfer.sparkThresholdBytes", "maximum", COUNT_MAX, COUNT_MAX + 1, UP_TO.format(COUNT_MAX)),
    rbt("spec", "required", BASES["RebalanceTask"], REMOVED, "spec: Required value"),
    rbt("spec.zoneName", "required", "orders", REMOVED, "spec.zoneName: Required value"),
    rbt("spec.zoneName", "minLength", "o", "", "at least 1 chars"),
    rbt("spec.zoneName", "maxLength", "x" * 63, "x" * 64, "may not be more than 63 bytes"),
    rbt("spec.zoneName", "pattern", "or-ders", "Orders", "should match '^[a-z0-9]"),
    rbt("spec.type", "enum", "Leaders", "Leader", 'supported values: "Zone", "Drain", "Leaders", "Moves"'),
    rbt("spec.nodes", "maxItems", list(range(1024)), list(range(1025)), "must have at most 1024 items", **DRAIN),
    rbt("spec.nodes", "repeat", [1, 2], [1, 1], "Duplicate value: 1", **DRAIN),
    rbt("spec.nodes[]", "minimum", 0, -1, AT_LEAST_0, **DRAIN),
    rbt("spec.nodes[]", "maximum", NUMBER_MAX, NUMBER_MAX + 1, LAST_NODE, **DRAIN),
    rbt("spec.moves", "maxItems", moves(1024), moves(1025), "must have at most 1024 items", **MOVES),
    rbt("spec.moves", "repeat", moves(2), moves(1) * 2, 'Duplicate value: {"partition":0}', **MOVES),
    rbt("spec.moves[].partition", "required", 0, REMOVED, "partition: Required value", **MOVES),
    rbt("spec.moves[].partition", "minimum", 0, -1, AT_LEAST_0, **MOVES),
    rbt("spec.moves[].partition", "maximum", 16_383, 16_384, LAST_PARTITION, **MOVES),
    rbt("spec.moves[].replicas", "required", [0], REMOVED, "replicas: Required value", **MOVES),
    rbt("spec.moves[].replicas", "minItems", [0], [], "should have at least 1 items", **MOVES),
    rbt("spec.moves[].replicas", "maxItems", list(range(7)), list(range(8)), "must have at most 7 items", **MOVES),
    rbt("spec.moves[].replicas[]", "minimum", 0, -1, AT_LEAST_0, **MOVES),
    rbt("spec.moves[].replicas[]", "maximum", NUMBER_MAX, NUMBER_MAX + 1, LAST_NODE, **MOVES),
    rbt("spec.revision", "minimum", 0, -1, AT_LEAST_0),
    rbt("spec.revision", "maximum", COUNT_MAX, COUNT_MAX + 1, UP_TO.format(COUNT_MAX)),
    rbt("spec.approvedPlan", "maxLength", "x" * 128, "x" * 129, "may not be more than 128 bytes"),
    rgm("spec", "required", BASES["RegionMigration"], REMOVED, "spec: Required value"),
    rgm("spec.zoneName", "required", "orders", REMOVED, "spec.zoneName: Required value"),
    rgm("spec.zoneName", "minLength", "o", "", "at least 1 chars"),
    rgm("spec.zoneName", "maxLength", "x" * 63, "x" * 64, "may not be more than 63 bytes"),
    rgm("spec.zoneName", "pattern", "or-ders", "Orders", "should match '^[a-z0-9]"),
    rgm("spec.partition", "required", 0, REMOVED, "spec.partition: Required value"),
    rgm("spec.partition", "minimum", 0, -1, AT_LEAST_0),
    rgm("spec.partition", "maximum", 16_383, 16_384, LAST_PARTITION),
    rgm("spec.target", "minimum", 0, -1, AT_LEAST_0),
    rgm("spec.target", "maximum", NUMBER_MAX, NUMBER_MAX + 1, LAST_NODE),
    rgm("spec.oldLeaderPolicy", "enum", "Remove", "Keep", 'supported values: "Retain", "Remove"'),
    rgm("spec.retainOldLeaderSeconds", "minimum", 0, -1, AT_LEAST_0),
    rgm("spec.retainOldLeaderSeconds", "maximum", 2_592_000, 2_592_001, "should be less than or equal to 2592000"),
    unclean("acceptDataLoss", "required", UNCLEAN["acceptDataLoss"], REMOVED, "Required value"),
    unclean("mode", "enum", "Empty", "All", 'supported values: "MostComplete", "Empty"'),
    unclean("lostNodes", "maxItems", [*range(16)], [*range(17)], "must have at most 16 items"),
    unclean("lostNodes", "repeat", [1, 2], [1, 1], "Duplicate value: 1"),
    unclean("lostNodes[]", "minimum", 0, -1, AT_LEAST_0),
    unclean("lostNodes[]", "maximum", NUMBER_MAX, NUMBER_MAX + 1, LAST_NODE),
)

Z, T, M = "DistributionZone", "RebalanceTask", "RegionMigration"
TWO_COLUMNS = [{"name": "a", "type": "int64"}, {"name": "b", "type": "float64"}]
TWO: Json = {"columns": [*TWO_COLUMNS, {"name": "d", "type": "string"}], "primaryKey": ["a"]}
INDEXED_TWO: Json = {**TWO, "indexes": [{"name": "x", "columns": ["d", "a"]}]}
KEPT = "of schema only indexes can be changed, columns and primaryKey stay: make a new zone and copy the rows"
RULE_ROWS: tuple[RuleRow, ...] = (
    RuleRow(Z, "the name of a DistributionZone starts with a letter and has at most 40 characters, lower-case letters, digits and '-': choose another name",
            {"metadata.name": "z" * 40}, {"metadata.name": "1st.zone"}),
    RuleRow(Z, "minInSyncReplicas cannot be larger than replicas: lower it or raise replicas",
            {"spec.minInSyncReplicas": 3}, {"spec.minInSyncReplicas": 4}),
    RuleRow(Z, "hotStandbys must be smaller than replicas: one replica is the leader",
            {"spec.hotStandbys": 2}, {"spec.hotStandbys": 3}),
    RuleRow(Z, "partitions times replicas may be at most 49152, or the assignments have no room in one object: lower one of the two, or make two zones",
            {"spec.partitions": 16384, "spec.replicas": 3}, {"spec.partitions": 16384, "spec.replicas": 4}),
    RuleRow(Z, KEPT, {"spec.schema": INDEXED_TWO}, {"spec.schema": {**TWO, "columns": TWO["columns"][::-1]}},
            before={"spec.schema": TWO}),
    RuleRow(Z, KEPT, {"spec.schema": TWO}, {"spec.schema": {**INDEXED_TWO, "primaryKey": ["d"]}},
            before={"spec.schema": INDEXED_TWO}),
    RuleRow(Z, KEPT, {"spec.schema": {**TWO, "indexes": [{"name": "x", "columns": ["d"]}]}},
            {"spec.schema": {**INDEXED_TWO, "columns": [*INDEXED_TWO["columns"], {"name": "e", "type": "string"}]}},
            before={"spec.schema": INDEXED_TWO}),
    RuleRow(Z, "storage.engine cannot be changed: make a new zone and copy the rows",
            {"spec.storage": {"engine": "RocksDB"}}, {"spec.storage": {"engine": "Memory"}}, before={}),
    RuleRow(Z, "storage.volumeClaimTemplate cannot be added or removed: make a new zone and copy the rows",
            {"spec.storage": {}}, {"spec.storage": {"volumeClaimTemplate": VOLUME}}, before={}),
    RuleRow(Z, "storage.versionRetentionSeconds can only be lowered, as versions that were removed do not come back: make a new zone and copy the rows",
            {"spec.storage": {"versionRetentionSeconds": 60}}, {"spec.storage": {"versionRetentionSeconds": 3601}}, before={}),
    RuleRow(Z, "every name in primaryKey must be the name of a column",
            {"spec.schema": SCHEMA}, {"spec.schema": {**SCHEMA, "primaryKey": ["key"]}}),
    RuleRow(Z, "a primary key column cannot be float32 or float64: use an integer or a string",
            {"spec.schema": TWO}, {"spec.schema": {**TWO, "primaryKey": ["b"]}}),
    RuleRow(Z, "a column may stand only once in primaryKey: remove the repetition",
            {"spec.schema": SCHEMA}, {"spec.schema": {**SCHEMA, "primaryKey": ["id", "id"]}}),
    RuleRow(Z, "every name in an index's columns must be the name of a column",
            {"spec.schema": INDEXED_TWO}, {"spec.schema": {**TWO, "indexes": [{"name": "x", "columns": ["c"]}]}}),
    RuleRow(Z, "an index's column cannot be float32 or float64: use an integer or a string",
            {"spec.schema": INDEXED_TWO}, {"spec.schema": {**TWO, "indexes": [{"name": "x", "columns": ["b"]}]}}),
    RuleRow(Z, "an index of just the primary key's columns is none: rows are read by their key, remove it",
            {"spec.schema": INDEXED_TWO}, {"spec.schema": {**TWO, "indexes": [{"name": "x", "columns": ["a"]}]}}),
    RuleRow(Z, "a column may stand only once in an index: remove the repetition",
            {"spec.schema": INDEXED_TWO}, {"spec.schema": {**TWO, "indexes": [{"name": "x", "columns": ["d", "d"]}]}}),
    RuleRow(Z, "size must be larger than 0, for example 10Gi",
            {"spec.storage.volumeClaimTemplate": {"size": "1"}}, {"spec.storage.volumeClaimTemplate": {"size": "0Gi"}}),
    RuleRow(Z, "size can only grow, volumes do not shrink: make a new zone and copy the rows",
            {"spec.storage.volumeClaimTemplate": {**VOLUME, "size": "10240Mi"}},
            {"spec.storage.volumeClaimTemplate": {**VOLUME, "size": "10239Mi"}},
            before={"spec.storage.volumeClaimTemplate": VOLUME}),
    RuleRow(Z, "storageClassName cannot be changed: make a new zone and copy the rows",
            {"spec.storage.volumeClaimTemplate": {**VOLUME, "size": "1Ti"}},
            {"spec.storage.volumeClaimTemplate": {"size": "10Gi"}},
            before={"spec.storage.volumeClaimTemplate": VOLUME}),
    RuleRow(Z, "set exactly one of dataNodes.count and dataNodes.nodeSelector",
            {"spec.dataNodes": {"nodeSelector": labels(1)}}, {"spec.dataNodes": {"count": 3, "nodeSelector": labels(1)}}),
    RuleRow(Z, "nodeSelector must hold valid Kubernetes labels, for example node.kubernetes.io/instance-type: large",
            {"spec.dataNodes": {"nodeSelector": {"example.com/pool": "a_b.c"}}},
            {"spec.dataNodes": {"nodeSelector": {"example.com/pool/x": "a"}}}),
    RuleRow(T, "the name of a RebalanceTask starts with a letter and has at most 55 characters, lower-case letters, digits and '-': choose another name",
            {"metadata.name": "t" * 55}, {"metadata.name": "t" * 56}),
    RuleRow(T, "a task of type Drain must name the data nodes to drain in spec.nodes",
            {"spec.type": "Drain", "spec.nodes": [2]}, {"spec.type": "Drain"}),
    RuleRow(T, "a task of type Moves must list its moves in spec.moves",
            {"spec.type": "Moves", "spec.moves": moves(1)}, {"spec.type": "Moves", "spec.moves": []}),
    RuleRow(T, "spec.nodes is only for tasks of type Drain",
            {"spec.type": "Leaders", "spec.nodes": []}, {"spec.nodes": [1]}),
    RuleRow(T, "spec.moves is only for tasks of type Moves",
            {"spec.type": "Zone", "spec.moves": []}, {"spec.moves": moves(1)}),
    RuleRow(T, "a task of type Reshard is made by the operator: change spec.partitions of the zone",
            {"spec.type": "Reshard", "spec.revision": 7}, {"spec.type": "Reshard"}),
    RuleRow(T, "zoneName cannot be changed: apply a new RebalanceTask",
            {"spec.suspend": True}, {"spec.zoneName": "other"}, before={}),
    RuleRow(T, "type cannot be changed: apply a new RebalanceTask",
            {"spec.type": "Zone"}, {"spec.type": "Leaders"}, before={}),
    RuleRow(T, "nodes cannot be changed: cancel this one and apply a new RebalanceTask",
            {"spec.type": "Drain", "spec.nodes": [1], "spec.cancel": True}, {"spec.type": "Drain", "spec.nodes": [1, 2]},
            before={"spec.type": "Drain", "spec.nodes": [1]}),
    RuleRow(T, "moves cannot be changed: cancel this one and apply a new RebalanceTask",
            {"spec.type": "Moves", "spec.moves": moves(1), "spec.approvedPlan": "f00d"},
            {"spec.type": "Moves", "spec.moves": [{"partition": 0, "replicas": [1]}]},
            before={"spec.type": "Moves", "spec.moves": moves(1)}),
    RuleRow(T, "a cancel cannot be taken back: apply a new RebalanceTask",
            {"spec.cancel": True}, {"spec.cancel": False}, before={"spec.cancel": True}),
    RuleRow(T, "a data node may stand only once in a move's replicas: remove the repetition",
            {"spec.type": "Moves", "spec.moves": [{"partition": 0, "replicas": [2, 1]}]},
            {"spec.type": "Moves", "spec.moves": [{"partition": 0, "replicas": [2, 2]}]}),
    RuleRow(M, "the name of a RegionMigration may have at most 63 characters, lower-case letters, digits and '-': choose another name",
            {"metadata.name": "m" * 63}, {"metadata.name": "m" * 64}),
    RuleRow(M, "zoneName cannot be changed: apply a new RegionMigration",
            {"spec.cancel": True}, {"spec.zoneName": "other"}, before={}),
    RuleRow(M, "partition cannot be changed: apply a new RegionMigration",
            {"spec.partition": 0}, {"spec.partition": 1}, before={}),
    RuleRow(M, "target cannot be changed: cancel this one and apply a new RegionMigration",
            {"spec.target": 4, "spec.cancel": True}, {}, before={"spec.target": 4}),
    RuleRow(M, "oldLeaderPolicy cannot be changed: apply a new RegionMigration",
            {"spec.oldLeaderPolicy": "Retain"}, {"spec.oldLeaderPolicy": "Remove"}, before={}),
    RuleRow(M, "a cancel cannot be taken back: apply a new RegionMigration",
            {"spec.cancel": True}, {}, before={"spec.cancel": True}),
    RuleRow(M, "uncleanElection gives acknowledged rows up: set acceptDataLoss to true, or leave it out",
            {"spec.uncleanElection": UNCLEAN}, {"spec.uncleanElection": {"acceptDataLoss": False}}),
    RuleRow(M, "uncleanElection cannot be changed: apply a new RegionMigration",
            {"spec.uncleanElection": UNCLEAN, "spec.cancel": True},
            {"spec.uncleanElection": {**UNCLEAN, "lostNodes": [3]}}, before={"spec.uncleanElection": UNCLEAN}),
    RuleRow(M, "an old leader that is removed is not retained for a time: leave retainOldLeaderSeconds or oldLeaderPolicy out",
            {"spec.retainOldLeaderSeconds": 60},
            {"spec.retainOldLeaderSeconds": 60, "spec.oldLeaderPolicy": "Remove"}),
    RuleRow(M, "uncleanElection has no old leader to keep: leave retainOldLeaderSeconds out",
            {"spec.uncleanElection": UNCLEAN}, {"spec.uncleanElection": UNCLEAN, "spec.retainOldLeaderSeconds": 60}),
    RuleRow(M, "uncleanElection has no old leader to remove: leave oldLeaderPolicy out",
            {"spec.uncleanElection": UNCLEAN}, {"spec.uncleanElection": UNCLEAN, "spec.oldLeaderPolicy": "Remove"}),
)
# fmt: on


def manifest(kind: str, edits: Json) -> Json:
    """Return the smallest object of a kind with values put at dotted paths."""
    body: Json = {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": "under-test", "namespace": NAMESPACE},
        "spec": copy.deepcopy(BASES[kind]),
    }
    for path, value in edits.items():
        put(body, path, value)
    return body


def put(body: Any, path: str, value: Any) -> None:
    """Put a value at a path, making what is missing; `[]` is the first item, `{}` any entry."""
    *parents, last = path.replace("[]", ".0").replace("{}", ".any").split(".")
    for here, after in itertools.pairwise([*parents, last]):
        if isinstance(body, list):
            body = body[int(here)]
        else:
            body = body.setdefault(here, [None] if after == "0" else {})
    if value is REMOVED:
        del body[last]
    elif isinstance(body, list):
        body[int(last)] = copy.deepcopy(value)
    else:
        body[last] = copy.deepcopy(value)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_schema_constraint(row: Row, server: Server) -> None:
    """A lost bound would let the operator meet specs it was never written for."""
    good = {**row.given, row.path: row.good}
    bad = {**row.given, row.path: row.bad}
    assert server.try_create(manifest(row.kind, good)) == ""
    assert row.says in server.try_create(manifest(row.kind, bad))


@pytest.mark.proves("OP-01")
@pytest.mark.parametrize("row", RULE_ROWS, ids=str)
def test_rule(row: RuleRow, server: Server) -> None:
    """A rule that never fires, or fires on legal objects, is worse than none."""
    good, bad = manifest(row.kind, row.good), manifest(row.kind, row.bad)
    if row.before is None:
        assert server.try_create(good) == ""
        assert row.says in server.try_create(bad)
    else:
        before = manifest(row.kind, row.before)
        assert server.try_replace(before, good) == ""
        assert row.says in server.try_replace(before, bad)


def test_removed_schema_is_refused(server: Server) -> None:
    """Without the guard on presence, `kubectl replace` without a schema would turn it binary."""
    before = manifest(Z, {"spec.schema": SCHEMA})
    assert "only indexes can be changed" in server.try_replace(before, manifest(Z, {}))


def test_status_is_not_writable_by_spec_writers(server: Server) -> None:
    """Without the status subresource, a person's apply could erase the operator's decisions."""
    stored = server.create({**manifest(M, {}), "status": {"state": "Succeeded"}})
    server.delete(stored)
    assert "status" not in stored


def test_table_is_complete() -> None:
    """A constraint without a row would be shipped untried."""
    wanted, messages = set(), set()
    for definition in custom_resource_definitions():
        kind = definition["spec"]["names"]["kind"]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        spec = {**schema, "properties": {"spec": schema["properties"]["spec"]}}
        wanted |= {(kind, *found) for found in constraints("", spec)}
        messages |= {(kind, message) for message in rule_messages(schema)}
    have = {(row.kind, row.path.replace(".1.", "[]."), row.keyword) for row in ROWS}
    assert have == wanted
    assert {(row.kind, row.says) for row in RULE_ROWS} == messages


def constraints(path: str, schema: Json) -> Iterator[tuple[str, str]]:
    """Yield (path, keyword) of all constraints of a schema."""
    for keyword in KEYWORDS:
        if keyword in schema:
            yield path, keyword
    if schema.get(LIST_TYPE) in {"map", "set"}:
        yield path, "repeat"
    for name, inner in schema.get("properties", {}).items():
        below = f"{path}.{name}".lstrip(".")
        if name in schema.get("required", []):
            yield below, "required"
        yield from constraints(below, inner)
    if "items" in schema:
        yield from constraints(f"{path}[]", schema["items"])
    if "additionalProperties" in schema:
        yield from constraints(f"{path}{{}}", schema["additionalProperties"])


def rule_messages(schema: Json) -> Iterator[str]:
    """Yield the messages of all rules of a schema."""
    for rule in schema.get(RULES, ()):
        yield rule["message"]
    for inner in (*schema.get("properties", {}).values(), schema.get("items", {})):
        if inner:
            yield from rule_messages(inner)
