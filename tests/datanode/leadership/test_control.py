"""Control calls: fenced, idempotent, persisted before they act."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Client, Coordinator, cluster

from rezone.controller.nodes.node_state import request_after, with_answer
from rezone.storage.engines.rocks import RocksEngine
from rezone.wire.errors import (
    ConflictError,
    NotReadyError,
    RezoneError,
    StaleEpochError,
    StaleRevisionError,
    UnknownPartitionError,
)
from rezone.wire.messages import (
    FIRST_PARTITION_EPOCH,
    Ack,
    AdmitCopies,
    AdmittedCopy,
    ConfigureNode,
    Fence,
    IsrProposal,
    LeaderAndIsr,
    Message,
    NodeReport,
    NoteCompared,
    NotifyLeaderAndIsr,
    PartitionAssignment,
    PullSnapshot,
    RefuseIsr,
    ReportRequest,
    Role,
    RoutesRequest,
    RouteTable,
    StopReplica,
    Takeover,
    UpgradeCandidate,
    ZoneConfig,
)

P = 0


def notify(c: Coordinator, fence: Fence) -> Message:
    """Return the record as it stands."""
    assignment = PartitionAssignment(partition=P, state=c.records[P])
    return NotifyLeaderAndIsr(fence=fence, partitions=(assignment,), peers=c.peers)


def standing(c: Coordinator) -> tuple[object, ...]:
    """Return what a stale call must not change."""
    r = c.report(0, P)
    return (r.role, r.leader, r.leader_epoch, r.partition_epoch, r.revision, r.takeover, r.copy)


def refusal(c: Coordinator, fence: Fence) -> RefuseIsr:
    """Return the refusal of what node 0 proposes, or of nothing that it does."""
    report = c.report(0, P)
    nothing = IsrProposal(new_isr=(0,), leader_epoch=1, partition_epoch=1, coordinator_epoch=1)
    return RefuseIsr(
        fence=fence,
        partition=P,
        proposal=report.proposal or nothing,
        state=c.records[P],
        error_code="NotInSync",
        error_message="nodes [1] of iss are not in isr",
    )


CALLS: dict[str, Callable[[Coordinator, Fence], Message]] = {
    "ConfigureNode": lambda c, f: ConfigureNode(fence=f, config=c.config, peers=c.peers),
    "NotifyLeaderAndIsr": notify,
    "StopReplica": lambda _, f: StopReplica(
        fence=f, partition=P, leader_epoch=9, partition_epoch=9
    ),
    "PullSnapshot": lambda c, f: PullSnapshot(fence=f, partition=P, source=c.peers[0]),
    "AdmitCopies": lambda _, f: AdmitCopies(
        fence=f, admitted=(AdmittedCopy(P),), held=(), seconds=60.0
    ),
    "Takeover": lambda _, f: Takeover(
        fence=f, partition=P, leader_epoch=1, candidate=1, next_epoch=2
    ),
    "RefuseIsr": refusal,
    "NoteCompared": lambda _, f: NoteCompared(fence=f, partition=P, uncompared=""),
    "UpgradeCandidate": lambda _, f: UpgradeCandidate(fence=f, partition=P, next_epoch=2),
}


@pytest.mark.proves("ZR-17")
@pytest.mark.parametrize("call", CALLS)
def test_a_stale_coordinator_changes_nothing(tmp_path: Path, call: str) -> None:
    """A coordinator that lost its lease would go on to move partitions."""
    with cluster(tmp_path, 2) as c:
        c.epoch, c.revision = 5, 7
        c.create(P, (0, 1))
        before = standing(c)
        with pytest.raises(StaleEpochError):
            c.replica(0).fencing.check(Fence(coordinator_epoch=4, revision=9))
        with pytest.raises(StaleEpochError):
            c.call(0, CALLS[call](c, Fence(coordinator_epoch=4, revision=9)), Message)
        if call != "ConfigureNode":
            with pytest.raises(StaleRevisionError):
                c.call(0, CALLS[call](c, Fence(coordinator_epoch=5, revision=6)), Message)
        assert standing(c) == before
        # Over a restart too.
        c.nodes[0].stop()
        c.nodes[0].start()
        c.wait_up(0)
        with pytest.raises(StaleEpochError):
            c.call(0, CALLS[call](c, Fence(coordinator_epoch=4, revision=9)), Message)


@pytest.mark.proves("HS-05")
def test_a_leader_hears_that_its_proposal_is_refused(tmp_path: Path) -> None:
    """A refusal is in the leader's report until it proposes something else.

    The coordinator would answer again in each pass, and nobody would see why the set stays.
    """
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        c.call(0, refusal(c, c.fence()))
        assert c.report(0, P).proposal_error == "", "it has proposed nothing of the kind"
        c.nodes[1].stop()
        c.until("a proposal", lambda: c.report(0, P).proposal is not None)
        for _ in range(2):
            c.call(0, refusal(c, c.fence()))
        assert c.report(0, P).proposal_error == "NotInSync"
        leadership = c.replica(0).leadership
        assert leadership is not None
        assert set(leadership.maximal) == {0, 1}, "nothing shrinks by a refusal"


def test_a_node_that_knows_no_leader_says_so(tmp_path: Path) -> None:
    """The error names nobody where no record has come yet.

    A client would be told that node -1 leads.
    """
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        fresh = c.node(0).replicas.open(P + 1, learner=True)
        error = fresh.not_leader()
        assert "-1" not in str(error)
        assert "has not been told who does" in str(error)


@pytest.mark.proves("ZR-13", "ZR-06")
def test_calls_repeat_as_done(tmp_path: Path) -> None:
    """A coordinator that crashed after a call could not make it again."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        for _ in range(2):
            assert c.call(0, notify(c, c.fence())) == Ack()
            assert [each.partition for each in c.node(0).report().replicas] == [P]
        assert c.report(0, P).leader_epoch == 1
        stop = StopReplica(fence=c.fence(), partition=P, leader_epoch=1, partition_epoch=9)
        with pytest.raises(ConflictError, match="leads"):
            c.call(0, stop)
        for _ in range(2):
            assert c.call(1, stop) == Ack()
        assert not c.has_replica(1, P)
        assert not list((c.nodes[1].directory / "partitions").glob("*"))


@pytest.mark.proves("ZR-11", "ZR-13")
def test_a_stopped_replica_that_is_still_read_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be told as gone with its files still there, and none could be opened in its place.

    A read that waits for a dead disk does not end in the time that closing waits for it.
    """
    monkeypatch.setattr("rezone.storage.engines.rocks._CLOSE_SECONDS_MAX", 0.0)
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        record = c.change(P, replicas=(0,), isr=(0,))
        stop = StopReplica(
            fence=c.fence(), partition=P, leader_epoch=1, partition_epoch=record.partition_epoch
        )
        with contextlib.ExitStack() as reads:
            for node in (1, 2):
                engine = c.replica(node, P).store.engine
                assert isinstance(engine, RocksEngine)
                reads.enter_context(engine._reading())
                for _ in range(2):
                    with pytest.raises(NotReadyError, match="1 readers do not end"):
                        c.call(node, stop)
                assert c.has_replica(node, P), "the coordinator would not ask again"
                assert c.replica(node, P).retired
            with pytest.raises(NotReadyError, match="1 readers do not end"):
                c.change(P, replicas=(0, 2))
        assert c.call(1, stop) == Ack()
        assert not c.has_replica(1, P)
        assert not list((c.nodes[1].directory / "partitions").glob("*"))
        c.change(P, replicas=(0, 2))
        again = c.report(2, P)
        assert (again.role, again.needs_snapshot) == (Role.LEARNER, True)


@pytest.mark.proves("ZR-13", "ZR-17")
def test_a_late_stop_of_an_older_record_deletes_nothing(tmp_path: Path) -> None:
    """A replica that was assigned again would lose its rows, over a restart too."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        epoch = c.records[P].partition_epoch
        c.change(P, isr=(0, 1))
        stop = StopReplica(fence=c.fence(), partition=P, leader_epoch=1, partition_epoch=epoch)
        for _ in range(2):
            with pytest.raises(StaleEpochError, match="are behind"):
                c.call(1, stop)
            assert c.has_replica(1, P)
            c.nodes[1].stop()
            c.nodes[1].start()
            c.wait_up(1)


@pytest.mark.proves("ZR-17")
def test_an_older_record_is_refused_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """A late NotifyLeaderAndIsr would bring back a leader of the past."""
    config = msgspec.structs.replace
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        old = c.records[P]
        new = c.change(P, leader=1, leader_epoch=2)
        request = NotifyLeaderAndIsr(
            fence=c.fence(),
            partitions=(
                PartitionAssignment(partition=P, state=old),
                PartitionAssignment(partition=P, state=config(new, partition_epoch=9)),
            ),
            peers=c.peers,
        )
        with pytest.raises(StaleEpochError) as refused:
            c.call(1, request)
        assert refused.value.details["superseded"] == 1
        assert c.report(1, P).partition_epoch == 9
        assert c.report(1, P).role is Role.LEADER


@pytest.mark.proves("ZR-12", "ZR-17")
def test_only_what_is_superseded_need_not_be_sent_again(tmp_path: Path) -> None:
    """A coordinator would count a record as told that a node could not take yet.

    Partition 1 has no replica here: what is known of it is for clients alone.
    """
    config = ZoneConfig(zone="test", zone_uid="uid-test", partitions=2)
    with cluster(tmp_path, 2, config=config) as c:
        c.create(P, (0, 1))
        old = c.records[P]
        new = c.change(P, leader=1, leader_epoch=2)
        elsewhere = msgspec.structs.replace(new, replicas=(1,), isr=(1,))

        def refusal(*sent: tuple[int, LeaderAndIsr], fence: Fence | None = None) -> RezoneError:
            records = tuple(PartitionAssignment(partition=p, state=s) for p, s in sent)
            with pytest.raises(RezoneError) as refused:
                c.call(
                    0,
                    NotifyLeaderAndIsr(fence=fence or c.fence(), partitions=records, peers=c.peers),
                )
            return refused.value

        def superseded(error: RezoneError) -> bool:
            return isinstance(error, StaleEpochError) and error.details.get("superseded") == 1

        c.call(
            0,
            NotifyLeaderAndIsr(
                fence=c.fence(),
                partitions=(PartitionAssignment(partition=1, state=elsewhere),),
                peers=c.peers,
            ),
        )
        late = msgspec.structs.replace(elsewhere, leader_epoch=1)
        assert superseded(refusal((P, old), (1, late)))
        assert isinstance(refusal((P, old), (9, new)), ConflictError)
        assert isinstance(refusal((9, new), (P, old)), ConflictError)
        deposed = Fence(coordinator_epoch=c.epoch - 1, revision=c.revision)
        assert not superseded(refusal((P, new), fence=deposed))


def test_before_configuration_and_for_unknown_partitions(tmp_path: Path) -> None:
    """A node would make up a zone, or a partition, of its own."""
    with cluster(tmp_path, 1) as c:
        with pytest.raises(UnknownPartitionError):
            c.call(0, CALLS["UpgradeCandidate"](c, c.fence()))
        other = msgspec.structs.replace(c.config, zone_uid="another")
        with pytest.raises(ConflictError, match="holds data of zone"):
            c.call(0, ConfigureNode(fence=c.fence(), config=other, peers=c.peers))
        node = c.nodes[0]
        node.stop()
        (node.directory / "node.journal").unlink()
        node.start()
        c.wait_up(0)
        # It can be found, so that it can be configured, and knows of nothing.
        assert c.call(0, ReportRequest(seen=-1), NodeReport).zone_uid == ""
        with pytest.raises(NotReadyError, match="not been configured"):
            c.call(0, RoutesRequest(), RouteTable)


def test_a_report_waits_for_news(tmp_path: Path) -> None:
    """A coordinator would have to poll all nodes all the time, or would learn late."""
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        heard = with_answer(None, c.call(0, ReportRequest(), NodeReport))
        quiet = c.call(0, request_after(heard, timeout_ms=300), NodeReport)
        k = Client(c)
        k.put(P, {b"a": b"1"})
        known = with_answer(heard, quiet)
        news = c.call(0, request_after(known, timeout_ms=5000), NodeReport)
        while not news.replicas:  # news of the node itself, such as that its clock has been agreed
            known = with_answer(known, news)
            news = c.call(0, request_after(known, timeout_ms=5000), NodeReport)
        assert news.version > quiet.version
        assert [replica.partition for replica in news.replicas] == [P]
        k.close()


@pytest.mark.proves("B-06")
def test_a_new_partition_takes_no_write_until_all_its_replicas_are_known_to_be_open(
    tmp_path: Path,
) -> None:
    """A node that lost its disk would open the partition again, empty and in sync, and lead it."""
    with cluster(tmp_path, 2) as c:
        record = LeaderAndIsr(
            leader=0,
            leader_epoch=1,
            isr=(0, 1),
            replicas=(0, 1),
            coordinator_epoch=1,
            partition_epoch=FIRST_PARTITION_EPOCH,
        )
        c.send(P, record)
        k = Client(c)
        with pytest.raises(NotReadyError, match="is being made"):
            k.put(P, {b"a": b"1"}, retry=False)
        c.change(P)
        k.put(P, {b"a": b"1"})
        node = c.nodes[0]
        node.stop()
        shutil.rmtree(node.directory)
        node.start()
        c.configure()
        with pytest.raises(ConflictError, match="not copied"):
            c.send(P, c.records[P])
        assert c.report(0, P).role is Role.LEARNER
