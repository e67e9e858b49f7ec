"""What follows from each event of a leader's group, as scripts read from top to bottom."""

from collections.abc import Iterator
from typing import Any

import pytest
from transcript import Scene, numbers, played, said, scenes, titles

from rezone.datanode.commit.insync import LeaderState
from rezone.datanode.commit.lease import NEVER, Lease
from rezone.datanode.core.in_sync import (
    Acked,
    Effect,
    Ended,
    Event,
    Granted,
    Keep,
    LookAgain,
    Opened,
    Propose,
    Recorded,
    Sees,
    Settle,
    Synced,
    Ticked,
    step,
)
from rezone.datanode.settings import NodeSettings
from rezone.wire.messages import FetchLog, LeaderAndIsr

SCRIPT = "in_sync.txt"
SETTINGS = NodeSettings(replica_lag_ms_max=10_000, replica_gone_ms_max=1_000)
LEASE = Lease(NEVER, NEVER, 1)
NOTHING_SEEN: dict[str, Any] = {
    "durable": 0,
    "log_end": 0,
    "needed": 1,
    "frozen": False,
    "settled": True,
}


def record(facts: dict[str, Any]) -> LeaderAndIsr:
    """Return a record of node 0's leadership."""
    return LeaderAndIsr(
        leader=0,
        leader_epoch=1,
        isr=numbers(facts["isr"]),
        replicas=numbers(facts.get("replicas", "0,1,2")),
        partition_epoch=facts.get("epoch", 1),
        coordinator_epoch=1,
    )


def leadership(facts: dict[str, Any]) -> LeaderState:
    """Return a leadership of node 0 that begins."""
    return LeaderState(
        node=0,
        state=record(facts),
        barrier=facts["barrier"],
        committed=0,
        settings=SETTINGS,
        hold_until=float(facts.get("hold_until", NEVER)),
        proposed=numbers(facts.get("proposed", "-")),
    )


def event(name: str, facts: dict[str, Any]) -> Event:
    """Return the event that a line names."""
    node = facts.get("node", -1)
    match name:
        case "acked":
            ack = FetchLog(
                partition=0,
                fetch_offset=facts["durable"],
                max_fetch_bytes=1,
                kv_applied_offset=facts["durable"],
                opaque=1,
                leaving=facts.get("leaving", False),
            )
            return Acked(node, ack, facts.get("slow", False))
        case "granted":
            return Granted(node, LEASE, facts.get("counts", True))
        case "opened":
            return Opened(node)
        case "ended":
            return Ended(node)
        case "record":
            return Recorded(record(facts))
        case _:
            return Ticked() if name == "ticked" else Synced()


def told(effect: Effect) -> str:
    """Return how the script tells an effect."""
    if isinstance(effect, Propose) and effect.proposal is not None:
        return f"Propose(isr={list(effect.proposal.new_isr)}, maximal={list(effect.maximal)})"
    if isinstance(effect, LookAgain):
        return f"LookAgain(at={effect.at:g})"
    return f"Keep(nodes={sorted(effect.nodes)})" if isinstance(effect, Keep) else str(effect)


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.seen = dict(NOTHING_SEEN)
        self.group = leadership({"isr": "0", "barrier": 0})

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        at, *rest = words
        if at == "leads":
            self.group = leadership(said(rest))
            return
        if at == "sees":
            self.seen |= said(rest)
            return
        before = self._standing()
        name, *words = rest
        facts = said(words)
        if name == "joins":  # in short for a stream that has opened, and a lease
            self._step(Opened(facts["node"]), float(at))
            effects = self._step(Granted(facts["node"], LEASE, counts=True), float(at))
        else:
            effects = self._step(event(name, facts), float(at))
        yield ", ".join(told(effect) for effect in effects) or "nothing"
        if self._standing() != before:
            yield self._standing()

    def _step(self, what: Event, now: float) -> list[Effect]:
        effects = step(self.group, what, Sees(**self.seen), now)
        self.seen["settled"] = self.seen["settled"] or any(
            isinstance(effect, Settle) for effect in effects
        )
        return effects

    def _standing(self) -> str:
        isr, more = self.group.state.isr, self.group.maximal - set(self.group.state.isr)
        also = f", counts on {sorted(more)} too" if more else ""
        return f"now committed {self.group.committed}, in sync {list(isr)}{also}"


@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_event_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A row would be acknowledged that too few replicas have, or writes would wait for ever."""
    assert played(scene, Play()) == scene.lines
