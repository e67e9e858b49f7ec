"""A report beside the one before it: the same figures of both, as texts. Pure."""

from collections.abc import Callable
from typing import Any, NamedTuple

from rezone.report.task import TaskFigures, TaskReport
from rezone.report.transfer import TransferReport
from rezone.report.words import bytes_text, seconds_text

UNKNOWN = "–"  # noqa: RUF001 - a dash is meant


class ComparedRow(NamedTuple):
    """One figure of the one before and of this one."""

    name: str
    before: str
    now: str


def compared_tasks(report: TaskReport) -> tuple[ComparedRow, ...]:
    """Return a task's figures beside those of the task before it; empty without that."""
    before, now = report.before, report.figures
    if before is None or now is None:
        return ()
    resharded = report.type == "Reshard"

    def row(
        name: str, figure: Callable[[TaskFigures], Any], text: Callable[[Any], str] = str
    ) -> Any:
        return ComparedRow(name, *(_text(figure(each), text) for each in (before, now)))

    return (
        row("Took", lambda each: each.seconds, seconds_text),
        row("Ranges backfilled" if resharded else "Replicas copied", lambda each: each.moves_done),
        row(
            "Partitions cut over" if resharded else "Leaders moved",
            lambda each: each.leader_moves_done,
        ),
        row("Bytes", lambda each: each.bytes_done, bytes_text),
        row("Mean rate", lambda each: each.bytes_per_second, lambda rate: f"{bytes_text(rate)}/s"),
        row("Waited", lambda each: each.waited_seconds, seconds_text),
        row("Copies made again", lambda each: each.copies_dropped),
        row("No writes, mean", lambda each: each.write_unavailable_milliseconds_mean, _ms),
        row("No writes, at most", lambda each: each.write_unavailable_milliseconds_max, _ms),
        row("Clients served, mean", lambda each: each.served_percent_mean, _percent),
    )


def compared_transfers(report: TransferReport) -> tuple[ComparedRow, ...]:
    """Return a transfer's figures beside those of the one before; empty without that."""
    before = report.before
    if before is None:
        return ()
    gaps = (before.write_unavailable_milliseconds, report.write_unavailable_milliseconds)
    return (
        ComparedRow("From", _text(before.from_node, str), _text(report.from_node, str)),
        ComparedRow("To", _text(before.to_node, str), _text(report.to_node, str)),
        ComparedRow("State", before.state, report.state),
        ComparedRow("Took", seconds_text(before.seconds), seconds_text(report.seconds)),
        ComparedRow("No writes", *(_text(gap, _ms) for gap in gaps)),
    )


def _text(value: Any, text: Callable[[Any], str]) -> str:
    return UNKNOWN if value is None else text(value)


def _ms(milliseconds: int) -> str:
    return f"{milliseconds} ms"


def _percent(percent: int) -> str:
    return f"{percent} %"
