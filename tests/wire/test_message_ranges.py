"""Every number of every message has its range in the type: what is out of it is never decoded."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import inspect

from rezone.wire import messages
from rezone.wire.messages import (
    ALL_MESSAGES,
    DigestRequest,
    Fence,
    LeaderAndIsr,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    ReadRequest,
    TransactionEnd,
    WriteRequest,
)
from rezone.wire.messages.control import DIGEST_RANGES_MAX

_LEAVES = (inspect.IntType, inspect.FloatType)


def unbounded(kind: inspect.Type, path: str, seen: set[type]) -> list[str]:
    """Return where a type has numbers without a least value."""
    if isinstance(kind, _LEAVES):
        return [] if kind.ge is not None or kind.gt is not None else [path]
    found: list[str] = []
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return []
        seen.add(kind.cls)
        for field in kind.fields:
            found += unbounded(field.type, f"{kind.cls.__name__}.{field.name}", seen)
    for part in ("item_type", "key_type", "value_type"):
        if (inner := getattr(kind, part, None)) is not None:
            found += unbounded(inner, path, seen)
    for part in ("item_types", "types"):
        for inner in getattr(kind, part, ()):
            found += unbounded(inner, path, seen)
    return found


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize("kind", ALL_MESSAGES, ids=lambda kind: kind.__name__)
def test_every_number_has_a_range(kind: type[messages.Message]) -> None:
    """A number that a part does not expect would end whichever thread meets it first."""
    assert unbounded(inspect.type_info(kind), kind.__name__, set()) == []


@pytest.mark.proves("TR-03")
@pytest.mark.parametrize(
    "message",
    [
        WriteRequest(opaque=1, partition=0, producer_id="", sequence=-1),
        WriteRequest(opaque=1, partition=0, producer_id="", sequence=1, producer_epoch=1 << 32),
        TransactionEnd(opaque=1, partition=0, transaction="", sequence=-1),
        ReadRequest(opaque=1, partition=0, max_age_ms=-1),
        ReadRequest(opaque=1, partition=0, as_of=1 << 63),
        DigestRequest(partition=0, ranges=DIGEST_RANGES_MAX + 1),
        NotifyLeaderAndIsr(
            fence=Fence(coordinator_epoch=1),
            peers={},
            partitions=(
                PartitionAssignment(
                    partition=0,
                    state=LeaderAndIsr(leader=0, leader_epoch=1 << 32, isr=(), coordinator_epoch=1),
                ),
            ),
        ),
    ],
)
def test_numbers_out_of_their_range_are_no_messages(message: messages.Message) -> None:
    """They would be found out behind the door, or not at all."""
    with pytest.raises(msgspec.ValidationError):
        messages.decode(messages.encode(message))
