"""The rows of a batch as they are stored, and where they belong: keys, values, hashes, row ids.

`encoded_rows` is where it is decided whether rows go through a loop or through kernels. What both
ways give is the same to the byte; a small batch costs a half to a third by the loop
(docs/decisions/0206). Everything is made when it is asked for, but for the keys' hashes.
"""

import functools
from typing import Any, Protocol

import numpy as np

from rezone.wire.codec.keyspace import Hashes, hash_key, row_id
from rezone.wire.codec.pieces import FEW_ROWS, binary_array
from rezone.wire.codec.rows import RowCodec, hash_of, row_ids


class Places(Protocol):
    """Where rows belong, in their order."""

    def hashes(self) -> Hashes:
        """Return the keys' hashes."""

    def row_id_list(self) -> list[bytes]:
        """Return the row ids."""


class EncodedRows(Places, Protocol):
    """Rows in their order. Of an unchecked batch keys and places alone; any for a null key."""

    def keys(self) -> Any:
        """Return the encoded primary keys, as a BinaryArray."""

    def values(self) -> Any:
        """Return the encoded other columns, as a BinaryArray."""

    def hash_bounds(self) -> tuple[int, int]:
        """Return the lowest and the highest hash; ValueError without rows."""

    def may_repeat(self) -> bool:
        """Whether two rows have the same hash, and so may have the same key."""

    def row_ids(self) -> Any:
        """Return the row ids, as a BinaryArray."""


def encoded_rows(codec: RowCodec, batch: Any) -> EncodedRows:
    """Return a batch's rows, of a delete or a read its keys alone, by the way that costs less."""
    return FewRows(codec, batch) if batch.num_rows <= FEW_ROWS else ManyRows(codec, batch)


class FewRows:
    """Encodes by a loop, through little code; see `few_rows`."""

    def __init__(self, codec: RowCodec, batch: Any) -> None:
        self._codec = codec
        self._batch = batch
        self._keys = codec.key_bytes(batch)
        self._hashes = list(map(hash_key, self._keys))

    def keys(self) -> Any:
        """See EncodedRows."""
        return binary_array(self._keys)

    def values(self) -> Any:
        """See EncodedRows."""
        return binary_array(self._codec.value_bytes(self._batch))

    def hashes(self) -> Hashes:
        """See EncodedRows."""
        return np.array(self._hashes, np.uint64)

    def hash_bounds(self) -> tuple[int, int]:
        """See EncodedRows."""
        return min(self._hashes), max(self._hashes)

    def may_repeat(self) -> bool:
        """See EncodedRows."""
        return len(set(self._hashes)) < len(self._hashes)

    def row_ids(self) -> Any:
        """See EncodedRows."""
        return binary_array(self.row_id_list())

    def row_id_list(self) -> list[bytes]:
        """See EncodedRows."""
        return list(map(row_id, self._hashes, self._keys))


class ManyRows:
    """Encodes by kernels of Arrow and numpy, without a loop over rows but for the hashes."""

    def __init__(self, codec: RowCodec, batch: Any) -> None:
        self._codec = codec
        self._batch = batch
        self._keys = codec.encode_keys(batch)
        self._hashes = hash_of(self._keys)

    def keys(self) -> Any:
        """See EncodedRows."""
        return self._keys

    def values(self) -> Any:
        """See EncodedRows."""
        return self._codec.encode_values(self._batch)

    def hashes(self) -> Hashes:
        """See EncodedRows."""
        return self._hashes

    def hash_bounds(self) -> tuple[int, int]:
        """See EncodedRows."""
        return int(self._hashes.min()), int(self._hashes.max())

    def may_repeat(self) -> bool:
        """See EncodedRows."""
        ordered = self._hashes
        if not (ordered[1:] > ordered[:-1]).all():
            ordered = np.sort(ordered)
        return bool((ordered[1:] == ordered[:-1]).any())

    def row_ids(self) -> Any:
        """See EncodedRows."""
        return row_ids(self._keys, self._hashes)

    def row_id_list(self) -> list[bytes]:
        """See EncodedRows."""
        found: list[bytes] = self.row_ids().to_pylist()
        return found


class RowsOfMany:
    """Rows that were encoded together, to be had in pieces; what is made is made once for all."""

    def __init__(self, rows: EncodedRows) -> None:
        self._rows = rows
        self.hashes = rows.hashes()

    @functools.cached_property
    def row_ids(self) -> list[bytes]:
        """The row ids of all."""
        return self._rows.row_id_list()

    def between(self, start: int, end: int) -> "Piece":
        """Return the rows of a range of places."""
        return Piece(self, start, end)


class Piece:
    """A few of the rows that were encoded together."""

    __slots__ = ("_end", "_many", "_start")

    def __init__(self, many: RowsOfMany, start: int, end: int) -> None:
        self._many = many
        self._start = start
        self._end = end

    def hashes(self) -> Hashes:
        """See Places."""
        return self._many.hashes[self._start : self._end]

    def row_id_list(self) -> list[bytes]:
        """See Places."""
        return self._many.row_ids[self._start : self._end]
