"""What makes written files survive a crash of the machine: every sync of a data node is here.

The engine's own are not. `sync_data` and `sync_file` are called by the name of this module, so
that a simulated disk can take their place and knows what a crash would leave (decision 0190).
"""

import os
from pathlib import Path


def sync_data(descriptor: int) -> None:
    """Return when what was written to a file is durable, and its size; OSError when it is not."""
    os.fdatasync(descriptor)


def sync_file(descriptor: int) -> None:
    """Return when a file and what is known of it is durable, or the names in a directory."""
    os.fsync(descriptor)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and removed names in `directory` durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        sync_file(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Have a directory; one that is made here, and those above it, are durable under their names.

    Without that everything in it may be gone after a crash, whatever of it was synced.
    """
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Make a file of this content, durable under its name, in place of any; or change nothing."""
    partial = path.with_suffix(".tmp")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        sync_file(file.fileno())
    partial.rename(path)
    sync_directory(path.parent)
