"""The demo's picture: it must show what happened, also what should not have."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from typing import cast

import msgspec
import pytest
from rich.console import Console

from rezone.cli.demo.cluster import DemoCluster
from rezone.cli.demo.gaps import WriteAck
from rezone.cli.demo.history import (
    Happened,
    History,
    gaps_over,
    longest_gaps_ms,
    partitions_of,
    reigns,
    writes_a_second,
)
from rezone.cli.demo.picture import COLOURS, picture_of
from rezone.cli.demo.view import LiveView
from rezone.cli.demo.watcher import LeaderWatcher
from rezone.domain.routing import routes
from rezone.domain.routing.route_shards import encode_record

SVG = "{http://www.w3.org/2000/svg}"
HISTORY = History(
    begun=100.0,
    ended=110.0,
    acks={
        0: [WriteAck(100 + i / 10, 3 if i < 50 else 4) for i in range(100)],
        1: [WriteAck(100.0, 7), WriteAck(102.0, 7), WriteAck(102.1, 7)],
    },
    leaders={(0, 3): 0, (0, 4): 2, (1, 7): 1, (2, 1): 1},
    happened=(Happened(101.0, "node <b>joins</b>\x1b"),),
)


def test_leaderships_follow_the_epochs_of_answers() -> None:
    """A move would be drawn when it was watched, not when the new leader answered."""
    assert [(r.node, r.begin, r.end) for r in reigns(HISTORY, 0)] == [
        (0, 100.0, 105.0),
        (2, 105.0, 110.0),
    ]
    assert reigns(HISTORY, 9) == []


def test_gaps_and_rates_are_of_their_time() -> None:
    """A partition that took no writes, for seconds or to the end, would look like the others."""
    assert gaps_over(HISTORY, 1, 0.25) == [(100.0, 102.0), (102.1, 110.0)]
    assert gaps_over(HISTORY, 0, 0.25) == []
    assert gaps_over(HISTORY, 2, 0.25) == [(100.0, 110.0)]
    assert partitions_of(HISTORY) == [0, 1, 2]
    rates = writes_a_second(HISTORY, 10)
    assert rates[0] == pytest.approx(11, abs=1.1)
    assert sum(rates) == pytest.approx(103)
    longest = longest_gaps_ms(HISTORY, 10)
    assert longest[2] == pytest.approx(2000)
    assert longest[5] == pytest.approx(100)


def test_the_picture_has_each_leader_and_each_gap() -> None:
    """A picture without the gaps would be an advertisement."""
    root = ET.fromstring(picture_of(HISTORY))  # noqa: S314 - our own text
    titles = [each.text for each in root.iter(f"{SVG}title")]
    assert "partition 0: data node 2" in titles
    assert "partition 1: no write for 2000 ms" in titles
    blocks = {t.text: r for r in root.iter(f"{SVG}rect") for t in r.findall(f"{SVG}title")}
    moved = blocks["partition 0: data node 2"]
    assert moved.get("fill") == COLOURS[2]
    assert float(moved.get("x", "0")) == pytest.approx(90 + 890 / 2, abs=0.1)
    assert [t for t in root.itertext() if t == "data node 1"]
    assert "node <b>joins</b>\N{REPLACEMENT CHARACTER}" in titles


class _Nobody:
    """A cluster that is not asked."""


def test_who_led_in_which_epoch_is_read_from_the_route_table() -> None:
    """A leader that moved without a RegionMigration would have no colour."""
    watcher = LeaderWatcher(cast("DemoCluster", _Nobody()), "demo")
    first = routes.initial((2, 1), 1)
    watcher.note({"data": {"5": encode_record(first)}})
    later = msgspec.structs.replace(first, leader=1, leader_epoch=first.leader_epoch + 1)
    watcher.note({"data": {"5": encode_record(later)}})
    watcher.note({})
    assert watcher.leaders == {(5, first.leader_epoch): 2, (5, later.leader_epoch): 1}


def test_progress_is_drawn_in_place_and_the_cursor_comes_back() -> None:
    """The demo would scroll a line for each look, or leave a terminal without a cursor."""
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=100, color_system="standard")
    view = LiveView(terminal)
    for done in (1_000_000, 3_000_000):
        moved = {"bytesTotal": 4_000_000, "bytesDone": done}
        status = {"state": "Transferring", "progress": moved}
        view.show({"metadata": {"name": "z-7"}, "spec": {"zoneName": "z"}, "status": status})
    view.end()
    view.end()
    shown = out.getvalue()
    assert "25%" in shown
    assert "75%" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")


def test_nothing_and_very_much_are_drawn() -> None:
    """A run that failed early, or one of 1,024 partitions, would have no picture."""
    empty = History(begun=1.0, ended=1.0, acks={}, leaders={})
    assert ET.fromstring(picture_of(empty)).tag == f"{SVG}svg"  # noqa: S314 - our own text
    acks = {p: [WriteAck(0.0, 1), WriteAck(9.0, 1)] for p in range(1024)}
    leaders = {(p, 1): p % 5 for p in acks}
    large = picture_of(History(begun=0.0, ended=10.0, acks=acks, leaders=leaders))
    root = ET.fromstring(large)  # noqa: S314 - our own text
    assert float(root.get("height", "0")) < 1000
    assert len(large) < 1_000_000
