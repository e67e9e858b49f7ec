"""An engine of files whose durable state is what it was at its last flush, as RocksDB's is.

What is written lives in memory until a flush makes one more file of it, which never changes;
`CURRENT`, written again by renaming, names all files that count. RocksDB flushes whenever it likes,
too; so does this, between two steps, where `flushes` says so. So whoever drops the object has
killed the process, a checkpoint is links to files, and a copied directory can be opened elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from rezone.storage.disk import syncing
from rezone.storage.engines.base import INDEX_PREFIX
from rezone.storage.engines.memory import MemoryEngine

INDEX_END = INDEX_PREFIX + b"\xff"
"""Above all entries of indexes: their ids are below it."""

CURRENT = "CURRENT"
OWN_ID = "identity"
"""Not a name that a receiver of files takes: the copy gives its engine an id of its own."""


class Step(NamedTuple):
    """What one `apply` changes."""

    puts: Sequence[tuple[bytes, bytes]]
    deletes: Sequence[bytes]
    state: Mapping[bytes, bytes | None]


class FileEngine(MemoryEngine):
    """The engine in `directory`; `new_id` names one that has no name yet.

    `flushes` is asked at each step.
    """

    durable = True
    file_format = "simulated"

    def __init__(
        self,
        directory: Path,
        new_id: Callable[[], str],
        flushes: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._flushes = flushes
        self._directory = directory
        self._unflushed: list[Step] = []
        directory.mkdir(parents=True, exist_ok=True)
        self._files = self._listed()
        for name in self._files:
            for step in msgspec.msgpack.decode((directory / name).read_bytes(), type=list[Step]):
                super().apply(step.puts, step.deletes, step.state)
        if not (directory / OWN_ID).exists():
            syncing.write_whole(directory / OWN_ID, new_id().encode())
        self.engine_id = (directory / OWN_ID).read_text()

    def _listed(self) -> list[str]:
        path = self._directory / CURRENT
        return path.read_text().split() if path.exists() else []

    def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
    ) -> None:
        """Write in one step; durable after `flush`."""
        super().apply(puts, deletes, state)
        self._unflushed.append(Step(tuple(puts), tuple(deletes), dict(state)))
        if self._flushes():
            self.flush()

    def flush(self, *, wait: bool = True) -> None:
        """Make a file of what was written since the last time, unless nobody waits for it."""
        if not self._unflushed or not wait:
            return
        name = f"{len(self._files) + 1:06d}.sst"
        (self._directory / name).unlink(missing_ok=True)  # of a try that has failed
        with (self._directory / name).open("wb") as file:
            file.write(msgspec.msgpack.encode(self._unflushed))
            file.flush()
            syncing.sync_file(file.fileno())
        files = [*self._files, name]
        syncing.write_whole(self._directory / CURRENT, " ".join(files).encode())
        self._files, self._unflushed = files, []

    def checkpoint(self, directory: Path) -> None:
        """Link the files; the list is renamed into place, so that a link to it never changes."""
        directory.mkdir()
        for name in (*self._files, CURRENT):
            os.link(self._directory / name, directory / name)

    def close(self) -> None:
        """Forget everything that is no file."""
        super().close()
        self._unflushed = []
