"""How the logs of a follower and of its leader come together, as scripts of both sides."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from transcript import Scene, numbers, pairs, played, said, scenes, shown, titles

from rezone.datanode.core.joining import (
    Asked,
    Copy,
    FollowerLog,
    GiveUp,
    LeaderLog,
    RollBack,
    Truncate,
)
from rezone.storage.state.meta import branches_until
from rezone.wire.messages import FailoverEntry

SCRIPT = "rollback.txt"
FOLLOWER = 1


def branches(facts: dict[str, Any]) -> tuple[FailoverEntry, ...]:
    """Return the failover log of a line."""
    return tuple(FailoverEntry(name, int(first)) for name, first in pairs(facts["branches"]))


class Play:
    """One scene that is played."""

    def __init__(self) -> None:
        self.leader = LeaderLog((), 0, 0, 0, frozenset())
        self.follower = FollowerLog((), 0, 0, leads=False, needs_copy=False)

    def __call__(self, words: list[str]) -> Iterator[str]:
        """Yield what follows from a line."""
        name, *rest = words
        facts = said(rest)
        if name == "leader":
            members = frozenset(numbers(facts.get("members", "0,1,2")))
            start, end = facts.get("log_start", 0), facts["log_end"]
            self.leader = LeaderLog(branches(facts), start, end, facts["epoch"], members)
        elif name == "follower":
            self.follower = FollowerLog(
                branches(facts),
                facts["log_end"],
                facts.get("committed", 0),
                leads=facts.get("leads", False),
                needs_copy=False,
            )
        else:
            yield from self._ask(facts["epoch"])

    def _ask(self, epoch: int) -> Iterator[str]:
        log = self.follower
        yield f"asks from {log.log_end} on branch {log.branch or '-'}"
        answer = self.leader.step(Asked(FOLLOWER, epoch, log.log_end, log.branch))
        yield f"leader: {shown(answer)}"
        if not isinstance(answer, RollBack | Copy):
            return
        effect = log.step(answer)
        yield f"follower: {shown(effect)}"
        if isinstance(effect, Truncate):
            self.follower = dataclasses.replace(
                log,
                failover_log=branches_until(log.failover_log, effect.offset),
                log_end=effect.offset,
                committed=min(log.committed, effect.offset),
            )
        if isinstance(effect, GiveUp):
            self.follower = dataclasses.replace(log, needs_copy=True)


@pytest.mark.parametrize("scene", scenes(SCRIPT), ids=titles(SCRIPT))
def test_each_request_has_the_effects_that_the_script_says(scene: Scene) -> None:
    """A follower would keep rows that nobody else has, or lose some that all have."""
    assert played(scene, Play()) == scene.lines
