"""When reads are answered, and when times are closed, as scripts read from top to bottom."""

from collections.abc import Iterator
from typing import Any, cast

import pytest
from transcript import Scene, played, said, scenes, shown, titles

from rezone.datanode.commit.lease import Lease
from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.core import closed_timestamp
from rezone.datanode.core.closed_timestamp import ClosedUntil, Due, Heard
from rezone.datanode.core.reads import (
    Answer,
    Asked,
    Effect,
    Event,
    Held,
    Hold,
    Leased,
    Promise,
    Ran,
    Read,
    Reads,
    Refuse,
    Sees,
    Ticked,
)
from rezone.wire.messages import ClosedTime

SCRIPT = "reads.txt"
CLOSED_SCRIPT = "closed_timestamp.txt"
HOLD_SECONDS = 1.0
UNSEEN: dict[str, Any] = {
    "leads": False,
    "eager": False,
    "dead": False,
    "over": False,
    "seal_time": None,
    "is_sealed": False,
    "log_end": 0,
    "committed": 0,
    "applied": 0,
    "readable_time": 0,
    "last_commit_time": 0,
    "highest": None,
    "promisable": 0,
    "floor": 0,
    "retention": 1000,
    "readable_from": 0,
}


class Group:
    """A leadership as reads see it."""

    def __init__(self) -> None:
        self.serving = True
        self.lease = Lease(float("-inf"), float("-inf"), 0)

    def vouched(self, now: float, since: float) -> bool:
        """Whether nobody can have led later when a read came at `since`, or until `now`."""
        return self.lease.covers(now, since)


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.reads = Reads(held_max=2)
        self.seen = dict(UNSEEN)
        self.group: Group | None = None
        self.named: dict[Read, str] = {}
        self.served = True

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        at, name, *rest = words
        if at == "sees":
            self._note(said([name, *rest]))
            return
        yield from self._do(self.reads.step(self._event(float(at), name, rest)))

    def _note(self, facts: dict[str, Any]) -> None:
        self.served = facts.pop("served", self.served)
        if facts.pop("begins", False):
            self.group = Group()
        if facts.pop("ends", False):
            self.group = None
        if self.group is not None:
            self.group.serving = facts.pop("serving", self.group.serving)
            asked_at, until = facts.pop("asked_at", None), facts.pop("lease", None)
            if asked_at is not None:
                self.group.lease = Lease(asked_at, until or asked_at, 0)
        assert facts.keys() <= UNSEEN.keys()
        self.seen |= facts

    def _event(self, now: float, name: str, rest: list[str]) -> Event:
        sees = Sees(now=now, leadership=cast("Leadership | None", self.group), **self.seen)
        match name:
            case "asked":
                facts = said(rest[1:])
                read = Read(facts.get("as_of"), now, now + HOLD_SECONDS, lambda: self.served)
                self.named[read] = rest[0]
                return Asked(read, sees)
            case "ran":
                return Ran(sees)
            case "leased":
                return Leased()
            case _:
                return Ticked(now)

    def _do(self, effects: list[Effect]) -> Iterator[str]:
        """Yield what is done; as whoever does it, note what was promised, and hold what waits."""
        for effect in effects:
            match effect:
                case Answer(read):
                    yield f"Answer({self.named[read]})"
                case Refuse(read, cause):
                    yield f"Refuse({self.named[read]}, {cause.name})"
                case Hold(read):
                    yield f"Hold({self.named[read]})"
                    yield from self._do(self.reads.step(Held(read)))
                case _:
                    yield shown(effect)
            if isinstance(effect, Promise):
                self.seen["floor"] = max(self.seen["floor"], effect.time)


class PlayClosed:
    """One scene of closed timestamps that is played."""

    def __init__(self) -> None:
        self.closed = ClosedUntil()
        self.seen: dict[str, Any] = {
            "partition": 0,
            "leader_epoch": 0,
            "leads": False,
            "serving": False,
            "log_end": 0,
            "last_commit_time": 0,
            "promisable": 0,
        }

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line, and up to when may be read where all is applied."""
        name, *rest = words
        facts = said(rest)
        event: closed_timestamp.Event = Due()
        match name:
            case "sees":
                self.seen |= facts
                return
            case "forget":
                self.closed.forget()
            case "heard":
                event = Heard(ClosedTime(0, facts["epoch"], facts["end"], facts["time"]))
        if name != "forget":
            for effect in self.closed.step(event, closed_timestamp.Sees(**self.seen)):
                yield shown(effect)
        end = self.closed.end_offset
        yield f"readable up to {self.closed.time_at(end)} from {end} on"


@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_of_reads_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A read would be stale, of other rows when it is made again, or wait for ever."""
    assert played(scene, Play()) == scene.lines


@pytest.mark.proves("ZR-08")
@pytest.mark.parametrize("scene", scenes(CLOSED_SCRIPT), ids=titles(CLOSED_SCRIPT))
def test_each_event_of_times_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """Followers would answer as of times that rows still get, or stand still."""
    assert played(scene, PlayClosed()) == scene.lines
