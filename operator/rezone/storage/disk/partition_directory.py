"""Where a partition's files stand, and how they go: whole, or quarantined because of damage."""

import shutil
from pathlib import Path

from rezone.storage.disk.syncing import sync_directory


def quarantine_name(directory: Path) -> Path:
    """Return where a partition's files stand that were found damaged when it was opened."""
    return directory.with_name(f"{directory.name}.damaged")


def forget_damaged(directory: Path) -> None:
    """Remove what was quarantined as damaged: the partition is whole again."""
    shutil.rmtree(quarantine_name(directory), ignore_errors=True)


def remove(directory: Path) -> None:
    """Delete a partition's files, and what was quarantined of them. Safe to repeat."""
    if directory.exists():
        # Renamed first: a crash must not leave half a partition under its name.
        trash = directory.with_name(directory.name + ".trash")
        shutil.rmtree(trash, ignore_errors=True)
        directory.rename(trash)
        sync_directory(directory.parent)
        shutil.rmtree(trash)
    forget_damaged(directory)
