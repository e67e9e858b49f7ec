"""Record batches from outside: bodies of writes and reads, and batches within messages.

Arrow reads what it is given without a look at where its offsets point: a batch that was made to
hurt ends the process when it is used. So nothing is used that was not validated.
"""

from typing import Any

import pyarrow as pa

from rezone.wire.codec.ipc_header import is_compressed
from rezone.wire.errors import InvalidRowError

_PREFIX_BYTES = 8
"""What is before a message's header: a mark, and how long the header is."""

_IPC_END = b"\xff\xff\xff\xff\0\0\0\0"


def to_ipc(batch: Any) -> bytes:
    """Return the batch as one Arrow IPC stream, the body of writes and reads."""
    # What a stream writer makes of one batch, in a third of the time.
    return b"".join((batch.schema.serialize(), batch.serialize(), _IPC_END))


def from_ipc(body: bytes | memoryview, schema: Any) -> Any:
    """Return the one batch of an IPC stream; InvalidRowError unless it is just that of `schema`.

    The batch is a view of `body`.
    """
    try:
        head = schema.serialize().to_pybytes()
        if bytes(body[: len(head)]) == head:
            batch, rest = _read_behind(head, body, schema)
        else:
            batch, rest = _read_stream(body, schema)
    except (StopIteration, EOFError) as error:
        raise InvalidRowError("the body has no record batch") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidRowError(f"the body is not an Arrow IPC stream: {error}") from error
    if rest:
        raise InvalidRowError("the body has more than one record batch; send one per request")
    return batch


def from_message(data: bytes | memoryview | pa.Buffer, schema: Any) -> Any:
    """Return the batch of one IPC message, a view of `data`; InvalidRowError unless it is that."""
    try:
        if is_compressed(memoryview(data)[_PREFIX_BYTES:]):
            raise InvalidRowError("the batch is compressed; send it as it is")
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidRowError(f"not an Arrow record batch: {error}") from error
    require_valid(batch, schema)
    return batch


def require_valid(batch: Any, schema: Any) -> None:
    """Raise InvalidRowError unless all that a batch says of itself is true, and of the schema."""
    if batch is None or not batch.schema.equals(schema):
        raise InvalidRowError("no batch, or one of other columns")
    require_arrow(batch)
    for field, column in zip(schema, batch.columns, strict=True):
        if column.null_count and not field.nullable:
            raise InvalidRowError(f"column {field.name!r} has nulls", column=field.name)


def require_arrow(batch: Any) -> None:
    """Raise InvalidRowError unless a batch's offsets stay within it, and its text is UTF-8."""
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRowError(f"the batch is not valid Arrow data: {error}") from error


def _read_behind(head: bytes, body: bytes | memoryview, schema: Any) -> tuple[Any, bool]:
    """Return the batch behind a schema that need not be read, and whether another one follows."""
    reader = pa.BufferReader(pa.py_buffer(body).slice(len(head)))
    batch = _read_batch(reader, schema)
    return batch, reader.read() not in {b"", _IPC_END}


def _read_stream(body: bytes | memoryview, schema: Any) -> tuple[Any, bool]:
    """Return the first batch of a stream, and whether there is another one."""
    reader = pa.BufferReader(pa.py_buffer(body))
    message = pa.ipc.read_message(reader)
    if message.type != "schema":
        # Arrow takes any header for a schema: the process would end, or read what is not its own.
        raise InvalidRowError("the body does not begin with a schema")
    got = pa.ipc.read_schema(message)
    check_schema(got, schema)
    batch = _read_batch(reader, got)
    return batch, reader.read() not in {b"", _IPC_END}


def _read_batch(reader: Any, schema: Any) -> Any:
    """Return the next batch: a view of its bytes, never more than them."""
    message = pa.ipc.read_message(reader)
    if is_compressed(memoryview(message.metadata)):
        raise InvalidRowError("the batch is compressed; send it as it is")
    return pa.ipc.read_record_batch(message, schema)


def check_schema(got: Any, expected: Any) -> None:
    """Refuse other columns, types or another order than a table's, with InvalidRowError."""
    if got.equals(expected):
        return
    if got.names != expected.names:
        if sorted(got.names) == sorted(expected.names):
            raise InvalidRowError(
                f"the columns stand in the order {got.names}; send them in the order of the "
                f"schema: batch.select({expected.names})",
            )
        raise InvalidRowError(f"the batch has the columns {got.names}, not {expected.names}")
    for have, want in zip(got, expected, strict=True):
        if have.type != want.type:
            raise InvalidRowError(
                f"column {want.name!r} is {have.type}, the zone's is {want.type}; cast it first",
                column=want.name,
            )
