"""Snapshots into learners, by pull and by push, as rows and as files, under writes."""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import Client, Coordinator, LocalNode, cluster

from rezone.datanode.copying import copies
from rezone.datanode.observing.copymetrics import CopyCollector
from rezone.datanode.scheduling.admission import Admission
from rezone.datanode.scheduling.foreground import BUSY_SHARE, Foreground
from rezone.datanode.settings import NodeSettings
from rezone.storage.copies.bulk import BulkLoader
from rezone.storage.copies.fileload import FileLoader
from rezone.storage.snapshot.checkpoints import CheckpointLimits
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.storage.store_config import StoreConfig
from rezone.wire import messages
from rezone.wire.copying.copy import CopyOptions, CopyReceipt, Relay, copy_partition
from rezone.wire.copying.sink import FlightSink
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError
from rezone.wire.messages import (
    Ack,
    AdmitCopies,
    AdmittedCopy,
    BulkInsert,
    CopyFailure,
    CopyState,
    CopyStateRequest,
    DigestReply,
    DigestRequest,
    NoteCompared,
    PullSnapshot,
    Role,
    SnapshotHeader,
    SnapshotTicket,
    UpgradeCandidate,
    WaitingCopies,
    WaitingCopiesRequest,
)
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.ratelimit import RateLimit

P = 0
WAIT_SECONDS = 20
FORMS = {
    "rows": StoreConfig(),
    "files": StoreConfig(checkpoints=CheckpointLimits(bytes_min=0)),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """Each form of snapshot."""
    chosen: str = request.param
    return chosen


def learner(c: Coordinator) -> Client:
    """Two replicas with rows, and node 2 as a learner."""
    c.create(P, (0, 1))
    k = Client(c)
    for i in range(20):
        k.put(P, {b"%d-%d" % (i, j): b"v" * 50 for j in range(50)})
    c.change(P, replicas=(0, 1, 2))
    return k


def admit(c: Coordinator, node: int = 2, bytes_per_second_max: int = 0) -> None:
    """Let a copy to a node begin."""
    copy = AdmittedCopy(P, bytes_per_second_max)
    c.call(node, AdmitCopies(fence=c.fence(), admitted=(copy,), held=(), seconds=60.0))


def sink(c: Coordinator, attempt: str = "", revision: int = 0, node: int = 2) -> FlightSink:
    """Return a node as a receiver of a push, which is admitted."""
    admit(c, node)
    revision = revision or c.fence().revision
    descriptor = BulkInsert(
        partition=P, snapshot_source=0, attempt=attempt or uuid.uuid4().hex, revision=revision
    )
    return FlightSink(f"node {node}", NodeClient(c.nodes[node].address), descriptor)


def joined(c: Coordinator, k: Client) -> None:
    """See that the learner joins, and has the same rows."""
    k.put(P, {b"during": b"1"})
    c.until_settled("joined", lambda: c.isr(P) == {0, 1, 2})
    k.put(P, {b"after": b"1"})
    digests = c.until("digests", lambda: c.digests(P))
    assert len({d.digests for d in digests.values()}) == 1
    assert sum(digests[2].rows) == 1002
    k.close()


@pytest.mark.proves("B-04")
def test_a_copy_says_that_nobody_has_compared_it_until_it_is_told(
    tmp_path: Path, form: str
) -> None:
    """It says so over restarts, until it is told of exactly this copy; the next copy says it again.

    A coordinator that has just begun would let a copy lead that nobody has looked at.
    """
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        assert c.report(0, P).uncompared == c.report(2, P).uncompared == ""
        pull = PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address)
        c.call(2, pull)
        joined(c, k)
        copied = c.report(2, P).uncompared
        assert copied
        c.nodes[2].stop()
        c.nodes[2].start()
        c.wait_up(2)
        c.configure()
        c.until("it is there", lambda: c.report(2, P).uncompared == copied)
        # A follower that has begun again knows no time as of which it can be read until it is told.
        digest = c.until("digest", lambda: c.call(2, DigestRequest(partition=P), DigestReply))
        assert digest.uncompared == copied
        for told, left in (("another", copied), (copied, "")):
            note = NoteCompared(fence=c.fence(), partition=P, uncompared=told)
            assert c.call(2, note) == Ack()
            assert c.report(2, P).uncompared == left
        c.replica(2).need_snapshot()
        c.call(2, pull)
        c.until("copied again", lambda: c.report(2, P).uncompared not in ("", copied))


@pytest.mark.proves("HS-06", "SS-08", "ZR-13")
def test_a_learner_pulls_a_snapshot_and_joins(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new replica would never get in sync, or would be without the rows from before it came."""
    begun: list[int] = []
    asked_twice = threading.Event()

    def copying(relay: Relay) -> list[CopyReceipt]:
        begun.append(P)
        assert asked_twice.wait(WAIT_SECONDS)
        return copy_partition(relay)

    monkeypatch.setattr("rezone.datanode.copying.copies.copy_partition", copying)
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        waiting = c.report(2, P)
        assert waiting.role is Role.LEARNER
        assert waiting.needs_snapshot
        assert not c.call(2, CopyStateRequest(partition=P), CopyState).done
        with pytest.raises(ConflictError):
            c.call(2, UpgradeCandidate(fence=c.fence(), partition=P, next_epoch=2))
        pull = PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address)
        for _ in range(2):
            assert c.call(2, pull) == Ack()
        asked_twice.set()
        k.put(P, {b"during": b"0"})
        joined(c, k)
        assert c.call(2, pull) == Ack()
        assert begun == [P], "a repeat joins the copy under way, or finds it done"
        assert c.call(2, CopyStateRequest(partition=P), CopyState).done
        copied = c.report(2, P)
        assert copied.copy is not None
        assert copied.copy.done
        assert copied.copy.rows >= 1000
        # With every row here, the new replica can lead.
        c.move(P, 2)
        again = Client(c)
        assert again.get(P, [b"0-0", b"after"]) == {b"0-0": b"v" * 50, b"after": b"1"}
        # Who measures a write gap must see which leadership has answered.
        assert again.put(P, {b"new": b"1"}).leader_epoch == c.records[P].leader_epoch == 2


@pytest.mark.proves("B-05", "ZR-17")
def test_a_copy_outlives_its_coordinator_but_not_its_trigger(tmp_path: Path, form: str) -> None:
    """Every restart of the operator would make the running Spark job start again."""
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        c.revision = 7
        k = learner(c)
        c.epoch += 1
        c.send(P, c.records[P])
        source = NodeClient(c.nodes[0].address)
        (receipt,) = copy_partition(Relay(P, source, [sink(c, revision=6)], reader="old"))
        assert receipt.error.startswith("StaleRevisionError")
        (receipt,) = copy_partition(Relay(P, source, [sink(c, revision=7)], reader="test"))
        assert not receipt.error
        joined(c, k)


@pytest.mark.proves("SS-08", "B-05")
def test_a_snapshot_is_pushed_and_refused_where_none_is_needed(tmp_path: Path, form: str) -> None:
    """A copy would overwrite a replica that has newer rows."""
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        (receipt,) = copy_partition(
            Relay(
                P,
                NodeClient(c.nodes[0].address),
                [sink(c)],
                reader="test",
                options=CopyOptions(batch_bytes=16 << 10),
            )
        )
        assert not receipt.error
        assert 1000 <= receipt.rows <= (1000 if form == "rows" else 1010), "an estimate for files"
        assert receipt.files == (form == "files")
        joined(c, k)
        (receipt,) = copy_partition(
            Relay(P, NodeClient(c.nodes[0].address), [sink(c)], reader="test")
        )
        assert receipt.skipped
        forced = sink(c)
        forced.open(
            NodeClient(c.nodes[0].address).get(SnapshotTicket(partition=P, reader="test")).schema
        )
        with pytest.raises(RezoneError):
            forced.finish()
        assert c.report(2, P).role is Role.FOLLOWER


@pytest.mark.proves("B-05", "ZR-09")
def test_a_broken_copy_goes_on_and_a_trimmed_log_asks_for_one(tmp_path: Path, form: str) -> None:
    """A receiver that was interrupted would be taken for whole."""
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        asked = iter([False, False, True])
        (receipt,) = copy_partition(
            Relay(
                P,
                NodeClient(c.nodes[0].address),
                [sink(c)],
                reader="test",
                options=CopyOptions(batch_bytes=8 << 10),
                cancelled=lambda: next(asked, True),
            )
        )
        assert receipt.error
        report = c.until("told", lambda: (r := c.report(2, P)).copy and r.copy.error and r)
        assert report.needs_snapshot
        assert c.isr(P) == {0, 1}
        (receipt,) = copy_partition(
            Relay(P, NodeClient(c.nodes[0].address), [sink(c)], reader="test")
        )
        assert not receipt.error
        joined(c, k)


class CountedSource:
    """A source that tells which snapshots were opened at it."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client
        self.snapshots: list[str] = []

    def get(self, ticket: SnapshotTicket) -> Iterator[Any]:
        """Open a snapshot's stream, of which the header has come."""
        stream = self._client.get(ticket)
        first = next(stream)
        header = messages.decode(memoryview(first.app_metadata))
        assert isinstance(header, SnapshotHeader)
        self.snapshots.append(header.snapshot_id)
        return _Stream(first, stream)


class _Stream(Iterator[Any]):
    """A stream of which the first chunk was looked at."""

    def __init__(self, first: Any, stream: Any) -> None:
        self.schema = stream.schema
        self._chunks = itertools.chain((first,), stream)
        self.cancel = stream.cancel

    def __next__(self) -> Any:
        return next(self._chunks)


@pytest.mark.proves("B-05", "TR-03")
def test_a_source_keeps_its_log_while_a_receiver_tries_the_files(tmp_path: Path) -> None:
    """A source lets go a minute after its last reader; the trial of 20 GB may take an hour.

    The copy would begin again, for ever. It is asked for the same snapshot until the files have
    passed, so that it has a reader.
    """
    passes = threading.Event()

    def try_files(_directory: Path, size: int) -> int:
        assert passes.wait(WAIT_SECONDS)
        return size

    config = msgspec.structs.replace(FORMS["files"], try_files=try_files)
    with cluster(tmp_path, 3, store_config=config) as c, ThreadPoolExecutor() as pool:
        k = learner(c)
        source = CountedSource(NodeClient(c.nodes[0].address))
        options = CopyOptions(keep_seconds=0.05)
        relay = Relay(P, source, [sink(c)], reader="test", options=options)
        copy = pool.submit(copy_partition, relay)
        c.until("it is read again", lambda: len(source.snapshots) > 2)
        assert len(set(source.snapshots)) == 1, "the one that is tried"
        passes.set()
        (receipt,) = copy.result(WAIT_SECONDS)
        assert not receipt.error
        joined(c, k)


@pytest.mark.proves("B-14", "B-05")
@pytest.mark.parametrize("fault", ["a full disk", "a full disk, told by the engine", "its source"])
def test_a_receiver_tells_why_its_copy_fails_and_goes_on_when_that_is_mended(
    tmp_path: Path, form: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report of a failed copy has a typed reason and how far it has come.

    Otherwise the operator could not tell a full disk, which another node helps, from anything else.
    """
    code = errno.ENOSPC if fault == "a full disk" else None

    def fails(*_: object) -> None:
        text = os.strerror(errno.ENOSPC)
        raise OSError(code, text) if code else OSError(f"IO error: {text}: 17.sst")

    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        source = c.nodes[0].address
        with monkeypatch.context() as patched:
            if fault == "its source":
                source = "127.0.0.1:1"
            else:
                patched.setattr(FileLoader, "write", fails)
                patched.setattr(BulkLoader, "write", fails)
            c.call(2, PullSnapshot(fence=c.fence(), partition=P, source=source))
            report = c.until("told", lambda: (r := c.report(2, P)).copy and r.copy.error and r)
        assert report.needs_snapshot
        failure = CopyFailure.SOURCE if fault == "its source" else CopyFailure.NO_SPACE
        assert report.copy.failure is failure, report.copy
        assert failing_copies(c)[failure] == 1
        again = PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address)

        def is_copied() -> bool:
            # Repeated as the operator does: one that is told before the failed one's thread has
            # ended joins that.
            c.call(2, again)
            return not c.report(2, P).needs_snapshot

        c.until("copied", is_copied)
        joined(c, k)
        assert set(failing_copies(c).values()) == {0}


def failing_copies(c: Coordinator) -> dict[str, float]:
    """Return how many of node 2's copies fail, by what failed."""
    node = c.nodes[2]
    assert isinstance(node, LocalNode)
    assert node.node is not None
    name = "rezone_data_node_failing_copies"
    (family,) = [each for each in CopyCollector(node.node).collect() if each.name == name]
    return {sample.labels["failure"]: sample.value for sample in family.samples}


@pytest.mark.proves("B-05", "SS-06")
def test_a_copy_goes_on_from_a_new_leader(tmp_path: Path, form: str) -> None:
    """A change of leader during a copy would leave a receiver with two histories, or without end.

    A file snapshot of another node has files of its own: it starts over, a row copy goes on.
    """
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        asked = iter([False] * 2)
        (receipt,) = copy_partition(
            Relay(
                P,
                NodeClient(c.nodes[0].address),
                [sink(c)],
                reader="first",
                options=CopyOptions(batch_bytes=1 << 10),
                cancelled=lambda: next(asked, True),
            )
        )
        assert "cancelled" in receipt.error
        c.move(P, 1)
        k.put(P, {b"between": b"1"})
        for attempt in ("second", "third"):
            (receipt,) = copy_partition(
                Relay(P, NodeClient(c.nodes[1].address), [sink(c)], reader=attempt)
            )
            if not receipt.error:
                break
        assert not receipt.error
        k.put(P, {b"during": b"1", b"after": b"1"})
        c.until_settled("joined", lambda: c.isr(P) == {0, 1, 2})
        digests = c.until("digests", lambda: c.digests(P))
        assert len({d.digests for d in digests.values()}) == 1
        assert sum(digests[2].rows) == 1003
        k.close()


def copied_rows(c: Coordinator, source: int, target: int, batches_max: int) -> CopyReceipt:
    """Bring rows from one node to another, so many batches at most."""
    asked = iter([False] * batches_max)
    (receipt,) = copy_partition(
        Relay(
            P,
            NodeClient(c.nodes[source].address),
            [sink(c, node=target)],
            reader=uuid.uuid4().hex,
            options=CopyOptions(batch_bytes=1 << 10),
            cancelled=lambda: next(asked, True),
        )
    )
    return receipt


def write_in_vain(c: Coordinator, keys: list[bytes]) -> None:
    """Write rows that nobody will acknowledge."""
    writer = Client(c)
    with contextlib.suppress(RezoneError):
        writer.put(P, dict.fromkeys(keys, b"w" * 50), retry=False)
    writer.close()


@pytest.mark.proves("B-05", "ZR-08")
def test_a_copy_starts_over_rather_than_go_on_with_what_may_be_undone(tmp_path: Path) -> None:
    """Some of its rows would be of a history that the next leader gives up, and stay.

    A hot standby applies rows before they are committed: a snapshot of it may have such rows. The
    log that a receiver has would undo them only if it began behind them.
    """
    settings = NodeSettings(replica_lag_ms_max=60_000, hold_ms_max=100, lease_ms=300)
    store_config = StoreConfig(bulk_checkpoint_bytes=1 << 10)
    with cluster(tmp_path, 4, settings=settings, store_config=store_config) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)
        keys = [b"%d" % i for i in range(200)]
        k.put(P, dict.fromkeys(keys, b"v" * 50))
        c.change(P, replicas=(0, 1, 2, 3), hot_standby_replica=1)
        c.until_settled("a standby", lambda: c.records[P].iss == (1,))
        assert "cancelled" in copied_rows(c, 1, 3, batches_max=3).error
        assert c.call(3, CopyStateRequest(partition=P), CopyState).resume_after

        # Of a set of three one is away: nothing more is committed, and the standby applies it.
        c.nodes[2].stop()
        # By two entries: the one at which a receiver stands is always undone, if it is in its log.
        vain = []
        for some, end in ((keys[:1], 201), (keys, 401)):
            vain.append(threading.Thread(target=write_in_vain, args=(c, some)))
            vain[-1].start()
            c.until_each("applied", [end], lambda at: c.report(1, P).kv_applied_offset == at)
        assert c.report(0, P).committed_offset == 200
        assert "not committed yet" in copied_rows(c, 1, 3, batches_max=1_000).error
        assert not copied_rows(c, 1, 3, batches_max=1_000).error, "the log goes with a whole one"
        c.until("it follows", lambda: c.report(3, P).committed_offset == 200)
        with pytest.raises(NotReadyError, match="cannot answer"):
            k.get(P, keys, as_of=c.replica(1).store.applied_time, node=3, retry=False)

        # The one that was away leads without these rows.
        for node in (0, 1):
            c.nodes[node].stop()
        for thread in vain:
            thread.join(WAIT_SECONDS)
        c.nodes[2].start()
        c.wait_up(2)
        c.change(P, leader=2, leader_epoch=2, isr=(2,), iss=(), replicas=(2, 3))
        c.until("it has dropped all", lambda: c.report(3, P).needs_snapshot)
        assert not copied_rows(c, 2, 3, batches_max=1_000).error
        k.put(P, {b"after": b"1"})
        c.until_settled("joined", lambda: c.isr(P) == {2, 3})
        digests = c.until("digests", lambda: c.digests(P))
        assert len({d.digests for d in digests.values()}) == 1
        k.close()


@pytest.mark.proves("SS-08", "NW-01")
def test_the_end_of_an_outdated_attempt_is_not_that_of_the_copy(tmp_path: Path) -> None:
    """A copier that is gone is found out while the next one copies, which would count as failed."""
    with cluster(tmp_path, 3) as c:
        learner(c).close()
        source = NodeClient(c.nodes[0].address)
        old, new = sink(c, "old"), sink(c, "new")

        def attempt() -> str:
            copy = c.replica(2).store.meta.copy
            return copy.attempt if copy is not None else ""

        for name, each in (("old", old), ("new", new)):
            stream = source.get(SnapshotTicket(partition=P, reader="test"))
            header = next(stream)
            each.open(stream.schema)
            each.write(header.data, header.app_metadata)
            c.until("begun", functools.partial(lambda of: attempt() == of, name))
            stream.cancel()
        with pytest.raises(RezoneError):
            old.finish()
        copy = c.report(2, P).copy
        assert copy is not None
        assert not copy.error
        with pytest.raises(RezoneError):
            new.finish()
        c.until("told", lambda: (r := c.report(2, P).copy) and r.error)


@pytest.mark.proves("B-03")
def test_the_rate_of_a_running_copy_follows_the_zone(tmp_path: Path, form: str) -> None:
    """A copy that takes too much of a network could only be cancelled.

    At 1 byte per second each of these copies would take a day.
    """
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c, ThreadPoolExecutor(1) as pool:
        k = learner(c)
        source, receiver = NodeClient(c.nodes[0].address), sink(c)
        admit(c, bytes_per_second_max=1)
        copy = pool.submit(copy_partition, Relay(P, source, [receiver], reader="slow"))
        c.until("begun", lambda: c.report(2, P).copy)
        assert not copy.done()
        admit(c)
        (receipt,) = copy.result(60)
        assert not receipt.error
        joined(c, k)


def foreground_of(c: Coordinator, node: int) -> Foreground:
    """Return what counts the requests under way on a node of this process."""
    local = c.nodes[node]
    assert isinstance(local, LocalNode)
    assert local.node is not None
    return local.node.foreground


def test_copies_and_digests_give_way_at_both_ends(tmp_path: Path, form: str) -> None:
    """Clients of a node would get what a copy out or in leaves them, which may be nothing."""
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        c.until("answered", lambda: foreground_of(c, 0).under_way == 0)
        for node in (0, 2):
            foreground_of(c, node).begin()
        c.until_each("busy", (0, 2), lambda n: foreground_of(c, n).served_share > BUSY_SHARE)
        c.call(2, PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address))
        c.until("copied", lambda: (r := c.report(2, P).copy) and r.done)
        after_copy = [foreground_of(c, node).rested_seconds for node in (0, 2)]
        assert all(seconds > 0 for seconds in after_copy)
        assert foreground_of(c, 1).rested_seconds == 0.0
        joined(c, k)
        assert all(
            foreground_of(c, node).rested_seconds > before
            for node, before in zip((0, 2), after_copy, strict=True)
        )
        assert foreground_of(c, 0).under_way == 1


@pytest.mark.long
@pytest.mark.proves("B-03")
def test_a_repeated_pull_changes_the_rate_of_the_one_under_way(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asserts that a copy keeps the rate that it was ordered with, until it is ordered another.

    Without it a copy node to node ignores its rate, or keeps the first one to its end.
    """
    held, go = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        held.set()
        assert go.wait(WAIT_SECONDS)

    monkeypatch.setattr(copies, "RateLimit", functools.partial(RateLimit, sleep=sleep))
    with cluster(tmp_path, 3, store_config=FORMS[form]) as c:
        k = learner(c)
        pull = PullSnapshot(
            fence=c.fence(), partition=P, source=c.nodes[0].address, bytes_per_second_max=1
        )
        c.call(2, pull)
        assert held.wait(WAIT_SECONDS), "the first rate counts"
        copy = c.report(2, P).copy
        assert copy is None or not copy.done
        c.call(2, msgspec.structs.replace(pull, bytes_per_second_max=0))
        go.set()
        joined(c, k)


@pytest.mark.proves("B-03", "B-05")
def test_a_push_begins_only_when_the_operator_has_admitted_it(tmp_path: Path) -> None:
    """A held copy is refused before a byte is taken; one that has begun goes on when held.

    Spark would copy whatever the zone's limits and a person's pause say.
    """
    with cluster(tmp_path, 3) as c, ThreadPoolExecutor(1) as pool:
        k = learner(c)
        receiver = sink(c)

        def hold() -> None:
            c.call(2, AdmitCopies(fence=c.fence(), admitted=(), held=(P, 99), seconds=60.0))

        def waiting() -> WaitingCopies:
            answer: WaitingCopies = c.call(2, WaitingCopiesRequest(), WaitingCopies)
            return answer

        assert waiting() == WaitingCopies(partitions=(P,), admitted=(P,))
        hold()
        assert waiting() == WaitingCopies(partitions=(P,), admitted=())
        relay = Relay(P, NodeClient(c.nodes[0].address), [receiver], reader="early")
        (held,) = copy_partition(relay)
        assert held.held
        receiver.open(VERSIONS_SCHEMA)
        with pytest.raises(RezoneError, match="has to wait its turn"):
            receiver.finish()
        assert c.report(2, P).copy is None

        receiver = sink(c)
        admit(c, bytes_per_second_max=1)
        relay = Relay(P, NodeClient(c.nodes[0].address), [receiver], reader="slow")
        copy = pool.submit(copy_partition, relay)
        c.until("begun", lambda: c.report(2, P).copy)
        hold()
        assert receiver.state().bytes_per_second_max == 1  # nor may it hurry then
        admit(c)
        (receipt,) = copy.result(60)
        assert not receipt.error
        joined(c, k)


@pytest.mark.proves("B-03")
def test_an_admission_ends_by_itself_and_with_the_process(tmp_path: Path) -> None:
    """Without an operator nothing begins.

    A node that was restarted, or that a dead operator had admitted copies to, would take any.
    """
    with cluster(tmp_path, 3) as c:
        k = learner(c)
        now = [0.0]
        admission = Admission(P, lambda: now[0])
        admission.admit(5, 15.0)
        assert admission.admitted
        now[0] = 15.0
        assert not admission.admitted
        assert admission.bytes_per_second_max == 5
        admit(c)
        assert c.call(2, CopyStateRequest(partition=P), CopyState).admitted
        c.nodes[2].stop()
        c.nodes[2].start()
        c.wait_up(2)
        assert not c.call(2, CopyStateRequest(partition=P), CopyState).admitted
        k.close()
