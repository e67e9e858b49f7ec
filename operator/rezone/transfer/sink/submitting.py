"""Batches on their way to a zone: a few at a time, or each row once whoever writes it again."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from rezone.client import PartitionWrite, Sequenced, TableClient
from rezone.wire.errors import NotReadyError
from rezone.wire.layouts import Layout

BATCHES_MAX = 8
"""So many are under way behind the one that is waited for."""

CUT_OVER_SECONDS = 600.0
PAUSE_SECONDS = 0.5

NoteLayouts = Callable[[tuple[Layout, ...]], Iterable[Layout]]
"""Notes layouts, and returns all that anybody has noted of the same work."""


def acknowledged(
    client: TableClient, batches: Iterable[Any], *, delete: bool
) -> Iterator[list[PartitionWrite]]:
    """Write (or delete) the rows of batches; yield what each has become, as it is acknowledged."""
    submit = client.submit_delete if delete else client.submit_write
    waiting: deque[Future[list[PartitionWrite]]] = deque()
    for batch in batches:
        waiting.append(submit(batch))
        if len(waiting) > BATCHES_MAX:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


class SequencedRows:
    """Writes the batches of some work in their order, each row once whoever else does the same.

    `note` makes layouts durable for all who do the work, before it returns all that are noted.
    """

    def __init__(
        self,
        client: TableClient,
        producer: str,
        note: NoteLayouts,
        *,
        epoch: int = 1,
        slices: Layout | None = None,
    ) -> None:
        """Note who serves now. `slices`: the layout in which the work began, by default noted."""
        self._client = client
        self._note = note
        layouts = self._noted()
        self._work = Sequenced(producer, epoch, slices or layouts[0], layouts)
        self._rows = 0

    def write(self, batch: Any, *, delete: bool = False) -> None:
        """Write (or delete) the next batch, whose rows are in order; see `write_sequenced`.

        NotReadyError when a re-sharding stands between two cut-overs for `CUT_OVER_SECONDS`.
        """
        deadline = time.monotonic() + CUT_OVER_SECONDS
        while not self._client.write_sequenced(batch, self._work, self._rows, delete=delete):
            layouts = self._noted()
            if layouts == self._work.layouts:
                if time.monotonic() > deadline:
                    raise NotReadyError(
                        "a second re-sharding has cut over a part of what these rows are written "
                        "to; write them again when it is over: those that are there are known"
                    )
                time.sleep(PAUSE_SECONDS)
            self._work = self._work._replace(layouts=layouts)
        self._rows += batch.num_rows

    def _noted(self) -> tuple[Layout, ...]:
        return tuple(sorted(self._note(self._client.serving_layouts())))
