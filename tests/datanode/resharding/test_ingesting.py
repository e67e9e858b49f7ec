"""A job brings the rows of a re-sharding past the log, to real nodes: each once, whoever dies."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import Coordinator, LocalNode, cluster
from resharding_kit import (
    SMALL,
    backfill_old,
    create_old,
    leave_backfills_to_a_job,
    overlaps_of,
    progress,
    require_equal,
    reshard,
    resharded,
    writing,
    zone,
)
from test_reshard_streams import kill

from rezone.datanode.resharding import ingesting, reshard_streams
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.transfer.copying import backfill
from rezone.transfer.copying.backfill import RangeBackfill, RangeReceipt
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    LimitExceededError,
    NotReadyError,
    RezoneError,
    StaleEpochError,
    UnknownPartitionError,
)
from rezone.wire.layouts import Overlap
from rezone.wire.messages import (
    BackfillClaim,
    BackfillVersions,
    ClaimBackfill,
    CommitIngested,
    IngestVersions,
    ReshardBackfill,
)

SLOW = msgspec.structs.replace(SMALL, reshard_chunk_bytes=200)
"""Nodes that backfill hardly anything by themselves."""


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have chunks and units of some rows, so that there are many."""
    monkeypatch.setattr(backfill, "CHUNK_BYTES", 3_000)
    monkeypatch.setattr(backfill, "UNIT_BYTES", 9_000)
    monkeypatch.setattr(backfill, "PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(backfill, "PAUSE_SECONDS_MAX", 0.4)


class Job:
    """The tasks of a job, one thread for each range, as executors of Spark have them."""

    def __init__(self, c: Coordinator, *ranges: Overlap) -> None:
        self._c = c
        self.receipts: list[RangeReceipt] = []
        self.errors: list[RezoneError] = []
        self._threads = [
            threading.Thread(target=self._run, args=(overlap,), daemon=True)
            for overlap in ranges or overlaps_of(c)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, overlap: Overlap) -> None:
        task = RangeBackfill(
            BackfillRange(overlap.new, overlap.old), self._c.peers, patience_seconds=120.0
        )
        try:
            self.receipts.append(task.run())
        except RezoneError as error:
            self.errors.append(error)

    def join(self) -> int:
        """Wait for all; return the rows that they have brought."""
        for thread in self._threads:
            thread.join(240)
            assert not thread.is_alive()
        assert not self.errors
        return backfill.totals(self.receipts)[0]


@pytest.mark.proves("B-08", "SP-01")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_a_job_brings_what_old_partitions_have_while_these_are_written(
    tmp_path: Path, before: int, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows would be missing or wrong at the cut-over, at the leader or at a follower."""
    leave_backfills_to_a_job(monkeypatch)
    with cluster(tmp_path, 3, config=zone(before), settings=SLOW) as c:
        create_old(c)
        backfill_old(c)
        with writing(c) as writer:
            c.until("writes", lambda: writer.written > 20)
            reshard(c, after)
            c.watch()
            brought = Job(c).join()
            c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        assert brought > 100 * before
        require_equal_everywhere(c, writer.last_times, writer.count + 400 * before)


def require_equal_everywhere(c: Coordinator, last_times: dict[int, int], rows: int) -> None:
    """Compare all ranges with their sources, each replica of the new partitions leading once."""
    for _ in c.nodes:
        assert require_equal(c, last_times) == rows
        for target in {overlap.new for overlap in overlaps_of(c)}:
            c.move(target, (c.records[target].leader + 1) % len(c.nodes))


@pytest.mark.proves("B-05", "B-08", "SP-01")
@pytest.mark.parametrize("victim", ["target", "follower", "source"])
def test_nodes_that_are_killed_lose_nothing_that_a_job_brings(
    tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that only memory had would count as there when a process dies by kill -9."""
    for name, value in (("CHUNK_BYTES", "600"), ("POLL_MS", "100"), ("MARK_ROWS", "200")):
        monkeypatch.setenv(f"REZONE_NODE_RESHARD_{name}", value)
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(tmp_path, 3, config=zone(1), processes=True, arguments=arguments) as c:
        create_old(c)
        backfill_old(c, 3_000)
        with writing(c) as writer:
            reshard(c, 2)
            c.watch()
            overlap = overlaps_of(c)[0]
            target, source = c.records[overlap.new].leader, c.records[overlap.old].leader
            third = 3 - target - source
            node = {"target": target, "source": source, "follower": third}[victim]
            job = Job(c)
            c.until("the backfill has begun", lambda: progress(c, overlap).rows > 300)
            assert not progress(c, overlap).backfilled
            kill(c, node)
            c.nodes[node].start()
            c.wait_up(node)
            job.join()
            c.until_each("backfilled", overlaps_of(c), lambda each: resharded(c, each))
        require_equal_everywhere(c, writer.last_times, writer.count + 3_000)


@pytest.mark.proves("B-05", "SP-01")
def test_leaders_of_both_sides_change_and_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would bring rows to who leads no more, or count what the next leader lacks."""
    leave_backfills_to_a_job(monkeypatch)
    with cluster(tmp_path, 3, config=zone(1), settings=SLOW) as c:
        create_old(c)
        backfill_old(c, 2_000)
        with writing(c) as writer:
            new = reshard(c, 2)
            c.watch()
            job = Job(c)
            first = overlaps_of(c)[0]
            c.until("a backfill has begun", lambda: progress(c, first).rows > 100)
            c.move(new.ids[0], 0)
            c.move(0, 1)
            assert job.join() > 1_000
            c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        require_equal_everywhere(c, writer.last_times, writer.count + 2_000)


@pytest.mark.proves("SP-01")
def test_a_leader_goes_on_by_itself_when_the_job_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A re-sharding would wait for ever for a job that has died."""
    monkeypatch.setattr(reshard_streams, "CLAIM_SECONDS", 0.5)
    with claimed(tmp_path, SMALL) as (c, claim):
        (overlap,) = overlaps_of(c)
        rows = progress(c, overlap).rows
        assert not claim.backfilled
        c.until("it is backfilled", lambda: resharded(c, overlap))
        assert progress(c, overlap).rows > rows
        again = c.call(c.records[overlap.new].leader, asked(overlap), BackfillClaim)
        assert again.backfilled


@pytest.mark.proves("SP-01")
def test_a_follower_that_the_rows_did_not_reach_needs_a_copy(tmp_path: Path) -> None:
    """It would stay in sync without rows that no log has, and lose them when it leads."""
    with claimed(tmp_path) as (c, claim):
        (overlap,) = overlaps_of(c)
        request = next_rows(c, claim)
        leader = c.records[overlap.new].leader
        c.call(leader, request)
        c.call(leader, counting(request))
        follower = 1 - leader
        c.until("it needs a copy", lambda: c.report(follower, overlap.new).needs_snapshot)


def asked(overlap: Overlap) -> ClaimBackfill:
    """Return the request for what is next of a range."""
    return ClaimBackfill(target=overlap.new, source=overlap.old)


class _Claimed:
    """A zone of two nodes whose one range is claimed by nobody that goes on."""

    def __init__(self, path: Path, settings: object) -> None:
        self._cluster = cluster(path, 2, config=zone(1), settings=settings)  # type: ignore[arg-type]

    def __enter__(self) -> tuple[Coordinator, BackfillClaim]:
        c = self._cluster.__enter__()
        create_old(c)
        backfill_old(c, 300)
        reshard(c, 1)
        c.watch()
        (overlap,) = overlaps_of(c)

        def claim() -> BackfillClaim | None:
            try:
                found: BackfillClaim = c.call(
                    c.records[overlap.new].leader, asked(overlap), BackfillClaim
                )
            except NotReadyError:
                return None
            return found

        return c, c.until("it may be claimed", claim)

    def __exit__(self, *error: object) -> None:
        self._cluster.__exit__(*error)  # type: ignore[arg-type]


def claimed(path: Path, settings: object = SLOW) -> _Claimed:
    """Return a zone that is re-sharded, and what is next of its one range."""
    return _Claimed(path, settings)


def next_rows(c: Coordinator, claim: BackfillClaim) -> IngestVersions:
    """Return the next rows as every replica is sent them."""
    request = ReshardBackfill(
        hash_range=claim.hash_range, after=claim.after, bytes_max=3_000, applied=claim.applied
    )
    came = c.call(c.records[claim.hash_range.source].leader, request, BackfillVersions)
    return IngestVersions(
        target=claim.hash_range.target,
        source=claim.hash_range.source,
        begun=claim.begun,
        leader_epoch=claim.leader_epoch,
        after=claim.after,
        reached=came.reached,
        end=came.end,
        versions=came.versions,
        durable=True,
    )


def counting(request: IngestVersions) -> CommitIngested:
    """Return what the leader is asked when all have the rows."""
    return CommitIngested(
        target=request.target,
        source=request.source,
        begun=request.begun,
        leader_epoch=request.leader_epoch,
        reached=request.reached,
        end=request.end,
    )


def hostile(good: IngestVersions) -> Iterator[tuple[type[RezoneError], IngestVersions]]:
    """Yield requests that must change nothing, each with what answers it."""
    change = functools.partial(msgspec.structs.replace, good)
    begun = msgspec.structs.replace(good.begun, offset=good.begun.offset + 1)
    batch = pa.ipc.read_record_batch(pa.py_buffer(good.versions), VERSIONS_SCHEMA)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    packed = batch.serialize()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, VERSIONS_SCHEMA, options=options) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    compressed = reader.read_next_message().serialize().to_pybytes()
    turned = batch.take(pa.array(range(batch.num_rows - 1, -1, -1))).serialize().to_pybytes()
    yield UnknownPartitionError, change(target=77)
    yield ConflictError, change(source=9)
    yield StaleEpochError, change(leader_epoch=good.leader_epoch - 1)
    yield StaleEpochError, change(leader_epoch=good.leader_epoch + 1)
    yield ConflictError, change(begun=begun)
    yield (
        NotReadyError,
        change(after=good.reached, versions=batch.slice(0, 0).serialize().to_pybytes()),
    )
    yield InvalidRowError, change(after=good.reached)
    yield InvalidRowError, change(versions=b"")
    yield InvalidRowError, change(versions=b"\xff" * 1_000)
    yield InvalidRowError, change(versions=packed.to_pybytes()[:-100])
    yield InvalidRowError, change(versions=compressed)
    yield InvalidRowError, change(versions=turned)
    yield LimitExceededError, change(versions=bytes(ingesting.INGEST_BYTES_MAX + 1))


@pytest.mark.proves("SP-01")
def test_what_is_no_range_of_a_reshard_is_refused(tmp_path: Path) -> None:
    """A job of before, or anybody's bytes, would change rows or end the node."""
    with claimed(tmp_path) as (c, claim):
        good = next_rows(c, claim)
        leader = c.records[good.target].leader
        ingest = c.replica(leader, good.target).store.range_ingest
        for error, request in hostile(good):
            with pytest.raises(error):
                c.call(leader, request)
        standing = ingest.standing(good.source)
        assert standing is not None
        assert standing.reached < good.reached, "rows were taken"
        with pytest.raises(ConflictError):
            c.call(leader, counting(good))
        in_memory = msgspec.structs.replace(good, durable=False)
        c.until("it has applied", functools.partial(c.call, leader, in_memory))
        with pytest.raises(ConflictError, match="not all rows"):
            c.call(leader, counting(good))
        for node in (0, 1):
            c.until("it has applied", functools.partial(c.call, node, good))
            c.call(node, good)
        rows = progress(c, overlaps_of(c)[0]).rows
        c.call(leader, counting(good))
        c.call(leader, counting(good))
        assert progress(c, overlaps_of(c)[0]).rows == rows
        assert isinstance(c.nodes[leader], LocalNode)
        c.until("in sync", lambda: not c.report(1 - leader, good.target).needs_snapshot)
