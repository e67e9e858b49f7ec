"""The token of a change feed: a position in the whole zone, as text that users only store.

Base64 of a version, a checksum and msgpack. The content is, for ranges of hashes in order and
without a gap, the time up to which all changes are known, and which partition said so. That stays
right whoever leads, however rows are copied and however the zone is re-sharded (decision 0345).
"""

import base64
import binascii
import zlib
from typing import Final, NamedTuple

import msgspec

from rezone.wire.codec.keyspace import HASH_SPACE, PARTITIONS_MAX
from rezone.wire.errors import UNREADABLE
from rezone.wire.messages import NOBODY_GAVE
from rezone.wire.ranges import CountOrNone
from rezone.wire.typed import from_msgpack

_VERSION: Final = 1
_HEAD_BYTES: Final = 5
RANGES_MAX: Final = 4 * PARTITIONS_MAX
TOKEN_BYTES_MAX: Final = 64 * RANGES_MAX
_TIME_MAX: Final = (1 << 63) - 1


class FeedTokenError(ValueError):
    """Raised when a token is damaged, of another zone, or of a version that is not known here."""


class RangePosition(NamedTuple):
    """All changes of a half-open range of hashes up to `time` (microseconds) are known.

    `given_by` is the partition that said so, NOBODY_GAVE for a time that a caller chose.
    """

    start: int
    end: int
    time: int
    given_by: CountOrNone = NOBODY_GAVE


class _Content(msgspec.Struct, frozen=True, array_like=True):
    zone_uid: str
    last_hash: int
    starts: tuple[int, ...]
    times: tuple[int, ...]
    given_by: tuple[CountOrNone, ...]


def encode_token(zone_uid: str, positions: list[RangePosition]) -> str:
    """Return the token for positions, which are in order and without a gap."""
    content = _Content(
        zone_uid=zone_uid,
        last_hash=positions[-1].end - 1,
        starts=tuple(each.start for each in positions),
        times=tuple(each.time for each in positions),
        given_by=tuple(each.given_by for each in positions),
    )
    body = msgspec.msgpack.encode(content)
    head = bytes([_VERSION]) + zlib.crc32(body).to_bytes(4, "big")
    return base64.urlsafe_b64encode(head + body).decode()


def decode_token(zone_uid: str, token: str) -> list[RangePosition]:
    """Return the positions in a token; FeedTokenError when it is not one of this zone."""
    content = _content_of(token)
    if content.zone_uid != zone_uid:
        raise FeedTokenError(
            f"the token is of another zone: {content.zone_uid}, this one is {zone_uid}"
        )
    bounds = [*content.starts, content.last_hash + 1]
    if not (
        0 < len(content.starts) == len(content.times) == len(content.given_by) <= RANGES_MAX
        and bounds == sorted(set(bounds))
        and 0 <= bounds[0] < bounds[-1] <= HASH_SPACE
        and all(0 <= time <= _TIME_MAX for time in content.times)
        and all(NOBODY_GAVE <= each <= _TIME_MAX for each in content.given_by)
    ):
        raise FeedTokenError("the token's content is not a position")
    found = zip(bounds[:-1], bounds[1:], content.times, content.given_by, strict=True)
    return [RangePosition(*each) for each in found]


def _content_of(token: str) -> _Content:
    if len(token) > TOKEN_BYTES_MAX:
        raise FeedTokenError(f"the token has {len(token)} characters, {TOKEN_BYTES_MAX} may be")
    try:
        data = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise FeedTokenError("the token is not one of a change feed") from error
    if len(data) <= _HEAD_BYTES:
        raise FeedTokenError("the token is cut off")
    if data[0] != _VERSION:
        raise FeedTokenError(
            f"the token has version {data[0]}, this client knows {_VERSION}; use a newer client"
        )
    body = data[_HEAD_BYTES:]
    if zlib.crc32(body).to_bytes(4, "big") != data[1:_HEAD_BYTES]:
        raise FeedTokenError("the token's checksum does not match")
    try:
        return from_msgpack(body, _Content)
    except UNREADABLE as error:
        raise FeedTokenError(f"the token cannot be read: {error}") from error
