"""Whether what the demo's traffic saw of each row is one order of events.

The checker is that of `e2e.chaos`: Porcupine, which knows nothing of the zone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from e2e.chaos.history import NEVER_NS, Operation, Outcome
from e2e.chaos.linear import Verdict, build_checker, check
from e2e.kind.command import say
from rezone.cli.demo.operations import RowOperation

_WRITER, _READER = 0, 1
_PROBLEMS_TOLD_MAX = 10


def impossible_rows(operations: Sequence[RowOperation], pictures: Path) -> list[str]:
    """Return which rows have a history that no order of events explains; empty when none has.

    `operations` are all since the rows were absent. A picture of each such row is in `pictures`.
    """
    pictures.mkdir(parents=True, exist_ok=True)
    verdict = check(build_checker(), _for_checker(operations), pictures)
    say(
        f"{verdict.operations} operations on {verdict.rows} rows: {len(verdict.illegal)} rows "
        f"have impossible histories, {len(verdict.undecided)} could not be decided"
    )
    return [*_problems(verdict, pictures), *_unchecked(operations, verdict)]


def _problems(verdict: Verdict, pictures: Path) -> list[str]:
    found = [
        f"row {key} has an impossible history: {pictures}/row-{key}.html" for key in verdict.illegal
    ]
    found += [f"row {key} could not be decided" for key in verdict.undecided]
    return found[:_PROBLEMS_TOLD_MAX]


def _unchecked(operations: Sequence[RowOperation], verdict: Verdict) -> list[str]:
    """Return what shows that the checker has not judged what was recorded."""
    if len(operations) == verdict.operations > 0:
        return []
    return [f"{verdict.operations} of {len(operations)} operations were checked"]


def _for_checker(operations: Iterable[RowOperation]) -> Iterable[Operation]:
    return (
        Operation(
            client=_WRITER if each.write else _READER,
            partition=0,
            key=each.key,
            write=each.write,
            value=each.value,
            call_ns=each.call_ns,
            return_ns=NEVER_NS if each.return_ns is None else each.return_ns,
            outcome=Outcome.UNKNOWN if each.return_ns is None else Outcome.OK,
        )
        for each in operations
    )
