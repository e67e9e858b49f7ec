"""What follows from each event of a leader transfer, as scripts that are read from top to bottom.

A script says what happens; all that follows is written down by this module, and must be what the
file says. Who changes a rule of the transfer changes the file with it: `str` of the effects.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rezone.datanode.state.transfer import (
    Event,
    GiveUp,
    Looked,
    Opened,
    Sent,
    Side,
    Ticked,
    Told,
    Transfer,
)
from rezone.wire.messages import TakeoverState

SCRIPT = Path(__file__).parent / "transcripts" / "leader_transfer.txt"
NOTHING_SEEN: dict[str, Any] = {
    "log_end": 0,
    "acked": 0,
    "ready_epoch": 0,
    "lacks": "",
    "for_good": False,
    "stream_ended": False,
    "unanswered": False,
    "answered": 0,
    "answered_at": float("-inf"),
}


def scenes() -> Iterator[tuple[str, list[str]]]:
    """Yield each scene's title and lines."""
    for scene in SCRIPT.read_text().split("\n== ")[1:]:
        title, _, lines = scene.partition("\n")
        yield title, lines.strip().splitlines()


def value(text: str) -> Any:
    """Return a word of a script: a number, a truth, or itself."""
    if text in {"", "no"}:
        return not text
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def said(words: list[str]) -> dict[str, Any]:
    """Return what the words of a line say; a word alone is true."""
    return {name: value(text) for name, _, text in (word.partition("=") for word in words)}


def begun(words: list[str]) -> Transfer:
    """Return the transfer of a side as it begins."""
    side, *rest = words
    state = TakeoverState.PENDING if side == "old" else TakeoverState(rest.pop(0))
    fields = said(rest)
    fields["quiet_seconds"] = fields.pop("quiet", 0.0)
    return Transfer(side=Side[side.upper()], state=state, **fields)


def standing(transfer: Transfer) -> str:
    """Say where a transfer is, and what this means for others."""
    means = [
        *["blocks writes"] * transfer.blocks_writes,
        *["eager"] * transfer.eager,
        *[f"ready in epoch {transfer.ready_epoch}"] * bool(transfer.ready_epoch),
    ]
    return f"  now {transfer.state.value}" + (f": {', '.join(means)}" if means else "")


class Scene:
    """One scene that is played."""

    def __init__(self) -> None:
        self.transfer = Transfer()
        self.seen = dict(NOTHING_SEEN)

    def play(self, line: str) -> Iterator[str]:
        """Yield what follows from a line."""
        at, *words = line.split()
        if at == "begin":
            self.transfer = begun(words)
            return
        before = standing(self.transfer)
        yield f"  {self._follows(words, float(at))}"
        if standing(self.transfer) != before:
            yield standing(self.transfer)

    def _follows(self, words: list[str], now: float) -> str:
        name, *rest = words
        facts = said(rest)
        if name == "persisted":
            self.transfer.note_persisted()
            return "nothing"
        if name == "ran":
            self.transfer.note_prepared()
            return "nothing"
        if name == "looked":
            self.seen |= facts
        events: dict[str, Event] = {
            "looked": Looked(**self.seen),
            "opened": Opened(facts.get("node", -1)),
            "sent": Sent(),
            "told": Told(facts.get("log_end", -1), facts.get("lacks", "")),
            "ticked": Ticked(),
        }
        effect = self.transfer.step(events[name], now)
        if isinstance(effect, GiveUp):
            self.transfer.fail(effect.reason)  # as whoever does it, once that is on the disk
        return "nothing" if effect is None else str(effect)


@pytest.mark.parametrize(("title", "lines"), [pytest.param(*s, id=s[0]) for s in scenes()])
def test_each_event_has_the_effects_that_the_script_says(title: str, lines: list[str]) -> None:
    """A transfer would lose acknowledged rows, block writes for long, or never end."""
    scene = Scene()
    played: list[str] = []
    for line in lines:
        if line and not line.startswith("  "):
            played += [line, *scene.play(line)]
    assert played == [line for line in lines if line], title
