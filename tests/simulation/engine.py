"""The Memory engine with a durable state: that of its last flush, or of some step after it.

So it stands for RocksDB without a write-ahead log, which writes its rows out when it is told to,
and by itself whenever it likes. Steps are whole or not there.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from rezone.replica.engines.base import INDEX_PREFIX
from rezone.replica.engines.memory import MemoryEngine

_ALL = 1 << 62
INDEX_END = INDEX_PREFIX + b"\xff"
"""Above all entries of indexes: their ids are below it."""

Step = tuple[Sequence[tuple[bytes, bytes]], Sequence[bytes], Mapping[bytes, bytes | None]]


class EngineImage:
    """What of an engine survives its process, and the steps made since."""

    def __init__(self) -> None:
        self.flushed = MemoryEngine()
        self.steps: list[Step] = []

    def flush(self, steps: int | None = None) -> None:
        """Make all steps durable, or so many of the first ones."""
        for step in self.steps[:steps]:
            self.flushed.apply(*step)
        del self.steps[:steps]

    def crash(self, rng: random.Random) -> None:
        """Lose the steps that were not flushed, but for some of the first ones."""
        self.flush(rng.randint(0, len(self.steps)))
        self.steps = []


class FlushedEngine(MemoryEngine):
    """One life of an engine; `image` outlives it."""

    durable = True

    def __init__(self, image: EngineImage) -> None:
        super().__init__()
        self._image = image
        image.steps = []
        old = image.flushed
        for start, end in ((b"", None), (INDEX_PREFIX, INDEX_END)):
            chains = old.scan_chains(start, end, rows_max=_ALL, bytes_max=_ALL)
            super().apply(list(zip(chains.keys, chains.values, strict=True)), (), {})
        super().apply((), (), old.state())

    def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
    ) -> None:
        """Take a step, which survives a flush."""
        super().apply(puts, deletes, state)
        self._image.steps.append((puts, deletes, dict(state)))

    def flush(self, *, wait: bool = True) -> None:
        """Make all steps durable; how far one has come that nobody waits for, a crash decides."""
        if wait:
            self._image.flush()
