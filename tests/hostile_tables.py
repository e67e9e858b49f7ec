"""Tables of RocksDB that were changed on purpose: their checksums are those of what is in them."""

from __future__ import annotations

import random

import xxhash

_FOOTER_BYTES = 53
_TRAILER_BYTES = 5
_XXH3 = 4
_LAST_BYTE_FACTOR = 0x6B9083D9
_WORD = 0xFFFFFFFF


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a varint and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _handles(table: bytes) -> list[tuple[int, int]]:
    """Return where the blocks of properties' directory and of the index are."""
    footer = len(table) - _FOOTER_BYTES
    assert table[footer] == _XXH3, "another checksum than this module knows"
    at, numbers = footer + 1, []
    for _ in range(4):
        number, at = _number(table, at)
        numbers.append(number)
    return [(numbers[0], numbers[1]), (numbers[2], numbers[3])]


def checksum(block: bytes, kind: int) -> int:
    """Return what RocksDB writes behind a block of some kind of compression."""
    return ((xxhash.xxh3_64_intdigest(block) & _WORD) ^ (kind * _LAST_BYTE_FACTOR)) & _WORD


def hostile(table: bytes, seed: int) -> bytes:
    """Return a table with bytes of its index or of another block changed, and a right checksum."""
    choice = random.Random(seed)
    changed = bytearray(table)
    start, size = choice.choice(_handles(table))
    end = start + size
    kind = table[end]
    assert int.from_bytes(table[end + 1 : end + _TRAILER_BYTES], "little") == checksum(
        table[start:end], kind
    )
    for _ in range(choice.randrange(1, 9)):
        # What says how long things are stands at the ends of a block and before each entry.
        at = choice.choice((end - 1 - choice.randrange(8), choice.randrange(start, end)))
        changed[max(at, start)] = choice.choice((0xFF, 0x7F, 0x80, choice.randrange(256)))
    changed[end + 1 : end + _TRAILER_BYTES] = checksum(bytes(changed[start:end]), kind).to_bytes(
        4, "little"
    )
    return bytes(changed)
