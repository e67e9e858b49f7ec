"""Calls that share a request: which of those that wait go together, and as what.

A call waits only while another request of the same kind to its partition is under way, so one that
is alone is sent at once (docs/decisions/0350).
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from rezone.client.settings import ClientSettings
from rezone.wire.codec import bodies
from rezone.wire.codec.encoded_rows import Places, encoded_rows
from rezone.wire.codec.rows import RowCodec

SHARING_ROWS_MAX = 64
"""A call of more rows has a request of its own: it gains nothing by another one's."""

SMALL_BYTES = 4096
"""Buffers of no more bytes count as they are, also where a slice has only a part of them."""

ROWS_OVERHEAD_BYTES = 256
"""What a few rows take on the wire beside their values, about."""


class Content:
    """The rows or keys of one call: `rows` of them, about `size` bytes on the wire.

    Few are kept as they were given, and are encoded with those of the other calls in their request.
    Many are encoded at once, by the caller's thread: who sends later must not be held up.
    """

    __slots__ = ("_batch", "_body", "rows", "size")

    def __init__(self, batch: Any) -> None:
        self.rows: int = batch.num_rows
        few = self.rows <= SHARING_ROWS_MAX
        self._batch = batch if few else None
        self._body = b"" if few else bodies.to_ipc(batch)
        self.size: int = _size_of(batch) if few else len(self._body)

    def batch(self, schema: Any) -> Any:
        """Return the rows as a record batch of this schema, which is theirs."""
        return bodies.from_ipc(self._body, schema) if self._batch is None else self._batch

    def body(self) -> bytes:
        """Return the rows as the body of a request."""
        return self._body if self._batch is None else bodies.to_ipc(self._batch)


def _size_of(batch: Any) -> int:
    """Return what a few rows take on the wire, about."""
    size: int = batch.get_total_buffer_size()
    if size > SMALL_BYTES:
        size = batch.nbytes  # of a slice its own part; it takes longer to count
    return size + ROWS_OVERHEAD_BYTES


class Call(Protocol):
    """What is asked of a call that waits."""

    @property
    def content(self) -> Content:
        """Its rows or keys; of one schema for all calls of a request."""

    @property
    def written(self) -> frozenset[int]:
        """The key hashes of rows that it writes: each row has a version of every call."""


C = TypeVar("C", bound=Call)


class Limits:
    """How many calls, rows and bytes one request may have.

    A refused request of several calls halves how many the next ones have, so that a call which is
    refused is soon alone; each that is answered doubles it.
    """

    def __init__(self, settings: ClientSettings, codec: RowCodec) -> None:
        self._calls_max = self._calls = max(1, settings.shared_calls_max)
        self._rows_max = codec.limits.batch_rows_max
        self._bytes_max = min(settings.shared_bytes_max, codec.limits.batch_bytes_max)

    def refused(self, calls: int) -> None:
        """Take half as many as were refused together."""
        self._calls = max(1, calls // 2)

    def answered(self) -> None:
        """Take twice as many again."""
        self._calls = min(self._calls_max, self._calls * 2)

    def take(self, waiting: deque[C], fits: Callable[[C, C], bool]) -> list[C]:
        """Take the first call out, and those right behind it that fit it, within the limits."""
        first = waiting.popleft()
        taken, rows, size = [first], first.content.rows, first.content.size
        written = set(first.written)
        while waiting and len(taken) < self._calls and first.content.rows <= SHARING_ROWS_MAX:
            one = waiting[0]
            rows, size = rows + one.content.rows, size + one.content.size
            within = rows <= self._rows_max and size <= self._bytes_max
            alike = one.content.rows <= SHARING_ROWS_MAX and fits(first, one)
            if not (within and alike and written.isdisjoint(one.written)):
                break
            written |= one.written
            taken.append(waiting.popleft())
        return taken


def joined(calls: Sequence[Call], schema: Any) -> bytes:
    """Return the rows of all these calls, which are of this schema, as one body in their order."""
    if len(calls) == 1:
        return calls[0].content.body()
    return bodies.to_ipc(pa.concat_batches([one.content.batch(schema) for one in calls]))


Row = dict[str, Any]


class FoundRows(Protocol):
    """The rows that an answer has for a call; any thread may ask, and the first one decodes them.

    So the thread that reads answers goes on at once. InvalidRowError when they are no rows of the
    table.
    """

    def batch(self) -> Any:
        """Return the rows as a record batch, absent ones left out."""

    def first(self) -> Row | None:
        """Return the row of a call's first key, None when it is absent."""


class OwnRows:
    """The rows of an answer to one call."""

    def __init__(self, codec: RowCodec, body: memoryview) -> None:
        self._codec = codec
        self._body = body

    def batch(self) -> Any:
        """See FoundRows."""
        return bodies.from_ipc(self._body, self._codec.arrow_schema)

    def first(self) -> Row | None:
        """See FoundRows; of a call with one key."""
        rows: list[Row] = self.batch().to_pylist()
        return rows[0] if rows else None


class SharedRows:
    """The rows that a shared read has found, for each call to take its own (`of`)."""

    def __init__(self, codec: RowCodec, body: memoryview) -> None:
        self._codec = codec
        self._body = body
        self._lock = threading.Lock()
        self._decoded: tuple[Any, dict[bytes, int]] | None = None
        self._rows: list[Row] | None = None

    def of(self, places: Places) -> "SharedPart":
        """Return the rows of these keys."""
        return SharedPart(self, places)

    def batch(self, row_ids: Sequence[bytes]) -> Any:
        """Return the rows with these ids as a record batch, absent ones left out."""
        with self._lock:
            rows, places = self._decode()
        found = [places[one] for one in row_ids if one in places]
        if len(found) == 1:
            return rows.slice(found[0], 1)
        return rows.take(pa.array(found, pa.int64())) if found else rows.slice(0, 0)

    def row(self, row_id: bytes) -> Row | None:
        """Return the row with this id."""
        with self._lock:
            rows, places = self._decode()
            if self._rows is None:
                self._rows = rows.to_pylist()
            place = places.get(row_id)
            return None if place is None else self._rows[place]

    def _decode(self) -> tuple[Any, dict[bytes, int]]:
        if self._decoded is None:
            rows = bodies.from_ipc(self._body, self._codec.arrow_schema)
            row_ids = encoded_rows(self._codec, rows).row_id_list()
            self._decoded = rows, dict(zip(row_ids, itertools.count()))
        return self._decoded


class SharedPart:
    """Those of the rows of a shared read that one call has asked for."""

    __slots__ = ("_places", "_shared")

    def __init__(self, shared: SharedRows, places: Places) -> None:
        self._shared = shared
        self._places = places

    def batch(self) -> Any:
        """See FoundRows."""
        return self._shared.batch(self._places.row_id_list())

    def first(self) -> Row | None:
        """See FoundRows."""
        return self._shared.row(self._places.row_id_list()[0])
