"""Whether what clients saw is one order of events: an independent checker says, Porcupine."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from e2e.chaos.history import Operation, Outcome
from e2e.gomodules import GoModule
from e2e.kind.command import run
from e2e.kind.places import default_places

_MODULE = GoModule(Path(__file__).with_name("checker"))
_SECONDS_MAX = 900.0


@dataclass(frozen=True)
class Verdict:
    """What the checker says; each row's history stands for itself."""

    operations: int
    rows: int
    illegal: tuple[int, ...]
    undecided: tuple[int, ...]


def build_checker() -> Path:
    """Return the checker's program; MissingToolError without Go, LocalError if it cannot be built.

    Its module is downloaded the first time.
    """
    return _MODULE.program("checker", ".", default_places())


def lines_for_checker(operations: Iterable[Operation]) -> str:
    """Return the operations that say something: acknowledged ones, and writes of unknown end."""
    kept = [
        each
        for each in operations
        if each.outcome is Outcome.OK or (each.write and each.outcome is Outcome.UNKNOWN)
    ]
    return "".join(
        json.dumps(
            {
                "key": each.key,
                "client": each.client,
                "write": each.write,
                "value": each.value,
                "call": each.call_ns,
                "return": each.return_ns,
            }
        )
        + "\n"
        for each in kept
    )


def check(program: Path, operations: Iterable[Operation], pictures: Path) -> Verdict:
    """Return the verdict; a picture of each row whose history is impossible is in `pictures`."""
    answer = run(
        [program, pictures], text=lines_for_checker(operations), timeout_seconds=_SECONDS_MAX
    )
    found = json.loads(answer)
    return Verdict(
        found["operations"], found["rows"], tuple(found["illegal"]), tuple(found["undecided"])
    )
