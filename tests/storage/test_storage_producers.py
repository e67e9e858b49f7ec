"""What a partition remembers of producers: epochs, last batches, and what it may forget."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from storage_kit import ENGINES, Writer, config, rid

from rezone.storage.log.entry import (
    NO_DIGEST,
    EntryHeader,
    EntryKind,
    ProducerBatch,
    build_entry,
    note_rows,
)
from rezone.storage.state.producers import (
    PRODUCER_BYTES,
    ProducerState,
    ProducerTable,
    producer_key,
)
from rezone.storage.store import PartitionStore
from rezone.wire.messages import EngineKind

pytestmark = pytest.mark.proves("PW-01")

A, B = b"a" * 16, b"b" * 16
DIGEST = b"d" * 16


@pytest.fixture(params=ENGINES)
def kind(request: pytest.FixtureRequest) -> EngineKind:
    """Each engine."""
    chosen: EngineKind = request.param
    return chosen


def header(
    producer_id: bytes, epoch: int, sequence: int, end: int, kind: EntryKind = EntryKind.PLAIN
) -> EntryHeader:
    """Return the header of an entry of one row, sent to partition 3, whose time is its end."""
    return EntryHeader(0, 0, 1, 1, end - 1, end, producer_id, sequence, epoch, 3, DIGEST, kind)


def open_producer(store: PartitionStore, producer_id: bytes, epoch: int) -> int:
    """Append the opening of a producer; return the log's end."""
    entry = build_entry(
        note_rows(),
        leader_epoch=1,
        base_offset=store.log_end,
        commit_time=store.last_commit_time + 10,
        batch=ProducerBatch(producer_id, 0, epoch, opens=True),
        kind=EntryKind.PRODUCER_OPEN,
    )
    return store.append(entry)


def test_epochs_outlive_restarts_and_go_back_with_the_log(tmp_path: Path, kind: EngineKind) -> None:
    """An epoch is known from its entry on, after a reopening too, and its rollback undoes it.

    A restarted leader would take what it has refused, or give an epoch twice.
    """
    store = PartitionStore.open(tmp_path / "p", config(kind))
    writer = Writer(store)
    opened = open_producer(store, A, 1)
    written = writer.write({rid(1): b"v"}, A, 1, 1, 0, DIGEST)
    assert store.producer(A, 0)[0] == 1
    store.apply_to(opened)
    again = open_producer(store, A, 2)
    assert (store.producer(A, 0)[0], store.next_producer_epoch(A)) == (2, 3)
    for applied in (store.applied, again):
        store.apply_to(applied)
        store.close()
        store = PartitionStore.open(tmp_path / "p", config(kind))
        assert store.producer(A, 0)[0] == 2
        assert store.producer(A, 0)[1] == (2, 0, again, 30, NO_DIGEST)
    store.truncate(written)
    assert store.producer(A, 0)[0] == 1
    assert store.producer(A, 0)[1] == (1, 1, written, 20, DIGEST)
    assert store.producer(B, 0)[0] == 0
    store.close()


def test_a_rollback_beyond_the_log_keeps_the_fence_and_knows_no_digest() -> None:
    """Where the batch before is in no log, its number stays used, and equals no batch's.

    Another batch under that number would be acknowledged and dropped; a lower epoch be taken.
    """
    table = ProducerTable(10)
    table.advance([header(A, 4, 6, 10), header(B, 5, 0, 11)])
    table.set_back([header(A, 4, 6, 10), header(B, 5, 0, 11)], [], 9, 9)
    assert table.get(producer_key(A, 3)) == (4, 5, 9, 9, NO_DIGEST)
    assert (table.epoch(A), table.epoch(B)) == (4, 5)
    assert table.set_back([header(A, 4, 6, 10)], [], 9, 9) == {}, "undone already"


def test_of_several_sources_the_highest_epoch_and_the_later_batch_count() -> None:
    """A higher epoch counts as later whatever its sequence, and a producer has the highest of all.

    A target of a re-sharding would take writes that one of its sources has fenced.
    """
    table = ProducerTable(10)
    first, second = producer_key(A, 1), producer_key(A, 2)
    table.note_backfilled([(first, ProducerState(2, 0, 1, 1)), (second, ProducerState(1, 9, 2, 2))])
    table.note_backfilled([(first, ProducerState(1, 50, 3, 3))])
    assert table.get(first) == (2, 0, 1, 1, NO_DIGEST)
    assert table.epoch(A) == 2
    resharded = EntryKind.RESHARD
    table.note([header(A, 3, 0, 4, resharded), header(A, 2, 7, 5, resharded)])
    assert table.get(producer_key(A, 3)) == (3, 0, 4, 4, DIGEST)
    assert table.epoch(A) == 3
    table.rebuild([])
    assert table.epoch(A) == 0, "all of it was appended only"


def test_producers_without_an_epoch_are_forgotten_first(kind: EngineKind, tmp_path: Path) -> None:
    """A named producer stays known while others that wrote later can be forgotten in its place.

    A fence would be gone as soon as a few clients without names have written.
    """
    store = PartitionStore.open(
        tmp_path / "p", config(kind, producers_max=10, producer_seconds_min=0.0)
    )
    writer = Writer(store)
    store.apply_to(open_producer(store, A, 3))
    for i in range(60):
        store.apply_to(writer.write({rid(i): b"v"}, b"%016d" % i, 1))
    assert store.producer(A, 0)[0] == 3
    assert store.producer_bytes <= 11 * PRODUCER_BYTES
    store.close()


def test_a_forgotten_name_gets_an_epoch_above_its_last(kind: EngineKind, tmp_path: Path) -> None:
    """Who opens a forgotten name comes above the epoch it had, after a reopening and a copy too.

    It would be given epoch 1 again, and be fenced by partitions that remember more.
    """
    limits = config(kind, producers_max=10, producer_seconds_min=0.0)
    store = PartitionStore.open(tmp_path / "p", limits)
    for i in range(50):
        store.apply_to(open_producer(store, b"%016d" % i, 7 if i == 0 else 1))
    first = b"%016d" % 0
    assert (store.producer(first, 0)[0], store.next_producer_epoch(first)) == (0, 8)
    assert store.next_producer_epoch(b"%016d" % 49) == 8
    store.close()
    store = PartitionStore.open(tmp_path / "p", limits)
    assert store.next_producer_epoch(first) == 8
    store.apply_to(store.log_end)  # an engine in memory has nothing yet
    copied = ProducerTable(10)
    copied.take_over(store.outgoing.open_rows("reader").header.producers)
    assert copied.next_epoch(first) == 8
    assert copied.has_room(store.last_commit_time), "a name that was forgotten takes no room"
    store.close()


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_producer_takes_no_more_memory_than_is_counted(epoch: int) -> None:
    """Producers, with an epoch or without, take no more than what the node's account says.

    A data node would take more memory than its limit.
    """
    count = 10_950  # dictionaries have just grown
    keys = [i.to_bytes(16, "big") for i in range(count)]
    tracemalloc.start()
    try:
        table = ProducerTable(count)
        before = tracemalloc.get_traced_memory()[0]
        for at, one in enumerate(keys):
            table.advance([header(one, epoch, 1, at + 1)])
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / count <= PRODUCER_BYTES


def test_producers_that_are_old_make_room_before_young_ones_without_an_epoch_do() -> None:
    """New producers would be refused for a minute, beside names that nobody has used for long."""
    table = ProducerTable(10, 60)
    table.advance([header(bytes([n]) * 16, 1, 1, n) for n in range(1, 9)])
    table.advance([header(bytes([n]) * 16, 0, 1, 1000 + n) for n in range(20, 24)])
    assert len(table) <= 10
    assert table.has_room(1030)
