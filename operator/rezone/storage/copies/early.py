"""Rows of a copy that came before their turn, kept until the scan passes them (SS-03).

A source sends rows whose past is about to change ahead of its scan. Written to the engine at
once they would lie in one file over all the rows still to come, so that no later sorted file could
go below it, and the engine would merge and write everything again, several times (decision 0146).
Put among the rows around them they cost nothing.

They are not durable meanwhile and need not be: progress is claimed up to a row, and they are all
behind it. Whoever dies gets them again, by the scan that goes on there.

Concurrency: by the loader's thread alone.
"""

from collections.abc import Sequence

from sortedcontainers import SortedDict  # type: ignore[import-untyped]

from rezone.storage.engines.base import behind


class EarlyRows:
    """Versions by engine key, of `bytes_max` keys and values at most."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._versions = SortedDict()

    def take(self, keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
        """Keep the versions; whether there was room, else none is kept."""
        size = sum(map(len, keys)) + sum(map(len, values))
        if self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        self._versions.update(zip(keys, values, strict=True))
        return True

    def passed(self, last_row_id: bytes) -> tuple[list[bytes], list[bytes]]:
        """Return the versions of all rows up to this one, ascending, and forget them."""
        count = self._versions.bisect_left(behind(last_row_id))
        return self._first(count)

    def rest(self) -> tuple[list[bytes], list[bytes]]:
        """Return all that are left, ascending, and forget them."""
        return self._first(len(self._versions))

    def _first(self, count: int) -> tuple[list[bytes], list[bytes]]:
        keys = list(self._versions.islice(0, count))
        values = [self._versions.pop(key) for key in keys]
        self._bytes -= sum(map(len, keys)) + sum(map(len, values))
        return keys, values
