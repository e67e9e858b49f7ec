"""The objects of a report from the API server."""

from datetime import UTC, datetime

from rezone.kube.client import Kube
from rezone.kube.kinds import TaskKind
from rezone.kube.store import StatusStore, parse
from rezone.report.build import task_report
from rezone.report.task import TaskReport
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask


async def read_report(kube: Kube, namespace: str, name: str) -> TaskReport:
    """Return the report of a task, which may be under way. Raises KubeError."""
    manifest = await kube.get(TaskKind, namespace, name)
    task = parse(RebalanceTask, manifest)
    fields = {"spec.zoneName": task.spec.zone_name}
    migrations = await StatusStore(kube).list_all(RegionMigration, namespace, fields=fields)
    return task_report(manifest, task, migrations, datetime.now(UTC))
