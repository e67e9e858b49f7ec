"""The node's thread that builds indexes that were added, and removes those that were dropped.

It gives each partition the table that the node has persisted, then goes from one partition to the
next and finishes what there is to build or remove, slice by slice; between two slices it gives way
to clients as copies do (`foreground`), to those of leaders elsewhere too. So it takes the memory of
one slice, and holds up nobody for longer than one.

Concurrency: a thread of its own, since a partition's job must not rest, and since whoever
configures the node must not wait for a partition that is being applied to. What it finds to do
stands in the node's journal and in the engines (`indexer`): nothing is lost when it ends.
"""

import threading
from collections.abc import Callable

from rezone.datanode.indexing.indexing import IndexDuties
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import RezoneError

BUILD_WEIGHT = 2.0
"""What a step costs clients in all, as a multiple of this thread's processor time.

Its entries are flushed and merged by the engine's threads; by `benchmarks/storage/index_cost.py`.
"""

_LOOK_SECONDS = 0.5
"""How often it looks after partitions that were opened, or whose entries must be made again."""


class IndexBuilds:
    """Brings the indexes of all partitions of a node to what the zone's table says.

    `table` is the zone's as this node has persisted it, None before it knows any.
    """

    def __init__(
        self,
        indexes: Callable[[], list[IndexDuties]],
        table: Callable[[], TableSchema | None],
        foreground: Foreground,
    ) -> None:
        self._indexes = indexes
        self._table = table
        self._foreground = foreground
        self._news = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="indexes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def look(self) -> None:
        """Have it look at once: the table may have changed."""
        self._news.set()

    def close(self, seconds: float) -> None:
        """Wait so long until the thread has ended the step it is in; the foreground is closed."""
        self._closed = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        while not self._closed:
            self._news.clear()
            # Everywhere first: an index is kept up to date from then on, and lookups need that.
            with UNEXPECTED.surviving("build indexes"):
                self.redefine()
                for index in self._indexes():
                    self._try(index, self._finish)
            self._news.wait(_LOOK_SECONDS)

    def redefine(self) -> None:
        """Give each partition the table that the node has persisted; entries are made later."""
        for index in self._indexes():
            self._try(index, self._redefine)

    def _try(self, index: IndexDuties, work: Callable[[IndexDuties], None]) -> None:
        try:
            work(index)
        except (RezoneError, OSError) as error:
            # Closed or damaged: it begins again where it was, when the partition is opened again.
            index.log.warning("indexes not built", error=str(error))

    def _redefine(self, index: IndexDuties) -> None:
        table = self._table()
        if table is not None and not self._closed:
            index.redefine(table)

    def _finish(self, index: IndexDuties) -> None:
        if not index.unfinished:
            return
        steps = CopySteps(self._foreground, BUILD_WEIGHT)
        while not self._news.is_set() and index.build(steps.step_bytes):
            steps.throttle()
