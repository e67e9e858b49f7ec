"""What counts as committed on data nodes: whose disks are waited for, and who is asked for.

The rules are `LeaderState`'s (`test_insync`, `test_group_protocols`); here a partition keeps to
them: with its disk, its zone's minimum, its restarts and its streams.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Client, Coordinator, cluster

from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import RezoneError
from rezone.wire.messages import ConfigureNode, WriteResult, ZoneConfig

P = 0
LAZY = NodeSettings(replica_lag_ms_max=60_000, replica_gone_ms_max=60_000, reconnect_ms_max=100)
TWO = ZoneConfig(zone="t", zone_uid="uid-test", partitions=1, min_in_sync_replicas=2)


@contextlib.contextmanager
def begun(
    directory: Path, count: int, settings: NodeSettings = LAZY, config: ZoneConfig | None = None
) -> Iterator[Coordinator]:
    """Yield nodes with a partition that has one row, and is led by node 0."""
    with cluster(directory, count, config=config, settings=settings) as c:
        c.create(P, tuple(range(count)))
        k = Client(c)
        k.put(P, {b"a": b"1"})
        k.close()
        yield c


@contextlib.contextmanager
def writing(c: Coordinator, end: int) -> Iterator[list[WriteResult]]:
    """Write one row that waits, up to this end of the log; it may come to its end afterwards."""
    k, results = Client(c), list[WriteResult]()

    def write() -> None:
        with contextlib.suppress(RezoneError):
            results.append(k.put(P, {b"waits": b"1"}, retry=False))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        c.until("appended", lambda: c.report(0, P).log_end_offset == end)
        yield results
    finally:
        thread.join(20)
        assert not thread.is_alive()
        k.close()


def committed_after_a_look(c: Coordinator) -> int:
    """Return the leader's commit offset when it has just worked out what is committed."""
    c.replica(0).pump()
    return c.report(0, P).committed_offset


@pytest.mark.proves("B-06")
def test_a_row_that_waits_is_committed_only_by_as_many_as_the_zone_asks_for(tmp_path: Path) -> None:
    """It would be acknowledged on one disk: the set may shrink when the row is in the log."""
    with begun(tmp_path, 2, config=TWO) as c:
        c.nodes[1].stop()
        with writing(c, end=2) as results:
            # By a coordinator that has heard of a lower minimum before the node has.
            c.change(P, isr=(0,), eligible=())
            assert committed_after_a_look(c) == 1
            assert not results
            lowered = msgspec.structs.replace(TWO, min_in_sync_replicas=1)
            c.call(0, ConfigureNode(fence=c.fence(), config=lowered, peers=c.peers))
        assert results, "the row that waited is answered"


@pytest.mark.proves("B-06")
def test_the_leader_s_own_disk_counts(tmp_path: Path) -> None:
    """Rows would be acknowledged that are on one disk fewer than the set has members."""
    with begun(tmp_path, 2) as c:
        store = c.replica(0).store
        sync, store.sync = store.sync, lambda: store.durable_end  # type: ignore[method-assign]
        with writing(c, end=2) as results:
            c.until("the other has it", lambda: c.report(0, P).follower_offsets[1] == 2)
            assert committed_after_a_look(c) == 1
            assert not results
            store.sync = sync  # type: ignore[method-assign]
            c.replica(0).pump()
        assert results


@pytest.mark.proves("HS-04", "HS-05")
def test_who_was_proposed_is_waited_for_over_a_restart_until_the_answer(tmp_path: Path) -> None:
    """A late answer would take in a member without the newest rows.

    Or, when the answer is heard and not stored, the leader waits for no member after each restart.
    """
    with begun(tmp_path, 3) as c:
        c.change(P, isr=(0, 1))

        def counted() -> set[int]:
            return c.replica(0).require_leadership().maximal

        def restart() -> None:
            c.nodes[0].stop()
            c.nodes[0].start()
            c.wait_up(0)

        c.until("proposed", lambda: (p := c.report(0, P).proposal) and p.new_isr == (0, 1, 2))
        c.nodes[2].stop()
        restart()
        assert counted() == {0, 1, 2}
        taken_back = c.report(0, P).proposal
        assert taken_back is not None
        assert taken_back.new_isr == (0, 1)
        c.settle()
        assert counted() == {0, 1}
        restart()
        assert counted() == {0, 1}
        assert c.report(0, P).proposal is None
        k = Client(c)
        k.put(P, {b"b": b"1"})
        k.close()


@pytest.mark.proves("B-06")
def test_what_a_follower_acked_before_its_stream_broke_counts_no_more(tmp_path: Path) -> None:
    """It may have lost rows with its disk's cache, and they would be committed without it."""
    with begun(tmp_path, 2) as c:
        replica, counted = c.replica(0), list[tuple[int, float]]()
        opened = replica.takeover.stream_opened

        def noting(stream: object) -> None:
            progress = replica.require_leadership().follower(1)
            counted.append((progress.durable, progress.lease.time))
            opened(stream)  # type: ignore[arg-type]

        replica.takeover.stream_opened = noting  # type: ignore[method-assign]
        assert replica.require_leadership().follower(1).durable == 1
        c.nodes[1].stop()
        c.nodes[1].start()
        c.wait_up(1)
        c.until("it streams", lambda: counted)
        assert counted[0] == (-1, 0)


@pytest.mark.proves("B-06")
def test_a_leader_does_not_ask_for_fewer_than_the_zone_s_minimum_at_once(tmp_path: Path) -> None:
    """A moment's fault of the network would leave acknowledged rows to one disk."""
    settings = msgspec.structs.replace(LAZY, replica_gone_ms_max=0)
    with begun(tmp_path, 3, settings, config=TWO) as c:
        state = c.replica(0).require_leadership()
        for node in (1, 2):
            c.nodes[node].stop()
        c.until("gone", lambda: not any(state.follower(node).streaming for node in (1, 2)))
        c.replica(0).tick(0.0)
        asked = c.report(0, P).proposal
        assert asked is not None
        assert len(asked.new_isr) == 2
