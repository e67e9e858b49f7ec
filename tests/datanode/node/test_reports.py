"""What a group tells its coordinator: told again until it is heard, or outdated (ZR-09)."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_cluster import FAST, Client, Coordinator, cluster
from write_load import PARTITION as P

from rezone.controller.nodes.node_state import NodeState, follows, request_after, with_answer
from rezone.wire.messages import (
    Ack,
    IsrProposal,
    NodeReport,
    PullSnapshot,
    ReplicaReport,
    Role,
)

pytestmark = pytest.mark.proves("ZR-09")


def asked(
    c: Coordinator, node: int, seen: NodeState | None = None
) -> tuple[NodeState, ReplicaReport]:
    """Poll a node as a coordinator does that has heard something before, or nothing."""
    answer = c.call(node, request_after(seen, timeout_ms=1), NodeReport)
    assert follows(seen, answer)
    heard = with_answer(seen, answer)
    return heard, heard.replicas[P]


def proposal_of(c: Coordinator, node: int) -> IsrProposal | None:
    """Return what a leader asks for now."""
    return asked(c, node)[1].proposal


def test_a_wish_stands_over_lost_answers_and_a_restart_until_it_is_answered(
    tmp_path: Path,
) -> None:
    """Of one lost answer the coordinator would never hear that a replica has caught up."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        c.change(P, isr=(0, 1))
        wish = c.until("asks", lambda: proposal_of(c, 0))
        assert wish.new_isr == (0, 1, 2)
        heard, _ = asked(c, 0)
        for _ in range(3):
            # Whoever got the answer died with it: the next one knows nothing, or has seen it all.
            assert proposal_of(c, 0) == wish
            assert asked(c, 0, seen=heard)[1].proposal == wish
        c.nodes[2].stop()
        c.nodes[0].stop()
        c.nodes[0].start()
        c.wait_up(0)
        waited_for = c.replica(0).require_leadership().maximal
        assert waited_for == {0, 1, 2}, "the answer that was lost may have been yes"
        c.nodes[2].start()
        c.wait_up(2)
        again = c.until("asks again", lambda: proposal_of(c, 0))
        assert (again.leader_epoch, again.partition_epoch) == (
            wish.leader_epoch,
            wish.partition_epoch,
        )
        c.until_settled("answered", lambda: c.isr(P) == {0, 1, 2})
        c.until("heard", lambda: proposal_of(c, 0) is None)


def test_a_wish_ends_when_its_leader_is_outdated(tmp_path: Path) -> None:
    """A deposed leader would ask for ever for what is its successor's to ask for."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        c.change(P, isr=(0, 1))
        c.until("asks", lambda: proposal_of(c, 0))
        c.change(P, leader=1, leader_epoch=2)
        assert asked(c, 0)[1].role is Role.FOLLOWER
        assert proposal_of(c, 0) is None
        successor = c.until("the new leader asks", lambda: proposal_of(c, 1))
        assert (successor.new_isr, successor.leader_epoch) == ((0, 1, 2), 2)


def test_a_failed_copy_is_told_until_another_one_begins(tmp_path: Path) -> None:
    """A rebalance would wait for a copy that nobody makes any more."""
    with cluster(tmp_path, 2, settings=FAST) as c:
        c.create(P, (0,))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        c.change(P, replicas=(0, 1))
        c.until("opened", lambda: c.report(1, P).needs_snapshot)
        nobody = PullSnapshot(fence=c.fence(), partition=P, source="127.0.0.1:1")
        c.call(1, nobody, Ack)
        failed = c.until("failed", lambda: (r := asked(c, 1)[1].copy) and r.error and r)
        heard, _ = asked(c, 1)
        for _ in range(3):
            assert asked(c, 1)[1].copy == failed
            assert asked(c, 1, seen=heard)[1].copy == failed
        good = PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address)
        c.call(1, good, Ack)
        c.until("copied", lambda: not asked(c, 1)[1].needs_snapshot)
        copied = asked(c, 1)[1].copy
        assert copied is not None
        assert not copied.error
        k.close()


@pytest.mark.proves("ZR-16")
def test_a_new_leader_says_so_until_it_gets_its_record(tmp_path: Path) -> None:
    """A coordinator that was away in the takeover would believe in the old leader for ever."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        c.until("streams", lambda: c.replica(0).leading.streams)
        c.authorise(P, 1)
        c.takeover(P)
        c.until("leads", lambda: asked(c, 1)[1].role is Role.LEADER)
        heard, first = asked(c, 1)
        told = c.records[P].partition_epoch
        assert (first.leader_epoch, first.partition_epoch) == (2, told)
        for _ in range(3):
            for _, report in (asked(c, 1), asked(c, 1, seen=heard)):
                assert (report.role, report.leader, report.leader_epoch) == (Role.LEADER, 1, 2)
        c.until_settled("heard", lambda: c.records[P].leader == 1)
        assert asked(c, 1)[1].partition_epoch == c.records[P].partition_epoch > told
