"""How fast a copy goes and how long it still takes, from samples of the bytes done (B-10).

A window is a short, bounded history of (bytes done, time). The caller keeps it and hands in the
time; nothing here knows a clock. The rate is that of the window, not of the whole copy, so that
it follows limits that are changed while the copy runs (B-03).
"""

import dataclasses
import math
from datetime import datetime, timedelta

SAMPLES_MAX = 32
WINDOW_SECONDS = 60.0


@dataclasses.dataclass(frozen=True)
class Sample:
    """How many bytes were done at a time."""

    bytes_done: int
    at: datetime


@dataclasses.dataclass(frozen=True)
class Window:
    """The last samples, oldest first; times rise, bytes never fall. Start with `Window()`."""

    samples: tuple[Sample, ...] = ()


def observe(
    window: Window, bytes_done: int, at: datetime, *, window_seconds: float = WINDOW_SECONDS
) -> Window:
    """Return the window with one more sample and without those that are too old.

    One sample older than `window_seconds` stays as the base, so that rare samples still give a
    rate. Fewer bytes than before mean that the copy began anew: the history is dropped. A sample
    that is not later than the last one replaces it. More than 32 samples are thinned by dropping
    every second one. Raises ValueError for bytes below zero.
    """
    if bytes_done < 0:
        raise ValueError(f"bytes_done is {bytes_done}, at least 0 is expected")
    kept = [sample for sample in window.samples if sample.at < at]
    if any(sample.bytes_done > bytes_done for sample in window.samples):
        kept = []
    oldest_time = at - timedelta(seconds=window_seconds)
    while len(kept) > 1 and kept[1].at <= oldest_time:
        kept.pop(0)
    kept.append(Sample(bytes_done, at))
    if len(kept) > SAMPLES_MAX:
        # The ends stay: the rate is taken between them.
        kept = [*kept[:-1:2], kept[-1]]
    return Window(tuple(kept))


def bytes_per_second(window: Window) -> int:
    """Return the rate over the window, rounded down; 0 when it is unknown or nothing moves."""
    if not window.samples:
        return 0
    first, last = window.samples[0], window.samples[-1]
    seconds = (last.at - first.at).total_seconds()
    if seconds <= 0:
        return 0
    return int((last.bytes_done - first.bytes_done) / seconds)


def seconds_left(window: Window, bytes_total: int) -> int | None:
    """Return the time left, rounded up; 0 when all is done, None when nothing moves."""
    if not window.samples:
        return None
    left = bytes_total - window.samples[-1].bytes_done
    if left <= 0:
        return 0
    rate = bytes_per_second(window)
    return math.ceil(left / rate) if rate else None


def seconds_for(bytes_total: int, bytes_per_second_max: int, rate_default: int) -> int:
    """Return how long a plan's bytes will take, before anything moves (B-01), rounded up.

    `bytes_per_second_max` is the zone's limit (0 is none), `rate_default` what is expected
    without one. Raises ValueError unless `rate_default` is positive.
    """
    if rate_default <= 0:
        raise ValueError(f"rate_default is {rate_default}, a positive rate is expected")
    rate = min(bytes_per_second_max or rate_default, rate_default)
    return math.ceil(bytes_total / rate)
