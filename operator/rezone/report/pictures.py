"""Where the bars of a report's pictures stand: the template draws them. Pure.

All pictures are rows of a label, a bar and a text. Colour says nothing that the texts do not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from rezone.report.task import StateSpan, TaskReport, TransferRow, WaitSpan
from rezone.report.words import bytes_text, seconds_text

LABEL_WIDTH: Final = 190
BARS_WIDTH: Final = 360
TEXT_WIDTH: Final = 170
ROW_HEIGHT: Final = 20
LABEL_LENGTH_MAX: Final = 26
TRANSFERS_DRAWN_MAX: Final = 24
"""Leader transfers in the timeline; the table below it has all."""
_BAR_WIDTH_MIN: Final = 1.5


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One row: the bar from `left` of this `width`, in it a dark part; in pixels of the picture."""

    label: str
    text: str
    left: float
    width: float
    dark: float


@dataclass(frozen=True, kw_only=True)
class Picture:
    """Rows under one another; `says` is what who does not see it is told."""

    title: str
    says: str
    bars: tuple[Bar, ...]

    @property
    def width(self) -> int:
        """How wide it is, in pixels."""
        return LABEL_WIDTH + BARS_WIDTH + TEXT_WIDTH

    @property
    def height(self) -> int:
        """How high it is, in pixels."""
        return ROW_HEIGHT * len(self.bars)


def done_picture(report: TaskReport) -> Picture:
    """Return how much of what was planned has been done: the outline is the plan."""
    resharded = report.type == "Reshard"
    rows = (
        ("ranges" if resharded else "moves", report.moves_done, report.moves_planned, str),
        (
            "cut over" if resharded else "leaders",
            report.leader_moves_done,
            report.leader_moves_planned,
            str,
        ),
        ("bytes", report.bytes_done, report.bytes_planned, bytes_text),
        ("time", report.seconds or 0, report.seconds_planned, seconds_text),
    )
    bars = tuple(
        Bar(
            label=label,
            text=f"{told(done)} of {told(planned)}",
            left=0,
            width=_scaled(planned, max(done, planned)),
            dark=_scaled(done, max(done, planned)),
        )
        for label, done, planned, told in rows
    )
    return Picture(title="Done of planned", says="the table has the same", bars=bars)


def timeline(states: Sequence[StateSpan], transfers: Sequence[TransferRow] = ()) -> Picture | None:
    """Return states, and leader transfers within them, by their times; None without any."""
    spans = [(span.state, span.time, span.seconds) for span in states]
    moved = [each for each in transfers if each.started_time is not None]
    spans += [
        (f"partition {each.partition} leads {each.to_node}", each.started_time, each.seconds or 0)
        for each in moved[:TRANSFERS_DRAWN_MAX]
        if each.started_time is not None
    ]
    if not spans:
        return None
    begin = min(time for _, time, _ in spans)
    end = max(time + timedelta(seconds=seconds) for _, time, seconds in spans)
    whole = max(1.0, (end - begin).total_seconds())
    bars = tuple(
        _span(name, (time - begin).total_seconds(), took, whole) for name, time, took in spans
    )
    took = seconds_text(int(whole))
    return Picture(title="Timeline", says=f"{took} from left to right", bars=bars)


def _span(name: str, since: float, seconds: float, whole: float) -> Bar:
    left, width = _scaled(since, whole), _scaled(seconds, whole)
    left = min(left, BARS_WIDTH - _BAR_WIDTH_MIN)
    return Bar(
        label=clipped(name),
        text=seconds_text(int(seconds)),
        left=left,
        width=max(_BAR_WIDTH_MIN, width),
        dark=max(_BAR_WIDTH_MIN, width),
    )


def waits_picture(waits: Sequence[WaitSpan]) -> Picture | None:
    """Return how long somebody has waited for what, None where nobody has."""
    rows = [(each.reason, each.seconds, seconds_text(each.seconds)) for each in waits]
    return _compared("Waits by reason", rows)


def outage_picture(report: TaskReport) -> Picture | None:
    """Return for how long transfers or cut-overs stopped writes, by partition; None without any."""
    found = report.write_unavailability
    rows = [
        (f"partition {each.partition}", each.milliseconds, f"{each.milliseconds} ms")
        for each in (found.longest if found is not None else ())
    ]
    return _compared("Write unavailability by partition", rows)


def _compared(title: str, rows: Sequence[tuple[str, int, str]]) -> Picture | None:
    if not rows:
        return None
    most = max(value for _, value, _ in rows)
    bars = tuple(
        Bar(label=clipped(name), text=told, left=0, width=_scaled(v, most), dark=_scaled(v, most))
        for name, v, told in rows
    )
    return Picture(title=title, says="the table has the same", bars=bars)


def _scaled(value: float, most: float) -> float:
    """Return how long the bar of a value is, where the longest one has this value."""
    return round(BARS_WIDTH * min(1.0, max(0.0, value / most)), 1) if most else 0.0


def clipped(text: str) -> str:
    """Return a text that is not longer than the place for a label."""
    return text if len(text) <= LABEL_LENGTH_MAX else f"{text[: LABEL_LENGTH_MAX - 1]}…"
