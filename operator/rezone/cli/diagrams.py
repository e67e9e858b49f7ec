"""Writes the documentation pages of the state machines from their tables, or checks them.

Run by `make generate` and, with --check, by `make check`.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from rezone.domain.machines import machine, migration_table, rebalance_table, resharding_table

PAGES: Mapping[str, str] = {
    "migration-states.md": machine.page(migration_table.TABLE, migration_table.INTRODUCTION),
    "rebalance-states.md": machine.page(rebalance_table.TABLE, rebalance_table.INTRODUCTION),
    "re-sharding-states.md": machine.page(resharding_table.TABLE, resharding_table.INTRODUCTION),
}
"""The text of each page by its name in docs/operations."""


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; fail when a page is out of date.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/operations"),
    show_default=True,
    help="Where the pages stand.",
)
def main(*, check: bool, directory: Path) -> None:
    """Write the state machines' pages from their tables."""
    stale = [name for name, text in PAGES.items() if _read(directory / name) != text]
    if check:
        for name in stale:
            click.echo(f"{directory / name} is out of date: run python -m rezone.cli.diagrams")
        sys.exit(1 if stale else 0)
    directory.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (directory / name).write_text(PAGES[name], encoding="utf-8")
        click.echo(f"wrote {directory / name}")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    main()
