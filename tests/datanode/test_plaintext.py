"""Without TLS anybody may act as the operator; but nobody locks it out, and only neighbours may."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from replica_cluster import OPERATOR, Client, ProcessNode, cluster

from rezone.datanode.service.epoch_steps import PAUSE_SECONDS, STEP, EpochSteps
from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import Ack, ConfigureNode, Fence, NotifyLeaderAndIsr

P = 0
LAST = (1 << 63) - 1


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_a_forged_epoch_does_not_lock_the_operator_out(tmp_path: Path) -> None:
    """It would stay behind that for ever, as the node remembers it on its disk."""
    with cluster(tmp_path, 1, processes=True) as c:
        c.wait_up(0)
        c.create(P, (0,))
        node = c.nodes[0]
        assert isinstance(node, ProcessNode)
        fence = Fence(coordinator_epoch=LAST)
        for forged in (
            NotifyLeaderAndIsr(fence=fence, peers={}, partitions=()),
            ConfigureNode(fence=fence, config=c.config, peers={}, number=9),
        ):
            with pytest.raises(ForbiddenError):
                c.call(0, forged)
        node.kill()
        node.start()
        c.wait_up(0)
        c.epoch += 1
        c.call(
            0,
            NotifyLeaderAndIsr(fence=Fence(coordinator_epoch=c.epoch), peers={}, partitions=()),
            Ack,
        )
        Client(c).put(P, {b"a": b"1"})


@pytest.mark.proves("TR-03")
def test_epochs_go_up_by_steps_and_the_next_one_always_may() -> None:
    """Many small steps would end where one large one does, or hold up the true operator."""

    class Clock:
        """Stands still."""

        now = 100.0

        def monotonic(self) -> float:
            """Return seconds."""
            return self.now

        def micros(self) -> int:
            """Return nothing that is asked for."""
            return 0

    clock = Clock()
    steps = EpochSteps(clock)
    steps.check(Fence(coordinator_epoch=STEP), 0)
    with pytest.raises(ForbiddenError):
        steps.check(Fence(coordinator_epoch=2 * STEP), STEP)
    steps.check(Fence(coordinator_epoch=STEP + 1), STEP)
    steps.check(Fence(coordinator_epoch=1), STEP)  # refused elsewhere, with what is known
    clock.now += PAUSE_SECONDS
    with pytest.raises(ForbiddenError):
        steps.check(Fence(coordinator_epoch=2 * STEP + 1), STEP)
    steps.check(Fence(coordinator_epoch=2 * STEP), STEP)


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_plaintext_is_for_loopback_unless_said_otherwise(tmp_path: Path) -> None:
    """Whoever forgets the certificates would have a table that everybody may change."""
    command = [sys.executable, "-m", "rezone.datanode.process", "--node-id=0"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REZONE_")}
    ended = subprocess.run(
        [*command, f"--data-dir={tmp_path}", "--listen=0.0.0.0:0", "--health-port=0"],
        env={**environment, "PYTHONPATH": str(OPERATOR)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 2
    assert "REZONE_NODE_PLAINTEXT_ANYWHERE" in ended.stdout + ended.stderr
