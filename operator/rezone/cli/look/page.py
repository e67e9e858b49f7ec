"""Writes the report of a task as an HTML page."""

import importlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from rezone.cli.look.present import read
from rezone.cli.look.source import Source


def write_page(source: Source, path: Path | None) -> None:
    """Write the page of a report to a new file, or to the output where there is no path.

    Raises click.ClickException when it cannot be read or written, or without the extra `console`.
    """
    try:
        # Templates come with an extra that no other command needs.
        page: Any = importlib.import_module("rezone.report.page")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == "rezone":
            raise
        said = f"Not here: {error.name} is missing; install rezone[operator,console]."
        raise click.ClickException(said) from error
    text: str = page.report_page(read(source), datetime.now(UTC))
    if path is None:
        click.echo(text)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
    click.echo(f"{path}: {len(text.encode()) / 1e3:,.0f} kB")
