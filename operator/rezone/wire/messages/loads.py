"""What a data node has done for clients so far, as its page /load says it (JSON)."""

from typing import Annotated, Final

import msgspec

from rezone.wire.ranges import Count, Seconds

BUCKETS_MAX: Final = 64

Buckets = Annotated[tuple[Count, ...], msgspec.Meta(max_length=BUCKETS_MAX)]


class RequestLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that have ended: those that were answered, by how long they took, and the failed.

    `failed` are those that the node refused, had no room for, or could not serve; neither
    redirections nor conflicts with another client.
    """

    ok: Buckets
    failed: Count = 0


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """Counts since the process began, with when they were taken by its own monotonic clock.

    `bounds_micros` are the upper ends of all buckets but the last, which has no end. `copied_bytes`
    are those of copies that this node receives; they fall when a replica leaves.
    `write_throttled_seconds`: how long writes have waited for a replica to catch up, added up.
    """

    process_id: Annotated[str, msgspec.Meta(max_length=128)]
    seconds: Seconds
    bounds_micros: Buckets
    reads: RequestLoad
    writes: RequestLoad
    copied_bytes: Count = 0
    write_throttled_seconds: Seconds = 0.0
