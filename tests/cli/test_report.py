"""`rezone report` on a real API server, and what it says."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rezone.cli.look.text import text_of
from rezone.cli.main import main
from rezone.kube.api.client import Kube, KubeSettings, connect
from rezone.kube.api.kinds import TaskKind
from rezone.kube.stored.store import StatusStore
from rezone.report.build import task_before, task_report, transfer_report
from rezone.report.compared import UNKNOWN
from rezone.resources.migration import RegionMigration, RegionMigrationStatus
from rezone.resources.task import RebalanceTask, RebalanceTaskStatus

pytestmark = [pytest.mark.proves("OB-05")]


def at(minute: int, second: int = 0) -> str:
    """Return a time of one hour."""
    return f"2026-01-01T12:{minute:02}:{second:02}Z"


STATUS: dict[str, Any] = {
    "state": "Succeeded",
    "startedTime": at(0),
    "finishedTime": at(10),
    "plan": {
        "hash": "abc",
        "moves": 4,
        "movesLowerBound": 4,
        "leaderMoves": 2,
        "bytesEstimate": 120_000_000,
        "secondsEstimate": 60,
    },
    "progress": {
        "clientsServed": {"samples": 4, "totalPercent": 150, "maxPercent": 61},
        "movesTotal": 4,
        "movesDone": 4,
        "leaderMovesTotal": 2,
        "leaderMovesDone": 2,
        "bytesTotal": 130_000_000,
        "bytesDone": 120_000_000,
        "copyStartedTime": at(5),
    },
    "copiesDropped": 1,
    "waits": [{"reason": "CatchingUp", "seconds": 20}, {"reason": "Limit", "seconds": 130}],
    "writeUnavailability": {
        "transfers": 2,
        "totalMilliseconds": 12,
        "maxMilliseconds": 8,
        "longest": [{"partition": 3, "milliseconds": 8}, {"partition": 1, "milliseconds": 4}],
    },
    "history": [
        {"state": "Planned", "time": at(0)},
        {"state": "Transferring", "time": at(4), "message": "approved"},
        {"state": "Switching", "time": at(7)},
        {"state": "Succeeded", "time": at(10)},
    ],
    "conditions": [
        {
            "type": "Succeeded",
            "status": "True",
            "reason": "Succeeded",
            "message": "all replicas are in sync",
            "lastTransitionTime": at(10),
        }
    ],
}
STOPPED = (
    "writes stopped by 2 leader transfers: 6 ms each, at most 8 ms "
    "(partition 3 8 ms, partition 1 4 ms)"
)


@pytest.fixture
async def api(crds: Path) -> AsyncIterator[Kube]:
    """Connect to the session's API server."""
    async with await connect(crds) as connection:
        yield connection


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_report_says_what_was_done_and_who_asked(
    crds: Path, api: Kube, namespace: str
) -> None:
    """After a rebalance nobody could tell who let it run, what it cost and where time went."""
    store = StatusStore(api)
    meta = {"name": "z-7", "namespace": namespace}
    task = await store.create(RebalanceTask.parse({"metadata": meta, "spec": {"zoneName": "z"}}))
    async with await connect(crds, KubeSettings(field_manager="anns-console")) as console:
        await console.merge(TaskKind, namespace, "z-7", {"spec": {"approvedPlan": "abc"}})
    task = await store.read(RebalanceTask, namespace, "z-7")
    await store.write_status(task, RebalanceTaskStatus.model_validate(STATUS))
    for name, owner in (("z-7-3", task), ("by-hand", None)):
        named = {"name": name, "namespace": namespace}
        spec = {"zoneName": "z", "partition": 3, "target": 1}
        made = await store.create(RegionMigration.parse({"metadata": named, "spec": spec}), owner)
        moved: dict[str, Any] = {
            "state": "Succeeded",
            "startedTime": at(7),
            "finishedTime": at(7, 2),
        }
        moved["writeUnavailableMilliseconds"] = 8
        await store.write_status(made, RegionMigrationStatus.model_validate(moved))

    runner = CliRunner(env={"KUBECONFIG": str(crds)})
    arguments = ["report", "z-7", "-n", namespace, "-o", "json"]
    done = await asyncio.to_thread(runner.invoke, main, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["movesPlanned"], found["movesDone"], found["seconds"]) == (4, 4, 600)
    # From the first bytes to where leaders begin to move.
    assert found["bytesPerSecond"] == 1_000_000
    assert [(s["state"], s["seconds"]) for s in found["states"]][:3] == [
        ("Planned", 240),
        ("Transferring", 180),
        ("Switching", 180),
    ]
    (asked,) = found["asked"]
    assert (asked["field"], asked["value"], asked["manager"]) == (
        "approvedPlan",
        "abc",
        "anns-console",
    )
    (transfer,) = found["transfers"]
    assert (transfer["name"], transfer["seconds"]) == ("z-7-3", 2)
    assert transfer["writeUnavailableMilliseconds"] == 8
    assert [each["reason"] for each in found["waits"]] == ["Limit", "CatchingUp"]
    assert found["writeUnavailability"] == STATUS["writeUnavailability"]


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_page_is_written_once(
    crds: Path, api: Kube, namespace: str, tmp_path: Path
) -> None:
    """The file would be cut off in the middle of an older one, or a report be lost."""
    store = StatusStore(api)
    meta = {"name": "page-7", "namespace": namespace}
    task = await store.create(RebalanceTask.parse({"metadata": meta, "spec": {"zoneName": "z"}}))
    await store.write_status(task, RebalanceTaskStatus.model_validate(STATUS))
    runner, file = CliRunner(env={"KUBECONFIG": str(crds)}), tmp_path / "report.html"
    arguments = ["report", "page-7", "-n", namespace, "-o", "html"]
    printed = await asyncio.to_thread(runner.invoke, main, arguments)
    assert printed.output.startswith("<!DOCTYPE html>")
    done = await asyncio.to_thread(runner.invoke, main, [*arguments, "-f", str(file)])
    assert done.exit_code == 0, done.output
    assert "2 min 10 s" in file.read_text(encoding="utf-8")
    again = await asyncio.to_thread(runner.invoke, main, [*arguments, "-f", str(file)])
    assert again.exit_code == 1
    assert "File exists" in again.output


def report_text(status: dict[str, Any], **spec: Any) -> str:
    """Return the report of a task as text."""
    body = {
        "metadata": {"name": "z-7", "namespace": "shop"},
        "spec": {"zoneName": "z", **spec},
        "status": status,
    }
    now = datetime(2026, 1, 1, 12, 20, tzinfo=UTC)
    return text_of(task_report(body, RebalanceTask.parse(body), (), now))


def test_a_report_for_people() -> None:
    """Who reads a report would look for the figures in JSON."""
    assert report_text(STATUS).splitlines() == [
        "task shop/z-7 of zone z (Zone): Succeeded after 10 min 0 s",
        "Succeeded: all replicas are in sync",
        "1 copies differed and were made again",
        "",
        "          PLANNED     DONE",
        "moves     4           4",
        "leaders   2           2",
        "MB        120         120",
        "MB/s      -           1.0",
        "time      1 min 0 s   10 min 0 s",
        "the busiest data node served clients for 38 % of the time meanwhile, 61 % at most",
        "",
        "STATE          TIME        WHY",
        "Planned        4 min 0 s",
        "Transferring   3 min 0 s   approved",
        "Switching      3 min 0 s",
        "Succeeded      0 s",
        "",
        "WAITED FOR   TIME",
        "Limit        2 min 10 s",
        "CatchingUp   20 s",
        "",
        STOPPED,
    ]


def test_a_task_that_runs_or_is_new_has_a_report() -> None:
    """The command would fail on just the task that somebody looks at."""
    running = {**STATUS, "state": "Transferring", "history": STATUS["history"][:2]}
    del running["finishedTime"]
    told = report_text(running)
    assert "(Zone): Transferring, begun 20 min 0 s ago" in told
    assert "Transferring   16 min 0 s" in told
    assert report_text({}).splitlines()[0] == "task shop/z-7 of zone z (Zone): new"
    resharded = report_text(STATUS, type="Reshard", revision=3)
    assert "ranges" in resharded
    assert "writes stopped by 2 cut-overs: 6 ms each" in resharded


def task(name: str, kind: str = "Zone", **status: Any) -> RebalanceTask:
    """Return a task of the zone."""
    meta = {"name": name, "namespace": "shop"}
    spec = {"zoneName": "z", "type": kind, "nodes": [1] if kind == "Drain" else []}
    return RebalanceTask.parse({"metadata": meta, "spec": spec, "status": {**STATUS, **status}})


def test_a_report_stands_beside_the_one_before() -> None:
    """Whether a rebalance was slower than usual would be known to nobody who did not keep notes."""
    before = task(
        "z-5",
        startedTime="2026-01-01T11:00:00Z",
        finishedTime="2026-01-01T11:02:00Z",
        history=[],
        writeUnavailability=None,
        progress={"movesDone": 2, "bytesDone": 7_000_000},
    )
    now = datetime(2026, 1, 1, 12, 20, tzinfo=UTC)
    report = task_report({}, task("z-7"), (), now, before)
    words = [re.split(r" {2,}", line) for line in text_of(report).splitlines()]
    start = words.index(["", "z-5", "THIS ONE"]) + 1
    assert words[start : start + 10] == [
        ["Took", "2 min 0 s", "10 min 0 s"],
        ["Replicas copied", "2", "4"],
        ["Leaders moved", "0", "2"],
        ["Bytes", "7.0 MB", "120 MB"],
        ["Mean rate", UNKNOWN, "1.0 MB/s"],
        ["Waited", "2 min 30 s", "2 min 30 s"],
        ["Copies made again", "1", "1"],
        ["No writes, mean", UNKNOWN, "6 ms"],
        ["No writes, at most", UNKNOWN, "8 ms"],
        ["Clients served, mean", UNKNOWN, "38 %"],
    ]


def test_a_task_is_compared_with_the_last_of_its_type_that_succeeded() -> None:
    """A drain beside a re-sharding, or one that failed at once, says nothing of how it went."""
    early, late = "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"
    others = [
        task("older", finishedTime=early),
        task("newest", finishedTime=late),
        task("failed", finishedTime=at(0), state="Failed"),
        task("drain", "Drain", finishedTime=at(0)),
        task("running", finishedTime=None, state="Switching"),
        task("afterwards", finishedTime=at(3)),
        task("z-7"),
    ]
    found = task_before(task("z-7"), others)
    assert found is not None
    assert found.metadata.name == "newest"
    assert task_before(task("z-7"), others[2:]) is None


def moved(name: str, partition: int = 3, **status: Any) -> dict[str, Any]:
    """Return a leader transfer as it is stored."""
    return {
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"zoneName": "z", "partition": partition, "target": 4},
        "status": {
            "state": "Succeeded",
            "startedTime": at(7),
            "finishedTime": at(7, 2),
            "writeUnavailableMilliseconds": 8,
            **status,
        },
    }


def test_a_leader_transfer_has_a_report() -> None:
    """Only a rebalance could be looked at afterwards, though people move leaders by hand, too."""
    before = moved("m-1", startedTime=at(1), finishedTime=at(2), writeUnavailableMilliseconds=21)
    other = moved("m-0", partition=2, startedTime=at(3), finishedTime=at(4))
    body = moved(
        "m-2",
        waits=[{"reason": "CatchingUp", "seconds": 20}],
        history=[{"state": "UpgradeCandidate", "time": at(7)}],
    )
    body["spec"]["cancel"] = False
    every = [RegionMigration.parse(each) for each in (before, other, body)]
    report = transfer_report(body, every[2], every, datetime(2026, 1, 1, 13, tzinfo=UTC))
    assert text_of(report).splitlines() == [
        "leader transfer shop/m-2 of zone z: Succeeded after 2 s",
        "partition 3, from data node ? to 4",
        "asked for by a person",
        "writes stopped for 8 ms",
        "",
        "            m-1         THIS ONE",
        "From        \N{EN DASH}           \N{EN DASH}",
        "To          4           4",
        "State       Succeeded   Succeeded",
        "Took        1 min 0 s   2 s",
        "No writes   21 ms       8 ms",
        "",
        "STATE              TIME   WHY",
        "UpgradeCandidate   2 s",
        "",
        "WAITED FOR   TIME",
        "CatchingUp   20 s",
    ]


@pytest.mark.apiserver
@pytest.mark.slow
async def test_a_report_is_found_by_name_or_kind(crds: Path, api: Kube, namespace: str) -> None:
    """A transfer's name would be no name to the command, or hide behind a task of the same one."""
    store, named = StatusStore(api), {"name": "both", "namespace": namespace}
    spec = {"zoneName": "z", "partition": 3, "target": 1}
    made = RegionMigration.parse({"metadata": named, "spec": spec})
    await store.write_status(
        await store.create(made), RegionMigrationStatus.model_validate(moved("m")["status"])
    )
    runner = CliRunner(env={"KUBECONFIG": str(crds)})
    words = ["report", "both", "-n", namespace, "-o", "json"]

    async def kind_of(*more: str) -> str:
        done = await asyncio.to_thread(runner.invoke, main, [*words, *more])
        assert done.exit_code == 0, done.output
        return str(json.loads(done.output)["kind"])

    assert await kind_of() == "TransferReport"
    await store.create(RebalanceTask.parse({"metadata": named, "spec": {"zoneName": "z"}}))
    assert await kind_of() == "TaskReport"
    assert await kind_of("--kind", "transfer") == "TransferReport"
    missing = await asyncio.to_thread(runner.invoke, main, ["report", "none", "-n", namespace])
    assert missing.exit_code == 1
    assert f"there is no RebalanceTask or RegionMigration {namespace}/none" in missing.output
