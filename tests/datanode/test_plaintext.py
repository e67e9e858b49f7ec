"""Without TLS anybody may act as the operator; but nobody locks it out, and only neighbours may."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import OPERATOR, Client, HandClock, ProcessNode, cluster

from rezone.datanode.service.epoch_steps import (
    CHANGES,
    PAUSE_SECONDS,
    REVISIONS,
    STEP,
    EpochSteps,
)
from rezone.wire.errors import ForbiddenError
from rezone.wire.messages import (
    Ack,
    BeginEmpty,
    ConfigureNode,
    Fence,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PullSnapshot,
    StopReplica,
    Takeover,
    UpgradeCandidate,
)

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


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_forged_numbers_of_a_partition_do_not_lock_the_operator_out(tmp_path: Path) -> None:
    """Each number that a node remembers is named as the last that there is, and refused.

    The operator's next record or trigger would be behind it for ever, over restarts.
    """
    with cluster(tmp_path, 1, processes=True) as c:
        c.wait_up(0)
        c.create(P, (0,))
        fence, record = c.fence(), c.records[P]

        def notified(**changes: int) -> NotifyLeaderAndIsr:
            changed = PartitionAssignment(
                partition=P, state=msgspec.structs.replace(record, **changes)
            )
            return NotifyLeaderAndIsr(fence=fence, peers=c.peers, partitions=(changed,))

        latest = msgspec.structs.replace(record, leader_epoch=LAST, partition_epoch=LAST)
        later = Fence(coordinator_epoch=c.epoch, revision=LAST)
        far: dict[str, Any] = {"fence": fence, "partition": P}
        forged = (
            notified(leader_epoch=LAST),
            notified(partition_epoch=LAST),
            notified(next_leader=0, next_epoch=LAST),
            notified(leader_epoch=CHANGES + record.leader_epoch + 1),
            BeginEmpty(state=latest, **far),
            UpgradeCandidate(next_epoch=LAST, **far),
            Takeover(leader_epoch=record.leader_epoch, candidate=0, next_epoch=LAST, **far),
            StopReplica(leader_epoch=LAST, partition_epoch=LAST, **far),
            PullSnapshot(fence=later, partition=P, source="127.0.0.1:1"),
            ConfigureNode(fence=fence, config=c.config, peers=c.peers, number=LAST),
        )
        for each in forged:
            with pytest.raises(ForbiddenError, match="too far above"):
                c.call(0, each)
        node = c.nodes[0]
        assert isinstance(node, ProcessNode)
        node.kill()
        node.start()
        c.wait_up(0)
        for each in forged:
            with pytest.raises(ForbiddenError, match="too far above"):
                c.call(0, each)
        c.configure()
        c.revision += 1
        c.change(P, leader_epoch=record.leader_epoch + 1)
        Client(c).put(P, {b"a": b"1"})


@pytest.mark.proves("TR-03")
def test_revisions_go_up_by_what_a_cluster_may_change() -> None:
    """They are resource versions: a busy cluster's are far apart, and all partitions get the same.

    A step for each partition would hold them up one after another.
    """
    clock = HandClock()
    steps = EpochSteps(clock)
    steps.check_revision(REVISIONS, lambda: 0)
    steps.check_revision(REVISIONS, lambda: 0)
    steps.check_revision(REVISIONS + CHANGES, lambda: 0)
    with pytest.raises(ForbiddenError):
        steps.check_revision(REVISIONS + CHANGES + 1, lambda: 0)
    clock.advance(PAUSE_SECONDS)
    with pytest.raises(ForbiddenError):
        steps.check_revision(2 * REVISIONS + 1, lambda: 0)
    steps.check_revision(2 * REVISIONS, lambda: 0)
    restarted = EpochSteps(clock)
    restarted.check_revision(3 * REVISIONS, lambda: 2 * REVISIONS)


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
