"""The changes between two tokens: the same ones each time, however often they are read."""

from collections.abc import Iterator
from typing import Any

from rezone.client.feed.bounds import Positions, is_reached, up_to
from rezone.client.feed.feed import ChangeFeed
from rezone.client.feed.token import decode_token
from rezone.wire.codec.rows import RowCodec

_POLL_SECONDS = 1.0


def read_between(feed: ChangeFeed, codec: RowCodec, zone_uid: str, end: Positions) -> Iterator[Any]:
    """Yield the changes of a feed up to a position, as tables; closes the feed.

    Errors as of `ChangeFeed.poll`.
    """
    feed.end_at(end)
    with feed:
        while True:
            token = feed.token
            if token is not None and is_reached(end, decode_token(zone_uid, token)):
                return
            found = up_to(end, codec, feed.poll(_POLL_SECONDS).changes)
            if found.num_rows:
                yield found
