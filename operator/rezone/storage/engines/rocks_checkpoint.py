"""A checkpoint of a RocksDB database, made by system calls, which release the interpreter lock.

RocksDB's own waits for the disk three times with that lock held, and with it all threads of a node.
This one waits for nothing: a checkpoint need not survive a crash, for a node that starts removes
all. It reads from the MANIFEST which files there are (`manifest` says why any beginning of it will
do), links each of them, and copies the beginning that was read.

A file that a merge has dropped meanwhile may be gone before it is linked. Then everything begins
anew, with what the MANIFEST says by now. What was flushed before is never missing: it is in the
MANIFEST that CURRENT names since then, as a record or in the state with which a new one begins.

Concurrency: one lock, held while a checkpoint is made.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rezone.storage.engines.manifest import ManifestFiles, UnknownManifestError

CURRENT_FILE = "CURRENT"
IDENTITY_FILE = "IDENTITY"
# How rocksdict takes keys and values here; who opens the copy is asked for the same.
_BINDING_FILE = "rocksdict-config.json"
# Linking takes milliseconds, and a merge that drops files ends every few seconds at the most.
_TRIES_MAX = 5
# A link releases the interpreter lock for 20 us and takes it back before a thread that waits for it
# is awake, again and again. So there is a rest in which others surely get it.
_LINKS_IN_A_ROW = 16
_REST_SECONDS = 50e-6


class RocksCheckpoints:
    """Makes checkpoints of the database in a directory while it is written to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._name = ""
        self._files = ManifestFiles()

    def catch_up(self) -> None:
        """Read the MANIFEST up to here, so that the next checkpoint has little of it to read.

        It takes 17 us a record, 60 ms for a mebibyte. What is wrong with it `make` will say.
        """
        with self._lock, contextlib.suppress(OSError, UnknownManifestError), self._manifest():
            pass

    def make(self, target: Path) -> None:
        """Make the directory `target` with all that is flushed.

        Nothing is made when UnknownManifestError says that the MANIFEST is not understood,
        FileNotFoundError that files are gone again and again before they are linked, or OSError
        that the file system makes no links.
        """
        with self._lock:
            for _ in range(_TRIES_MAX - 1):
                with contextlib.suppress(FileNotFoundError):
                    return self._make(target)
            return self._make(target)

    def _make(self, target: Path) -> None:
        target.mkdir()
        try:
            with self._manifest() as manifest:
                for linked, number in enumerate(self._files.numbers, 1):
                    self._link(target, f"{number:06d}.sst")
                    if linked % _LINKS_IN_A_ROW == 0:
                        time.sleep(_REST_SECONDS)
                with (target / self._name).open("wb") as copy:
                    _send(manifest, copy.fileno(), self._files.end)
            # RocksDB leaves it out. Who opens the files without it writes it again, and waits for
            # the disk twice more with the interpreter lock held.
            self._link(target, IDENTITY_FILE)
            self._link(target, _BINDING_FILE)
            (target / CURRENT_FILE).write_text(f"{self._name}\n")
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def _link(self, target: Path, name: str) -> None:
        # Not by Path: it takes as long as the kernel does, and there may be thousands.
        os.link(f"{self._directory}/{name}", f"{target}/{name}")

    @contextlib.contextmanager
    def _manifest(self) -> Iterator[int]:
        """Open the MANIFEST that CURRENT names, having read on to its present end."""
        name = current_manifest(self._directory)
        if name != self._name:
            self._name, self._files = name, ManifestFiles()
        with (self._directory / name).open("rb", buffering=0) as file:
            file.seek(self._files.end)
            self._files.read(file.read())
            yield file.fileno()


def current_manifest(directory: Path) -> str:
    """Return the name of the MANIFEST in force; FileNotFoundError in a directory without any."""
    return (directory / CURRENT_FILE).read_text().strip()


def _send(source: int, target: int, size: int) -> None:
    """Have the kernel copy the first `size` bytes of a file."""
    at = 0
    while at < size:
        count = os.sendfile(target, source, at, size - at)
        if count == 0:
            raise OSError(f"a MANIFEST ends at byte {at}, before its size")
        at += count
