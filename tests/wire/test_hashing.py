"""Keys hashed at once, beside the library that hashes one."""

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from rezone.wire.codec.hashing import BYTES_MAX
from rezone.wire.codec.keyspace import HASH_SEED
from rezone.wire.codec.pieces import FEW_ROWS
from rezone.wire.codec.rows import hash_of


@pytest.mark.parametrize("size", [*range(80), BYTES_MAX - 1, BYTES_MAX, BYTES_MAX + 1])
def test_keys_of_one_length_have_the_librarys_hashes(size: int) -> None:
    """A wrong bit puts a row into a partition in which nobody looks for it.

    Lengths reach over two stripes of 32 bytes and each remainder; slices begin inside of a buffer.
    """
    random = np.random.default_rng(size)
    keys = [random.bytes(size) for _ in range(FEW_ROWS + 9)]
    found = hash_of(pa.array([b"before", *keys], pa.binary()).slice(1))
    assert found.tolist() == [xxhash.xxh64_intdigest(key, HASH_SEED) for key in keys]


def test_keys_of_several_lengths_have_the_librarys_hashes() -> None:
    """The last one alone is longer: its bytes would be left out."""
    keys = [b"%03d" % n for n in range(FEW_ROWS + 9)] + [b"longer"]
    found = hash_of(pa.array(keys, pa.binary()))
    assert found.tolist() == [xxhash.xxh64_intdigest(key, HASH_SEED) for key in keys]
