"""The report of a rebalance as a page: what it says, and that it asks nobody for anything."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import Browser, open_browser
from rezone.report import pictures
from rezone.report.page import report_page
from rezone.report.task import (
    Asked,
    PartitionOutage,
    StateSpan,
    TaskFigures,
    TaskReport,
    TransferRow,
    WaitSpan,
    WriteOutage,
)
from rezone.report.transfer import TransferReport

pytestmark = [pytest.mark.proves("OB-05")]

BEGIN = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
EVIL = "\"'><script>document.title='run'</script><img src=http://127.0.0.1:9/x>&"

REPORT = TaskReport(
    namespace="shop",
    name="orders-7",
    zone="orders",
    type="Zone",
    state="Succeeded",
    ended=True,
    reason="Succeeded",
    message="all replicas are in sync",
    started_time=BEGIN,
    finished_time=BEGIN + timedelta(seconds=750),
    seconds=750,
    plan_hash="b5c1d2e3f4",
    moves_planned=24,
    moves_done=24,
    leader_moves_planned=8,
    leader_moves_done=8,
    bytes_planned=11_800_000_000,
    bytes_done=12_400_000_000,
    seconds_planned=600,
    bytes_per_second=34_000_000,
    copies_dropped=1,
    by_spark="orders-7-copy",
    states=(
        StateSpan(state="Planned", time=BEGIN, seconds=90, message="waits for approval"),
        StateSpan(state="AwaitingReplicas", time=BEGIN + timedelta(seconds=90), seconds=20),
        StateSpan(state="Transferring", time=BEGIN + timedelta(seconds=110), seconds=480),
        StateSpan(state="Switching", time=BEGIN + timedelta(seconds=590), seconds=140),
        StateSpan(state="StoppingRedundant", time=BEGIN + timedelta(seconds=730), seconds=20),
        StateSpan(state="Succeeded", time=BEGIN + timedelta(seconds=750), seconds=0),
    ),
    waits=(
        WaitSpan(reason="Copying", seconds=460),
        WaitSpan(reason="AwaitingApproval", seconds=90),
        WaitSpan(reason="CatchingUp", seconds=60),
    ),
    write_unavailability=WriteOutage(
        transfers=8,
        total_milliseconds=88,
        max_milliseconds=23,
        longest=tuple(
            PartitionOutage(partition=each, milliseconds=23 - 3 * each) for each in range(8)
        ),
    ),
    asked=(Asked(field="approvedPlan", value="b5c1d2e3f4", manager="kubectl-edit", time=BEGIN),),
    transfers=(
        TransferRow(
            name="orders-7-5",
            partition=5,
            from_node=1,
            to_node=4,
            state="Succeeded",
            ended=True,
            started_time=BEGIN + timedelta(seconds=600),
            seconds=2,
            write_unavailable_milliseconds=8,
        ),
    ),
)
FACTS = (
    "shop/orders",
    "b5c1d2e3f4",
    "12 min 30 s",
    "34 MB/s",
    "12 GB of 12 GB",
    "24 of 24",
    "orders-7-copy",
    "AwaitingApproval",
    "partition 5 leads 4",
    "in the mean and 23 ms at most",
    "kubectl-edit",
)


def test_a_page_has_all_figures_and_opens_without_asking_anybody(tmp_path: Path) -> None:
    """A report that is sent on would be empty elsewhere, or tell a server who reads it."""
    file = tmp_path / "report.html"
    file.write_text(report_page(REPORT, BEGIN + timedelta(hours=1)), encoding="utf-8")
    with open_browser(tmp_path) as browser:
        browser.open(file.as_uri())
        said = re.sub(r"\s+", " ", str(browser.run("return document.body.textContent")))
        assert [fact for fact in FACTS if fact not in said] == []
        assert loaded(browser) == []
        assert browser.run("return document.querySelectorAll('svg[role=img] > title').length") == 4
        # Without its style sheet the page would have a serif font: the policy lets it through.
        ground = "return getComputedStyle(document.querySelector('svg .dark')).fill"
        assert browser.run(ground) == "rgb(43, 108, 176)"
        assert browser.complaints() == []
        browser.chrome.set_window_size(1040, 1500)
        browser.screenshot("report")


def test_what_objects_say_is_no_markup(tmp_path: Path) -> None:
    """Who may write a task's status would run scripts where its report is read."""
    evil = REPORT.model_copy(
        update={
            **dict.fromkeys(("name", "zone", "type", "state", "message", "plan_hash"), EVIL),
            "states": (StateSpan(state=EVIL, time=BEGIN, seconds=1, message=EVIL),),
            "waits": (WaitSpan(reason=EVIL, seconds=1),),
            "asked": (Asked(field=EVIL, value=EVIL, manager=EVIL),),
            "transfers": (REPORT.transfers[0].model_copy(update={"name": EVIL, "error": EVIL}),),
        }
    )
    page = report_page(evil, BEGIN)
    assert "<script" not in page
    assert "<img" not in page
    file = tmp_path / "report.html"
    file.write_text(page, encoding="utf-8")
    with open_browser(tmp_path) as browser:
        browser.open(file.as_uri())
        assert EVIL in str(browser.run("return document.querySelector('h1').textContent"))
        assert loaded(browser) == []
        assert browser.complaints() == []


def loaded(browser: Browser) -> list[str]:
    """Return the addresses that the open page has asked for, besides its own."""
    found: list[str] = browser.run(
        "return performance.getEntriesByType('resource').map(each => each.name)"
    )
    return found


def test_a_report_without_anything_has_a_page() -> None:
    """The page of a task that waits for its first plan would be an error."""
    bare = TaskReport(
        namespace="shop", name="a", zone="z", type="Reshard", state="new", ended=False
    )
    page = report_page(bare, BEGIN)
    assert "It waited for nothing" in page
    assert "figures are not final" in page
    assert "Partitions cut over" in page


@given(
    spans=st.lists(st.tuples(st.integers(-(10**6), 10**6), st.integers(0, 10**6)), max_size=40),
    waits=st.lists(st.integers(0, 10**9), max_size=23),
    done=st.integers(0, 10**18),
    planned=st.integers(0, 10**18),
)
def test_all_bars_stand_within_their_picture(
    spans: list[tuple[int, int]], waits: list[int], done: int, planned: int
) -> None:
    """A clock that went back, or more copied than planned, would draw over the texts or fail."""
    drawn = REPORT.model_copy(
        update={
            "states": tuple(
                StateSpan(state="s", time=BEGIN + timedelta(seconds=at), seconds=took)
                for at, took in spans
            ),
            "waits": tuple(WaitSpan(reason="r" * 50, seconds=each) for each in waits),
            "moves_done": done,
            "moves_planned": planned,
        }
    )
    found = (
        pictures.timeline(drawn.states, drawn.transfers),
        pictures.waits_picture(drawn.waits),
        pictures.done_picture(drawn),
        pictures.outage_picture(drawn),
    )
    for bar in (each for picture in found if picture is not None for each in picture.bars):
        assert bar.left >= 0
        assert bar.left + max(bar.width, bar.dark) <= pictures.BARS_WIDTH + 2
        assert len(bar.label) <= pictures.LABEL_LENGTH_MAX


def test_the_page_of_a_leader_transfer(tmp_path: Path) -> None:
    """What a transfer cost could be sent to nobody; a hostile status would run scripts there."""
    report = TransferReport(
        namespace="shop",
        name="by-hand",
        zone="orders",
        task=EVIL,
        partition=5,
        from_node=1,
        to_node=4,
        state="Failed",
        ended=True,
        reason="Timeout",
        message=EVIL,
        error=EVIL,
        started_time=BEGIN,
        finished_time=BEGIN + timedelta(seconds=3),
        seconds=3,
        write_unavailable_milliseconds=17,
        copied=True,
        bytes_done=5_000_000,
        rows_done=4000,
        by_spark=EVIL,
        old_leader_policy="Retain",
        recovery=EVIL,
        states=(StateSpan(state="DowngradeLeader", time=BEGIN, seconds=3, message=EVIL),),
        waits=(WaitSpan(reason="CatchingUp", seconds=60),),
        asked=(Asked(field="cancel", value="True", manager=EVIL),),
        before=REPORT.transfers[0],
    )
    file = tmp_path / "transfer.html"
    file.write_text(report_page(report, BEGIN), encoding="utf-8")
    with open_browser(tmp_path) as browser:
        browser.open(file.as_uri())
        said = re.sub(r"\s+", " ", str(browser.run("return document.body.textContent")))
        for fact in (
            "for 17 ms",
            "5.0 MB, 4,000 rows",
            "DowngradeLeader",
            "1 min 0 s",
            "orders-7-5, the one before it",
        ):
            assert fact in said
        assert browser.run("return document.querySelectorAll('svg[role=img] > title').length") == 2
        assert browser.run("return document.scripts.length + document.images.length") == 0
        assert loaded(browser) == []
        assert browser.complaints() == []


def test_the_page_shows_the_one_before_and_what_clients_got() -> None:
    """The reader would have to open two pages, and learn nothing of clients from either."""
    figures = TaskFigures(
        name="orders-7", seconds=750, served_percent_mean=38, served_percent_max=61
    )
    before = TaskFigures(name="orders-6", seconds=600, bytes_done=5_000_000)
    page = report_page(REPORT.model_copy(update={"figures": figures, "before": before}), BEGIN)
    assert "Beside orders-6, the one before it" in page
    assert "<td>10 min 0 s</td><td>12 min 30 s</td>" in page
    assert "38 % of the time, 61 % at most" in page
