"""What follows from each event of a leader transfer, as scripts that are read from top to bottom.

A script says what happens; all that follows is written down by this module, and must be what the
file says. Who changes a rule of the transfer changes the file with it: `str` of the effects.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from transcript import Scene, played, said, scenes, shown, titles

from rezone.datanode.core.transfer import (
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

SCRIPT = "leader_transfer.txt"
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
    return f"now {transfer.state.value}" + (f": {', '.join(means)}" if means else "")


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.transfer = Transfer()
        self.seen = dict(NOTHING_SEEN)

    def __call__(self, line: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        at, *words = line
        if at == "begin":
            self.transfer = begun(words)
            return
        before = standing(self.transfer)
        yield self._follows(words, float(at))
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
        return shown(effect)


@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A transfer would lose acknowledged rows, block writes for long, or never end."""
    assert played(scene, Play()) == scene.lines
