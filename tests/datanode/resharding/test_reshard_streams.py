"""New partitions on real nodes import their sources: every row once, whoever dies meanwhile."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from replica_cluster import Client, Coordinator, ProcessNode, cluster, keys_in
from resharding_kit import (
    SMALL,
    HeldDisk,
    Writing,
    applying_nothing,
    backfill_by_hand,
    backfill_old,
    begin_by_hand,
    create_old,
    digest,
    in_background,
    overlaps_of,
    progress,
    require_equal,
    reshard,
    resharded,
    scan,
    seal,
    stream_to_backfill,
    writing,
    zone,
)

from rezone.datanode.core.reshard_stream import UNCOMMITTED_MAX
from rezone.datanode.resharding.reshard_streams import ReshardStream
from rezone.datanode.state.reshard_targets import Notifier, ReshardTargets
from rezone.storage.log.entry import EntryKind, iter_entries
from rezone.storage.reshard.range_backfill import RangeVersions, range_versions
from rezone.wire import layouts
from rezone.wire.codec.keyspace import hash_key
from rezone.wire.errors import (
    ConflictError,
    NotLeaderError,
    NotReadyError,
    SnapshotExpiredError,
    error_from,
)
from rezone.wire.layouts import Layout
from rezone.wire.messages import (
    BackfillVersions,
    BeginReshard,
    CatchUpRange,
    CatchUps,
    DigestReply,
    DigestRequest,
    ReshardBackfill,
    ReshardBegun,
    ReshardCatchUp,
    ReshardRange,
)


@pytest.mark.proves("B-08")
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_new_partitions_have_what_old_ones_have_while_these_are_written(
    tmp_path: Path, before: int, after: int
) -> None:
    """Rows would be missing or wrong at the cut-over, of one source or of several."""
    with cluster(tmp_path, 3, config=zone(before), settings=SMALL) as c:
        create_old(c)
        backfill_old(c)
        with writing(c) as writer:
            c.until("writes", lambda: writer.written > 20)
            reshard(c, after)
            c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
            written = writer.written
            c.until("more writes", lambda: writer.written > written + 20)
        assert require_equal(c, writer.last_times) == writer.count + 400 * before
        for overlap in overlaps_of(c):
            found = progress(c, overlap)
            assert found.rows > 0
            assert not found.broken
            assert not found.error


@pytest.mark.proves("B-05", "B-08")
def test_leaders_of_both_sides_change_and_nothing_begins_again(tmp_path: Path) -> None:
    """A reshard stream would be lost with its leader, or follow a source that leads no more."""
    with cluster(tmp_path, 3, config=zone(1), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 2_000)
        with writing(c) as writer:
            new = reshard(c, 2)
            first = overlaps_of(c)[0]
            c.until("a backfill has begun", lambda: progress(c, first).rows > 0)
            c.move(new.ids[0], 0)
            begun = progress(c, first).rows
            assert begun > 0, "the backfill was begun again"
            c.move(0, 1)
            c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
            c.move(0, 2)
            c.move(new.ids[0], 2)
        assert require_equal(c, writer.last_times) == writer.count + 2_000


@pytest.mark.long
@pytest.mark.proves("B-05", "B-08")
def test_nodes_that_are_killed_lose_nothing_of_a_reshard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was backfilled or followed would be lost or come twice when a process dies.

    The target's node is killed and then the source's, in the backfill and behind it.
    """
    for name, value in (("CHUNK_BYTES", "2000"), ("POLL_MS", "100"), ("MARK_ROWS", "200")):
        monkeypatch.setenv(f"REZONE_NODE_RESHARD_{name}", value)
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(tmp_path, 3, config=zone(1), processes=True, arguments=arguments) as c:
        create_old(c)
        backfill_old(c, 3_000)
        with writing(c) as writer:
            reshard(c, 2)
            overlap = overlaps_of(c)[0]
            target, source = c.records[overlap.new].leader, c.records[overlap.old].leader
            assert target != source
            c.until("the backfill has begun", lambda: progress(c, overlap).rows > 0)
            assert not progress(c, overlap).backfilled
            kill_all(c, writer, [target, source])
            c.until_each("backfilled", overlaps_of(c), lambda each: resharded(c, each))
            kill_all(c, writer, [target, source])
        c.watch()
        assert require_equal(c, writer.last_times) == writer.count + 3_000


def kill(c: Coordinator, node: int) -> None:
    """Kill a node's process."""
    victim = c.nodes[node]
    assert isinstance(victim, ProcessNode)
    victim.kill()


def kill_all(c: Coordinator, writer: Writing, victims: list[int]) -> None:
    """Kill nodes, start them again, and wait until there are writes again."""
    for node in victims:
        kill(c, node)
        c.nodes[node].start()
        c.wait_up(node)
    written = writer.written
    c.until_settled("writes", lambda: writer.written > written + 5)


@pytest.mark.proves("B-08")
def test_a_failed_target_is_replaced_and_goes_on_from_its_log(tmp_path: Path) -> None:
    """A new partition would have to be made again with each leader that it loses."""
    with cluster(tmp_path, 3, config=zone(1), processes=True) as c:
        create_old(c)
        backfill_old(c)
        with writing(c) as writer:
            reshard(c, 1)
            (overlap,) = overlaps_of(c)
            c.until("pulled", lambda: resharded(c, overlap))
            target, source = c.records[overlap.new].leader, c.records[overlap.old].leader
            other = 3 - target - source
            kill(c, target)
            record = c.records[overlap.new]
            c.change(
                overlap.new,
                leader=other,
                leader_epoch=record.leader_epoch + 1,
                isr=(other, source),
                replicas=record.replicas,
            )
            c.watch()
            c.until("the next leader pulls", lambda: resharded(c, overlap))
            c.nodes[target].start()
        assert require_equal(c, writer.last_times) == writer.count + 400


@pytest.mark.proves("B-08")
def test_what_comes_late_counts_nothing(tmp_path: Path) -> None:
    """An answer to a leader of before would be appended behind what its successor has, or twice."""
    idle = msgspec.structs.replace(SMALL, reshard_threads=0)
    with cluster(tmp_path, 2, config=zone(1), settings=idle) as c:
        create_old(c)
        backfill_old(c, 100)
        (target,) = reshard(c, 1).ids
        leader, source = c.replica(1, target), c.node(0).reshard_source
        stream = stream_to_backfill(c, leader)
        begin = stream.next_backfill(1_000)
        assert isinstance(begin, BeginReshard)
        begun = source.begin(begin)
        stream.begun(begun)
        end = leader.store.log_end
        stream.begun(begun)
        assert leader.store.log_end == end, "begun twice"
        c.until("it is committed", lambda: leader.positions.committed == end)
        backfill = stream.next_backfill(1_000)
        assert isinstance(backfill, ReshardBackfill)
        backfilled = source.backfill(backfill)
        stream.backfilled_with(backfill, backfilled)
        rows = progress(c, stream.overlap).rows
        stream.backfilled_with(backfill, backfilled)
        assert progress(c, stream.overlap).rows == rows > 0, "backfilled twice"
        Client(c).put(0, {b"late": b"1"})
        c.until("it may ask", lambda: stream.next_catch_up() is not None)
        asked = stream.next_catch_up()
        assert asked is not None
        (catch_up,) = source.catch_up(ReshardCatchUp(ranges=(asked,))).catch_ups
        assert len(catch_up.entries) == 1
        c.move(target, 0)
        c.move(target, 1)
        end = leader.store.log_end
        stream.caught_up(asked, catch_up)
        assert leader.store.log_end == end, "appended in another leadership"
        assert leader.reshard_streams.streams()[0] is not stream


@pytest.mark.proves("B-04", "B-08")
def test_a_time_counts_as_reached_when_what_is_older_is_committed(tmp_path: Path) -> None:
    """A range that lacks rows when its leader is lost would have been verified."""
    with cluster(tmp_path, 1, config=zone(1), settings=SMALL) as c:
        create_old(c)
        (target,) = reshard(c, 1).ids
        (overlap,) = overlaps_of(c)
        c.until("pulled", lambda: resharded(c, overlap))
        leader, heard = c.replica(0, target), c.replica(0).reshard_targets
        c.until("applied", lambda: leader.store.applied == leader.store.log_end)
        disk = HeldDisk(leader)
        try:
            written = Client(c).put(0, {b"a": b"1"}).commit_time
            c.until("it has come", lambda: heard.catching_up(99).get(target) == 1)
            told = heard._heard[target].at
            c.until("the source has told later times", lambda: heard._heard[target].at > told)
            assert progress(c, overlap).time < written
        finally:
            disk.let_go()
        assert require_equal(c, {0: written}) == 1


@pytest.mark.proves("B-04", "B-08")
def test_a_digest_waits_for_versions_that_are_older_than_what_is_applied(tmp_path: Path) -> None:
    """A right copy would be found to differ: versions come with times long past."""
    idle = msgspec.structs.replace(SMALL, reshard_threads=0)
    with cluster(tmp_path, 1, config=zone(2), settings=idle) as c:
        create_old(c)
        (target,) = reshard(c, 1).ids
        leader = c.replica(0, target)
        first, second = leader.reshard_streams.streams()
        c.until("it may begin", lambda: first.next_backfill(100) is not None)
        for hash_range in (first, second):
            backfill_by_hand(c, hash_range)
        times = [Client(c).put(p, {keys_in(p, 2, 1)[0]: b"1"}).commit_time for p in (0, 1)]
        assert times[0] < times[1]
        follow_by_hand(c, second)
        c.until("it is applied", lambda: leader.positions.rows_time >= times[1])
        disk = HeldDisk(leader)
        try:
            follow_by_hand(c, first)
            with pytest.raises(NotReadyError):
                digest(c, target, first.overlap, times[0])
        finally:
            disk.let_go()
        there = digest(c, 0, first.overlap, times[0])
        assert digest(c, target, first.overlap, times[0]).digests == there.digests


@pytest.mark.proves("B-04", "B-08")
def test_a_backfill_leaves_out_nothing_that_a_new_leader_has_yet_to_apply(tmp_path: Path) -> None:
    """Rows would be missing: below where the log is followed from, and not in the engine yet."""
    idle = msgspec.structs.replace(SMALL, reshard_threads=0)
    with cluster(tmp_path, 2, config=zone(1), settings=idle) as c:
        create_old(c)
        (target,) = reshard(c, 1).ids
        next_leader = c.replica(1)
        with applying_nothing(next_leader):
            backfill_old(c, 100)
            hash_range = begin_by_hand(c, c.replica(1, target))
            c.until("it has heard of all", lambda: next_leader.positions.committed == 100)
            c.change(0, leader=1, leader_epoch=2)
            request = c.until("it may be backfilled", lambda: hash_range.next_backfill(100_000))
            with pytest.raises(NotReadyError, match="has not applied its log up to 100"):
                c.node(1).reshard_source.backfill(request)
        c.until("it has applied", lambda: next_leader.store.applied == 100)
        backfill_by_hand(c, hash_range, node=1)
        as_of = next_leader.store.applied_time
        there, here = (digest(c, side, hash_range.overlap, as_of) for side in (0, target))
        assert (here.digests, sum(here.rows)) == (there.digests, 100)


@pytest.mark.proves("B-04", "B-08")
def test_a_digest_of_a_range_is_its_leader_s_to_make(tmp_path: Path) -> None:
    """A right copy would be found to differ, and be made again.

    A follower may be read as of times for which it lacks versions: those come with times long past.
    """
    with cluster(tmp_path, 2, config=zone(1), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 50)
        (target,) = reshard(c, 1).ids
        (overlap,) = overlaps_of(c)
        # Of a leader that knows no time yet nothing can be read.
        c.until("pulled", lambda: resharded(c, overlap, since=1))
        leader = c.records[target].leader
        request = DigestRequest(
            partition=target,
            as_of=progress(c, overlap).time,
            hashes=(overlap.start, overlap.end - 1),
        )
        assert sum(c.call(leader, request, DigestReply).rows) == 50
        with pytest.raises(NotLeaderError):
            c.call(1 - leader, request, DigestReply)


@pytest.mark.proves("B-05", "B-08")
def test_a_source_s_log_is_kept_from_where_a_reshard_is_committed(tmp_path: Path) -> None:
    """The next leader of a new partition would ask for what is gone, and begin again."""
    idle = msgspec.structs.replace(SMALL, reshard_threads=0)
    with cluster(tmp_path, 1, config=zone(1), settings=idle) as c:
        create_old(c)
        backfill_old(c, 50)
        (target,) = reshard(c, 1).ids
        leader = c.replica(0, target)
        hash_range = begin_by_hand(c, leader)
        Client(c).put(0, {b"a": b"1"})
        follow_by_hand(c, hash_range)
        c.until("it is applied", lambda: leader.store.applied == leader.store.log_end)
        disk = HeldDisk(leader)
        try:
            Client(c).put(0, {b"b": b"2"})
            follow_by_hand(c, hash_range)
            asked = hash_range.next_catch_up()
            assert asked is not None
            assert (asked.hash_range.keep_from, asked.offset) == (51, 52)
        finally:
            disk.let_go()


def one_to_backfill(c: Coordinator) -> tuple[int, ReshardStream, ReshardBackfill]:
    """Begin a new partition by hand; return it, its range and the first request for rows."""
    create_old(c)
    backfill_old(c, 50)
    (target,) = reshard(c, 1).ids
    stream = begin_by_hand(c, c.replica(0, target))
    request = c.until("it may be asked", functools.partial(stream.next_backfill, 1_000))
    assert isinstance(request, ReshardBackfill)
    return target, stream, request


@pytest.mark.proves("B-08")
def test_rows_that_were_read_in_another_leadership_are_not_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that begins to lead again while it reads a range refuses what it has read.

    Rows that the new leadership undoes would be backfilled.
    """
    idle = msgspec.structs.replace(SMALL, reshard_threads=0)
    with cluster(tmp_path, 1, config=zone(1), settings=idle) as c:
        _target, _hash_range, request = one_to_backfill(c)

        def overtaken(*arguments: Any, **options: Any) -> RangeVersions:
            found = range_versions(*arguments, **options)
            c.change(0, leader_epoch=c.records[0].leader_epoch + 1)
            return found

        monkeypatch.setattr("rezone.datanode.resharding.reshard_source.range_versions", overtaken)
        with pytest.raises(NotReadyError):
            c.node(0).reshard_source.backfill(request)


@pytest.mark.proves("B-08")
def test_rows_that_another_leadership_has_asked_for_are_not_appended(tmp_path: Path) -> None:
    """A new partition that begins to lead again takes no answer to a question of before.

    It would append rows under an epoch that is over.
    """
    idle = msgspec.structs.replace(SMALL, reshard_threads=0)
    with cluster(tmp_path, 1, config=zone(1), settings=idle) as c:
        target, hash_range, request = one_to_backfill(c)
        reply = c.node(0).reshard_source.backfill(request)
        c.change(target, leader_epoch=c.records[target].leader_epoch + 1)
        leader = c.replica(0, target)
        before = leader.store.log_end
        hash_range.backfilled_with(request, reply)
        assert leader.store.log_end == before


def follow_by_hand(c: Coordinator, stream: ReshardStream) -> None:
    """Append what a source has committed since."""
    asked = c.until("it may be asked", stream.next_catch_up)
    (catch_up,) = c.node(0).reshard_source.catch_up(ReshardCatchUp(ranges=(asked,))).catch_ups
    assert catch_up.entries
    stream.caught_up(asked, catch_up)


# --- the source's answers ------------------------------------------------------------------------


def whole(source: int = 0, **changes: object) -> ReshardRange:
    """Return a range that is the whole range."""
    values = {"source": source, "target": 16384, "first_hash": 0, "last_hash": (1 << 64) - 1}
    return ReshardRange(**(values | changes))  # type: ignore[arg-type]


def begun_behind_one_row(c: Coordinator) -> tuple[Client, CatchUpRange]:
    """Write a row to the old partition and begin to pull it; return from where it goes on."""
    create_old(c)
    client = Client(c)
    client.put(0, {b"a": b"1"})
    begun: ReshardBegun = c.call(0, BeginReshard(hash_range=whole()), ReshardBegun)
    position = begun.position
    return client, CatchUpRange(whole(), position.offset, position.partition_uuid)


def catch_up_of(
    c: Coordinator, node: int, caught_up: CatchUpRange, timeout_ms: int = 0
) -> CatchUps:
    """Follow one range."""
    request = ReshardCatchUp(ranges=(caught_up,), timeout_ms=timeout_ms)
    reply: CatchUps = c.call(node, request, CatchUps)
    return reply


@pytest.mark.proves("B-08")
def test_only_a_leader_answers_and_only_what_is_committed(tmp_path: Path) -> None:
    """A row that is given up by a failover would live on at the new partition."""
    with cluster(tmp_path, 3, config=zone(1, min_in_sync_replicas=2)) as c:
        client, at = begun_behind_one_row(c)
        assert at.offset == 1
        for request, reply in (
            (BeginReshard(hash_range=whole()), ReshardBegun),
            (ReshardBackfill(hash_range=whole()), BackfillVersions),
        ):
            with pytest.raises(NotLeaderError) as refused:
                c.call(1, request, reply)
            assert refused.value.details["leader"] == 0
        (refusal,) = catch_up_of(c, 1, at).catch_ups
        assert refusal.error is not None
        assert refusal.error.code == "NotLeader"
        # Its followers take nothing more: what is written is not committed.
        for node in (1, 2):
            c.nodes[node].stop()
        writer = threading.Thread(
            target=lambda: client.put(0, {b"b": b"2"}, retry=False), daemon=True
        )
        source = c.replica(0)
        threads = [writer]
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(threading, "excepthook", lambda _: None)
                writer.start()
                c.until("the row is in the log", lambda: source.store.log_end == 2)
                (catch_up,) = catch_up_of(c, 0, at).catch_ups
                assert (catch_up.entries, catch_up.error, catch_up.committed) == ((), None, 1)
                for node in (1, 2):
                    c.nodes[node].start()
                    c.wait_up(node)
                writer.join(20)
        finally:
            assert not any(thread.is_alive() for thread in threads)
        (catch_up,) = catch_up_of(c, 0, at, timeout_ms=5_000).catch_ups
        assert [entry.end_offset for entry in catch_up.entries] == [2]


def test_another_history_or_a_trimmed_log_is_told_from_one_that_is_not_known_yet(
    tmp_path: Path,
) -> None:
    """A new partition would be made again for nothing, or mix two histories."""
    with cluster(tmp_path, 1, config=zone(1)) as c:
        create_old(c)
        client = Client(c)
        client.put(0, {b"a": b"1", b"b": b"1"})
        for offset, branch in ((2, "another"), (7, "another")):
            (catch_up,) = catch_up_of(c, 0, CatchUpRange(whole(), offset, branch)).catch_ups
            assert catch_up.error is not None
            assert isinstance(error_from(catch_up.error), ConflictError)
        (catch_up,) = catch_up_of(c, 0, CatchUpRange(whole(leader_epoch=9), 2, "another")).catch_ups
        assert catch_up.error is not None
        assert isinstance(error_from(catch_up.error), NotReadyError), "it may be a leader of before"
        source = c.replica(0)
        at = CatchUpRange(whole(), 0, "")
        assert catch_up_of(c, 0, at).catch_ups[0].entries
        with source.lock:
            source.store._log.restart(2, source.store.last_commit_time, 1)
        (catch_up,) = catch_up_of(c, 0, at).catch_ups
        assert catch_up.error is not None
        assert isinstance(error_from(catch_up.error), SnapshotExpiredError)


def test_what_has_come_waits_for_more_but_no_seal_does(tmp_path: Path) -> None:
    """Each write would be a sync at each new replica, or the cut-over's gap be as long as that."""
    with cluster(tmp_path, 1, config=zone(1)) as c:
        client, at = begun_behind_one_row(c)
        request = ReshardCatchUp(ranges=(at,), timeout_ms=4_900, linger_ms=4_900)
        source = c.replica(0)
        waiting, answers = in_background(lambda: c.call(0, request, CatchUps))
        c.until("it waits", lambda: source.reshard_targets.waiting == 1)
        for value in (b"2", b"3"):
            client.put(0, {b"b": value})
        assert waiting.is_alive()
        seal(c, 0)
        waiting.join(4)
        assert not waiting.is_alive()
        (reply,) = answers
        assert isinstance(reply, CatchUps)
        assert [entry.kind for entry in reply.catch_ups[0].entries] == [0, 0, EntryKind.SEAL]


def test_much_that_has_come_waits_for_nothing(tmp_path: Path) -> None:
    """Pullers of a busy source would be so far behind that its writers are slowed."""
    few = msgspec.structs.replace(SMALL, takeover_rows_max=10)
    with cluster(tmp_path, 1, config=zone(1), settings=few) as c:
        client, at = begun_behind_one_row(c)
        request = ReshardCatchUp(ranges=(at,), timeout_ms=4_900, linger_ms=4_900)
        waiting, answers = in_background(lambda: c.call(0, request, CatchUps))
        c.until("it waits", lambda: c.replica(0).reshard_targets.waiting == 1)
        client.put(0, {b"b": b"1"})
        client.put(0, {b"%d" % number: b"1" for number in range(6)})
        waiting.join(4)
        assert not waiting.is_alive()
        (reply,) = answers
        assert isinstance(reply, CatchUps)
        assert reply.catch_ups[0].committed == 8


def test_who_coalesces_wakes_for_nothing_but_what_is_urgent() -> None:
    """Each commit would have the log read once more by each target; or a seal would wait."""
    notifier = Notifier()
    notifier.notify(urgent=False)
    assert notifier.wait(0)
    assert not notifier.coalesce(0), "it knows of that already"
    notifier.notify(urgent=False)
    assert not notifier.coalesce(0)
    notifier.notify(urgent=True)
    assert notifier.coalesce(0), "notified before it waits"
    notifier.clear()
    assert not notifier.coalesce(0)
    notifier.notify(urgent=False)
    assert not notifier.wait(0)


def test_who_waits_for_a_source_s_log_hears_of_a_commit_at_once(tmp_path: Path) -> None:
    """The cut-over's gap would be as long as an target waits."""
    with cluster(tmp_path, 1, config=zone(1)) as c:
        client, at = begun_behind_one_row(c)
        source = c.replica(0)
        waiting, answers = in_background(lambda: catch_up_of(c, 0, at, timeout_ms=4_900))
        c.until("it waits", lambda: source.reshard_targets.waiting == 1)
        client.put(0, {b"b": b"2"})
        waiting.join(4)
        assert not waiting.is_alive()
        (reply,) = answers
        assert isinstance(reply, CatchUps)
        assert reply.catch_ups[0].entries
        assert source.reshard_targets.waiting == 0


# --- cutting over --------------------------------------------------------------------------------


@pytest.mark.proves("B-08")
def test_new_partitions_serve_what_was_written_until_the_seal_and_go_on_from_there(
    tmp_path: Path,
) -> None:
    """An acknowledged row would be missing after the cut-over, or one that was deleted be back."""
    with cluster(tmp_path, 3, config=zone(3), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 200)
        with writing(c) as writer:
            new = reshard(c, 2)
            c.until_each("pulled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        for partition in layouts.layout_of(c.config).ids:
            seal(c, partition)
        c.until_each("sealed", overlaps_of(c), lambda overlap: progress(c, overlap).sealed)
        expected = {key: value for rows in writer.rows.values() for key, value in rows.items()}
        found: dict[bytes, bytes] = {}
        for index, partition in enumerate(new.ids):
            client, keys = Client(c), keys_in_part(expected, new, partition)
            found.update(client.get(partition, keys))
            assert len(scan(c, c.records[partition].leader, partition)) >= len(keys)
            client.put(partition, {keys_in(index, 2, 1)[0]: b"new"})
        assert found == expected
        rows = sum(len(scan(c, c.records[p].leader, p)) for p in new.ids)
        fresh = {keys_in(index, 2, 1)[0] for index in range(2)} - set(expected)
        assert rows == writer.count + 3 * 200 + len(fresh)


def keys_in_part(rows: dict[bytes, bytes], layout: Layout, partition: int) -> list[bytes]:
    """Return the keys that are of a partition."""
    return [key for key in rows if layout.partition_of(hash_key(key)) == partition]


@pytest.mark.proves("B-08")
def test_a_range_that_is_sealed_before_it_is_backfilled_is_not_served(tmp_path: Path) -> None:
    """Rows that were there before would be missing until their backfill comes."""
    slow = msgspec.structs.replace(SMALL, reshard_chunk_bytes=400)
    config = zone(1, copy_bytes_per_second_max=20_000)
    with cluster(tmp_path, 3, config=config, settings=slow) as c:
        create_old(c)
        backfill_old(c, 600)
        (target,) = reshard(c, 1).ids
        (overlap,) = overlaps_of(c)
        c.until("it has begun", lambda: progress(c, overlap).rows > 0)
        seal(c, 0)
        leader = c.replica(c.records[target].leader, target)

        def seal_has_come() -> bool:
            position = leader.store.reshard_position(0)
            return position is not None and position.sealed_at > 0

        c.until("the seal has come", seal_has_come)
        assert (progress(c, overlap).begun, progress(c, overlap).sealed) == (True, False)
        with pytest.raises(NotReadyError):
            Client(c).put(target, {b"k": b"v"}, retry=False)
        c.config = msgspec.structs.replace(c.config, copy_bytes_per_second_max=0)
        c.configure()
        c.until("it is backfilled", lambda: progress(c, overlap).sealed)
        assert len(scan(c, leader.node_id, target)) == 600


# --- limits --------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.proves("B-03", "B-08")
def test_any_number_of_reshards_takes_a_few_threads_and_all_get_their_turns(tmp_path: Path) -> None:
    """A node with many new partitions would run out of threads, or backfill some and not others."""
    with cluster(tmp_path, 2, config=zone(4), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 100)
        reshard(c, 40)
        most = 0

        def all_resharded() -> bool:
            nonlocal most
            most = max(most, len([t for t in threading.enumerate() if "reshard" in t.name]))
            return all(resharded(c, overlap) for overlap in overlaps_of(c))

        c.until("all are pulled", all_resharded, seconds=60)
        assert 0 < most <= 2 * (1 + 2), "one thread looks, and one follows each node"
        assert require_equal(c, {}) == 400


@pytest.mark.proves("B-16")
def test_a_source_keeps_its_log_for_a_target_and_forgets_one_that_is_gone(
    tmp_path: Path,
) -> None:
    """The log would be trimmed away from a target, or be kept for ever for one that is gone."""
    clock = FastClock()
    source = ReshardTargets(clock, kept_seconds=60)
    source.heard(16384, 100)
    source.heard(16385, 200, read_to=250)
    assert sorted(source.claims()) == [100, 200]
    assert source.catching_up(3) == {16385: 250}
    clock.now = 50
    source.heard(16384, 150, read_to=170)
    assert source.catching_up(3) == {16384: 170}
    source.heard(16384, 160)
    assert source.catching_up(3) == {16384: 170}, "a request for rows says nothing of the log"
    clock.now = 70
    assert source.claims() == [160]
    with cluster(tmp_path, 1, config=zone(1), settings=SMALL) as c:
        create_old(c)
        Client(c).put(0, {b"a": b"1"})
        c.call(0, BeginReshard(hash_range=whole()), ReshardBegun)
        catch_up_of(c, 0, CatchUpRange(whole(keep_from=0), 0, ""))
        partition = c.replica(0)
        with partition.lock:
            assert partition.upkeep._log_needed_from() == 0
            state = partition.leadership
            assert state is not None
            assert partition.pacer._those_catching_up(state) == {-16385: 0}


class FastClock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


@pytest.mark.proves("B-08")
def test_where_a_source_writes_elsewhere_its_log_is_let_go_all_the_same(tmp_path: Path) -> None:
    """A quiet half of a range would hold all of the log that the other half has backfilled."""
    with cluster(tmp_path, 1, config=zone(1), settings=SMALL) as c:
        create_old(c)
        _, high = reshard(c, 2).ids
        low_range, high_range = overlaps_of(c)
        c.until_each("pulled", (low_range, high_range), lambda overlap: resharded(c, overlap))
        client, keys = Client(c), keys_in(0, 2, 50)
        for turn in range(10):
            last = client.put(0, dict.fromkeys(keys, b"%d" % turn))
        c.until("it is far on", lambda: position_at(c, high, 0) >= last.end_offset - 250)
        c.until_each(
            "pulled",
            (low_range, high_range),
            lambda overlap: resharded(c, overlap, last.commit_time),
        )
        assert c.replica(0, high).store.log_end < 20, "a note for each entry that it has no rows of"
        partition = c.replica(0)
        claims = partition.reshard_targets.claims
        c.until("the log may go", lambda: min(claims()) >= last.end_offset - 250)
        assert require_equal(c, {0: last.commit_time}) == 50


def position_at(c: Coordinator, target: int, source: int) -> int:
    """Return up to which offset of a source a target has pulled it."""
    position = c.replica(c.records[target].leader, target).store.reshard_position(source)
    return position.offset if position is not None else -1


@pytest.mark.proves("B-08")
def test_reshards_that_are_not_committed_wait_and_go_on(tmp_path: Path) -> None:
    """A follower that hangs would have the new leader's log grow by all that its sources have."""
    with cluster(tmp_path, 1, config=zone(1), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 1_000)
        (target,) = reshard(c, 1).ids
        (overlap,) = overlaps_of(c)
        c.until("the backfill has begun", lambda: progress(c, overlap).rows > 0)
        leader = c.replica(0, target)
        disk = HeldDisk(leader)
        (reshard_streams,) = leader.reshard_streams.streams()

        def uncommitted() -> int:
            raw = leader.store.read(leader.positions.committed, 1 << 20)
            return len(list(iter_entries(raw)))

        def waits() -> bool:
            full = disk.holds and uncommitted() >= UNCOMMITTED_MAX
            return full and reshard_streams.next_backfill(1) is None

        try:
            c.until("it waits", waits)
            assert not progress(c, overlap).backfilled
            rows = progress(c, overlap).rows
            assert uncommitted() <= 2 * UNCOMMITTED_MAX
            assert progress(c, overlap).rows == rows, "it went on"
        finally:
            disk.let_go()
        assert require_equal(c, {}) == 1_000


@pytest.mark.proves("B-08")
def test_reshards_end_when_there_is_no_next_layout_any_more(tmp_path: Path) -> None:
    """After a cancel nodes would go on to read what nobody will serve."""
    with cluster(tmp_path, 1, config=zone(1), settings=SMALL) as c:
        create_old(c)
        backfill_old(c, 50)
        (target,) = reshard(c, 1).ids
        (overlap,) = overlaps_of(c)
        c.until("pulled", lambda: resharded(c, overlap))
        c.config = msgspec.structs.replace(c.config, next_partitions=0)
        c.configure()
        assert c.report(0, target).reshard_progress == ()

        def following() -> list[str]:
            return [
                t.name for t in threading.enumerate() if t.name.startswith("reshard streams from")
            ]

        c.until("nobody follows", lambda: not following())
        end = c.replica(0, target).store.log_end
        Client(c).put(0, {b"after": b"1"})
        assert c.replica(0, target).store.log_end == end
        c.config = msgspec.structs.replace(c.config, next_partitions=1)
        c.configure()
        c.until("it goes on", lambda: c.replica(0, target).store.log_end > end)
