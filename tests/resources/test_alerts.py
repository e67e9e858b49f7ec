"""The alert rules of the chart: Prometheus' own tester says when they fire, and when not."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from resource_server import REPOSITORY
from test_chart import chart, of_kind

from rezone.local.tools import find_tools

pytestmark = pytest.mark.proves("OB-02")

RULES = REPOSITORY / "charts" / "rezone" / "alerts" / "rezone.yaml"
RUNBOOKS = REPOSITORY / "docs" / "operate" / "runbooks"
RUNBOOK_URL = "https://github.com/rezone-dev/rezone/blob/main/docs/operate/runbooks/"
ZONE = {"namespace": "shop", "rezone_dev_zone": "orders"}
NODE = {**ZONE, "rezone_dev_node_id": "1"}
MINUTES = 90
"""How long the series of a case run; one sample a minute."""


class Case(NamedTuple):
    """Series, and what fires at their end; `quiet` series are just inside what is usual.

    Values are in promtool's notation.
    """

    alert: str
    loud: dict[str, str]
    quiet: dict[str, str]
    labels: dict[str, str]
    severity: str = "warning"


def at(value: float) -> str:
    """Return a series that stays at a value."""
    return f"{value}x{MINUTES}"


def growing(per_minute: float) -> str:
    """Return a counter."""
    return f"0+{per_minute}x{MINUTES}"


def series(metric: str, **labels: str) -> str:
    """Return a series of a metric of the operator, or of data node 1 of the zone."""
    known = {**NODE, **labels} if "data_node" in metric or metric == "up" else labels
    return metric + "{" + ",".join(f'{name}="{text}"' for name, text in known.items()) + "}"


def requests(operation: str, result: str) -> str:
    """Return the counter of requests with a result."""
    return series("rezone_data_node_requests_total", operation=operation, result=result)


def gauge(alert: str, name: str, levels: tuple[float, float], labels: Any, severity: str) -> Case:
    """Return the case of a rule on one gauge, with a quiet and a loud level."""
    quiet, loud = levels
    return Case(alert, {name: at(loud)}, {name: at(quiet)}, labels, severity)


def slow(alert: str, operation: str, quick: str, late: str) -> Case:
    """Return the case of a rule on durations: all requests in the buckets up to a bound."""

    def taking(seconds: str) -> dict[str, str]:
        bounds = ["0.1", "0.25", "0.5", "1.0", "2.5", "+Inf"]
        name = "rezone_data_node_request_seconds_bucket"
        reached = bounds.index(seconds)
        return {
            series(name, operation=operation, le=bound): growing(60 if at_bound >= reached else 0)
            for at_bound, bound in enumerate(bounds)
        }

    return Case(alert, taking(late), taking(quick), ZONE)


NOT_READY = "rezone_operator_zones_not_ready"
COMPLETED = "rezone_operator_tasks_completed_total"
FULL = "rezone_data_node_saturation_ratio"
CRITICAL, WARNING = "critical", "warning"
CASES = (
    gauge("RezoneQuorumLost", series(NOT_READY, reason="QuorumLost"), (0, 1), {}, CRITICAL),
    gauge("RezoneNoLeader", series(NOT_READY, reason="NoLeader"), (0, 1), {}, CRITICAL),
    gauge(
        "RezoneUnderReplicated", series(NOT_READY, reason="UnderReplicated"), (0, 2), {}, WARNING
    ),
    Case(
        "RezoneRequestsFail",
        {requests("write", "failed"): growing(1)},
        {requests("write", "failed"): at(7), requests("write", "refused"): growing(9)},
        {**ZONE, "operation": "write"},
        CRITICAL,
    ),
    Case(
        "RezoneRequestsRefused",
        {requests("write", "ok"): growing(90), requests("read", "unavailable"): growing(10)},
        {requests("write", "ok"): growing(90), requests("read", "overloaded"): growing(4)},
        ZONE,
        CRITICAL,
    ),
    slow("RezoneWritesSlow", "write", "0.5", "2.5"),
    slow("RezoneReadsSlow", "read", "0.25", "1.0"),
    gauge(
        "RezoneDataNodeDown",
        series("up", app_kubernetes_io_component="data-node"),
        (1, 0),
        NODE,
        WARNING,
    ),
    gauge(
        "RezoneReplicaFailed", series("rezone_data_node_failed_partitions"), (0, 1), NODE, WARNING
    ),
    gauge(
        "RezoneDataCorruption",
        series("rezone_data_node_corrupted_partitions"),
        (0, 1),
        NODE,
        WARNING,
    ),
    Case("RezoneOperatorAbsent", {}, {series("rezone_operator_queue_depth"): at(0)}, {}, CRITICAL),
    gauge(
        "RezoneNotReached",
        series("rezone_operator_zones_degraded", reason="NotReached"),
        (0, 1),
        {"reason": "NotReached"},
        CRITICAL,
    ),
    Case(
        "RezoneReconcilesFail",
        {
            series(
                "rezone_operator_reconciles_total", kind="RebalanceTask", outcome="error"
            ): growing(6)
        },
        {
            series(
                "rezone_operator_reconciles_total", kind="RebalanceTask", outcome="error"
            ): growing(2)
        },
        {"kind": "RebalanceTask"},
    ),
    gauge(
        "RezoneWatchStale",
        series("rezone_operator_watch_staleness_seconds"),
        (30, 90),
        {},
        CRITICAL,
    ),
    gauge("RezoneLoopSlow", series("rezone_operator_loop_lag_seconds"), (1, 3), {}, WARNING),
    Case(
        "RezoneRebalanceFailed",
        {series(COMPLETED, kind="RebalanceTask", state="Failed"): "0x70 1x20"},
        {series(COMPLETED, kind="RebalanceTask", state="Failed"): "0x10 1x80"},
        {},
    ),
    Case(
        "RezoneMovesFail",
        {series(COMPLETED, kind="RegionMigration", state="RolledBack"): "0x70 5x20"},
        {series(COMPLETED, kind="RegionMigration", state="RolledBack"): "0x70 2x20"},
        {"state": "RolledBack"},
    ),
    gauge(
        "RezoneCopyNoSpace",
        series("rezone_data_node_failing_copies", failure="NoSpace"),
        (0, 1),
        NODE,
        WARNING,
    ),
    gauge(
        "RezoneReshardRangeBroken",
        series("rezone_operator_reshard_ranges", phase="Broken"),
        (0, 1),
        {},
        WARNING,
    ),
    Case(
        "RezoneLimitNear",
        {series(FULL, limit="connections"): at(0.95)},
        {
            series(FULL, limit="connections"): at(0.9),
            series(FULL, limit="memory_block_cache"): at(1),
        },
        {**NODE, "limit": "connections"},
    ),
    gauge("RezoneLogKept", series(FULL, limit="partition_log"), (0.8, 1.2), NODE, WARNING),
    gauge(
        "RezoneFeedBehind",
        series("rezone_data_node_feed_saturation_ratio", feed="billing"),
        (0.8, 0.9),
        {**ZONE, "feed": "billing"},
        WARNING,
    ),
    gauge("RezoneDiskNearlyFull", series(FULL, limit="disk"), (0.85, 0.9), NODE, WARNING),
    Case(
        "RezoneDiskFillsUp",
        {series(FULL, limit="disk", rezone_dev_node_id="2"): "0.1+0.004x90"},
        {series(FULL, limit="disk", rezone_dev_node_id="2"): "0.1+0.001x90"},
        {**NODE, "rezone_dev_node_id": "2"},
        CRITICAL,
    ),
    gauge("RezoneDiskSlow", series("rezone_data_node_disk_slow"), (0, 1), NODE, WARNING),
    gauge(
        "RezoneClockOff",
        series("rezone_data_node_clock_offset_seconds"),
        (-0.4, -0.5),
        NODE,
        WARNING,
    ),
    gauge(
        "RezoneTimesAhead", series("rezone_data_node_times_ahead_seconds"), (10, 11), ZONE, WARNING
    ),
)


def rules() -> Iterator[dict[str, Any]]:
    """Yield the alert rules of the chart."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


@pytest.fixture(scope="module")
def promtool() -> Path:
    """Return Prometheus' tester, built if need be."""
    return find_tools(["promtool"])["promtool"]


def test_each_rule_fires_when_it_should_and_not_before(promtool: Path, tmp_path: Path) -> None:
    """A rule with a wrong label or threshold would be silent, or cry wolf; both go unnoticed."""
    assert [case.alert for case in CASES] == [rule["alert"] for rule in rules()]
    loud = {name: values for case in CASES for name, values in case.loud.items()}
    quiet = {name: values for case in CASES for name, values in case.quiet.items()}
    assert len(loud) == sum(len(case.loud) for case in CASES), "a series of two cases"
    assert len(quiet) == sum(len(case.quiet) for case in CASES), "a series of two cases"
    fire = [{"labels": alert_of(case), "value": 1} for case in CASES]
    tests = [unit("all fire", loud, fire), unit("all are quiet", quiet, [])]
    file = tmp_path / "alerts.json"
    file.write_text(
        json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unit(name: str, given: dict[str, str], fire: list[Any]) -> dict[str, Any]:
    """Return a test of promtool: which alerts fire at the end of the series, and no others."""
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in given.items()],
        "promql_expr_test": [
            {
                "expr": 'ALERTS{alertstate="firing"}',
                "eval_time": f"{MINUTES}m",
                "exp_samples": fire,
            }
        ],
    }


def alert_of(case: Case) -> str:
    """Return the series that Prometheus makes of an alert that fires."""
    labels = {
        "alertname": case.alert,
        "alertstate": "firing",
        "severity": case.severity,
        **case.labels,
    }
    return "ALERTS{" + ",".join(f'{name}="{text}"' for name, text in labels.items()) + "}"


def test_each_rule_has_a_runbook_that_says_what_to_do() -> None:
    """Who is woken up would find a page that is not there, or says nothing."""
    names = [rule["alert"] for rule in rules()]
    for rule in rules():
        name, annotations = rule["alert"], rule["annotations"]
        assert annotations["runbook_url"] == f"{RUNBOOK_URL}{name}.md"
        assert annotations["summary"].endswith("."), name
        page = (RUNBOOKS / f"{name}.md").read_text()
        assert page.startswith(f"# {name}\n"), name
        headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
        assert headings == ["What it means", "Look", "Act"], name
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"index"}
    assert pages == set(names), "a runbook without an alert"


def test_rules_group_by_labels_that_series_have(helm: str) -> None:
    """An alert would not say which data node it is about: a label that is not there is empty."""
    (monitor,) = of_kind(chart(helm, "podMonitor.enabled=true"), "PodMonitor")
    target = {re.sub(r"\W", "_", label) for label in monitor["spec"]["podTargetLabels"]}
    of_metrics = {"feed", "le", "operation", "limit", "reason", "kind", "state"}
    for rule in rules():
        for names in re.findall(r"by \((.*?)\)", rule["expr"]):
            assert {*names.split(", ")} <= target | of_metrics | {"namespace"}, rule["alert"]
        said = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert all(name in rule["expr"] for name in said), rule["alert"]


def test_the_chart_has_the_rules_when_asked(helm: str) -> None:
    """The rules would not reach Prometheus, or without its operator's kind stop an installation."""
    assert of_kind(chart(helm), "PrometheusRule") == []
    own = "https://wiki.example/rezone/"
    (found,) = of_kind(
        chart(
            helm,
            "prometheusRule.enabled=true",
            "prometheusRule.labels.release=prometheus",
            f"prometheusRule.runbookBaseUrl={own}",
        ),
        "PrometheusRule",
    )
    assert found["metadata"]["labels"]["release"] == "prometheus"
    text = RULES.read_text().replace(RUNBOOK_URL, own)
    assert found["spec"] == yaml.safe_load(text)
