"""Shows a source once, or live until it is interrupted.

A watch wakes, and then what is shown is read as a whole; at most every `spacing_seconds`, and at
least every `refresh_seconds`, so that an event that was lost costs no more. A request that fails
leaves the last view standing and says so.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import click
from rich.console import Console, Group
from rich.live import Live

from rezone.cli.look.output import document
from rezone.cli.look.render import render, trouble_line
from rezone.cli.look.source import Source
from rezone.cli.look.text import text_of
from rezone.kube.api.changes import ChangeWatch
from rezone.kube.api.client import Kube, connect
from rezone.kube.api.errors import KubeError, MissingError
from rezone.report.document import Document

INTERRUPTED: Final = 130
TERMINATED: Final = 143


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How often a live view is read."""

    spacing_seconds: float = 0.5
    refresh_seconds: float = 10.0


class Screen(Protocol):
    """Where views are shown."""

    def show(self, view: Document, trouble: str) -> None:
        """Show a view in the place of the last one; `trouble` says why it may be old."""


def present(source: Source, form: str, *, watch: bool, pace: Pace | None = None) -> None:
    """Show a source once or, with `watch`, until Ctrl-C, which ends it with exit code 130.

    Raises click.ClickException when it cannot be read.
    """
    if not watch:
        _print(read(source), form)
        return
    try:
        asyncio.run(_watch(source, form, pace or Pace()))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except asyncio.CancelledError:
        raise SystemExit(TERMINATED) from None


def read(source: Source) -> Document:
    """Return what a source has now. Raises click.ClickException when it cannot be read."""
    try:
        return asyncio.run(_once(source))
    except KubeError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def console() -> Console:
    """Return the terminal; without colours by NO_COLOR (no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return Console(color_system=None, highlight=False)
    return Console(highlight=False)


def draws(terminal: Console) -> bool:
    """Return whether this is a terminal that draws, not a pipe, a file or TERM=dumb."""
    return terminal.is_terminal and not terminal.is_dumb_terminal


def _print(view: Document, form: str) -> None:
    terminal = console()
    if form != "text":
        click.echo(document(view, form))
    elif draws(terminal) and terminal.color_system is not None:
        terminal.print(render(view, terminal.width))
    else:
        click.echo(text_of(view))


async def _once(source: Source) -> Document:
    async with await connect() as kube:
        return await source.load(kube, source.namespace or kube.namespace)


async def _watch(source: Source, form: str, pace: Pace) -> None:
    task = asyncio.current_task()
    if task is not None:
        # Its default would end the process with the terminal's cursor hidden.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with await connect() as kube:
        place = source.namespace or kube.namespace
        with _screen(form) as screen:
            await follow(kube, source, place, screen, pace)


async def follow(kube: Kube, source: Source, place: str, screen: Screen, pace: Pace) -> None:
    """Show a source, and again whenever it has changed, until cancelled.

    Raises MissingError when it is gone, KubeError when it cannot be read at first.
    """
    wake = asyncio.Event()
    within = None if source.namespace is None else place
    watches = [
        ChangeWatch(kube.connection, each.kind, within, wake.set, each.labels)
        for each in source.watched
    ]
    running = [asyncio.create_task(watch.run()) for watch in watches]
    try:
        last: Document = await source.load(kube, place)
        screen.show(last, "")
        while True:
            # Not wait_for: until Python 3.12 it loses a cancel that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pace.refresh_seconds):
                    await wake.wait()
            wake.clear()
            trouble = next((watch.trouble for watch in watches if watch.trouble), "")
            try:
                last = await source.load(kube, place)
            except MissingError:
                raise
            except KubeError as error:
                trouble = str(error)
            screen.show(last, trouble)
            await asyncio.sleep(pace.spacing_seconds)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@contextlib.contextmanager
def _screen(form: str) -> Iterator[Screen]:
    terminal = console()
    if form == "text" and draws(terminal):
        # It hides the cursor and shows it again at its end, whatever ends it.
        with Live(
            console=terminal,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        ) as live:
            yield LiveScreen(live, terminal)
    else:
        yield LineScreen(form, click.echo)


class LiveScreen:
    """Draws in place."""

    def __init__(self, live: Live, terminal: Console) -> None:
        self._live = live
        self._terminal = terminal

    def show(self, view: Document, trouble: str) -> None:
        """Draw a view over the last one."""
        shown = render(view, self._terminal.width)
        if trouble:
            shown = Group(shown, trouble_line(trouble))
        self._live.update(shown, refresh=True)


class LineScreen:
    """Writes what has changed; troubles go to stderr, each once."""

    def __init__(self, form: str, write: Callable[[str], None]) -> None:
        self._form = form
        self._write = write
        self._last = ""
        self._trouble = ""

    def show(self, view: Document, trouble: str) -> None:
        """Write a view unless it is as the last one was."""
        if trouble and trouble != self._trouble:
            click.echo(f"may be old: {trouble}", err=True)
        self._trouble = trouble
        text = self._form == "text"
        said = text_of(view) if text else document(view, self._form, stream=True)
        if said != self._last:
            self._write(f"\n{said}" if text and self._last else said)
        self._last = said
