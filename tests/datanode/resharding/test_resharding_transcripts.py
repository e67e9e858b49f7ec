"""What follows from each event of a reshard stream, as scripts read from top to bottom."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from transcript import Scene, numbers, played, said, scenes, shown, titles

from rezone.datanode.core.reshard_stream import (
    AppendBackfill,
    AppendBegin,
    Appended,
    AppendStream,
    Backfilled,
    BackfillTurn,
    Begun,
    Came,
    Effect,
    Event,
    Followed,
    Refused,
    ReshardStreamState,
    Sees,
    StreamTurn,
    is_granted,
    stage_of,
)
from rezone.wire.messages import ReshardPosition

SCRIPT = "resharding.txt"
NOTHING_SEEN: dict[str, Any] = {
    "log_end": 0,
    "committed": 0,
    "applied": 0,
    "open": False,
    "yields": False,
    "mark_rows": 1_000,
}


def key(text: object) -> bytes:
    """Return a row id; a dash is the one before all."""
    return b"" if text == "-" else str(text).encode()


def told(effect: Effect | None) -> str:
    """Return how the script tells an effect: of a position what rows have changed in it."""
    if not isinstance(effect, AppendBackfill):
        return shown(effect)
    at = effect.position
    to = repr(at.backfilled_to)
    return f"AppendBackfill(backfilling={at.backfilling}, backfilled_to={to}, rows={at.rows})"


class Play:
    """One scene that is played: the log of the new partition, and one source."""

    def __init__(self) -> None:
        self.core = ReshardStreamState()
        self.seen = dict(NOTHING_SEEN)
        self.position: ReshardPosition | None = None

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        before = self._standing()
        if words[0] == "sees":
            self.seen |= said(words[1:])
        else:
            yield from self._happen(float(words[0]), words[1], words[2:])
        if self._standing() != before:
            yield self._standing()

    def _standing(self) -> str:
        at, committed = self.position, self.seen["committed"]
        lag = "" if self.core.lag_rows is None else f", {self.core.lag_rows} behind"
        rows = "" if at is None else f", {at.rows} rows, log read to {self._reached(at).offset}"
        served = ", served" if is_granted(at, min(committed, self.seen["applied"])) else ""
        time = self.core.time(committed)
        told = f", whole up to time {time}" if time else ""
        return f"now {stage_of(at).value}{rows}{lag}{told}{served}"

    def _reached(self, at: ReshardPosition) -> ReshardPosition:
        return self.core.reached or at

    def _sees(self) -> Sees:
        seen = self.seen
        return Sees(
            position=self.position,
            log_end=seen["log_end"],
            committed=seen["committed"],
            open=seen["open"],
            yields=seen["yields"],
            kept=None,
            mark_rows=seen["mark_rows"],
        )

    def _happen(self, now: float, name: str, words: list[str]) -> Iterator[str]:
        facts = said(words)
        event = self._event(name, facts)
        effect = self.core.step(event, self._sees(), now)
        yield told(effect)
        if self._append(effect, facts):
            backfills = not isinstance(event, Came)
            appended = Appended(backfills, self.seen["log_end"])
            self.core.step(appended, self._sees(), now)
        if isinstance(event, Came) and isinstance(effect, AppendStream):
            followed = Followed(event.reached, facts["committed"], facts["time"])
            self.core.step(followed, self._sees(), now)

    def _event(self, name: str, facts: dict[str, Any]) -> Event:
        backfills = "backfill" in facts
        match name:
            case "backfill":
                return BackfillTurn()
            case "stream":
                return StreamTurn()
            case "begun":
                return Begun()
            case "backfilled":
                end = facts.get("end", False)
                return Backfilled(key(facts["after"]), key(facts["reached"]), facts["rows"], end)
            case "came":
                ends = numbers(facts.get("ends", "-"))
                return Came(facts["from"], self._at(facts["reached"], facts["time"]), ends)
            case _:
                leader = facts.get("leader")
                epoch, _, node = str(leader).partition(":")
                hint = None if leader is None else (int(epoch), int(node))
                return Refused(backfills, "why", broken=facts.get("broken", False), leader=hint)

    @staticmethod
    def _at(offset: int, time: int, epoch: int = 2) -> ReshardPosition:
        return ReshardPosition(0, offset, time, "a", leader_epoch=epoch)

    def _append(self, effect: Effect | None, facts: dict[str, Any]) -> bool:
        """Have the log as it is after an effect; whether anything was appended."""
        end = self.seen["log_end"] + 1
        match effect:
            case AppendBegin():
                at = self._at(facts["at"], 0, facts["epoch"])
                self.position = msgspec.structs.replace(at, backfilling=True)
            case AppendBackfill(position):
                end += facts["rows"]
                self.position = position
            case AppendStream(mark) if self.position is not None and (mark or "ends" in facts):
                end += len(numbers(facts.get("ends", "-")))
                sealed_at = end if facts.get("sealed") else 0
                self.position = msgspec.structs.replace(
                    self.position, offset=facts["reached"], sealed_at=sealed_at
                )
            case _:
                return False
        self.seen["log_end"] = end
        return True


@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A new partition would lack rows of a source, have some twice, or serve before it has all."""
    assert played(scene, Play()) == scene.lines
