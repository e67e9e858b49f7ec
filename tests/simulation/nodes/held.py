"""What replicas hold: of which history their rows are, entry by entry, whoever is up or down.

The checks look at all replicas after each step, so what is read of a store is only what has come
to its log since. What lies before its log (a copy's rows, a log that was trimmed) is the history
that somebody has had, up to an entry of the log's own beginning: the rows must be those of it.
Of a machine that is down it is what its files say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rezone.storage.applier import pairs_of
from rezone.storage.engines.base import FLAG_VALUE
from rezone.storage.log.entry import header_at, iter_entries
from rezone.storage.log.segment import FILE_HEADER_BYTES, SUFFIX, Segment
from rezone.storage.state.meta import MetaFile, PartitionMeta
from rezone.storage.store import PartitionStore
from rezone.wire.errors import CorruptionError
from simulation.nodes.received import Versions, versions_of

READ_BYTES = 1 << 20

History = list[bytes]
"""Raw entries by offset: each at its first one, followed by nothing for each other row of it."""

Stand = tuple[int, int]
"""Time and leader epoch of an entry; with these it is one and the same wherever it is found."""

Histories = Callable[[], Iterable[History]]
"""All that are known of a partition."""

_NOTHING: Stand = (0, 0)


class Held:
    """What one replica holds; `durable` rows of it survive a crash of its machine."""

    def __init__(self, histories: Histories) -> None:
        self.rows: History = []
        self.times: list[int] = []
        self.durable = 0
        self.needs_snapshot = False
        # Whether it has ever dropped all that it had.
        self.started_over = False
        self._histories = histories
        self._seen: tuple[PartitionStore, int] | None = None

    def follow(self, store: PartitionStore) -> None:
        """Take what has come to an open store since the last time."""
        seen = (store, store._log._generation)
        if seen != self._seen:
            self._seen = seen
            base = store.log_start
            before = self._history_before(base, store._log.stand_at(base))
            assert before is not None, f"rows of nobody's history, up to {base}"
            self._replace(before, _read(store, base))
            if not store.meta.needs_snapshot:
                self._check_rows(store)
        elif store.log_end > len(self.rows):
            self._add(_read(store, len(self.rows)))
        self.durable = store.durable_end
        self.needs_snapshot = store.meta.needs_snapshot

    def left_in(self, directory: Path) -> None:
        """Take what the files of a replica say that is not open."""
        self._seen = None
        meta = MetaFile(directory, PartitionMeta()).value
        self.needs_snapshot = meta.needs_snapshot or meta.resetting
        paths = sorted((directory / "log").glob(f"*{SUFFIX}"))
        if not paths:
            self._replace([], [])
        else:
            first = Segment.load(paths[0])
            before = self._history_before(first.base, (first.time_before, first.epoch_before))
            # Whoever has ended a copy that nobody knows of will say so when it is up.
            self._replace(before or [], _entries_in(paths) if before is not None else [])
        self.durable = len(self.rows)

    def _history_before(self, base: int, stand: Stand) -> History | None:
        """Return the history that ends at an offset with an entry of that time and epoch."""
        for known in (self.rows, *self._histories()):
            if len(known) >= base and _stand_at(known, base) == stand:
                return known[:base]
        return None

    def _replace(self, before: History, after: Iterable[bytes]) -> None:
        old, self.rows = self.rows, list(before)
        self.times = self.times[: len(before)] if old[: len(before)] == before else _times(before)
        self._add(after)
        self.started_over |= bool(old) and old[:1] != self.rows[:1]

    def _add(self, entries: Iterable[bytes]) -> None:
        for raw in entries:
            header = header_at(raw, 0)
            assert header is not None
            assert header.base_offset == len(self.rows), f"a gap before {header.base_offset}"
            self.rows += [raw, *[b""] * (header.rows - 1)]
            self.times += [header.commit_time] * header.rows

    def from_log(self, here: Versions) -> Versions:
        """Return what has come by the log of what a replica has: all of it, here."""
        return here

    def _check_rows(self, store: PartitionStore) -> None:
        """Check that what is applied is what the history up to there makes.

        A copy that another snapshot, a newer one, has completed has some of what comes next, too;
        and who died while it undid rows has some of what its log still says.
        """
        want = _versions(self.rows[: store.applied])
        here = self.from_log({k: v for k, v in versions_of(store).items() if v[0] == FLAG_VALUE})
        if here != want:
            newer = _versions(self.rows[store.applied :])
            for known in self._histories() if store.meta.copy is not None else ():
                newer |= _versions(known[store.applied :])
            here = {k: v for k, v in here.items() if k in want or newer.get(k) != v}
        assert here == want, f"of {len(want)} versions there are {len(here)}, or others"


def _read(store: PartitionStore, offset: int) -> Iterator[bytes]:
    while offset < store.log_end:
        for raw in _split(store.read(offset, READ_BYTES)):
            yield raw
            offset = _end_of(raw)


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while (header := header_at(data, at)) is not None:
        # Equal ones are one object, so that to compare histories is to compare addresses.
        yield _same(data[at : at + header.length])
        at += header.length


@functools.lru_cache(maxsize=1 << 14)
def _same(raw: bytes) -> bytes:
    return raw


def _versions(history: History) -> Versions:
    found: Versions = {}
    for raw in filter(None, history):
        found |= _versions_in(raw)
    return found


@functools.lru_cache(maxsize=1 << 12)
def _versions_in(raw: bytes) -> Versions:
    (entry,) = iter_entries(raw)
    return {key: value for key, value in pairs_of(entry) if value[0] == FLAG_VALUE}


def _entries_in(paths: list[Path]) -> Iterator[bytes]:
    """Yield the entries of log files, to the first that is torn."""
    for path in paths:
        data = path.read_bytes()[FILE_HEADER_BYTES:]
        at = 0
        while at < len(data):
            header = header_at(data, at)
            if header is None or not 0 < header.length <= len(data) - at:
                return
            raw = data[at : at + header.length]
            try:
                list(iter_entries(raw))
            except CorruptionError:
                return
            yield _same(raw)
            at += header.length


def _end_of(raw: bytes) -> int:
    header = header_at(raw, 0)
    assert header is not None
    return header.end_offset


def _stand_at(history: History, offset: int) -> Stand | None:
    """Return the time and epoch of the entry that ends at an offset; None where none does."""
    if not offset:
        return _NOTHING
    first = offset - 1
    while first and not history[first]:
        first -= 1
    header = header_at(history[first], 0)
    if header is None or header.end_offset != offset:
        return None
    return header.commit_time, header.leader_epoch


def _times(history: History) -> list[int]:
    times: list[int] = []
    for raw in filter(None, history):
        header = header_at(raw, 0)
        assert header is not None
        times += [header.commit_time] * header.rows
    return times
