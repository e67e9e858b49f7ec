"""The objects of a report from the API server."""

from datetime import UTC, datetime

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import MissingError
from rezone.kube.api.kinds import MigrationKind, TaskKind
from rezone.kube.stored.store import StatusStore, parse
from rezone.report.build import task_before, task_report, transfer_report
from rezone.report.task import TaskReport
from rezone.report.transfer import TransferReport
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask


async def read_report(kube: Kube, namespace: str, name: str) -> TaskReport:
    """Return the report of a task, which may be under way. Raises KubeError."""
    manifest = await kube.get(TaskKind, namespace, name)
    task = parse(RebalanceTask, manifest)
    fields, store = {"spec.zoneName": task.spec.zone_name}, StatusStore(kube)
    migrations = await store.list_all(RegionMigration, namespace, fields=fields)
    before = task_before(task, await store.list_all(RebalanceTask, namespace, fields=fields))
    return task_report(manifest, task, migrations, datetime.now(UTC), before)


async def read_transfer_report(kube: Kube, namespace: str, name: str) -> TransferReport:
    """Return the report of a leader transfer, which may be under way. Raises KubeError."""
    manifest = await kube.get(MigrationKind, namespace, name)
    migration = parse(RegionMigration, manifest)
    fields = {"spec.zoneName": migration.spec.zone_name}
    others = await StatusStore(kube).list_all(RegionMigration, namespace, fields=fields)
    return transfer_report(manifest, migration, others, datetime.now(UTC))


async def read_any_report(kube: Kube, namespace: str, name: str) -> TaskReport | TransferReport:
    """Return the report of the task of this name, or of the leader transfer. Raises KubeError."""
    try:
        return await read_report(kube, namespace, name)
    except MissingError as missing:
        try:
            return await read_transfer_report(kube, namespace, name)
        except MissingError:
            wanted = f"there is no RebalanceTask or RegionMigration {namespace}/{name}"
            raise MissingError(wanted) from missing
