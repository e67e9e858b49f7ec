"""Producers on real data nodes: what was acknowledged is there, and who is fenced stays fenced."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from replica_cluster import Client, Coordinator, cluster, keys_in
from resharding_kit import SMALL, overlaps_of, progress, reshard, resharded, seal, zone

from rezone.client import ClientSettings, TableClient
from rezone.datanode.writing.write import ENTRY_OVERHEAD_BYTES
from rezone.storage.snapshot.checkpoints import CheckpointLimits
from rezone.storage.store_config import StoreConfig
from rezone.wire.codec.producers import home_hash, producer_id_of
from rezone.wire.errors import (
    ConflictError,
    InvalidRowError,
    LimitExceededError,
    ProducerFencedError,
    RezoneError,
    SequenceReusedError,
)
from rezone.wire.layouts import Layout
from rezone.wire.messages import Ack, ConfigureNode, PullSnapshot

pytestmark = pytest.mark.proves("PW-01")

P = 0
NAME = "loader"
PRODUCER = producer_id_of("uid-test", NAME)
FORMS = {
    "rows": StoreConfig(checkpoints=CheckpointLimits(bytes_min=1 << 62)),
    "files": StoreConfig(checkpoints=CheckpointLimits(bytes_min=0)),
}


def row(key: bytes, value: bytes) -> list[dict[str, bytes]]:
    """Return one row of the default table."""
    return [{"key": key, "value": value}]


@contextmanager
def clients(c: Coordinator, *names: str | None) -> Iterator[list[TableClient]]:
    """Open clients, one under each name."""
    made = [TableClient(list(c.peers.values()), producer=name) for name in names]
    try:
        yield made
    finally:
        for client in made:
            client.close()


def values(client: TableClient, *keys: bytes) -> dict[bytes, bytes]:
    """Read rows."""
    found = client.read([{"key": key} for key in keys]).to_pylist()
    return {one["key"]: one["value"] for one in found}


def require_fenced(client: TableClient, key: bytes = b"zombie") -> None:
    """Write by a client that must not."""
    with pytest.raises(ProducerFencedError, match="opened again"):
        client.write(row(key, b"late"))


def test_two_clients_of_one_name_both_keep_what_was_acknowledged(tmp_path: Path) -> None:
    """Each acknowledged row of two clients of one name is there, and the first one is fenced.

    The second one's write was acknowledged with the first one's offset, and its row was not there.
    """
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        with clients(c, NAME, NAME) as (first, second):
            (a,) = first.write(row(b"a", b"1"))
            (b,) = second.write(row(b"b", b"2"))
            assert b.end_offset > a.end_offset
            assert values(second, b"a", b"b") == {b"a": b"1", b"b": b"2"}
            require_fenced(first)
            (again,) = second.write(row(b"b", b"3"))
            assert again.end_offset > b.end_offset
            assert values(second, b"b", b"zombie") == {b"b": b"3"}
            assert second.open_producer().producer_epoch == 2
            with pytest.raises(ProducerFencedError):
                first.open_producer()


def test_a_client_without_a_name_fences_nobody(tmp_path: Path) -> None:
    """Clients without a name have ids of their own, epoch 0, and ask nobody for it.

    They would stop each other, or wait for an answer before their first write.
    """
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        with clients(c, None, None) as (first, second):
            ends = [
                client.write(row(b"%d" % n, b"v"))[0].end_offset
                for n in range(3)
                for client in (first, second)
            ]
            assert ends == [1, 2, 3, 4, 5, 6], "an entry for each write and for nothing else"
            opened = {first.open_producer(), second.open_producer()}
            assert len(opened) == 2
            assert {one.producer_epoch for one in opened} == {0}


def test_the_same_number_with_other_rows_is_refused(tmp_path: Path) -> None:
    """A true repeat gets its first answer; other rows, or a delete of them, are refused.

    Another batch would be acknowledged that is nowhere.
    """
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        one, other = Client(c), Client(c)
        other.producer_id = one.producer_id
        first = one.send(P, 1, {b"a": b"1"})
        again = other.send(P, 1, {b"a": b"1"})
        assert (again.end_offset, again.commit_time) == (first.end_offset, first.commit_time)
        for rows, delete in (({b"a": b"2"}, False), ({b"b": b"1"}, False), ({b"a": b""}, True)):
            with pytest.raises(SequenceReusedError) as said:
                other.send(P, 1, rows, delete=delete)
            assert said.value.details == {"sequence": 1}
        one.send(P, 2, {b"a": b""}, delete=True)
        with pytest.raises(SequenceReusedError):
            other.send(P, 2, {b"a": b""})
        with pytest.raises(ConflictError, match="behind 2"):
            other.send(P, 1, {b"a": b"1"})
        assert one.get(P, [b"a", b"b"]) == {}


def test_a_number_used_by_another_process_ends_the_client(tmp_path: Path) -> None:
    """A client whose id and epoch somebody else has too says so and writes no more.

    It would go on, and some of its batches be taken for those of the other one.
    """
    with cluster(tmp_path, 1) as c:
        c.create(P, (0,))
        with clients(c, NAME) as (client,):
            opened = client.open_producer()
            copied = Client(c, opened.producer_id, opened.producer_epoch)
            copied.put(P, {b"a": b"1"})
            with pytest.raises(SequenceReusedError):
                client.write(row(b"b", b"2"))
            with pytest.raises(SequenceReusedError):
                client.write(row(b"b", b"2"))
            assert values(client, b"a", b"b") == {b"a": b"1"}


@pytest.mark.parametrize("how", ["transfer", "failover", "restart"])
def test_fences_and_repeats_outlive_leaders(tmp_path: Path, how: str) -> None:
    """The next leader, or the same one restarted, fences and knows repeats as the one before.

    A client that was paused meanwhile would overwrite what its successor has written.
    """
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        old, new = Client(c, PRODUCER), Client(c, PRODUCER)
        assert [old.open(P), new.open(P)] == [1, 2]
        written = new.put(P, {b"a": b"1"})
        change_leader(c, how)
        again = new.send(P, 1, {b"a": b"1"})
        assert (again.end_offset, again.commit_time) == (written.end_offset, written.commit_time)
        with pytest.raises(SequenceReusedError):
            new.send(P, 1, {b"a": b"2"})
        with pytest.raises(ProducerFencedError) as said:
            old.put(P, {b"a": b"0"})
        assert said.value.details == {"producer_epoch": 2}
        assert new.put(P, {b"b": b"2"}).end_offset > written.end_offset
        assert old.open(P) == 3
        with pytest.raises(ProducerFencedError):
            new.put(P, {b"b": b"3"})


@pytest.mark.proves("PW-01")
@pytest.mark.parametrize("how", ["transfer", "failover", "restart"])
def test_a_late_copy_of_an_opening_opens_nothing(tmp_path: Path, how: str) -> None:
    """A repeat of an opening gets the same epoch, and none once the client writes or is superseded.

    A request that the network delivers twice would fence the very client that has sent it.
    """
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        client, other = Client(c, PRODUCER), Client(c, PRODUCER)
        first, second = (str(uuid.uuid4()) for _ in range(2))
        assert client.ask_epoch(P, first, 0) == 1
        change_leader(c, how)
        assert client.ask_epoch(P, first, 0) == 1
        client.producer_epoch = 1
        client.put(P, {b"a": b"1"})
        with pytest.raises(ProducerFencedError) as said:
            client.ask_epoch(P, first, 0)
        assert said.value.details == {"producer_epoch": 1}
        client.put(P, {b"a": b"2"})
        assert other.ask_epoch(P, second, 1) == 2
        for known in (0, 1):
            with pytest.raises(ProducerFencedError):
                client.ask_epoch(P, first, known)
        other.producer_epoch = 2
        other.put(P, {b"a": b"3"})


@pytest.mark.proves("PW-01")
@pytest.mark.parametrize("rolled_back", [False, True])
def test_only_a_committed_epoch_fences(tmp_path: Path, rolled_back: bool) -> None:
    """Who is refused for an epoch waits until that is committed.

    A client was told of one that was rolled back, and opened its name above it. Once that epoch was
    given to itself, a late copy of that opening fenced it.
    """
    with cluster(tmp_path, 2) as c, ThreadPoolExecutor() as threads:
        c.create(P, (0, 1))
        # The time takes the agreement of both nodes; without it the leader refuses the write.
        c.until("the leader knows the time", lambda: c.node(0).clock.gives)
        c.nodes[1].stop()
        leader = c.replica(0)
        newer = threads.submit(Client(c, PRODUCER, 5).put, P, {b"a": b"1"}, retry=False)
        c.until("appended", lambda: leader.store.log_end == 1)
        held = leader.intake.budget.used
        asked = threads.submit(Client(c, PRODUCER).ask_epoch, P, str(uuid.uuid4()), 0)
        c.until("waits", lambda: leader.intake.budget.used == held + ENTRY_OVERHEAD_BYTES)
        if rolled_back:
            c.nodes[0].stop()
        c.nodes[1].start()
        c.wait_up(1)
        c.call(1, ConfigureNode(fence=c.fence(), config=c.config, peers=c.peers))
        if rolled_back:
            c.change(P, leader=1, leader_epoch=2, isr=(1,))
            assert asked.result() == 1
            with pytest.raises(RezoneError):
                newer.result()
        else:
            newer.result()
            with pytest.raises(ProducerFencedError) as said:
                asked.result()
            assert said.value.details == {"producer_epoch": 5}


def change_leader(c: Coordinator, how: str) -> None:
    """Have another leader of the partition, or the same one read everything from its disk."""
    if how == "transfer":
        c.move(P, 1)
    elif how == "failover":
        c.nodes[0].stop()
        c.change(P, leader=1, leader_epoch=2, isr=(1, 2))
    else:
        for node in c.nodes.values():
            node.stop()
        for node in c.nodes.values():
            node.start()
            c.wait_up(node.node_id)
        c.configure()
        c.change(P, leader_epoch=2)


@pytest.mark.parametrize("form", FORMS)
def test_fences_and_repeats_travel_in_copies(tmp_path: Path, form: str) -> None:
    """A replica that was copied, in either form, fences and knows repeats when it leads.

    The log that it follows begins behind them: it would take what its source has refused.
    """
    with cluster(tmp_path, 2, store_config=FORMS[form]) as c:
        c.create(P, (0,))
        old, new = Client(c, PRODUCER), Client(c, PRODUCER)
        assert [old.open(P), new.open(P)] == [1, 2]
        written = new.put(P, {b"a": b"1"})
        c.replica(0).store.flush()
        c.change(P, replicas=(0, 1))
        c.until("it is a learner", lambda: c.report(1, P).needs_snapshot)
        pull = PullSnapshot(fence=c.fence(), partition=P, source=c.nodes[0].address)
        assert c.call(1, pull) == Ack()
        c.until_settled("it joins", lambda: c.isr(P) == {0, 1})
        copied = c.replica(1).store
        assert copied.log_start == written.end_offset, "nothing of it came by the log"
        c.move(P, 1)
        again = new.send(P, 1, {b"a": b"1"})
        assert (again.end_offset, again.commit_time) == (written.end_offset, written.commit_time)
        with pytest.raises(SequenceReusedError):
            new.send(P, 1, {b"a": b"2"})
        with pytest.raises(ProducerFencedError):
            old.put(P, {b"a": b"0"})


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_new_partitions_fence_whom_their_sources_have_fenced(
    tmp_path: Path, before: int, after: int
) -> None:
    """Each target has the highest epoch of its sources, opened before its backfill or during it.

    A paused client would write to a target what the source has refused, and a name be given an
    epoch twice.
    """
    names = [f"name {n}" for n in range(6)]
    ids = [producer_id_of("uid-test", name) for name in names]
    with cluster(tmp_path, 2, config=zone(before), settings=SMALL) as c:
        for partition in range(before):
            c.create(partition, (0, 1))
        home = {one: Layout(0, before).partition_of(home_hash(one)) for one in ids}
        # Half of them open twice before the reshard stream begins, the others while it goes on.
        old = {one: Client(c, one) for one in ids}
        assert {client.open(home[one]) for one, client in old.items()} == {1}
        new = {one: Client(c, one) for one in ids}
        assert {new[one].open(home[one]) for one in ids[:3]} == {2}
        layout = reshard(c, after)
        c.until_each("pulled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        assert {new[one].open(home[one]) for one in ids[3:]} == {2}
        for partition in range(before):
            seal(c, partition)
        c.until_each("taken over", overlaps_of(c), lambda overlap: progress(c, overlap).sealed)
        for one in ids:
            target = layout.partition_of(home_hash(one))
            key = keys_in(layout.ids.index(target), after, 1)[0]
            with pytest.raises(ProducerFencedError):
                old[one].send(target, 1, {key: b"late"}, retry=False)
            new[one].send(target, 1, {key: b"new"})
            assert Client(c, one).open(target) == 3


def test_a_write_that_raises_an_epoch_fences_at_ranges_it_has_no_rows_in(tmp_path: Path) -> None:
    """An epoch that a partition saw with a write is known to all targets of its range.

    A target with none of that write's rows would take the writes of whoever was fenced there.
    """
    with cluster(tmp_path, 2, config=zone(1), settings=SMALL) as c:
        c.create(0, (0, 1))
        low, high = (keys_in(half, 2, 1)[0] for half in range(2))
        layout = reshard(c, 2)
        c.until_each("pulled", overlaps_of(c), lambda overlap: resharded(c, overlap))
        producer_id = str(uuid.uuid4())
        Client(c, producer_id, 7).put(0, {low: b"1"})
        seal(c, 0)
        c.until_each("taken over", overlaps_of(c), lambda overlap: progress(c, overlap).sealed)
        for target, key in zip(layout.ids, (low, high), strict=True):
            with pytest.raises(ProducerFencedError):
                Client(c, producer_id, 6).send(target, 1, {key: b"late"})
            Client(c, producer_id, 7).send(target, 1, {key: b"2"})


def test_only_one_partition_gives_a_producer_its_epochs(tmp_path: Path) -> None:
    """Openings elsewhere, of no id, above the last epoch, or with numbers out of range are refused.

    Two partitions would give two clients one epoch; a number too high would end the leader.
    """
    with cluster(tmp_path, 1, config=zone(2), settings=SMALL) as c:
        for partition in range(2):
            c.create(partition, (0,))
        home = Layout(0, 2).partition_of(home_hash(PRODUCER))
        client = Client(c, PRODUCER)
        with pytest.raises(ConflictError, match="fetch the routes"):
            client.open(1 - home)
        with pytest.raises(InvalidRowError, match="not a UUID"):
            Client(c, "me").open(home)
        key = keys_in(home, 2, 1)[0]
        for epoch, sequence in ((1 << 32, 1), (-1, 1), (0, -1)):
            client.producer_epoch = epoch
            with pytest.raises(InvalidRowError, match="out of its range"):
                client.send(home, sequence, {key: b"v"}, retry=False)
        client.producer_epoch = (1 << 32) - 1
        client.send(home, 1, {key: b"v"})
        with pytest.raises(LimitExceededError, match="another name"):
            client.open(home)


def test_a_new_epoch_counts_from_one_wherever_the_one_before_has_written(tmp_path: Path) -> None:
    """The first batch of an epoch is new at each partition, whatever an earlier epoch sent there.

    The same rows under the same number would be taken for its repeat, others be refused.
    """
    with cluster(tmp_path, 1, config=zone(2), settings=SMALL) as c:
        for partition in range(2):
            c.create(partition, (0,))
        keys = [keys_in(partition, 2, 1)[0] for partition in range(2)]
        with clients(c, *[NAME] * 3) as (first, *others):
            ends = [first.write(row(key, b"same"))[0].end_offset for key in keys]
            for client in others:
                again = [client.write(row(key, b"same"))[0].end_offset for key in keys]
                assert all(after > before for before, after in zip(ends, again, strict=True))
                ends = [client.write(row(key, b"more"))[0].end_offset for key in keys]


def test_who_is_fenced_in_the_middle_of_a_queue_ends_all_of_it(tmp_path: Path) -> None:
    """What waits behind a fenced batch ends with an error, and nothing of it is written later.

    Another partition that has not seen the higher epoch yet would take it.
    """
    with cluster(tmp_path, 1, config=zone(2), settings=SMALL) as c:
        for partition in range(2):
            c.create(partition, (0,))
        keys = [keys_in(partition, 2, 20) for partition in range(2)]
        settings = ClientSettings(request_bytes_max=400)
        with clients(c, NAME) as (second,):
            first = TableClient(list(c.peers.values()), producer=NAME, settings=settings)
            first.write(row(keys[0][0], b"1"))
            second.write(row(keys[0][0], b"2"))
            late = [{"key": key, "value": b"late" * 20} for key in keys[0]]
            with pytest.raises(ProducerFencedError):
                first.write(late)
            require_fenced(first, keys[1][1])
            first.close()
            assert values(second, *keys[0], *keys[1]) == {keys[0][0]: b"2"}
            second.write(row(keys[1][0], b"2"))
            assert values(second, *keys[1]) == {keys[1][0]: b"2"}
