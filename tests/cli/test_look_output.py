"""What people and programs get of views: text, documents, drawings."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from rezone.cli.look import explain, views
from rezone.cli.look.output import document
from rezone.cli.look.render import render
from rezone.cli.look.text import text_of
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.report import task as task_report
from rezone.report import transfer as transfer_report
from rezone.report.document import Document
from rezone.resources.model import Model
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

PAGE = Path(__file__).parents[2] / "docs" / "use" / "command-line.md"
EVIL = "\x1b[2J\x9b2J[red]x"


def zone() -> DistributionZone:
    """Return a zone of two data nodes whose message would like to be an order."""
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "PodsNotReady",
        "message": EVIL,
        "lastTransitionTime": "2026-05-01T10:00:00Z",
    }
    nodes = [
        {"id": n, "podName": f"z-{n}", "nodeName": f"w-{n}", "state": "Active"} for n in (0, 1)
    ]
    return DistributionZone.parse(
        {
            "metadata": {"name": "z", "namespace": "shop"},
            "spec": {"partitions": 2, "replicas": 2, "dataNodes": {"count": 2}},
            "status": {
                "conditions": [ready],
                "partitionsReady": 1,
                "readyDataNodes": 2,
                "dataNodes": nodes,
                "currentTask": "z-7",
            },
        }
    )


def task() -> RebalanceTask:
    """Return a task that has copied a half."""
    moved = {"bytesTotal": 8_000_000, "bytesDone": 4_000_000, "movesTotal": 2, "movesDone": 1}
    status = {"state": "Transferring", "progress": moved, "waitingFor": f"Copying: {EVIL}"}
    return RebalanceTask.parse(
        {"metadata": {"name": "z-7"}, "spec": {"zoneName": "z"}, "status": status}
    )


TABLE = RouteRecords([routes.initial((0, 1), 1), routes.initial((1, 0), 1)])
VIEWS: dict[str, Document] = {
    "zones": views.zone_list([zone()]),
    "progress": views.progress(zone(), [task()]),
    "map": views.partition_map(zone(), TABLE),
    "top": views.top(zone(), [task()], TABLE),
}


def drawn(view: Document, **terminal: Any) -> str:
    """Return what a terminal of 100 columns gets."""
    out = io.StringIO()
    Console(file=out, width=100, force_terminal=True, highlight=False, **terminal).print(
        render(view, 100)
    )
    return out.getvalue()


@pytest.mark.parametrize("name", VIEWS)
def test_words_of_objects_are_no_orders_to_the_terminal(name: str) -> None:
    """Whoever may write a message could clear a person's screen, or write lies to it."""
    plain = text_of(VIEWS[name])
    assert "\x1b" not in plain
    assert "\x9b" not in plain
    bare = drawn(VIEWS[name], color_system=None)
    assert "\x1b" not in bare
    assert "\x9b" not in bare
    coloured = re.sub(r"\x1b\[[0-9;]*m", "", drawn(VIEWS[name], color_system="truecolor"))
    assert "\x1b" not in coloured


def test_a_drawing_has_bars_and_colours() -> None:
    """`--watch` would be the plain lines again, and nobody would see at a glance how far it is."""
    shown = drawn(VIEWS["top"], color_system="standard")
    assert "━" in shown
    assert "50%" in shown
    assert "\x1b[32m" in shown


@pytest.mark.parametrize("name", VIEWS)
def test_documents_are_one_object_with_its_version(name: str) -> None:
    """Programs would break at each release, or parse what people read."""
    view = VIEWS[name]
    found = json.loads(document(view, "json"))
    assert found["apiVersion"] == "cli.rezone.dev/v1alpha1"
    assert found["kind"] == view.kind
    assert yaml.safe_load(document(view, "yaml")) == found
    assert json.loads(document(view, "json", stream=True)) == found
    assert "\n" not in document(view, "json", stream=True)
    twice = document(view, "yaml", stream=True) + "\n" + document(view, "yaml", stream=True)
    assert list(yaml.safe_load_all(twice)) == [found, found]


def test_who_is_in_maintenance_is_a_document_without_those_whose_time_is_over() -> None:
    """A script that waits for a data node's turn would take one whose time is over for it."""
    asked = {"sinceTime": "2026-05-01T10:00:00Z", "untilTime": "2026-05-01T11:00:00Z"}
    body = zone().dump()
    for node, state in zip(body["status"]["dataNodes"], ("Active", "Over"), strict=True):
        node["maintenance"] = {**asked, "state": state}
    found = views.maintenance_list([DistributionZone.parse(body)])
    (row,) = json.loads(document(found, "json"))["items"]
    assert (row["id"], row["node"], row["until"]) == (0, "w-0", "2026-05-01T11:00:00Z")


def _models() -> list[type[Model]]:
    modules = (views, explain, task_report, transfer_report)
    found = [each for module in modules for each in vars(module).values()]
    return sorted(
        {
            each
            for each in found
            if isinstance(each, type)
            and issubclass(each, Model)
            and each.__module__.startswith(("rezone.cli.", "rezone.report."))
        },
        key=lambda each: each.__name__,
    )


@pytest.mark.parametrize("model", _models())
def test_the_page_has_each_field(model: type[Model]) -> None:
    """A field that is not documented is not stable: nobody knows that it must stay."""
    page = PAGE.read_text()
    missing = [
        field.alias for field in model.model_fields.values() if f"`{field.alias}`" not in page
    ]
    assert not missing
