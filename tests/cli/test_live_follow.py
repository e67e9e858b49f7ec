"""The loop of a live view, without a server: it ends when it is told to, and outlives failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest

from rezone.cli.look import present
from rezone.cli.look.present import Pace, follow
from rezone.cli.look.source import Source, Watched
from rezone.cli.look.views import ZoneList
from rezone.kube.api.client import Kube
from rezone.kube.api.errors import MissingError, UnavailableError
from rezone.kube.api.kinds import ZoneKind
from rezone.report.document import Document

KUBE = cast("Kube", SimpleNamespace(connection=None))
FAST = Pace(spacing_seconds=0.001, refresh_seconds=0.01)


@dataclass
class Shown:
    """A screen that ends the test once it has shown so much."""

    wanted: int
    troubles: list[str] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def show(self, view: Document, trouble: str) -> None:
        """Keep why a view may be old."""
        assert view.kind == "ZoneList"
        self.troubles.append(trouble)
        if len(self.troubles) == self.wanted:
            self.done.set()


class SilentWatch:
    """A watch to which nothing happens."""

    trouble = ""

    def __init__(self, *_arguments: object) -> None: ...

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()


async def _load(_kube: Kube, _place: str) -> Document:
    return ZoneList()


async def test_a_cancel_that_comes_with_a_change_ends_the_view(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C would be lost when an object changes in the same moment, and the view go on."""

    class CancellingWatch(SilentWatch):
        def __init__(
            self,
            _connection: object,
            _kind: object,
            _within: str,
            changed: Callable[[], None],
            *_: object,
        ) -> None:
            self._changed = changed

        async def run(self) -> None:
            self._changed()
            view.cancel()
            await asyncio.Event().wait()

    monkeypatch.setattr(present, "ChangeWatch", CancellingWatch)
    source = Source(_load, (Watched(ZoneKind),))
    view = asyncio.create_task(follow(KUBE, source, "shop", Shown(1), Pace()))
    _, still = await asyncio.wait([view], timeout=5)
    for task in still:
        task.cancel()
    assert view.cancelled()


async def test_a_failed_read_leaves_the_last_view_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An API server that restarts would end the view, or leave it old without a word."""
    monkeypatch.setattr(present, "ChangeWatch", SilentWatch)
    answers = iter([None, UnavailableError("no answer"), None, MissingError("not found")])

    async def load(_kube: Kube, _place: str) -> Document:
        failure = next(answers)
        if failure is not None:
            raise failure
        return ZoneList()

    shown = Shown(3)
    with pytest.raises(MissingError):
        await asyncio.wait_for(follow(KUBE, Source(load, ()), "shop", shown, FAST), 5)
    assert shown.troubles == ["", "no answer", ""]
