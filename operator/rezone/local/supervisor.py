"""`python -m rezone.local.supervisor`: keeps the parts of a local cluster running."""

from __future__ import annotations

from pathlib import Path

import click

from rezone.local.cluster import LocalCluster, supervise


@click.command()
@click.option("--state-dir", type=click.Path(path_type=Path), required=True)
@click.option("--every-seconds", default=2.0, show_default=True)
def main(state_dir: Path, every_seconds: float) -> None:
    """Start the parts of a local cluster again when they die."""
    supervise(LocalCluster(state_dir), every_seconds)


if __name__ == "__main__":
    main()
