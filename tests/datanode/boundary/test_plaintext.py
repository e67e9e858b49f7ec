"""Without TLS anybody may act as the operator; but nobody locks it out, and only neighbours may."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import OPERATOR, Client, ProcessNode, cluster

from rezone.datanode.service.epoch_bounds import (
    BEGAN_SECONDS,
    CHANGES,
    LEADERS,
    check_bounds,
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
LAST_LEADER = (1 << 32) - 1


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

        latest = msgspec.structs.replace(record, leader_epoch=LAST_LEADER, partition_epoch=LAST)
        later = Fence(coordinator_epoch=c.epoch, revision=LAST)
        far: dict[str, Any] = {"fence": fence, "partition": P}
        forged = (
            notified(leader_epoch=LAST_LEADER),
            notified(partition_epoch=LAST),
            notified(next_leader=0, next_epoch=LAST_LEADER),
            BeginEmpty(state=latest, **far),
            UpgradeCandidate(next_epoch=LAST_LEADER, **far),
            Takeover(leader_epoch=record.leader_epoch, candidate=0, next_epoch=LAST_LEADER, **far),
            StopReplica(leader_epoch=LAST_LEADER, partition_epoch=LAST, **far),
            PullSnapshot(fence=later, partition=P, source="127.0.0.1:1"),
            ConfigureNode(fence=fence, config=c.config, peers=c.peers, number=LAST),
        )
        for each in forged:
            with pytest.raises(ForbiddenError, match="too high"):
                c.call(0, each)
        node = c.nodes[0]
        assert isinstance(node, ProcessNode)
        node.kill()
        node.start()
        c.wait_up(0)
        for each in forged:
            with pytest.raises(ForbiddenError, match="too high"):
                c.call(0, each)
        c.configure()
        c.revision += 1
        c.change(P, leader_epoch=record.leader_epoch + 1)
        Client(c).put(P, {b"a": b"1"})


def highest(attempt: Callable[[int], object], most: int = LAST) -> int:
    """Return the highest number that a data node takes, as whoever tries them all finds it."""
    taken = 0
    while taken < most:
        number = (taken + most + 1) // 2
        try:
            attempt(number)
        except ForbiddenError:
            most = number - 1
        else:
            taken = number
    return taken


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_the_highest_number_forged_at_one_node_locks_the_operator_out_of_none(
    tmp_path: Path,
) -> None:
    """The operator goes above what one node knows, and all nodes take that within seconds.

    Where a number's bound was counted from what each node knew, those that were not forged at
    refused the operator for ever. One of them has begun again since, and remembers no attempt.
    """
    with cluster(tmp_path, 3, processes=True) as c:
        c.create(P, (0, 1, 2))
        record = c.records[P]

        def notify(node: int, coordinator_epoch: int, **changes: int) -> None:
            changed = PartitionAssignment(
                partition=P, state=msgspec.structs.replace(record, **changes)
            )
            fence = Fence(coordinator_epoch=coordinator_epoch, revision=c.revision)
            partitions = (changed,) if changes else ()
            c.call(node, NotifyLeaderAndIsr(fence=fence, peers=c.peers, partitions=partitions))

        partition_epoch = highest(lambda n: notify(0, c.epoch, partition_epoch=n))
        leader_epoch = highest(
            lambda n: notify(0, c.epoch, leader_epoch=n, partition_epoch=partition_epoch),
            LAST_LEADER,
        )
        coordinator_epoch = highest(lambda n: notify(0, n))
        restarted = c.nodes[2]
        assert isinstance(restarted, ProcessNode)
        restarted.kill()
        restarted.start()
        c.wait_up(2)

        c.epoch = coordinator_epoch + 1
        above = msgspec.structs.replace(
            record,
            leader_epoch=leader_epoch + 1,
            partition_epoch=partition_epoch + 1,
            coordinator_epoch=c.epoch,
        )

        def taken(node: int) -> bool:
            with contextlib.suppress(ForbiddenError):
                c.send(P, above, node)
                return True
            return False

        c.until_each("a data node takes the operator's numbers", (0, 1, 2), taken)
        Client(c).put(P, {b"a": b"1"})


def is_taken(fence: Fence, now: int) -> bool:
    """Return whether a node takes a call at a time, in microseconds since 1970."""
    try:
        check_bounds(NotifyLeaderAndIsr(fence=fence, peers={}, partitions=()), fence, now)
    except ForbiddenError:
        return False
    return True


@pytest.mark.proves("TR-03")
def test_numbers_are_bounded_by_the_time_of_day_alone() -> None:
    """All data nodes have the same bound, and what one of them knows does not raise it.

    Whoever calls again and again would get to the last number; or the operator, which goes one
    above what it has learned from one node, would be refused by the others.
    """
    now = (BEGAN_SECONDS + 1_000_000) * 1_000_000
    later = now + 1_000_000
    epoch = (1 << 16) + 1_000_000
    assert is_taken(Fence(coordinator_epoch=epoch), now)
    assert not is_taken(Fence(coordinator_epoch=epoch + 1), now)
    assert is_taken(Fence(coordinator_epoch=epoch + 1), later)
    revision = CHANGES.at(now)
    assert is_taken(Fence(coordinator_epoch=1, revision=revision), now)
    assert not is_taken(Fence(coordinator_epoch=1, revision=revision + 1), now)
    assert is_taken(Fence(coordinator_epoch=1, revision=revision + 1), later)


@pytest.mark.proves("TR-03")
def test_a_clock_of_1970_keeps_no_operator_out() -> None:
    """A machine without a battery has that time; its data node would refuse all calls."""
    assert is_taken(Fence(coordinator_epoch=1 << 16, revision=1 << 40), 0)


@pytest.mark.proves("TR-03")
def test_no_number_is_used_up_within_years() -> None:
    """The operator has to have a number above what is forged, as often as somebody forges one."""
    year = 366 * 24 * 3600
    in_decades = (BEGAN_SECONDS + 50 * year) * 1_000_000
    assert LEADERS.at(in_decades) < 1 << 31, "what a Lease counts"
    assert CHANGES.at(in_decades) < 1 << 62


@pytest.mark.slow
@pytest.mark.proves("TR-03")
def test_plaintext_is_for_loopback_unless_said_otherwise(tmp_path: Path) -> None:
    """Whoever forgets the certificates would have a table that everybody may change."""
    command = [sys.executable, "-m", "rezone.datanode", "--node-id=0"]
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
