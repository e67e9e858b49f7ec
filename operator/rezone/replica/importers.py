"""The partitions of the next layout that import this one: what they still need of its log.

They ask its leader (`import_source`), again and again; so who has not asked for a while is gone.
Their claims are as those of replicas that catch up: the log is kept for them within limits
(`upkeep`), and writers are slowed so that they arrive (`pacing`, B-16).

Concurrency: everything but `ring` and `listening` is called under the partition's lock.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from rezone.wire.messages import PartitionId


class _Importer(NamedTuple):
    """What was heard of one: when, from where it needs the log, and up to where it has read it."""

    at: float
    keep_from: int
    read_to: int | None


class Importers:
    """Who imports one partition, as heard by the replica that leads it; `clock` in seconds.

    Their claims on the log last `kept_seconds` after they were last heard of.
    """

    def __init__(self, clock: Callable[[], float], kept_seconds: float) -> None:
        self._clock = clock
        self._kept_seconds = kept_seconds
        self._heard: dict[PartitionId, _Importer] = {}
        self._bells: set[threading.Event] = set()

    def heard(self, heir: PartitionId, keep_from: int, read_to: int | None = None) -> None:
        """Note that one has asked; without `read_to` not for the log."""
        known = self._heard.get(heir)
        if read_to is None and known is not None:
            read_to = known.read_to
        self._heard[heir] = _Importer(self._clock(), keep_from, read_to)

    def claims(self) -> list[int]:
        """Return from where on the log is needed by each that was heard of lately."""
        since = self._clock() - self._kept_seconds
        self._heard = {heir: each for heir, each in self._heard.items() if each.at >= since}
        return [each.keep_from for each in self._heard.values()]

    def catching_up(self, silent_seconds: float) -> dict[PartitionId, int]:
        """Return up to where those have read the log that were heard of no longer ago than that."""
        since = self._clock() - silent_seconds
        return {
            heir: each.read_to
            for heir, each in self._heard.items()
            if each.at >= since and each.read_to is not None
        }

    # --- news -----------------------------------------------------------------------------------

    def ring(self) -> None:
        """Wake who waits for news: something was committed, or another replica leads."""
        for bell in tuple(self._bells):
            bell.set()

    @property
    def waiting(self) -> int:
        """How many wait for news."""
        return len(self._bells)

    def _add(self, bell: threading.Event) -> None:
        # A new set each time: `ring` goes through the one it has found.
        self._bells = self._bells | {bell}

    def _remove(self, bell: threading.Event) -> None:
        self._bells = self._bells - {bell}


@contextlib.contextmanager
def listening(
    to: Iterable[tuple[Importers, contextlib.AbstractContextManager[object]]],
    bell: threading.Event,
) -> Iterator[None]:
    """Have a bell rung by several partitions' news; each with the lock of its partition."""
    found = list(to)
    for importers, lock in found:
        with lock:
            importers._add(bell)  # noqa: SLF001 - of this module
    try:
        yield
    finally:
        for importers, lock in found:
            with lock:
                importers._remove(bell)  # noqa: SLF001 - of this module
