"""The durable facts of one partition: its meta, how far it is committed, and what shows a loss.

The commit offset reaches the disk with the next change of the meta. It may be behind there, never
ahead of what is durable: a log that ends below it would count as damaged.

Concurrency: a lock of its own guards changes; any thread may read.
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rezone.storage.disk.sync_times import SyncTimes
from rezone.storage.state.marks import Marks
from rezone.storage.state.meta import JOURNAL_NAME, MetaFile, PartitionMeta
from rezone.wire.errors import CorruptionError


class Facts:
    """The facts in `directory`; `durable_end` is asked where the log is durable up to.

    `committed_offset` in `meta`, the durable ones, may be behind `committed`.
    CorruptionError when the newest facts are gone.
    """

    def __init__(
        self,
        directory: Path,
        initial: PartitionMeta,
        durable_end: Callable[[], int],
        sync_times: SyncTimes,
    ) -> None:
        self._lock = threading.Lock()
        self._durable_end = durable_end
        self.marks = Marks(directory)
        self._file = MetaFile(directory, initial, sync_times)
        self.meta = self._file.value
        if self.meta.serial < self.marks.facts:
            raise CorruptionError(f"{directory}: the newest facts are gone from {JOURNAL_NAME}")
        self.committed = self.meta.committed_offset

    @property
    def known_durable(self) -> int:
        """The offset that the log or the engine must reach, if nothing was lost."""
        return max(self.marks.log_end, self.meta.committed_offset)

    def write_again(self) -> None:
        """Write all facts to another file, durably: a sync of this one may have failed."""
        with self._lock:
            self._file.begin_again()
        self.update()

    def update(self, *, durable: bool = True, **changes: Any) -> PartitionMeta:
        """Change fields of the meta; durably before this returns, or with the next change."""
        with self._lock:
            changes.setdefault("committed_offset", min(self.committed, self._durable_end()))
            self.meta = self._file.update(durable=durable, **changes)
            self.marks.facts_are_at(self._file.saved_serial)
            return self.meta
