"""Records of an engine's named state, and of notes in the log, which another node may have made.

They come with an engine's files, or with entries, whose checksums say that they are as they were
sent, not that they are good.
"""

import struct
from typing import Any, TypeVar

from rezone.wire.errors import UNREADABLE, CorruptionError
from rezone.wire.typed import from_msgpack

Record = TypeVar("Record")


def decoded(data: bytes, kind: type[Record]) -> Record:
    """Return a record in msgpack; CorruptionError when it is none of this kind."""
    try:
        return from_msgpack(data, kind)
    except UNREADABLE as error:
        raise CorruptionError(f"no {kind.__name__} can be read: {error}") from error


def unpacked(layout: struct.Struct, data: bytes) -> tuple[Any, ...]:
    """Return the parts that `data` begins with; CorruptionError when it is too short."""
    try:
        return layout.unpack_from(data)
    except struct.error as error:
        raise CorruptionError(f"a record of {len(data)} bytes, not {layout.size}") from error
