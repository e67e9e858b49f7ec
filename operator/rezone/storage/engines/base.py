"""What a storage engine of one partition must do, and the format all of them share.

An engine key is a row id followed by the inverted commit time (8 bytes, big-endian), so that the
versions of one row stand together, newest first, and rows stand in row-id order. An engine value
is a flag byte followed by the row's bytes.

Writes are blind: a version's key says everything about its place, so applying a range of the log
again over a newer state changes nothing, and undoing a suffix of the log is deleting exactly the
keys of its rows. What an engine has applied stands beside the rows under names of its own and
changes in the same atomic step as they do.

The contract suite `tests/storage/test_storage_engines.py` runs over every engine (SS-04).
"""

import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from rezone.wire.errors import CorruptionError

FLAG_VALUE: Final = 0
FLAG_TOMBSTONE: Final = 1
FLAG_INTENT: Final = 2
FLAGS: Final = (b"\x00", b"\x01", b"\x02")

TIME_BYTES: Final = 8
TIME_MAX: Final = (1 << 64) - 1
STATE_PREFIX: Final = b"\xff" * 10
"""Above every row: the length of a key is below 65,535, so no row id begins like this."""
INDEX_PREFIX: Final = STATE_PREFIX + b"\xff"
"""Above every row and all named state, whose names do not begin with this byte: index entries.

An entry is stored as a version is, under its index key and row id in place of a row id."""

Pairs = list[tuple[bytes, bytes]]
"""Engine keys with their values."""

_TIME = struct.Struct(">Q")
# One byte more than the highest inverted time: above all versions of a row, below the next row.
_BEHIND = b"\xff" * (TIME_BYTES + 1)


def time_suffix(commit_time: int) -> bytes:
    """Return the part of an engine key that orders versions newest first."""
    return _TIME.pack(TIME_MAX - commit_time)


def time_of(key: bytes) -> int:
    """Return the commit time in an engine key, in microseconds."""
    return int(TIME_MAX - _TIME.unpack_from(key, len(key) - TIME_BYTES)[0])


def behind(row_id: bytes) -> bytes:
    """Return a key that is above all versions of the row and below the next row."""
    return row_id + _BEHIND


def rows_end(start: bytes, end: bytes | None) -> bytes:
    """Return where a range of engine keys ends: one that begins with rows has rows alone."""
    if start < STATE_PREFIX:
        return STATE_PREFIX if end is None else min(end, STATE_PREFIX)
    return INDEX_PREFIX if end is None else end


def slices_of(
    pairs: Iterable[tuple[bytes, bytes]], bytes_max: int, rows_max: int
) -> Iterator[Pairs]:
    """Yield the pairs cut into slices of about that much, the last one perhaps empty.

    An engine holds the interpreter while it takes one.
    """
    part: Pairs = []
    size = 0
    for pair in pairs:
        part.append(pair)
        size += len(pair[0]) + len(pair[1])
        if size >= bytes_max or len(part) >= rows_max:
            yield part
            part, size = [], 0
    yield part


class Chains(NamedTuple):
    """Whole version chains in engine order; `end` says that no more rows follow."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    end: bool

    @property
    def last_row_id(self) -> bytes:
        """The row id of the last chain; there must be one."""
        return self.keys[-1][:-TIME_BYTES]

    def only(self, chosen: Sequence[bool]) -> "Chains":
        """Return the versions that are chosen, by their places."""
        keys = tuple(itertools.compress(self.keys, chosen))
        values = tuple(itertools.compress(self.values, chosen))
        return self._replace(keys=keys, values=values)


OnDamage = Callable[[CorruptionError], None]


class Engine(Protocol):
    """The storage of one partition's versions. Safe for many readers beside one writer.

    What does not match its checksum is never served: whoever came upon it gets CorruptionError,
    and `on_damage` is called with it, under whatever locks that one holds.
    """

    on_damage: OnDamage

    def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
    ) -> None:
        """Write versions, delete engine keys and change named state, all in one atomic step.

        Not durable before `flush`; after a crash the engine is as after some earlier step.
        A state value of None removes the name. Callers keep steps near 1 MB: RocksDB's write
        holds the interpreter for its whole time.
        """

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write versions as `apply` does, of which there are many (SS-08); the same limit counts.

        Ascending from one call to the next they cost least: what is flushed overlaps nothing then.
        """

    def state(self) -> dict[bytes, bytes]:
        """Return all named state."""

    def newest(self, row_ids: Sequence[bytes], as_of: int) -> list[bytes | None]:
        """Return each row's newest value with commit time at most `as_of`, without its flag.

        None when there is none or it is deleted; intents are passed over.
        """

    def newest_times(self, row_ids: Sequence[bytes]) -> list[int]:
        """Return the commit time of each row's newest version, deletes included; 0 without any.

        Intents are passed over: they are no versions that a read could ever see.
        """

    def scan_chains(
        self, start: bytes, end: bytes | None, *, rows_max: int, bytes_max: int
    ) -> Chains:
        """Return whole chains with keys in [start, end), until a limit is reached or passed.

        Without an `end` all rows from `start` on; entries of indexes only where it is beyond them.
        `rows_max` counts versions. A chain is never cut, so a limit is passed by at most one.
        """

    def chains_of(self, row_ids: Sequence[bytes], since: int = 0) -> Chains:
        """Return the versions of these rows (sorted by the caller) from a commit time on.

        Rows without any are left out.
        """

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all versions with keys in [start, end); state stays.

        From a row on no further than the rows go: entries of indexes have a range of their own.
        """

    def flush(self, *, wait: bool = True) -> None:
        """Return when everything written before is durable (at once for a volatile engine).

        Without `wait` only begin: in no file is what was written before beside what comes after.
        """

    @property
    def durable(self) -> bool:
        """Whether the engine's content survives the process."""

    @property
    def file_format(self) -> str:
        """The format of the files that `checkpoint` makes; empty when the engine has none.

        Whoever opens such files must have the same: it names the library's version too.
        """

    @property
    def engine_id(self) -> str:
        """A name that no other engine has: within it a file's name is never given twice."""

    def checkpoint(self, directory: Path) -> None:
        """Make `directory`, with links to files that are one state of the engine.

        All that was flushed before is in it. Of what others write during the call, a beginning may
        be in it. OSError when `directory` exists or the file system refuses.
        """

    def manifest(self) -> tuple[int, int]:
        """Return number and bytes of the file that names all others; zeros without one."""

    def versions_estimate(self) -> int:
        """Return about how many versions there are."""

    def bytes_estimate(self) -> int:
        """Return about how many bytes the versions take."""

    def make_room(self) -> None:
        """Have the next `apply` find room where the memory for unflushed rows is full; may wait.

        Without locks that readers need.
        """

    def look_at_room(self) -> None:
        """Begin no work that the disk has no room for, or go on with it; called now and then.

        OSError when the disk refuses that as well.
        """

    def memory_bytes(self) -> int:
        """Return about how much memory of its own the engine takes."""

    def close(self) -> None:
        """Wait for running readers and release the engine.

        OSError when they go on for too long: nobody else gets in any more, and it can be repeated.
        """
