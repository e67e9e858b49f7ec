"""Messages as bytes: msgpack, tagged by name; unknown fields are skipped."""

import functools
import operator
from types import ModuleType
from typing import Any

import msgspec

from rezone.wire.messages import (
    base,
    changes,
    control,
    imports,
    reports,
    serving,
    snapshots,
    streams,
)
from rezone.wire.messages.base import Message


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
    for module in (base, control, reports, serving, streams, snapshots, imports, changes)
    for kind in _messages_of(module)
)

_encoder = msgspec.msgpack.Encoder()

_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(
    type=functools.reduce(operator.or_, ALL_MESSAGES),
)


def encode(message: Message) -> bytes:
    """Return the message as msgpack."""
    return _encoder.encode(message)


def decode(data: bytes | memoryview) -> Message:
    """Return the message in `data`; `msgspec.ValidationError` when it is none of these."""
    message: Message = _decoder.decode(data)
    return message
