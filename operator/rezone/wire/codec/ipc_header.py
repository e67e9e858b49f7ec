"""Whether a record batch of Arrow's IPC format is compressed, by its header alone.

Arrow unpacks while it reads, as many bytes as the batch says, and has no option against that; what
it would take has to be known before. The header is a flatbuffer (Arrow's Message.fbs): a table
begins with how far back its vtable is, and that has the place of each field, 0 for none.
"""

import struct

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")

_HEADER = 2
"""Of a Message: the table of what it is."""

_COMPRESSION = 3
"""Of a RecordBatch."""


def is_compressed(header: bytes | memoryview) -> bool:
    """Whether the record batch behind a header is; ValueError when it is no such header."""
    try:
        message = _U32.unpack_from(header, 0)[0]
        field = _field(header, message, _HEADER)
        if not field:
            raise ValueError("a message without a header")
        place = message + field
        batch = place + _U32.unpack_from(header, place)[0]
        return bool(_field(header, batch, _COMPRESSION))
    except struct.error as error:
        raise ValueError("a header that points out of itself") from error


def _field(header: bytes | memoryview, table: int, number: int) -> int:
    """Return where a field of a table is, from its beginning; 0 for one that is not there."""
    vtable = table - _I32.unpack_from(header, table)[0]
    if vtable < 0:
        raise ValueError("a header that points out of itself")
    place = 4 + 2 * number
    if place >= _U16.unpack_from(header, vtable)[0]:
        return 0
    found: int = _U16.unpack_from(header, vtable + place)[0]
    return found
