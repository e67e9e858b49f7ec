"""The console in a real browser, with a real operator and data nodes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from operated_cluster import (
    TestCluster,
    make_zone,
    path_of,
    remove_zone,
    routes_of,
    stable_of,
    task_manifest,
)
from operator_process import OperatorProcess

from browser import Browser, open_browser, require_browser
from console_process import ConsoleProcess
from rezone.local.api import Json, KubeApi

pytestmark = [pytest.mark.apiserver, pytest.mark.slow, pytest.mark.timeout(240)]

NAMESPACE = "watched"
ZONE = "orders"
NODES = ("worker-1", "worker-2", "worker-3", "worker-4")
ZONES = path_of(NAMESPACE, "distributionzones")


@pytest.fixture
def zone(cluster: TestCluster, tmp_path: Path) -> Iterator[Json]:
    """Give a zone whose plans wait for a person, with an operator that works on it."""
    require_browser()
    cluster.kubectl("create", "namespace", NAMESPACE)

    async def make() -> Json:
        async with KubeApi(cluster.kubeconfig) as api:
            manual = {"approval": "Manual"}
            made = await make_zone(
                cluster, api, NAMESPACE, ZONE, NODES, partitions=8, rebalance=manual
            )
            # Without their routes a move could not say whom it adds.
            assert len(await routes_of(api, NAMESPACE, ZONE)) == 8
            return made

    async def remove() -> None:
        async with KubeApi(cluster.kubeconfig) as api:
            await remove_zone(api, NAMESPACE, ZONE)

    with OperatorProcess(cluster, NAMESPACE, tmp_path).running():
        yield asyncio.run(make())
        asyncio.run(remove())


def moved(zone: Json, partition: int) -> tuple[tuple[int, ...], int, int]:
    """Return where a partition shall go, the data node that comes, and the one that leaves."""
    held = stable_of(zone)[partition]
    comes = min({node["id"] for node in zone["status"]["dataNodes"]} - set(held))
    return (*held[:-1], comes), comes, held[-1]


@pytest.mark.proves("OB-03")
def test_a_rebalance_is_approved_and_watched_in_a_browser(
    cluster: TestCluster, zone: Json, tmp_path: Path
) -> None:
    """By the keyboard alone, and without loading a page again to see what has changed.

    A person at the console would see neither that a plan waits nor how it goes on, or could not
    approve it.
    """
    replicas, comes, leaves = moved(zone, 0)
    with (
        ConsoleProcess(cluster.kubeconfig, "--namespace", NAMESPACE) as console,
        open_browser(tmp_path) as browser,
    ):
        browser.open(console.link)
        browser.until_text("#list", ZONE)
        browser.open(f"{console.address}/zones/{NAMESPACE}/{ZONE}")
        browser.until_text("#live", "live")
        browser.mark()
        # The API server goes to no pod on a loopback address; all else of the page is there.
        browser.until_text("#rates", "not allowed")
        cluster.apply(task_manifest(NAMESPACE, "move", ZONE, {0: replicas}))
        browser.until_text("#tasks", "AwaitingApproval")
        assert browser.marked
        assert f"partition 0, node {leaves}:" in browser.html("#map")
        browser.tab_to("task-move")
        browser.press_enter()
        _approve(browser, comes, leaves)
        browser.until_text("#state", "Succeeded")
        assert browser.marked
        assert browser.text("#actions").strip() == ""
        _read_the_report(browser)
        _watch_the_failback(cluster, zone, browser, console)
        assert browser.complaints() == []


def _approve(browser: Browser, comes: int, leaves: int) -> None:
    """Approve the plan by the keyboard; the page of the task is open afterwards, and marked."""
    browser.until_text("#waits", "AwaitingApproval")
    row = browser.text("#plan-table tbody tr")
    assert f"+ {comes}" in row
    assert f"− {leaves}" in row  # noqa: RUF001 - as the page has it
    browser.screenshot("console-rebalance")
    browser.tab_to("ask-approve")
    browser.press_enter()
    browser.until_text("h1", "Approve this plan?")
    browser.tab_to("yes")
    browser.press_enter()
    browser.until_text("h1", "Rebalance move")
    browser.mark()


def _read_the_report(browser: Browser) -> None:
    """Open the report by its link, and go back; its style sheet is one that the policy names."""
    browser.tab_to("report")
    browser.press_enter()
    browser.until_text("h1", "Rebalance move")
    assert "approvedPlan" in browser.text("#asked")
    assert "rezone-console" in browser.text("#asked")
    assert browser.run("return getComputedStyle(document.querySelector('svg .dark')).fill") == (
        "rgb(43, 108, 176)"
    )
    browser.chrome.back()
    browser.until_text("#state", "Succeeded")
    browser.mark()


def _watch_the_failback(
    cluster: TestCluster, zone: Json, browser: Browser, console: ConsoleProcess
) -> None:
    """See on the zone's open page how a partition goes back to where it was."""
    _, comes, leaves = moved(zone, 0)
    browser.open(f"{console.address}/zones/{NAMESPACE}/{ZONE}")
    browser.until_text("#live", "live")
    browser.mark()
    browser.screenshot("console-zone")
    assert f"partition 0, node {comes}:" in browser.html("#map")
    automatic = '{"spec": {"rebalance": {"approval": "Automatic"}}}'
    cluster.kubectl(
        "--namespace", NAMESPACE, "patch", "dz", ZONE, "--type=merge", "--patch", automatic
    )
    back = tuple(stable_of(zone)[0])
    cluster.apply(task_manifest(NAMESPACE, "back", ZONE, {0: back}))

    def is_back() -> bool:
        shown = browser.html("#map")
        return f"partition 0, node {leaves}:" in shown and f"0, node {comes}:" not in shown

    browser.until(is_back, "the map has not changed")
    assert browser.marked
