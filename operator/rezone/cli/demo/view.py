"""What the demo shows while tasks run: moves, bytes, rate and time left.

On a terminal one line is drawn again and again; elsewhere a line is printed when something has
changed, at most every two seconds.
"""

import sys
import time
from typing import Any

import click

from rezone.cli.look.text import task_line
from rezone.cli.look.views import task_row
from rezone.resources.task import RebalanceTask

LINE_SECONDS = 2.0
_WIDTH = 118


class LiveView:
    """The progress of one task after the other."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._last = ""
        self._last_time = 0.0

    def show(self, task: dict[str, Any]) -> None:
        """Show a RebalanceTask as it is now."""
        line = task_line(task_row(RebalanceTask.parse(task)))
        if self._terminal:
            click.echo(f"\r\x1b[2K  {line[:_WIDTH]}", nl=False)
            return
        now = time.monotonic()
        if line != self._last and now - self._last_time >= LINE_SECONDS:
            click.echo(f"  {line}")
            self._last, self._last_time = line, now

    def end(self) -> None:
        """Leave the line as it stands."""
        if self._terminal:
            click.echo()
