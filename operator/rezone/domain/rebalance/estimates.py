"""How fast a copy goes and how long it still takes, from samples of the bytes done (B-10).

The samples are in the task's status, so that the next operator goes on with them; nothing here
knows a clock. The rate is that of the last minute, not of the whole copy, so that it follows
limits that are changed while the copy runs (B-03), and falls when the copy stalls (B-14). How
uneven copies are follows from their sizes alone (SP-10).
"""

import math
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from rezone.resources.copy_progress import ProgressSample

WINDOW_SECONDS = 60
SAMPLE_SECONDS = 10
"""How far samples lie apart at least: a window holds at most `SAMPLES_MAX` of the status."""

COPY_BYTES_PER_SECOND_GUESSED = 100_000_000
"""What a plan's time is estimated with when the zone has no limit; the table of benchmarks."""
BACKFILL_BYTES_PER_SECOND_GUESSED = 50_000_000
"""The same of a re-sharding."""


def observe(
    samples: Sequence[ProgressSample], bytes_done: int, at: datetime
) -> tuple[ProgressSample, ...]:
    """Return the samples of the last minute, oldest first; the first is the base of the rate.

    One older sample stays while there is none in the window, so that rare observations still give
    a rate. `bytes_done` at `at` becomes a sample when the last one is 10 s old. Fewer bytes than
    before mean that the copy began again: the history is dropped. Raises ValueError for bytes
    below zero.
    """
    if bytes_done < 0:
        raise ValueError(f"bytes_done is {bytes_done}, at least 0 is expected")
    kept = [sample for sample in samples if sample.time < at]
    if any(sample.bytes_done > bytes_done for sample in samples):
        kept = []
    oldest_time = at - timedelta(seconds=WINDOW_SECONDS)
    kept = [sample for sample in kept if sample.time >= oldest_time] or kept[-1:]
    if not kept or (at - kept[-1].time).total_seconds() >= SAMPLE_SECONDS:
        kept.append(ProgressSample(time=at, bytes_done=bytes_done))
    return tuple(kept)


def bytes_per_second(
    samples: Sequence[ProgressSample], bytes_done: int, at: datetime
) -> int | None:
    """Return the rate since the first sample, rounded down; None when it is not known yet."""
    if not samples:
        return None
    seconds = (at - samples[0].time).total_seconds()
    return int((bytes_done - samples[0].bytes_done) / seconds) if seconds > 0 else None


def seconds_left(bytes_left: int, rate: int) -> int | None:
    """Return the time left, rounded up; 0 when all is done, None when nothing moves."""
    if bytes_left <= 0:
        return 0
    return math.ceil(bytes_left / rate) if rate else None


def skew_percent(sizes: Collection[int]) -> int | None:
    """Return the largest size in percent of the mean one, rounded; None where all are 0.

    Bulk jobs tell the same of their parts (decision 0423).
    """
    total = sum(sizes)
    return round(max(sizes) * len(sizes) * 100 / total) if total else None


def seconds_for(bytes_total: int, bytes_per_second_max: int, rate_default: int) -> int:
    """Return how long a plan's bytes will take, before anything moves (B-01), rounded up.

    `bytes_per_second_max` is the zone's limit (0 is none), `rate_default` what is expected
    without one. Raises ValueError unless `rate_default` is positive.
    """
    if rate_default <= 0:
        raise ValueError(f"rate_default is {rate_default}, a positive rate is expected")
    rate = min(bytes_per_second_max or rate_default, rate_default)
    return math.ceil(bytes_total / rate)
