"""The partitions of the next layout that pull this one: what they still need of its log.

They ask its leader (`reshard_source`), again and again; so who has not asked for a while is gone.
Their claims are as those of replicas that catch up: the log is kept for them within limits
(`upkeep`), and writers are slowed so that they arrive (`pacing`, B-16).

Concurrency: everything but `notify` and `listening` is called under the replica's lock.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from rezone.wire.messages import PartitionId


class _ReshardTarget(NamedTuple):
    """What was heard of one: when, from where it needs the log, and up to where it has read it."""

    at: float
    keep_from: int
    read_to: int | None


class Notifier:
    """What waits for news of partitions. Notified by any thread, waited for by one.

    One that coalesces wakes up for urgent news alone: who has something to answer with need not do
    that for each commit.
    """

    def __init__(self) -> None:
        self._notified = threading.Event()
        self._coalesces = False
        self._urgent = False

    def notify(self, *, urgent: bool) -> None:
        """Wake the one that waits."""
        self._urgent = self._urgent or urgent
        if urgent or not self._coalesces:
            self._notified.set()

    def clear(self) -> None:
        """Forget what was notified; to be called before looking for the news."""
        self._urgent = False
        self._notified.clear()

    def wait(self, seconds: float) -> bool:
        """Wait for news; whether there are any."""
        self._coalesces = False
        return self._notified.wait(seconds)

    def coalesce(self, seconds: float) -> bool:
        """Wait for urgent news; whether there are any."""
        self._coalesces = True
        self._notified.clear()
        if self._urgent:  # looked at after clearing: it may be notified in between
            return True
        return self._notified.wait(seconds)


class ReshardTargets:
    """Which nodes pull one partition, as its leader has heard of them; `clock` in seconds.

    Their claims on the log last `kept_seconds` after they were last heard of.
    """

    def __init__(self, clock: Callable[[], float], kept_seconds: float) -> None:
        self._clock = clock
        self._kept_seconds = kept_seconds
        self._heard: dict[PartitionId, _ReshardTarget] = {}
        self._changing = threading.Lock()
        self._notifiers: set[Notifier] = set()

    def heard(self, target: PartitionId, keep_from: int, read_to: int | None = None) -> None:
        """Note that one has asked; without `read_to` not for the log."""
        known = self._heard.get(target)
        if read_to is None and known is not None:
            read_to = known.read_to
        self._heard[target] = _ReshardTarget(self._clock(), keep_from, read_to)

    def claims(self) -> list[int]:
        """Return from where on the log is needed by each that was heard of lately."""
        since = self._clock() - self._kept_seconds
        self._heard = {target: each for target, each in self._heard.items() if each.at >= since}
        return [each.keep_from for each in self._heard.values()]

    def catching_up(self, silent_seconds: float) -> dict[PartitionId, int]:
        """Return up to where those have read the log that were heard of no longer ago than that."""
        since = self._clock() - silent_seconds
        return {
            target: each.read_to
            for target, each in self._heard.items()
            if each.at >= since and each.read_to is not None
        }

    # --- news -----------------------------------------------------------------------------------

    def notify(self, *, urgent: bool) -> None:
        """Wake who waits for news: something was committed.

        Urgent when it ends the log, or another replica leads.
        """
        for notifier in tuple(self._notifiers):
            notifier.notify(urgent=urgent)

    @property
    def waiting(self) -> int:
        """How many wait for news."""
        return len(self._notifiers)

    def listen(self, notifier: Notifier) -> None:
        """Have one notified of news from now on."""
        # A new set each time: `notify` goes through the one it has found.
        with self._changing:
            self._notifiers = self._notifiers | {notifier}

    def ignore(self, notifier: Notifier) -> None:
        """Have one notified no more."""
        with self._changing:
            self._notifiers = self._notifiers - {notifier}


@contextlib.contextmanager
def listening(to: Iterable[ReshardTargets], notifier: Notifier) -> Iterator[None]:
    """Have one notified of several partitions' news."""
    found = list(to)
    for reshard_targets in found:
        reshard_targets.listen(notifier)
    try:
        yield
    finally:
        for reshard_targets in found:
            reshard_targets.ignore(notifier)
