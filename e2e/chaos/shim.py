"""The preloaded library that gives a process a clock, a disk and an address of its own."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
from pathlib import Path
from typing import Final

from e2e.kind.command import run

SOURCE = Path(__file__).with_name("shim.c")
FIELDS: Final = (
    "clock_offset_ns",
    "sync_delay_ms",
    "sync_errno",
    "clocks_moved",
    "syncs_delayed",
    "syncs_failed",
    "connections",
)
"""The same order as in shim.c; the first three say what is done, the others count."""

_BYTES = 8 * len(FIELDS)


def build_shim(directory: Path) -> Path:
    """Return the library, built now if it is not there; CommandError if gcc refuses."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    library = directory / f"chaos-{digest}.so"
    if not library.exists():
        directory.mkdir(parents=True, exist_ok=True)
        made = library.with_suffix(f".{os.getpid()}.tmp")
        flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
        run(["gcc", *flags, "-o", made, SOURCE, "-ldl"])
        made.rename(library)
    return library


def environment(library: Path, address: str, file: str) -> dict[str, str]:
    """Return the variables of a process that the library is preloaded into."""
    return {
        "LD_PRELOAD": str(library),
        "REZONE_CHAOS_ADDRESS": address,
        "REZONE_CHAOS_FILE": file,
    }


class Control:
    """What is done to the processes that map a file, and how often it was."""

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, _BYTES)
        self._mapped = mmap.mmap(descriptor, _BYTES)
        os.close(descriptor)
        self._values = (ctypes.c_int64 * len(FIELDS)).from_buffer(self._mapped)

    def get(self, field: str) -> int:
        """Return a setting or a count."""
        return self._values[FIELDS.index(field)]

    def set(self, field: str, value: int) -> None:
        """Change a setting; it holds for the next call of the process."""
        self._values[FIELDS.index(field)] = value
