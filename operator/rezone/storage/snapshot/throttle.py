"""What paces a copy: how much a step may have, and a rest between two of them."""

from collections.abc import Callable

Throttle = Callable[[], None]
"""Called by a copy between two of its steps, without any lock; returns when it may go on."""

StepBytes = Callable[[int], int]
"""Asked by a copy before a step: how many bytes it may have at present, so many at most."""


def unthrottled() -> None:
    """Go on at once."""


def whole_steps(most: int) -> int:
    """Take all that a step may have."""
    return most
