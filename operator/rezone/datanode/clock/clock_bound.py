"""Up to which time of day a node has said that something may be read: kept over restarts.

A leader promises that no row will get a time at or below one that it has closed
(`closed_timestamp`) or answered a read as of. Who leads later keeps that promise because it was
told the time (`LeaseRequest.time`), and so must a node that restarts and leads, whatever its clock
says by then: a clock can be set back while a node is down, and the leader before may have had
another one.

So no time is promised or closed here that is not covered by a bound on the disk. The bound lies
ahead of the clock, as CockroachDB keeps one for its hybrid clock: it is written every few seconds
(`clock_bound_ahead_ms`), not with each round of leases. After a restart writes get later times than
it says. An orderly end writes what was really told, so that the bound is not ahead of the clock
then.

Where the file is damaged, nobody knows what this node has promised (`lost`). Its clock alone does
not tell: it may have been set back, or be a month ahead. But whatever a node promised was the time
of some node by then. So until the node knows the time, by the majority of others, it gives none;
then it begins above the latest time that any node can have by now (`recover`). The damaged file
says that this is still to be done, over restarts.

Concurrency: thread-safe; a write of the file holds up `reach`, and never who asks for `until`.
"""

import threading
from pathlib import Path
from typing import Protocol

import structlog

from rezone.storage.log.journal import Journal, whole_records
from rezone.wire.errors import CorruptionError, NotReadyError

_log = structlog.get_logger(__name__)

NAME = "clock_bound.journal"
DAMAGED = f"{NAME}.damaged"
"""What a damaged one is called until a new bound stands; people find it as `RECOVERED` then."""

RECOVERED = f"{NAME}.recovered"
_BYTES = 8


class NodeTime(Protocol):
    """The time of a node that may not know it: a `CheckedClock`, or what a test has for it."""

    def micros(self) -> int:
        """Return microseconds since 1970, right or not."""
        ...

    def time(self) -> int:
        """Return the same; NotReadyError while the node does not know it."""
        ...


class Record(Protocol):
    """Where the bound is kept: a `Journal`, or what a test puts in its place."""

    newest: bytes | None

    def write(self, payload: bytes) -> None:
        """Make this the newest record, durably before this returns."""
        ...


class ClockBound:
    """The bound of one node; all times in microseconds.

    Nothing later than `until` is promised or closed. `before` is what that was when the process
    began: the replicas that are opened write nothing at or below it. While the bound is `lost`,
    `before` may be too early, and the node must give no times.
    """

    def __init__(self, clock: NodeTime, ahead_ms: int) -> None:
        self._clock = clock
        self._ahead = ahead_ms * 1000
        self._lock = threading.Lock()
        self._record: Record | None = None
        self._told = 0
        self._failing = False
        self._damaged: Path | None = None
        self.before = 0
        self.until = 0

    def open(self, directory: Path) -> None:
        """Take over what a directory has; what is damaged is quarantined, and the bound is lost."""
        path, damaged = directory / NAME, directory / DAMAGED
        try:
            self.take_over(Journal(path))
        except CorruptionError as error:
            _log.error("the clock bound is damaged", why=str(error))
            path.replace(damaged)
            self.take_over(Journal(path))
        if damaged.exists():
            self._lose(damaged)

    def _lose(self, damaged: Path) -> None:
        """Begin at the latest bound that can still be read; later ones may have been there."""
        found = (int.from_bytes(each) for each in whole_records(damaged) if len(each) == _BYTES)
        self.before = self._told = max(self.before, max(found, default=0))
        self._damaged = damaged

    @property
    def lost(self) -> bool:
        """Whether it is not known what was promised before this process began."""
        return self._damaged is not None

    def recover(self, latest: int) -> bool:
        """Begin above the latest time that any node can have by now; whether that is durable.

        Where it is, `before` is right. `found` says that all who have to know it do.
        """
        try:
            with self._lock:
                self._write(max(self.until, self.before, latest + self._ahead))
                self._failing = False
        except OSError as error:
            self._note_failure(error)
            return False
        self.before = max(self.before, latest)
        return True

    def found(self) -> None:
        """End the search for a bound that was lost."""
        if self._damaged is None:
            return
        try:
            self._damaged.replace(self._damaged.with_name(RECOVERED))
        except OSError as error:
            _log.warning("a restart will look for the clock bound again", error=str(error))
        self._damaged = None
        _log.warning("times go on above those that may have been told", before=self.before)

    def take_over(self, record: Record) -> None:
        """Go on with what is known, and write to it from now on."""
        if record.newest is not None:
            self.before = self._told = self.until = int.from_bytes(record.newest)
        self._record = record

    def reach(self, time: int) -> None:
        """Have a time covered by the bound, durably before this returns; OSError if it cannot be.

        Without waiting where it is covered already, as it is while clocks agree.
        """
        with self._lock:
            self._told = max(self._told, time)
            if time > self.until:
                self._write(time + self._ahead)

    @property
    def is_due(self) -> bool:
        """Whether the clock will soon have reached the bound, or that is lost."""
        return self.lost or self.until - self._clock.micros() < self._ahead // 2

    def keep_ahead(self) -> None:
        """Bring the bound ahead of the clock; where that fails, no later time is closed.

        Nothing while the node does not know the time: it may have found that out since it asked
        for this, and a bound by a time that it gave up would outlive it.
        """
        try:
            with self._lock:
                if self.is_due:
                    self._write(self._clock.time() + self._ahead)
                    self._failing = False
        except NotReadyError:
            return
        except OSError as error:
            self._note_failure(error)

    def _note_failure(self, error: OSError) -> None:
        """Say it once: writes are asked for with each tick."""
        if not self._failing:
            _log.error("the clock bound cannot be written", error=str(error))
        self._failing = True

    def close(self, highest: int) -> None:
        """Bring the bound down to what was told, and to what this node's time was at most."""
        told = max(self._told, highest)
        try:
            with self._lock:
                if told < self.until:
                    self._write(told)
        except OSError as error:
            _log.warning("the clock bound stays ahead", error=str(error))

    def _write(self, until: int) -> None:
        assert self._record is not None, "an open node has a record"  # noqa: S101 - invariant
        self._record.write(until.to_bytes(_BYTES))
        self.until = until
