"""Why things wait, in words that a person can act on."""

from __future__ import annotations

import ast
import datetime as dt
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rezone.domain
from rezone.cli.look.explain import WORDS, explain_migration, explain_task, explain_zone
from rezone.cli.look.text import text_of
from rezone.domain.rebalance.survey import Wait
from rezone.resources.machine_status import WaitingReason
from rezone.resources.migration import RegionMigration
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone

NOW = dt.datetime(2026, 5, 1, 10, 5, tzinfo=dt.UTC)
BEFORE = "2026-05-01T10:00:00Z"


def zone(*conditions: dict[str, str], **status: Any) -> DistributionZone:
    """Return a zone that says these conditions."""
    told = [{**c, "lastTransitionTime": BEFORE} for c in conditions]
    return DistributionZone.parse(
        {
            "metadata": {"name": "z", "namespace": "shop"},
            "spec": {"partitions": 4, "replicas": 3, "dataNodes": {"count": 3}},
            "status": {"conditions": told, **status},
        }
    )


def task(state: str, waiting: str, reason: str = "Waiting", **status: Any) -> RebalanceTask:
    """Return a task that waits."""
    told = {
        "type": "Succeeded",
        "status": "Unknown",
        "reason": reason,
        "message": waiting,
        "lastTransitionTime": BEFORE,
    }
    return RebalanceTask.parse(
        {
            "metadata": {"name": "z-7", "namespace": "shop"},
            "spec": {"zoneName": "z"},
            "status": {
                "state": state,
                "waitingFor": waiting,
                "conditions": [told],
                "history": [{"state": state, "time": BEFORE}],
                **status,
            },
        }
    )


def test_a_task_says_why_what_and_who() -> None:
    """A person would see that a task waits, and neither for what nor what to do."""
    lost = {"id": 2, "podName": "z-2", "nodeName": "worker-2", "state": "Lost"}
    waiting = "Unreachable: 3 (partition 1: node 2 does not answer)"
    found = explain_task(
        task("Transferring", waiting, deadlineTime="2026-05-01T10:15:00Z"),
        zone(dataNodes=[lost]),
        NOW,
    )
    assert text_of(found).splitlines() == [
        "Waits: RebalanceTask shop/z-7, in state Transferring for 5 min 0 s",
        f"Why: Waiting: {waiting}",
        f"Needs: {WORDS['Unreachable'].needs}",
        f"You can: {WORDS['Unreachable'].can_do}",
        "Gives up: in 10 min 0 s",
        "Data node 2: Lost on worker-2",
    ]


@pytest.mark.parametrize("reason", WaitingReason)
def test_the_reason_of_the_status_decides_what_is_advised(reason: WaitingReason) -> None:
    """A message in other words than an earlier operator's would be shown without any advice."""
    waits = task("Transferring", "as nobody has said it before", waitingReason=reason)
    found = explain_task(waits, zone(), NOW)
    assert (found.reason, found.needs) == (reason, WORDS[reason].needs)
    paused = task("Transferring", "Copying: 1", waitingReason="Paused")
    assert explain_task(paused, zone(), NOW).can_do == WORDS["Paused"].can_do


def test_a_plan_that_waits_for_approval_is_told_to_the_one_who_may_approve() -> None:
    """`person_must_act` is what a script or a page asks for: it would wait for ever."""
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "AwaitingApproval",
        "message": "x",
        "lastTransitionTime": BEFORE,
    }
    waits = task("Planned", "AwaitingApproval: set spec.approvedPlan to ab12", "AwaitingApproval")
    waits = RebalanceTask.parse(
        {**waits.dump(), "status": {**waits.dump()["status"], "conditions": [stalled]}}
    )
    found = explain_task(waits, zone(), NOW)
    assert found.person_must_act
    assert "spec.approvedPlan" in found.can_do
    assert "Without you: it does not go on" in text_of(found)


def test_what_has_ended_waits_for_nothing() -> None:
    """The last wait of a task that has ended long ago would be taken for a present one."""
    found = explain_task(task("Succeeded", "Copying: 1 (partition 0: x)"), zone(), NOW)
    assert not found.waiting
    assert text_of(found).startswith(
        "Waits: RebalanceTask shop/z-7 waits for nothing; its state is Succeeded"
    )


def test_a_transfer_and_a_task_that_nobody_has_seen() -> None:
    """Free words of a transfer would be dropped; a task without an operator would be "nothing"."""
    transfer = RegionMigration.parse(
        {
            "metadata": {"name": "m", "namespace": "shop"},
            "spec": {"zoneName": "gone", "partition": 1},
            "status": {"state": "OpenCandidate", "waitingFor": "node 3 is not in sync"},
        }
    )
    found = explain_migration(transfer, None, NOW)
    assert (found.waiting, found.why) == (True, "node 3 is not in sync")
    assert found.facts[0].says == "there is no zone of the name in spec.zoneName"
    new = RebalanceTask.parse({"metadata": {"name": "n"}, "spec": {"zoneName": "z"}})
    assert "whether the operator runs" in explain_task(new, zone(), NOW).can_do


def test_a_zone_names_its_gravest_condition_and_its_waiting_tasks() -> None:
    """A zone that waits for a person would be told to be starting."""
    ready = {"type": "Ready", "status": "False", "reason": "PodsNotReady", "message": "1 of 3"}
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "NotEnoughDataNodes",
        "message": "2 for 3 replicas",
    }
    found = explain_zone(zone(ready, stalled), [task("Planned", "Limit: 1 (partition 0: x)")], NOW)
    assert (found.reason, found.person_must_act) == ("NotEnoughDataNodes", True)
    assert found.facts[-1].about == "RebalanceTask z-7"
    rest = explain_zone(zone({**ready, "status": "True", "reason": "Available"}), [], NOW)
    assert not rest.waiting


def _words() -> Iterator[str]:
    """Yield the first words of the texts that machines of tasks give to `wait` and `waits`."""
    root = Path(inspect.getfile(rezone.domain)).parent
    for file in [f for part in ("rebalance", "resharding") for f in (root / part).glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr not in {"wait", "waits"} or not node.args:
                continue
            first = node.args[0]
            if isinstance(first, ast.JoinedStr) and isinstance(first.values[0], ast.Constant):
                first = first.values[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value.partition(":")[0].partition(" ")[0]


@pytest.mark.parametrize("word", sorted({*_words(), *Wait}))
def test_each_word_of_a_task_has_an_advice(word: str) -> None:
    """A new reason to wait would be shown without what to do about it, or not be in the API."""
    assert WaitingReason(word)
    assert WORDS[word].needs.endswith(".")
    assert WORDS[word].can_do.endswith(".")
