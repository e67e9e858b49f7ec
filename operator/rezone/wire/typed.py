"""Values of a type from JSON, msgpack or Python's own, made by decoders that are made in turn.

msgspec notes at a class what it knows of its fields before it knows all of them. A thread that
decodes while another one makes the first decoder with that class reads what is not there yet, and
the process ends by a segmentation fault (msgspec 0.22.0). So all decoders are made here, one at a
time, and are used when they are whole. See docs/decisions/0519.

Concurrency: all functions are thread-safe.
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_making = threading.Lock()


_msgpack: dict[Any, Any] = {}
_json: dict[Any, Any] = {}


def msgpack_decoder(kind: type[T]) -> "msgspec.msgpack.Decoder[T]":
    """Return a decoder of msgpack."""
    found: msgspec.msgpack.Decoder[T] | None = _msgpack.get(kind)
    if found is None:
        with _making:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return found


def _json_decoder(kind: type[T], *, strict: bool) -> "msgspec.json.Decoder[T]":
    found: msgspec.json.Decoder[T] | None = _json.get((kind, strict))
    if found is None:
        with _making:
            found = _json[kind, strict] = msgspec.json.Decoder(kind, strict=strict)
    return found


def from_msgpack(data: bytes, kind: type[T]) -> T:
    """Return what msgpack says; raises errors.UNREADABLE when it is none of that kind."""
    return msgpack_decoder(kind).decode(data)


def from_json(data: bytes | str, kind: type[T], *, strict: bool = True) -> T:
    """Return what JSON says; raises errors.UNREADABLE when it is none of that kind."""
    return _json_decoder(kind, strict=strict).decode(data)


def from_builtins(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Return a value of a kind; msgspec.ValidationError when that has another form."""
    with _making:
        return msgspec.convert(value, kind, strict=strict)
