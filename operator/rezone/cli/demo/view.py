"""What the demo shows while tasks run: moves, bytes, rate, time left, and why they wait.

On a terminal it is drawn in place, as `rezone progress --watch` draws it; elsewhere a line is
printed when something has changed, at most every two seconds.
"""

import time
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from rezone.cli.look.present import console, draws
from rezone.cli.look.render import render
from rezone.cli.look.text import task_line
from rezone.cli.look.views import Progress, task_row
from rezone.resources.task import RebalanceTask

LINE_SECONDS = 2.0


class LiveView:
    """The progress of one task after the other; `end` leaves the last drawing as it stands."""

    def __init__(self, terminal: Console | None = None) -> None:
        self._console = terminal or console()
        self._draws = draws(self._console)
        self._live: Live | None = None
        self._last = ""
        self._last_time = 0.0

    def show(self, task: dict[str, Any]) -> None:
        """Show a RebalanceTask as it is now."""
        parsed = RebalanceTask.parse(task)
        row = task_row(parsed)
        if self._draws:
            meta = parsed.metadata
            view = Progress(namespace=meta.namespace, zone=parsed.spec.zone_name, tasks=(row,))
            if self._live is None:
                self._live = Live(console=self._console, auto_refresh=False)
                self._live.start()
            self._live.update(render(view, self._console.width), refresh=True)
            return
        line, now = task_line(row), time.monotonic()
        if line != self._last and now - self._last_time >= LINE_SECONDS:
            click.echo(f"  {line}")
            self._last, self._last_time = line, now

    def end(self) -> None:
        """Leave what is drawn as it stands, and the terminal as it was."""
        if self._live is not None:
            self._live.stop()
            self._live = None
