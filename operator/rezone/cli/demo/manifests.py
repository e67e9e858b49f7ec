"""The objects that the demo applies."""

from typing import Any

from rezone.cli.demo.cluster import NAMESPACE
from rezone.wire.codec.schema import TableSchema

API_VERSION = "rezone.dev/v1alpha1"


def zone(name: str, table: TableSchema, partitions: int, pool_label: str) -> dict[str, Any]:
    """Return the zone: three replicas on every node of its pool, copies always by Spark."""
    return {
        "apiVersion": API_VERSION,
        "kind": "DistributionZone",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "partitions": partitions,
            "replicas": 3,
            "minInSyncReplicas": 2,
            "schema": {
                "columns": [
                    {"name": c.name, "type": c.type.value, "nullable": c.nullable}
                    for c in table.columns
                ],
                "primaryKey": list(table.primary_key),
            },
            "storage": {"engine": "RocksDB"},
            "dataNodes": {"nodeSelector": {pool_label: name}},
            "transfer": {"sparkThresholdBytes": 0},
        },
    }


def migration(name: str, zone_name: str, partition: int, target: int) -> dict[str, Any]:
    """Return a RegionMigration as a person applies it."""
    return {
        "apiVersion": API_VERSION,
        "kind": "RegionMigration",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"zoneName": zone_name, "partition": partition, "target": target},
    }


def load_application(
    name: str,
    bootstrap: str,
    zone_name: str,
    source: tuple[str, ...],
) -> dict[str, Any]:
    """Return the SparkApplication that loads the rows."""
    return {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "type": "Python",
            "mode": "cluster",
            "pythonVersion": "3",
            "sparkVersion": "4.1.0",
            "image": "rezone-spark:latest",
            "mainApplicationFile": "local:///opt/rezone/transfer/load_job.py",
            "arguments": ["--bootstrap", bootstrap, "--zone", zone_name, *source],
            "restartPolicy": {"type": "Never"},
            "driver": {"cores": 1, "memory": "1g", "serviceAccount": "rezone-spark"},
            "executor": {"cores": 2, "memory": "2g", "instances": 1},
        },
    }
