"""How far copies are, as the status of their owner tells it in steps (B-10, SP-10). Pure.

The owner is a rebalance, a re-sharding, a leader transfer, or a zone that repairs: what they count
differs, and what becomes of it does not. The next operator goes on from the status.
"""

from datetime import datetime
from typing import TypeVar

from rezone.domain.rebalance import estimates
from rezone.resources.copy_progress import CopiesProgress

PROGRESS_STEPS = 100
"""Progress is written in steps of a hundredth: each write is a round trip to the API server."""

ProgressT = TypeVar("ProgressT", bound=CopiesProgress)


def without_falling(new: ProgressT, old: CopiesProgress) -> ProgressT:
    """Return what was counted, with bytes and rows that do not fall while no copy is lost (B-10).

    They are estimates of replicas that answer: one that is silent for a moment has none. The skew
    is that of the time when most bytes were known.
    """
    size, size_done = _not_below(new, old, "bytes")
    rows, rows_done = _not_below(new, old, "rows")
    known = new.skew_percent if new.bytes_total >= old.bytes_total else None
    return new.model_copy(
        update={
            "bytes_total": size,
            "bytes_done": size_done,
            "rows_total": rows,
            "rows_done": rows_done,
            "skew_percent": old.skew_percent if known is None else known,
        }
    )


def _not_below(new: CopiesProgress, old: CopiesProgress, what: str) -> tuple[int, int]:
    """Return how much there is in all, and how much is done."""
    total: int = max(getattr(each, f"{what}_total") for each in (new, old))
    done: int = getattr(new, f"{what}_done")
    copies, all_copies = new.counts[0] if new.counts else (0, 1)
    before, _ = old.counts[0] if old.counts else (0, 1)
    if copies >= all_copies:
        done = total
    elif copies >= before:
        done = max(done, getattr(old, f"{what}_done"))
    return total, min(done, total)


def with_rate(new: ProgressT, old: CopiesProgress, now: datetime) -> ProgressT:
    """Return the progress with its rate over the last minute and the time left (B-10).

    The rate is known from the second observation on; that of a finished copy stays.
    """
    at = now.replace(microsecond=0)  # the status has whole seconds
    started, samples, rate = old.copy_started_time, old.samples, old.bytes_per_second
    left = max(0, new.bytes_total - new.bytes_done)
    if new.bytes_done or samples:
        started = started or at
        samples = estimates.observe(samples, new.bytes_done, at)
        known = estimates.bytes_per_second(samples, new.bytes_done, at)
        if known is not None and (left or new.bytes_done != old.bytes_done):
            rate = known
    return new.model_copy(
        update={
            "copy_started_time": started,
            "bytes_per_second": rate,
            "seconds_left": estimates.seconds_left(left, rate) if samples else None,
            "samples": samples,
        }
    )


def is_worth_writing(old: CopiesProgress, new: CopiesProgress) -> bool:
    """Return whether progress has come a step further, or its rate is due.

    A rate is due with each new sample, so that it also falls while the bytes stand still.
    """
    return _step_of(old) != _step_of(new) or (
        new.samples[-1:] != old.samples[-1:]
        and (new.bytes_done, new.bytes_per_second) != (old.bytes_done, old.bytes_per_second)
    )


def _step_of(progress: CopiesProgress) -> tuple[int, ...]:
    pairs = (*progress.counts, (progress.bytes_done, progress.bytes_total))
    return tuple(done * PROGRESS_STEPS // total if total else -1 for done, total in pairs)
