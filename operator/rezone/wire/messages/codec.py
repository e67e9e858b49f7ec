"""Messages as bytes: msgpack, tagged by name; unknown fields are skipped."""

import functools
import operator
from types import ModuleType
from typing import Any

import msgspec

from rezone.wire.errors import UNREADABLE
from rezone.wire.messages import (
    base,
    changes,
    control,
    reports,
    resharding,
    selecting,
    serving,
    snapshots,
    streams,
)
from rezone.wire.messages.base import Message
from rezone.wire.ranges import Count
from rezone.wire.typed import msgpack_decoder


def _messages_of(module: ModuleType) -> list[type[Message]]:
    return [
        kind
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Message)
        and kind.__module__ == module.__name__
        and kind is not Message
    ]


ALL_MESSAGES: tuple[type[Message], ...] = tuple(
    kind
    for module in (
        base,
        control,
        reports,
        serving,
        selecting,
        streams,
        snapshots,
        resharding,
        changes,
    )
    for kind in _messages_of(module)
)

_encoder = msgspec.msgpack.Encoder()


class UnreadableError(msgspec.ValidationError):
    """A message with a value that its type does not take; `opaque` is its number, or None."""

    def __init__(self, text: str, opaque: int | None) -> None:
        super().__init__(text)
        self.opaque = opaque


class _Numbered(msgspec.Struct):
    """What is read of a message that is not one of these."""

    opaque: Count | None = None


_numbered = msgpack_decoder(_Numbered)

_any_message: Any = functools.reduce(operator.or_, ALL_MESSAGES)
_decoder = msgpack_decoder(_any_message)


def encode(message: Message) -> bytes:
    """Return the message as msgpack."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Return the message in `data`.

    Raises UnreadableError when it is none of these, or a value is out of its range, and
    `msgspec.DecodeError` when it is no msgpack.
    """
    try:
        message: Message = _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise UnreadableError(str(error), _opaque_of(data)) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    return message


def _opaque_of(data: bytes | memoryview) -> int | None:
    try:
        return _numbered.decode(data).opaque
    except UNREADABLE:
        return None
