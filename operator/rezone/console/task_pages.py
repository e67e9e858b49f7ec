"""The two kinds of tasks, rebalances and leader transfers, as the console has pages of them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from rezone.console.actions import Task
from rezone.console.reading import Reader, ReadReport
from rezone.console.views.resharding import resharding_view
from rezone.console.views.tasks import task_view
from rezone.kube.api.kinds import Kind, MigrationKind, TaskKind
from rezone.report.reading import read_report, read_transfer_report
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask

Values = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class TaskPages:
    """The pages of one kind of tasks, below `path`.

    The names of their templates begin with `name`. `values` returns what the sections of a task
    show, given the number of their table's page.
    """

    path: str
    title: str
    name: str
    sections: tuple[str, ...]
    model: type[Task]
    kind: Kind
    values: Callable[[Reader, Any, int], Awaitable[Values]]
    read_report: ReadReport

    def address(self, namespace: str, name: str) -> str:
        """Return the path of a task's page."""
        return f"{self.path}/{namespace}/{name}"


async def _rebalance(reader: Reader, task: RebalanceTask, page: int) -> Values:
    routes = await reader.routes(task)
    view = task_view(task, routes.of(routes.layout.generation), page=page)
    return {"view": view, "splits": None if view.ended else resharding_view(routes, page)}


async def _transfer(_reader: Reader, migration: RegionMigration, _page: int) -> Values:
    return {"migration": migration}


TASK_PAGES: Final = (
    TaskPages(
        path="/tasks",
        title="Rebalance",
        name="task",
        sections=("head", "actions", "progress", "plan", "history"),
        model=RebalanceTask,
        kind=TaskKind,
        values=_rebalance,
        read_report=read_report,
    ),
    TaskPages(
        path="/transfers",
        title="Leader transfer",
        name="migration",
        sections=("head", "actions", "history"),
        model=RegionMigration,
        kind=MigrationKind,
        values=_transfer,
        read_report=read_transfer_report,
    ),
)
