"""What the console shows of Spark jobs and of a re-sharding."""

from __future__ import annotations

from typing import Any

from console_objects import planned_status, records_of, replicated, task_of
from hypothesis import given
from hypothesis import strategies as st

from rezone.console.pages import Pages
from rezone.console.views.jobs import job_row, job_rows
from rezone.console.views.partitions import PAGE_PARTITIONS
from rezone.console.views.resharding import TARGETS_SHOWN_MAX, resharding_view
from rezone.console.views.tasks import task_view
from rezone.domain.routing.route_records import RouteRecords
from rezone.kube.api.names import OWNER_LABEL
from rezone.resources.task import TaskType
from rezone.wire.layouts import Layout, overlaps

PAGES = Pages()
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def application(name: str, state: str, **status: Any) -> dict[str, Any]:
    """Return a SparkApplication as kubeflow's operator writes it."""
    return {
        "metadata": {"name": name, "labels": {OWNER_LABEL: "orders-7"}},
        "status": {"applicationState": {"state": state}, **status},
    }


def test_a_job_says_whose_it_is_and_how_it_does() -> None:
    """Who waits for a copy would not see that its driver does not start."""
    row = job_row(
        application(
            "orders-7-1",
            "RUNNING",
            executorState={"a": "RUNNING", "b": "RUNNING", "c": "PENDING"},
            driverInfo={"podName": "orders-7-1-driver"},
            lastSubmissionAttemptTime="2026-05-04T12:00:00Z",
        )
    )
    assert (row.name, row.owner, row.state, row.ended) == (
        "orders-7-1",
        "orders-7",
        "RUNNING",
        False,
    )
    assert (row.executors, row.driver) == ("1 pending, 2 running", "orders-7-1-driver")
    assert job_row({"metadata": {"name": "new"}}).state == "NEW"


def test_jobs_that_go_on_come_first_and_few_are_shown() -> None:
    """The job that is at work would stand behind those of last week."""
    ended = [application(f"old-{i}", "COMPLETED") for i in range(30)]
    rows = job_rows([*ended, application("at-work", "SUBMITTED")], 5)
    assert rows[0].name == "at-work"
    assert len(rows) == 5


@given(metadata=JSON, status=JSON, state=JSON, executors=JSON)
def test_objects_of_any_form_are_shown(
    metadata: Any, status: Any, state: Any, executors: Any
) -> None:
    """A SparkApplication that somebody wrote by hand would make its zone's page an error."""
    odd = {"applicationState": state, "executorState": executors, "driverInfo": state}
    for each in ({"metadata": metadata, "status": status}, {"metadata": {}, "status": odd}):
        html = PAGES.page("jobs", jobs=job_rows([each], 5))
        assert "<table" in html
        assert len(html) < 20_000


def splitting(old: int, new: int, sealed: int) -> RouteRecords:
    """Return the routes of a zone that is re-sharded, the first partitions cut over."""
    before = [
        replicated(record, sealing=True, sealed=True) if i < sealed else record
        for i, record in enumerate(records_of(((0, 1),) * old))
    ]
    return RouteRecords(before).with_next(records_of(((1, 2),) * new), 1)


@given(old=st.integers(1, 200), new=st.integers(1, 200), data=st.data())
def test_each_old_partition_names_the_new_ones_that_take_over(
    old: int, new: int, data: st.DataObject
) -> None:
    """A range would seem to go nowhere, or a partition stand on no page."""
    sealed = data.draw(st.integers(0, old))
    routes = splitting(old, new, sealed)
    first = resharding_view(routes, 0)
    assert first is not None
    pages = [resharding_view(routes, page) for page in range(first.pages)]
    rows = [row for page in pages if page is not None for row in page.rows]
    assert [row.index for row in rows] == [*range(old)]
    assert sum(row.targets_count for row in rows) == len(overlaps(Layout(0, old), Layout(1, new)))
    assert [row.cut_over for row in rows] == [i < sealed for i in range(old)]
    assert (first.old, first.new, first.cut_over) == (old, new, sealed)
    assert all(len(row.targets) <= TARGETS_SHOWN_MAX for row in rows)


def test_the_largest_re_sharding_has_a_small_page() -> None:
    """One partition that becomes 16,384 would make a page of megabytes."""
    view = resharding_view(splitting(1, 16_384, 0), 0)
    assert view is not None
    assert (view.rows[0].targets_count, len(view.rows[0].targets)) == (16_384, TARGETS_SHOWN_MAX)
    assert resharding_view(RouteRecords(records_of(((0, 1),))), 0) is None
    html = PAGES.page(
        "task_plan",
        view=task_view(task_of(planned_status(), type=TaskType.RESHARD, revision=1)),
        splits=view,
        address="/tasks/s/o",
    )
    assert "and 16368 more" in html
    many = resharding_view(splitting(16_384, 2, 0), 255)
    assert many is not None
    assert len(many.rows) == PAGE_PARTITIONS
