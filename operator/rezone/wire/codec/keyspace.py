"""Which partition a key belongs to, and in which order rows stand.

A row's place is the 64-bit XXH64 hash (seed 42) of its encoded primary key; a partition is a
range of that hash. Ranges are cut evenly, so that any number of partitions is a matter of
cutting ranges and never of hashing again. Hash, seed and byte order are part of the format.
"""

import numpy as np
import numpy.typing as npt
import xxhash

from rezone.wire.codec.pieces import FEW_ROWS

HASH_SEED = 42
HASH_SPACE = 1 << 64
PARTITIONS_MAX = 16_384
_HASH_BYTES = 8

Hashes = npt.NDArray[np.uint64]


def hash_key(key: bytes) -> int:
    """Return the 64-bit hash of one encoded primary key."""
    return xxhash.xxh64_intdigest(key, HASH_SEED)


def hash_keys(keys: list[bytes]) -> Hashes:
    """Return the hashes of many encoded primary keys, as unsigned 64-bit integers, shape (n,)."""
    digest = xxhash.xxh64_intdigest
    return np.fromiter((digest(k, HASH_SEED) for k in keys), dtype=np.uint64, count=len(keys))


def partition_of(key_hash: int, partitions: int) -> int:
    """Return the partition, of `partitions`, that holds a hash."""
    return (key_hash * partitions) >> 64


def partitions_of(hashes: Hashes, partitions: int) -> npt.NDArray[np.uint64]:
    """Return the partition of each hash; as `partition_of`, without 128-bit integers."""
    if len(hashes) <= FEW_ROWS:
        return np.array([partition_of(one, partitions) for one in hashes.tolist()], np.uint64)
    count = np.uint64(partitions)
    half = np.uint64(32)
    low = (hashes & np.uint64(0xFFFF_FFFF)) * count
    return ((hashes >> half) * count + (low >> half)) >> half


def range_of(partition: int, partitions: int) -> tuple[int, int]:
    """Return the half-open hash range [start, end) of a partition; `end` may be 2**64."""
    if not 0 <= partition < partitions:
        raise ValueError(f"partition {partition} is not one of {partitions}")
    start = -((-partition << 64) // partitions)
    end = -((-(partition + 1) << 64) // partitions)
    return start, end


def row_id(key_hash: int, key: bytes) -> bytes:
    """Return the row id: hash (8 bytes), key length (2), key; big-endian, so bytes order rows.

    The length keeps one key from being a prefix of another one with the same hash: the
    versions of one row always stand together.
    """
    return key_hash.to_bytes(8, "big") + len(key).to_bytes(2, "big") + key


def hash_in(row_id: bytes) -> int:
    """Return the hash that a row id, or the beginning of one, stands at."""
    return int.from_bytes(row_id[:_HASH_BYTES].ljust(_HASH_BYTES, b"\0"), "big")
