"""Prometheus itself scrapes a real zone: every query that people or alerts ask has an answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from operated_cluster import (
    ROOT,
    TestCluster,
    Writer,
    addresses_of,
    make_zone,
    remove_zone,
)
from operator_process import OperatorProcess

from rezone.local.api import Json, KubeApi
from rezone.local.controlplane import free_ports
from rezone.local.tools import find_tools

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.proves("OB-01", "OB-02"),
]

NAMESPACE = "measured"
ZONE = "measured"
HEALTH_PORT = 7401
SCRAPES = 5
WAIT_SECONDS = 60.0
CHART = ROOT / "charts" / "rezone"
RULES = CHART / "alerts" / "rezone.yaml"
RUNBOOKS = ROOT / "docs" / "operate" / "runbooks"
COMPARED = re.compile(r"\s*(>|<|==)\s*[\d.]+\s*$")
"""The end of an alert's expression: without it there is a series also while all is well."""
EMPTY = {
    "absent(rezone_operator_queue_depth)": "an operator leads",
}
"""Queries that have no answer while all is well, and why."""


class Prometheus:
    """A Prometheus at a port of its own."""

    def __init__(self, port: int) -> None:
        self._port = port

    def get(self, path: str, **asked: str) -> Any:
        """Return the data of an answer."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[Json]:
        """Return the series of an instant query."""
        found: list[Json] = self.get("query", query=expression)["result"]
        return found

    def until_scraped(self, targets: int) -> None:
        """Wait until each target was scraped often enough for rates."""
        deadline = time.monotonic() + WAIT_SECONDS
        expression = f"count(sum_over_time(up[5m]) >= {SCRAPES})"
        found: Any = None
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):  # it does not listen yet
                found = self.query(expression)
                if found and float(found[0]["value"][1]) >= targets:
                    return
            threading.Event().wait(0.2)
        raise AssertionError(f"not all of {targets} targets were scraped: {found}")


def configuration(zone: Json, operator_port: int) -> Json:
    """Return Prometheus' configuration, with the labels that the chart's PodMonitor adds."""
    common = {"namespace": NAMESPACE}
    operator = {**common, "app_kubernetes_io_component": "operator"}
    groups: list[Json] = [{"targets": [f"127.0.0.1:{operator_port}"], "labels": operator}]
    for node, address in addresses_of(zone).items():
        labels = {
            **common,
            "app_kubernetes_io_component": "data-node",
            "rezone_dev_zone": ZONE,
            "rezone_dev_node_id": str(node),
        }
        target = f"{address.rpartition(':')[0]}:{HEALTH_PORT}"
        groups.append({"targets": [target.removeprefix("grpc://")], "labels": labels})
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "rezone",
                "static_configs": groups,
                "convert_classic_histograms_to_nhcb": True,
                "always_scrape_classic_histograms": True,
            }
        ],
    }


@contextlib.contextmanager
def prometheus(directory: Path, configured: Json) -> Iterator[Prometheus]:
    """Run a Prometheus; end it by pid."""
    (port,) = free_ports(1)
    config = directory / "prometheus.yaml"
    config.write_text(yaml.safe_dump(configured))
    command = [
        str(find_tools(["prometheus"])["prometheus"]),
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
        assert process.poll() is None, (directory / "log").read_text()
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def panel_queries() -> Iterator[tuple[str, str]]:
    """Yield each query of the dashboards with where it is."""
    boards = sorted((CHART / "dashboards").glob("*.json"))
    assert boards
    for board in boards:
        for panel in json.loads(board.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield f"{board.name}: {panel['title']}", in_full(target["expr"])


def in_full(expression: str) -> str:
    """Return a dashboard's query as Grafana sends it."""
    known = {"$__rate_interval": "1m", "$namespace": ".*", "$zone": ".*"}
    for variable, text in known.items():
        expression = expression.replace(variable, text)
    return expression


def alert_queries() -> Iterator[tuple[str, str]]:
    """Yield what each alert compares, with its name."""
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            yield f"alert {rule['alert']}", COMPARED.sub("", rule["expr"].strip())


def runbook_queries() -> Iterator[tuple[str, str]]:
    """Yield the queries of the runbooks."""
    for page in sorted(RUNBOOKS.glob("*.md")):
        for query in re.findall(r"```promql\n(.*?)\n```", page.read_text(), re.DOTALL):
            yield f"runbook {page.name}", query


@pytest.fixture(scope="module")
def operator(cluster: TestCluster, logs: Path) -> Iterator[OperatorProcess]:
    """Run the operator for this module's namespace."""
    cluster.kubectl("create", "namespace", NAMESPACE)
    process = OperatorProcess(cluster, NAMESPACE, logs)
    with process.running():
        yield process


async def test_each_query_of_panels_alerts_and_runbooks_has_an_answer(
    cluster: TestCluster, api: KubeApi, operator: OperatorProcess, tmp_path: Path
) -> None:
    """An empty panel looks like peace, and an alert on nothing never fires."""
    workers = ("worker-1", "worker-2", "worker-3")
    feeds = [{"name": "billing"}]
    zone = await make_zone(cluster, api, NAMESPACE, ZONE, workers, feeds=feeds)
    configured = configuration(zone, operator.port)

    def look() -> None:
        with (
            Writer(addresses_of(zone).values()) as writer,
            prometheus(tmp_path, configured) as found,
        ):
            found.until_scraped(1 + len(addresses_of(zone)))
            writer.wait_for_more(1)
            check_queries(found)
            check_rules(found)
        writer.check()

    await asyncio.to_thread(look)
    await remove_zone(api, NAMESPACE, ZONE)


def check_queries(found: Prometheus) -> None:
    """Ask everything, and compare what has no answer with what may have none."""
    asked = [*panel_queries(), *alert_queries(), *runbook_queries()]
    silent = {(where, query) for where, query in asked if not found.query(query)}
    assert {query for _, query in silent} == EMPTY.keys(), silent
    written = 'sum(rate(rezone_data_node_requests_total{operation="write",result="ok"}[1m]))'
    assert float(found.query(written)[0]["value"][1]) > 0
    # The histograms are there as native ones, too.
    native = 'rate(rezone_data_node_request_seconds{operation="write"}[1m])'
    median = found.query(f"histogram_quantile(0.5, sum({native}))")
    assert 0 < float(median[0]["value"][1]) < 10


def check_rules(found: Prometheus) -> None:
    """See that Prometheus can evaluate each rule, and that none fires in a zone that is well."""
    rules = [rule for group in found.get("rules")["groups"] for rule in group["rules"]]
    names = {f"alert {rule['name']}" for rule in rules}
    assert names == {where for where, _ in alert_queries()}
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    firing = {rule["name"] for rule in rules if rule["state"] == "firing"}
    assert firing == set()
