"""Quantities and times as people read them. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_THOUSAND: Final = 1000
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86_400
_TEN: Final = 10


def bytes_text(count: int) -> str:
    """Return bytes in the unit that leaves one to three digits before the point."""
    size, unit = float(count), 0
    while size >= _THOUSAND - 0.5 and unit < len(_UNITS) - 1:
        size, unit = size / _THOUSAND, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit and size < _TEN else f"{size:.0f} {_UNITS[unit]}"


def seconds_text(seconds: int | None) -> str:
    """Return a duration in its two largest units; an unknown one as a dash."""
    if seconds is None:
        return "–"  # noqa: RUF001 - a dash is meant
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min {seconds % _MINUTE} s"
    if seconds < _DAY:
        return f"{seconds // _HOUR} h {seconds % _HOUR // _MINUTE} min"
    return f"{seconds // _DAY} d {seconds % _DAY // _HOUR} h"


def milliseconds_text(seconds: float | None) -> str:
    """Return a short duration in milliseconds; an unknown one as a dash."""
    return "–" if seconds is None else f"{seconds * 1e3:,.1f} ms"  # noqa: RUF001 - a dash is meant


def time_text(time: datetime | None) -> str:
    """Return a time in UTC; one that has not come as nothing."""
    return "" if time is None else time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def nodes_text(nodes: Sequence[int]) -> str:
    """Return data nodes by their ids."""
    return ", ".join(map(str, nodes))
