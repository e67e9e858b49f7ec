"""The Memory engine: version chains in a dictionary, row ids in a sorted list.

Nothing of it survives the process: after a restart it is empty, its applied offset is 0, and the
partition replays a log that reaches back to 0 or fetches a snapshot.
"""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from rezone.storage.engines.base import (
    FLAG_INTENT,
    FLAG_VALUE,
    TIME_BYTES,
    Chains,
    OnDamage,
    rows_end,
    time_of,
    time_suffix,
)

# What a version costs beyond its bytes: two objects' heads, a tuple, its places in containers.
_OVERHEAD_BYTES = 200


class MemoryEngine:
    """An engine that keeps everything in memory; one lock serves readers and the writer."""

    durable = False
    file_format = ""
    engine_id = ""

    def __init__(self) -> None:
        self.on_damage: OnDamage = lambda _: None
        self._lock = threading.Lock()
        self._chains: dict[bytes, list[tuple[bytes, bytes]]] = {}
        self._rows = SortedList()
        self._state: dict[bytes, bytes] = {}
        self._versions = 0
        self._bytes = 0

    def apply(
        self,
        puts: Sequence[tuple[bytes, bytes]],
        deletes: Sequence[bytes],
        state: Mapping[bytes, bytes | None],
    ) -> None:
        """Write versions, delete keys and change named state in one step."""
        with self._lock:
            new_rows = [row for key, value in puts if (row := self._put(key, value)) is not None]
            if new_rows:
                self._rows.update(new_rows)
            for key in deletes:
                self._delete(key)
            for name, content in state.items():
                if content is None:
                    self._state.pop(name, None)
                else:
                    self._state[name] = content

    def _put(self, key: bytes, value: bytes) -> bytes | None:
        """Put one version; return the row id when the row is new."""
        row, suffix = key[:-TIME_BYTES], key[-TIME_BYTES:]
        chain = self._chains.get(row)
        if chain is None:
            self._chains[row] = [(suffix, value)]
            self._count(key, value, 1)
            return row
        at = 0  # the newest version comes first, and a new one nearly always is the newest
        while at < len(chain) and chain[at][0] < suffix:
            at += 1
        if at < len(chain) and chain[at][0] == suffix:
            self._count(key, chain[at][1], -1)
            chain[at] = (suffix, value)
        else:
            chain.insert(at, (suffix, value))
        self._count(key, value, 1)
        return None

    def _delete(self, key: bytes) -> None:
        row, suffix = key[:-TIME_BYTES], key[-TIME_BYTES:]
        chain = self._chains.get(row, [])
        for at, (found, value) in enumerate(chain):
            if found == suffix:
                del chain[at]
                self._count(key, value, -1)
                break
        else:
            return
        if not chain:
            del self._chains[row]
            self._rows.remove(row)

    def _count(self, key: bytes, value: bytes, sign: int) -> None:
        self._versions += sign
        self._bytes += sign * (len(key) + len(value))

    def load(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write versions."""
        self.apply(list(zip(keys, values, strict=True)), (), {})

    def state(self) -> dict[bytes, bytes]:
        """Return all named state."""
        with self._lock:
            return dict(self._state)

    def newest(self, row_ids: Sequence[bytes], as_of: int) -> list[bytes | None]:
        """Return each row's newest value at `as_of`."""
        floor = time_suffix(as_of)
        with self._lock:
            return [self._visible(row, floor) for row in row_ids]

    def _visible(self, row: bytes, floor: bytes) -> bytes | None:
        for suffix, value in self._chains.get(row, ()):
            if suffix >= floor and value[0] != FLAG_INTENT:
                return value[1:] if value[0] == FLAG_VALUE else None
        return None

    def newest_times(self, row_ids: Sequence[bytes]) -> list[int]:
        """Return the commit time of each row's newest version that is no intent."""
        with self._lock:
            return [self._newest_time(row) for row in row_ids]

    def _newest_time(self, row: bytes) -> int:
        for suffix, value in self._chains.get(row, ()):
            if value[0] != FLAG_INTENT:
                return time_of(suffix)
        return 0

    def scan_chains(
        self, start: bytes, end: bytes | None, *, rows_max: int, bytes_max: int
    ) -> Chains:
        """Return whole chains in order, until a limit is reached."""
        keys: list[bytes] = []
        values: list[bytes] = []
        size = 0
        end = rows_end(start, end)
        with self._lock:
            at = self._rows.bisect_left(start)
            # A start inside a chain begins with the rest of that chain.
            if at and start.startswith(self._rows[at - 1]):
                at -= 1
            for row in self._rows.islice(at):
                if row >= end:
                    break
                chain = [(row + suffix, value) for suffix, value in self._chains[row]]
                chain = [pair for pair in chain if start <= pair[0] < end]
                if chain and (len(keys) >= rows_max or size >= bytes_max):
                    return Chains(keys, values, end=False)
                for key, value in chain:
                    keys.append(key)
                    values.append(value)
                    size += len(key) + len(value)
        return Chains(keys, values, end=True)

    def chains_of(self, row_ids: Sequence[bytes], since: int = 0) -> Chains:
        """Return the versions of these rows from a time on."""
        last = time_suffix(since)
        keys: list[bytes] = []
        values: list[bytes] = []
        with self._lock:
            for row in row_ids:
                for suffix, value in self._chains.get(row, ()):
                    if suffix > last:
                        break
                    keys.append(row + suffix)
                    values.append(value)
        return Chains(keys, values, end=True)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all versions in [start, end)."""
        chains = self.scan_chains(start, end, rows_max=1 << 62, bytes_max=1 << 62)
        self.apply((), chains.keys, {})

    def flush(self, *, wait: bool = True) -> None:
        """Return at once: there is nothing to make durable."""

    def checkpoint(self, directory: Path) -> None:
        """Refuse: there are no files, and `file_format` says so."""
        raise NotImplementedError(f"the Memory engine makes no files in {directory}")

    def manifest(self) -> tuple[int, int]:
        """Return zeros: there are no files."""
        return 0, 0

    def versions_estimate(self) -> int:
        """Return how many versions there are."""
        return self._versions

    def bytes_estimate(self) -> int:
        """Return how many bytes the versions take."""
        return self._bytes

    def make_room(self) -> None:
        """Do nothing: all rows are in memory."""

    def look_at_room(self) -> None:
        """Do nothing: nothing is on the disk."""

    def memory_bytes(self) -> int:
        """Return about how much memory the versions take."""
        return self._bytes + self._versions * _OVERHEAD_BYTES

    def close(self) -> None:
        """Drop everything."""
        with self._lock:
            self._chains = {}
            self._rows = SortedList()
            self._state = {}
