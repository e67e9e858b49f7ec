"""What a client may be told: deadlines, pauses and limits, each with its unit in its name."""

import dataclasses
import math
import random
from typing import Any

from rezone.wire.errors import RezoneError


class OutcomeUnknownError(TimeoutError):
    """Raised when a write was sent, but no answer came before its deadline.

    It may have been applied or not, and may still be. Upserts and deletes can be repeated. The
    cause is the last error seen; `others` are the errors of the call's other requests.
    """

    others: tuple[BaseException, ...] = ()


class TransactionOutcomeUnknownError(OutcomeUnknownError):
    """Raised when a commit was sent, but no answer came before its deadline.

    `partition` and `transaction` are what `TableClient.transaction_outcome` asks by; the cause is
    the last error seen.
    """

    def __init__(self, message: str, *, partition: int, transaction: str) -> None:
        super().__init__(message)
        self.partition = partition
        self.transaction = transaction


class VersionMismatchError(Exception):
    """Raised when a row does not have the version that a write goes by; nothing was written.

    `row` is the row as it is at present, None when it is not there; `version` is one that it has,
    for the next `if_version`, None without a row.
    """

    def __init__(self, why: str, *, row: dict[str, Any] | None, version: int | None) -> None:
        has = "" if version is None else f"; its version is {version}"
        super().__init__(f"{why}{has}")
        self.row = row
        self.version = version


class StaleRowsError(TimeoutError):
    """Raised when rows were older than `max_staleness_seconds` each time they were read.

    Some partition answers too late, or the read takes longer than rows may be old. `age_seconds`:
    how old the last ones were; infinite when that cannot be told, because the zone's times lie
    ahead of its clocks (docs/operate/failures/clocks.md).
    """

    def __init__(self, max_staleness_seconds: float, age_seconds: float) -> None:
        were = f"were {age_seconds:.3f} s old" if age_seconds < math.inf else "their age is unknown"
        super().__init__(
            f"rows should be at most {max_staleness_seconds} s old, and {were} when they had come, "
            "after several reads"
        )
        self.max_staleness_seconds = max_staleness_seconds
        self.age_seconds = age_seconds


def closed_error() -> RezoneError:
    """Return what whoever still asks a closed client is told, and whoever was waiting for it."""
    return RezoneError("the client is closed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """Deadlines, pauses and limits of a TableClient.

    A request is tried for `timeout_seconds` in all: a minute at most, where more clients write to a
    partition than are remembered for longer (docs/decisions/0213). One attempt without an answer in
    `attempt_timeout_seconds` is made again. Before that, each time `suspect_after_seconds` have
    passed in which its node has answered nothing to anybody, other nodes are asked who leads by
    now, and the request goes there. Pauses between attempts double from `backoff_first_seconds` to
    `backoff_max_seconds`. `submit_write` blocks while `open_requests_max` or `open_bytes_max` is
    reached: a slow zone slows its writers. A data node waits `changes_poll_seconds` for news to a
    change feed, which gives a mark then. Calls for single rows that come while a request to their
    partition is under way share the next one: at most `shared_calls_max` of them, 1 for none, and
    `shared_bytes_max` as they were sent (docs/decisions/0350). Of the requests `trace_ratio`, 0 to
    1, are traced: a span of each is sent to OTEL_EXPORTER_OTLP_ENDPOINT, by the extra `tracing`.
    """

    timeout_seconds: float = 30.0
    attempt_timeout_seconds: float = 3.0
    suspect_after_seconds: float = 0.5
    routes_timeout_seconds: float = 1.0
    backoff_first_seconds: float = 0.002
    backoff_max_seconds: float = 0.2
    redirects_max: int = 3
    open_requests_max: int = 4096
    open_bytes_max: int = 64 << 20
    window_requests_per_node: int = 256
    request_bytes_max: int = 4 << 20
    changes_poll_seconds: float = 1.0
    shared_calls_max: int = 256
    shared_bytes_max: int = 256 << 10
    trace_ratio: float = 0.0


def backoff(settings: ClientSettings, attempt: int, rng: random.Random) -> float:
    """Return the pause in seconds before attempt number `attempt` (1 is the first repeat).

    Jittered between half and all of it, so that writers that broke together do not come back
    together.
    """
    doubled = settings.backoff_first_seconds * float(1 << min(attempt - 1, 16))
    return min(doubled, settings.backoff_max_seconds) * rng.uniform(0.5, 1.0)
