"""Counts and digests of rows by range of key hashes, in whatever order the rows come.

Of each row the 128-bit XXH3 of its row id and value (`wire.codec.rows`: equal rows have equal
bytes), of a range the sums of both halves modulo 2**64. So a zone, another zone with other
partitions and Parquet files are compared without sorting, tasks count parts by themselves, and a
row that comes twice is not taken for none. It finds faults; it is no proof against forgery.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import xxhash

from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.keyspace import partitions_of, range_of
from rezone.wire.codec.rows import RowCodec
from rezone.wire.layouts import HashRange

RANGES_MAX = 1 << 16

Words = npt.NDArray[np.uint64]


class RowDigests:
    """The rows of one batch: their ids, and the digest of each."""

    def __init__(self, codec: RowCodec, batch: Any) -> None:
        rows = encoded_rows(codec, batch)
        self.row_ids: Any = rows.row_ids()
        self.hashes = rows.hashes()
        joined = pc.binary_join_element_wise(self.row_ids, rows.values(), b"")
        self.bytes = int(pc.sum(pc.binary_length(joined)).as_py() or 0)
        self.digests = [xxhash.xxh3_128_digest(row) for row in joined.to_pylist()]

    def words(self) -> Words:
        """Return the halves of the digests, shape (rows, 2)."""
        found = np.frombuffer(b"".join(self.digests), np.dtype(">u8")).astype(np.uint64)
        return found.reshape(-1, 2)

    def ranges(self, count: int) -> npt.NDArray[np.intp]:
        """Return in which of `count` even ranges of all hashes each row is."""
        return partitions_of(self.hashes, count).astype(np.intp)


class RangeDigests:
    """Rows and digests of each of `ranges` even cuts of all hashes; ValueError for a bad count."""

    def __init__(self, ranges: int) -> None:
        if not 1 <= ranges <= RANGES_MAX:
            raise ValueError(f"{ranges} ranges are not 1 to {RANGES_MAX}")
        self.ranges = ranges
        self.rows: Words = np.zeros(ranges, np.uint64)
        self.sums: Words = np.zeros((ranges, 2), np.uint64)
        self.bytes = 0

    def add(self, found: RowDigests) -> None:
        """Count the rows of a batch."""
        if not found.digests:
            return
        where = found.ranges(self.ranges)
        np.add.at(self.rows, where, np.uint64(1))
        np.add.at(self.sums, where, found.words())
        self.bytes += found.bytes

    def merge(self, other: Self) -> None:
        """Count what another one has counted."""
        self.rows += other.rows
        self.sums += other.sums
        self.bytes += other.bytes

    def differing(self, other: Self) -> list[int]:
        """Return the ranges in which the rows are not the same."""
        same = (self.rows == other.rows) & (self.sums == other.sums).all(axis=1)
        return [int(index) for index in np.flatnonzero(~same)]

    @property
    def total_rows(self) -> int:
        """All rows."""
        return int(self.rows.sum())

    @property
    def digest(self) -> str:
        """The digest of all rows, the same for any number of ranges."""
        return str(self.sums.sum(axis=0, dtype=np.uint64).astype(">u8").tobytes().hex())

    def text(self, index: int) -> str:
        """Return the digest of a range in hexadecimal."""
        return str(self.sums[index].astype(">u8").tobytes().hex())

    def dump(self) -> list[tuple[int, str]]:
        """Return rows and digest of each range."""
        texts = map(self.text, range(self.ranges))
        return list(zip(self.rows.tolist(), texts, strict=True))

    @classmethod
    def load(cls, dumped: list[tuple[int, str]]) -> Self:
        """Return what was dumped; ValueError when it is damaged."""
        found = cls(len(dumped))
        found.rows[:] = [rows for rows, _ in dumped]
        words = np.frombuffer(bytes.fromhex("".join(text for _, text in dumped)), np.dtype(">u8"))
        found.sums[:] = words.astype(np.uint64).reshape(found.sums.shape)
        return found


def hashes_of(index: int, ranges: int) -> HashRange:
    """Return the hashes of one of so many even ranges."""
    return HashRange(*range_of(index, ranges))
