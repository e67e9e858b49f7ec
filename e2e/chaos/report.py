"""What a run has shown: a table of what each fault has cost, and what the checkers have found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from e2e.chaos.stalls import Stall


@dataclass
class Row:
    """What one fault, or a storm of them, has done to a zone in use; times in seconds.

    `gaps`: for each partition the longest time without an acknowledged write; `stalls`: what was
    seen while those that were long lasted. From the fault's end on: `served_seconds` until every
    client wrote in all partitions again, `whole_seconds` until nothing was left of it; None where
    that was not in time. `restarts`
    of containers count those that the fault itself has killed. `told`: reasons that the zone's
    conditions had in the meantime, and not before. `faults` of a storm: how many of each did
    something.
    """

    name: str
    what: str
    seconds: float
    bites: int
    gaps: list[float]
    writes_per_second: float
    whole_seconds: float | None
    served_seconds: float | None = None
    stalls: list[Stall] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    restarts: int = 0
    problems: list[str] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)


@dataclass
class Report:
    """What a run has shown; as JSON it is what `make evidence` reads.

    `operations` are those that the checker of linearizability has judged, on so many `keys`;
    `transactions` are counted by their outcome. `problems` says what was wrong, a line each,
    `violations` of the checkers among them.
    """

    seed: int
    rows: list[Row]
    operations: int
    acknowledged_writes: int
    keys: int
    transactions: dict[str, int]
    violations: int
    problems: list[str]


_HEAD = (
    "| fault | seconds | bites | writes/s | longest gap of each partition, seconds "
    "| served after, seconds | whole after, seconds | restarts | the zone said |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table(rows: Sequence[Row]) -> str:
    """Return all rows, the worst partition first in each."""
    return "\n".join([_HEAD, *(_line(row) for row in rows)])


def line(row: Row) -> str:
    """Return one row in words, for a person who watches."""
    gaps = " ".join(f"{gap:.1f}" for gap in sorted(row.gaps, reverse=True))
    served, whole = (
        "never" if seconds is None else f"after {seconds:.0f} s"
        for seconds in (row.served_seconds, row.whole_seconds)
    )
    return (
        f"{row.name}: bit {row.bites} times, {row.writes_per_second:.0f} writes/s, "
        f"gaps {gaps}, served {served}, whole {whole}"
    )


def _line(row: Row) -> str:
    gaps = " ".join(f"{gap:.1f}" for gap in sorted(row.gaps, reverse=True))
    served, whole = (
        "**not**" if seconds is None else f"{seconds:.0f}"
        for seconds in (row.served_seconds, row.whole_seconds)
    )
    return (
        f"| {row.name}: {row.what} | {row.seconds:.0f} | {row.bites} "
        f"| {row.writes_per_second:.0f} | {gaps} | {served} | {whole} "
        f"| {row.restarts} | {', '.join(row.told)} |"
    )
