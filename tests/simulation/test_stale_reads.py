"""Reads of the newest state while the leader is cut off: what was acknowledged is never missing.

Every step of every run tries a read at every replica (`Checks._read`); here the leader is cut off
on purpose, so that another one leads while it believes to lead still.
"""

from __future__ import annotations

import msgspec
import pytest

from rezone.wire.messages import NodeId, Role
from simulation.cluster.world import Order, World
from simulation.nodes import node
from simulation.scenarios.runs import seeds
from simulation.scenarios.scenarios import Start, at_rest, later

SECONDS_MAX = 400.0
THREE = Start(partitions=2, replicas=3, nodes=4)
CUT_SECONDS_MAX = 40.0


class CutOff:
    """Cuts partition 0's leader off from the operator and from some or all other nodes."""

    def __init__(self) -> None:
        self.leader: NodeId = -1
        self.epoch = 0
        self.deposed_seconds = 0.0
        self._ends_at = float("inf")
        self._last = 0.0

    def begin(self, world: World) -> None:
        """Cut, for a random time; the operator's link goes first or last."""
        record = world.checks.routes[0]
        self.leader, self.epoch = record.leader, record.leader_epoch
        world.network.isolated.add(self.leader)
        others = [n for n in world.network.nodes if n != self.leader]
        kept = world.rng.sample(others, world.rng.choice((0, 0, 1)))
        for other in others:
            if other not in kept:
                delay = world.rng.uniform(0.0, 1.0)
                world.loop.call_later(delay, world.network.cut.add, frozenset((self.leader, other)))
        self._ends_at = world.loop.time() + world.rng.uniform(2.0, CUT_SECONDS_MAX)
        world.each_step = self._step
        world.note(f"leader {self.leader} is cut off, but from {kept}")

    def _step(self, world: World) -> None:
        world.disturbed()
        now = world.loop.time()
        if world.checks.routes[0].leader_epoch > self.epoch and self._believes(world):
            self.deposed_seconds += now - self._last
        self._last = now
        if now >= self._ends_at:
            world.network.isolated.clear()
            world.network.cut.clear()
            world.each_step = lambda _: None

    def _believes(self, world: World) -> bool:
        up = world.network.nodes.get(self.leader)
        held = [p for p in up.partitions() if p.partition_id == 0] if up is not None else []
        return any(p.role is Role.LEADER and p.leader_epoch == self.epoch for p in held)


def _nothing(_: World) -> None:
    """Do nothing: the run goes on until now at least."""


def cut_off(seed: int) -> CutOff:
    """Run a zone whose leader is cut off, until all is at rest again."""
    cut = CutOff()
    with World(seed, at_rest(THREE)) as world:
        world.orders = [Order(later(5.0), cut.begin), Order(later(CUT_SECONDS_MAX), _nothing)]
        world.run(SECONDS_MAX)
        assert any(who == cut.leader for _, who, _ in world.checks.reads), "it never answered"
        assert world.checks.rows(0) > 0
    return cut


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("B-09", "B-06")
@pytest.mark.parametrize("lease_ms", [2_000, 30_000, 0])
def test_a_leader_that_is_cut_off_answers_no_stale_read(
    lease_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would go on answering from before the rows that its successor has acknowledged.

    With long leases the operator elects another leader while they still run.
    """
    settings = msgspec.structs.replace(node.SETTINGS, lease_ms=lease_ms)
    monkeypatch.setattr(node, "SETTINGS", settings)
    runs = {seed: cut_off(seed) for seed in seeds()}
    deposed = [seed for seed, cut in runs.items() if cut.deposed_seconds > 0]
    assert deposed, "no leader was followed by another one while it believed to lead"
