"""Traces of tasks and leader transfers, as a real receiver of OTLP gets them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from otlp_receiver import Receiver, attributes, receiver
from rezone.controller.coordination.traces import Traces, span_id, trace_id
from rezone.controller.process.main import trace_sink
from rezone.controller.work.keys import Kind, ObjectKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.resources.migration import RegionMigration, RegionMigrationStatus
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus

__all__ = ["receiver"]

pytestmark = pytest.mark.proves("OB-06")

BEGUN = datetime(2026, 1, 1, 12, tzinfo=UTC)
TASK = ObjectKey(Kind.TASK, "shop", "orders-7")
TRANSFER = ObjectKey(Kind.MIGRATION, "shop", "orders-7-3")
OTLP = CoordinatorSettings(tracing="otlp", identity="operator-0")


def at(seconds: int) -> str:
    """Return a time after the beginning, as Kubernetes has it."""
    return (BEGUN + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def task(**status: Any) -> tuple[RebalanceTask, RebalanceTaskStatus]:
    """Return a task and a status of it."""
    meta = {"name": "orders-7", "namespace": "shop", "uid": "task-uid"}
    found = RebalanceTask.parse({"metadata": meta, "spec": {"zoneName": "orders"}})
    return found, RebalanceTaskStatus.model_validate(status)


ENDED: dict[str, Any] = {
    "state": "Succeeded",
    "startedTime": at(0),
    "finishedTime": at(90),
    "sparkApplication": "orders-7-1",
    "progress": {"movesDone": 4, "bytesDone": 1000, "copyStartedTime": at(20)},
    "waits": [{"reason": "Limit", "seconds": 12}],
    "history": [
        {"state": "Planned", "time": at(0)},
        {"state": "Transferring", "time": at(10), "message": "approved"},
        {"state": "Switching", "time": at(60)},
        {"state": "Succeeded", "time": at(90)},
    ],
}


def transfer(state: str = "Succeeded", **status: Any) -> tuple[Any, RegionMigrationStatus]:
    """Return a leader transfer of the task, and a status of it."""
    owner = {"kind": "RebalanceTask", "name": "orders-7", "uid": "task-uid"}
    meta = {"name": "orders-7-3", "namespace": "shop", "uid": "m-uid", "ownerReferences": [owner]}
    spec = {"zoneName": "orders", "partition": 3, "target": 1}
    found = RegionMigration.parse({"metadata": meta, "spec": spec})
    times = {"startedTime": at(61), "finishedTime": at(62)}
    return found, RegionMigrationStatus.model_validate({"state": state, **times, **status})


async def test_a_receiver_gets_one_trace_of_a_task_and_its_transfers(receiver: Receiver) -> None:
    """Nobody could see where the time of a rebalance went, beside what else the cluster did."""
    traces = Traces(trace_sink(OTLP))
    traces.note_task(TASK, *task(state="Transferring"))
    traces.note_transfer(TRANSFER, *transfer("OpenCandidate"))
    why = {"reason": "Failed", "message": "takeover failed on node 1"}
    traces.note_transfer(
        TRANSFER, *transfer("RolledBack", lastError=why, writeUnavailableMilliseconds=7)
    )
    traces.note_task(TASK, *task(**ENDED))
    traces.note_task(TASK, *task(**ENDED))
    await traces.close()

    spans = receiver.spans()
    assert sorted(spans) == [
        "Planned",
        "Switching",
        "Transferring",
        "leader transfer",
        "rebalance Zone",
        "spark copy",
    ]
    assert sum(
        len(s.spans) for r in receiver.requests for x in r.resource_spans for s in x.scope_spans
    ) == len(spans)
    assert {span.trace_id for span in spans.values()} == {trace_id("task-uid").to_bytes(16, "big")}
    root = spans.pop("rebalance Zone")
    assert root.parent_span_id == b""
    assert {span.parent_span_id for span in spans.values()} == {root.span_id}
    assert root.span_id == span_id("task-uid").to_bytes(8, "big")
    nanoseconds = int(BEGUN.timestamp()) * 10**9
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (
        nanoseconds,
        nanoseconds + 90 * 10**9,
    )
    copied = spans["spark copy"]
    assert copied.end_time_unix_nano - copied.start_time_unix_nano == 40 * 10**9
    said = attributes(root)
    assert said["rezone.zone"] == "orders"
    assert said["rezone.waited_seconds.Limit"] == 12
    moved = spans["leader transfer"]
    assert attributes(moved)["rezone.write_gap_ms"] == 7
    assert moved.status.message == "Failed: takeover failed on node 1"
    service = {
        a.key: a.value.string_value
        for a in receiver.requests[0].resource_spans[0].resource.attributes
    }
    assert service["service.name"] == "rezone-operator"
    assert service["service.instance.id"] == "operator-0"


async def test_nothing_is_sent_unless_it_is_asked_for(receiver: Receiver) -> None:
    """The operator would send names of zones to whoever stands in a variable of its pod."""
    traces = Traces(trace_sink(CoordinatorSettings()))
    traces.note_task(TASK, *task(state="Transferring"))
    traces.note_task(TASK, *task(**ENDED))
    assert traces.words("task-uid") == {}
    await traces.close()
    assert not receiver.requests


async def test_what_another_operator_has_ended_is_not_sent_again(receiver: Receiver) -> None:
    """Each new holder of the Lease would send the traces of all tasks that there are."""
    traces = Traces(trace_sink(OTLP))
    traces.note_task(TASK, *task(**ENDED))
    await traces.close()
    assert not receiver.requests


async def test_a_receiver_that_is_away_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rebalance would wait for a monitoring system, or the operator not end."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    traces = Traces(trace_sink(OTLP))
    for number in range(3):
        key = ObjectKey(Kind.TASK, "shop", f"t-{number}")
        traces.note_task(key, *task(state="Planned"))
        traces.note_task(key, *task(**ENDED))
    assert traces.words("task-uid") == {"trace_id": f"{trace_id('task-uid'):032x}"}
    await traces.close()


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator would end by a traceback, or run without the traces that it was told to send."""
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    monkeypatch.delitem(__import__("sys").modules, "rezone.tracing.otlp", raising=False)
    with pytest.raises(SystemExit, match=r"install rezone\[tracing\]"):
        trace_sink(OTLP)
