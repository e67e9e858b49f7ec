"""A clock that a test moves by hand, for what takes a clock as a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class StandingClock(Generic[T]):
    """Says `now`, which stands still until the test sets it: seconds, or a time of day."""

    now: T

    def __call__(self) -> T:
        """Return the time."""
        return self.now
