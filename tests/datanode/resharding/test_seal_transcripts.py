"""What follows from each event of a seal, as scripts that are read from top to bottom."""

from collections.abc import Iterator
from typing import Any

import pytest
from transcript import Scene, pairs, played, said, scenes, shown, titles

from rezone.datanode.core.seal import Asked, Committed, Event, Leads, Lost, Sees, state_of, step

SCRIPT = "seal.txt"
UNSEEN: dict[str, Any] = {
    "epoch": 0,
    "seal_end": None,
    "committed": 0,
    "authorized": False,
    "transferring": False,
    "rows_max": 0,
    "leads": False,
    "serving": False,
    "misses": "-",
}


def leads(seen: dict[str, Any]) -> Leads | None:
    """Return what a leader sees of its followers; None for a follower."""
    if not seen["leads"]:
        return None
    missing = {int(n): None if rows == "-" else int(rows) for n, rows in pairs(seen["misses"])}
    streaming = frozenset(node for node, rows in missing.items() if rows is not None)
    return Leads(seen["serving"], missing, frozenset(missing), streaming)


def event(name: str, facts: dict[str, Any]) -> Event:
    """Return the event that a line names."""
    match name:
        case "asked":
            return Asked(facts["epoch"])
        case "committed":
            return Committed(facts["end"])
        case _:
            return Lost()


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.seen = dict(UNSEEN)

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        name, *rest = words
        facts = said(rest)
        if name == "sees":
            self.seen |= facts
        sees = Sees(
            partition=0,
            leader_epoch=self.seen["epoch"],
            seal_end=self.seen["seal_end"],
            committed=self.seen["committed"],
            authorized=self.seen["authorized"],
            transferring=self.seen["transferring"],
            rows_max=self.seen["rows_max"],
            leads=leads(self.seen),
        )
        if name != "sees":
            yield shown(step(event(name, facts), sees))
        yield f"told {state_of(sees).value}"


@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A seal would be appended that every write waits for, or be told before it is committed."""
    assert played(scene, Play()) == scene.lines
