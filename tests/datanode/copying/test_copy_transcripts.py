"""What follows from each event of a copy that comes in, as scripts read from top to bottom."""

from collections.abc import Iterator

import pytest
from transcript import Scene, played, said, scenes, shown, titles

from rezone.datanode.core.copy_intake import (
    Attempt,
    Broken,
    Chunk,
    Compared,
    Event,
    Finished,
    Form,
    Header,
    Opened,
    Trailer,
    compare,
)
from rezone.wire.messages import CopyFailure, Role

SCRIPT = "copy.txt"
ROLES = {role.value.lower(): role for role in Role}


def event(name: str, words: list[str]) -> Event:
    """Return the event that a line names."""
    match name:
        case "opened":
            return Opened(0, ROLES[words[0]], needs_copy="needs_copy" in words)
        case "header":
            return Header(Form(words[0]))
        case "chunk":
            return Chunk(Form(words[0]))
        case "trailer":
            return Trailer()
        case "finished":
            return Finished()
        case _:
            return Broken("outdated" in words, "why", CopyFailure.RECEIVER)


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.attempt = Attempt()

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        name, *rest = words
        if name == "attempt":
            self.attempt = Attempt()
            return
        if name == "compared":
            facts = said(rest)
            uncompared = "" if facts["uncompared"] == "-" else str(facts["uncompared"])
            yield shown(compare(Compared(str(facts["snapshot"]), uncompared)))
            return
        yield shown(self.attempt.step(event(name, rest)))


@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A replica would lose its rows to a copy, take a broken one, or lead with it."""
    assert played(scene, Play()) == scene.lines
