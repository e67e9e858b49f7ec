"""Which files a RocksDB database consists of, read from its MANIFEST as far as that has come.

A MANIFEST is a log of changes, each of them one record. RocksDB writes a record when the files that
it adds are durable, and removes the files that it drops afterwards. So the whole records that are
there at any moment, with the files they leave, are what a process that died then would have left on
its disk: a state of the database, with all that was flushed before.

The bytes are those of RocksDB's log format (blocks of 32 KiB, in them fragments behind a header of
checksum, length and type) and of its VersionEdit, as far as this project's databases have them: one
column family, no blob files, no tracked logs. Whatever else is met is an `UnknownManifestError` and
not guessed at: RocksDB can still make a checkpoint itself (decision 0221).

Pure: bytes in, numbers of files out.
"""

import struct
from typing import Final

_BLOCK_BYTES: Final = 32 << 10
_HEADER: Final = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

# Tags of a VersionEdit, by what follows them.
_NUMBERS: Final = frozenset({2, 3, 4, 9, 10, 203})  # of logs, files, sequences, column families
_TEXTS: Final = frozenset({1, 8193, 8200, 8201})  # comparator, identity, ended logs, timestamps
_CURSOR, _DELETED_FILE, _NEW_FILE = 5, 6, 103
# Of the fields of a new file: their end, and the bit of those that nobody may pass over unknown.
_FIELDS_END, _FIELD_REQUIRED = 1, 1 << 6


class UnknownManifestError(Exception):
    """Raised when a MANIFEST has what this module does not know."""


class ManifestFiles:
    """The files that the whole records read so far leave; `end` is where those records end."""

    def __init__(self) -> None:
        self.end = 0
        self.numbers: set[int] = set()

    def read(self, data: bytes) -> None:
        """Read on with the bytes from `end` on, and leave a record that is not whole."""
        base = self.end
        at = 0
        record: bytes | None = None
        while True:
            left = _BLOCK_BYTES - (base + at) % _BLOCK_BYTES
            if left < _HEADER.size:
                at += left  # filled with zeros
                continue
            if at + _HEADER.size > len(data):
                return
            _, length, kind = _HEADER.unpack_from(data, at)
            if not _FULL <= kind <= _LAST or _HEADER.size + length > left:
                raise UnknownManifestError(f"a record of type {kind} at byte {base + at}")
            if (kind in (_FULL, _FIRST)) != (record is None):
                raise UnknownManifestError(f"a record in a record at byte {base + at}")
            at += _HEADER.size + length
            if at > len(data):
                return
            # The first part of one is empty where a block has room for its header alone.
            record = (record or b"") + data[at - length : at]
            if kind in (_FULL, _LAST):
                _apply(record, self.numbers)
                self.end, record = base + at, None


def _apply(edit: bytes, numbers: set[int]) -> None:
    """Take out the files that a change drops, then put in those that it adds.

    One that moves to another level is among both.
    """
    dropped: set[int] = set()
    added: set[int] = set()
    at = 0
    try:
        while at < len(edit):
            tag, at = _varint(edit, at)
            if tag == _NEW_FILE:
                number, at = _new_file(edit, at)
                added.add(number)
            elif tag == _DELETED_FILE:
                _, at = _varint(edit, at)  # its level
                number, at = _varint(edit, at)
                dropped.add(number)
            elif tag in _NUMBERS:
                _, at = _varint(edit, at)
            elif tag in _TEXTS:
                at = _behind_text(edit, at)
            elif tag == _CURSOR:
                _, at = _varint(edit, at)
                at = _behind_text(edit, at)
            else:
                raise UnknownManifestError(f"a change of files has tag {tag}")
    except IndexError:
        at = len(edit) + 1
    if at > len(edit) or not dropped <= numbers:
        raise UnknownManifestError("a change of files ends too early, or drops none of them")
    numbers -= dropped
    numbers |= added


def _new_file(edit: bytes, at: int) -> tuple[int, int]:
    """Return the number of an added file, and where its fields end."""
    _, at = _varint(edit, at)  # its level
    number, at = _varint(edit, at)
    _, at = _varint(edit, at)  # its bytes
    at = _behind_text(edit, at)  # its first and last key
    at = _behind_text(edit, at)
    _, at = _varint(edit, at)  # its first and last sequence
    _, at = _varint(edit, at)
    while True:
        tag, at = _varint(edit, at)
        if tag == _FIELDS_END:
            return number, at
        if tag & _FIELD_REQUIRED:
            raise UnknownManifestError(f"an added file has tag {tag}")
        at = _behind_text(edit, at)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, seven bits a byte, the lowest first, and the place behind it."""
    value = shift = 0
    while (byte := data[at]) & 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return value | byte << shift, at + 1


def _behind_text(data: bytes, at: int) -> int:
    length, at = _varint(data, at)
    return at + length
