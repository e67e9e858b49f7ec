"""Clients on real nodes through a re-sharding: counters count once, pages and ranges are whole."""

from __future__ import annotations

import functools
import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import FAST, Coordinator, cluster
from resharding_kit import HeldDisk, create_old, overlaps_of, progress, reshard, seal

from rezone.client import TableClient, TransactionOutcomeUnknownError
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.errors import (
    NotReadyError,
    RowLockedError,
    TransactionConflictError,
    TransactionEndedError,
)
from rezone.wire.layouts import HashRange, Layout, layout_of
from rezone.wire.messages import TransactionOutcome, WriteRequest, ZoneConfig
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.flight import NodeClient

TABLE = TableSchema(indexes=(Index("by_value", ("value",)),))
SCHEMA = arrow_schema_of(TABLE)
# Followers are slow on a busy machine; none shall leave its in-sync set for that.
CALM = msgspec.structs.replace(FAST, replica_lag_ms_max=20_000, reshard_poll_ms=100)
STATIC = {b"static-%02d" % n: b"s" for n in range(60)}


def zone(partitions: int) -> ZoneConfig:
    """Return a zone with an index."""
    return ZoneConfig(zone="test", zone_uid="uid-test", partitions=partitions, table=TABLE)


def table_of(rows: dict[bytes, bytes]) -> pa.Table:
    """Return rows as a table."""
    return pa.Table.from_pylist([{"key": k, "value": v} for k, v in rows.items()], schema=SCHEMA)


def value_of(found: pa.Table) -> int:
    """Return the counter in what was read of one row; 0 when there was none."""
    values = found.column("value").to_pylist()
    return int(values[0]) if values else 0


def _queued(client: TableClient) -> set[int]:
    """Return for which partitions writes wait to be sent."""
    connections = client._dispatcher._nodes._connections.values()
    queued = [item.message for each in connections for item in each._queue.copy()]
    return {message.partition for message in queued if isinstance(message, WriteRequest)}


def _partitions(table: TableClient) -> set[int]:
    return {one.partition for one in table.segments()}


class Counting:
    """Threads that count rows up, and lose many an answer: connections are broken on the way.

    One counts rows of its own with plain writes, two the same rows with transactions.
    """

    def __init__(self, c: Coordinator, seed: int) -> None:
        self._rng = random.Random(seed)
        self._stop = threading.Event()
        self.clients = [TableClient(list(c.peers.values())) for _ in range(3)]
        self.own = dict.fromkeys((b"own-%d" % n for n in range(8)), 0)
        self.shared = dict.fromkeys((b"shared-%d" % n for n in range(4)), 0)
        self.committed = [0, 0]
        self.ended = 0
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(number,), daemon=True)
            for number in range(3)
        ]

    @property
    def done(self) -> int:
        """How often was counted."""
        return sum(self.own.values()) + sum(self.committed)

    def is_at(self, count: int) -> bool:
        """Whether so often was counted, or will never be."""
        return self.done >= count or bool(self.failures)

    def _guarded(self, number: int) -> None:
        try:
            keys = itertools.cycle(self.own if number == 0 else self.shared)
            while not self._stop.is_set():
                if number == 0:
                    self._count_own(next(keys))
                else:
                    self._count_shared(number, next(keys))
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.failures.append(error)

    def _break(self, client: TableClient) -> None:
        """Break a connection with requests under way, every now and then."""
        connections = list(client._dispatcher._nodes._connections.values())
        if connections and self._rng.random() < 0.2:
            self._rng.choice(connections).drop("broken for the test")

    def _count_own(self, key: bytes) -> None:
        client = self.clients[0]
        assert value_of(client.read([{"key": key}])) == self.own[key]
        written = client.submit_write(table_of({key: b"%d" % (self.own[key] + 1)}))
        self._break(client)
        written.result()
        self.own[key] += 1

    def _count_shared(self, number: int, key: bytes) -> None:
        client = self.clients[number]
        try:
            with client.transaction({"key": key}) as tx:
                tx.write(table_of({key: b"%d" % (value_of(tx.read([{"key": key}])) + 1)}))
                self._break(client)
        except (TransactionConflictError, RowLockedError):
            return
        except TransactionEndedError:
            self.ended += 1
            return
        except TransactionOutcomeUnknownError as error:
            outcome = client.transaction_outcome(error.partition, error.transaction)
            assert outcome is not TransactionOutcome.UNKNOWN
            if outcome is not TransactionOutcome.COMMITTED:
                return
        self.committed[number - 1] += 1

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, and raise what has gone wrong."""
        self._stop.set()
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive()
        for client in self.clients:
            client.close()
        if self.failures:
            raise self.failures[0]


@contextmanager
def counting(c: Coordinator, seed: int) -> Iterator[Counting]:
    """Count meanwhile."""
    found = Counting(c, seed)
    found.start()
    try:
        yield found
    finally:
        found.stop()


def go_over(c: Coordinator, counted: Counting, partitions: int) -> None:
    """Re-shard the zone, one old partition after the other, while it is counted."""
    old = layout_of(c.config)
    new = reshard(c, partitions)
    c.until_each("backfilled", overlaps_of(c), lambda overlap: progress(c, overlap).backfilled)
    for partition in old.ids:
        seal(c, partition)
        enough = counted.done + 10
        c.until("counting goes on", functools.partial(counted.is_at, enough))
    c.config = msgspec.structs.replace(
        c.config, generation=new.generation, partitions=new.partitions, next_partitions=0
    )
    c.configure()


@pytest.mark.proves("B-08")
@pytest.mark.slow
@pytest.mark.parametrize("counts", [(2, 3), (3, 1, 2)])
def test_counters_count_once_from_one_layout_to_the_next(
    tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """Rows would be counted twice or not, or a transaction be half there, at a cut-over."""
    with cluster(tmp_path, 3, config=zone(counts[0]), settings=CALM) as c:
        create_old(c)
        with counting(c, seed=len(counts)) as counted:
            c.until("it is counted", functools.partial(counted.is_at, 30))
            for count in counts[1:]:
                go_over(c, counted, count)
        with TableClient(list(c.peers.values())) as table:
            assert table.config.generation == len(counts) - 1
            found = table.scan().to_pylist()
            values = {row["key"]: int(row["value"]) for row in found}
            assert len(values) == len(found)
            assert {key: values[key] for key in counted.own} == counted.own
            assert sum(values[key] for key in counted.shared) == sum(counted.committed)


@pytest.mark.proves("B-08")
def test_a_write_is_known_to_who_took_over_when_its_answer_was_lost(tmp_path: Path) -> None:
    """Repeated after the cut-over it would undo what another client has written since."""
    may_send = threading.Event()
    may_send.set()

    class Gate(NodeClient):
        """A connection that can be held up; routes are fetched all the same."""

        def channel(self, name: str) -> Channel:
            """Open a channel when that is allowed."""
            if not may_send.is_set():
                raise NotReadyError("held up by the test", unreachable=1)
            return super().channel(name)

    with cluster(tmp_path, 2, config=zone(1), settings=CALM) as c:
        create_old(c)
        addresses = list(c.peers.values())
        with TableClient(addresses, connect=Gate) as first, TableClient(addresses) as second:
            first.write(table_of({b"k": b"0"}))
            disk = HeldDisk(c.replica(1, 0))
            leader = c.replica(0, 0)
            end = leader.store.log_end
            lost = first.submit_write(table_of({b"k": b"1", b"j": b"1", b"i": b"1"}))
            c.until("it is appended", lambda: leader.store.log_end == end + 3)
            may_send.clear()
            for connection in first._dispatcher._nodes._connections.values():
                connection.drop("broken for the test")
            disk.let_go()
            c.until("it is committed", lambda: leader.positions.committed == end + 3)
            new = reshard(c, 3)
            c.until_each(
                "backfilled", overlaps_of(c), lambda overlap: progress(c, overlap).backfilled
            )
            seal(c, 0)
            second.write(table_of({b"k": b"2"}))
            # The sealed one would answer it, too: so nothing may be on its way there.
            c.until("it knows of the seal", lambda: _partitions(first) == {*new.ids})
            c.until("it has turned away", lambda: 0 not in _queued(first))
            assert not lost.done()
            may_send.set()
            acks = lost.result(30)
            assert {ack.partition for ack in acks} <= set(new.ids)
            assert sum(ack.rows for ack in acks) == 3
            rows = {row["key"]: row["value"] for row in second.scan().to_pylist()}
            assert rows == {b"k": b"2", b"j": b"1", b"i": b"1"}


@pytest.mark.proves("B-08")
def test_pages_and_ranges_that_are_begun_go_on_at_those_who_take_over(tmp_path: Path) -> None:
    """A page or a task of Spark would be refused for ever, miss rows, or have them twice."""
    with cluster(tmp_path, 2, config=zone(3), settings=CALM) as c:
        create_old(c)
        with (
            TableClient(list(c.peers.values())) as table,
            TableClient(list(c.peers.values())) as late,
        ):
            table.write(table_of(STATIC))
            plan = table.segments()
            assert late.config.next_partitions == 0
            page = table.lookup("by_value", limit=15)
            pages = [page]
            new = reshard(c, 2)
            c.until_each(
                "backfilled", overlaps_of(c), lambda overlap: progress(c, overlap).backfilled
            )
            for partition in Layout(0, 3).ids:
                seal(c, partition)
                assert page.next is not None
                page = table.lookup("by_value", limit=15, after=page.next)
                pages.append(page)
                whole = late.lookup("by_value", limit=200).rows.column("key").to_pylist()
                assert sorted(whole) == sorted(STATIC)
            found = [key for each in pages for key in each.rows.column("key").to_pylist()]
            assert sorted(found) == sorted(STATIC)
            streamed = [
                key
                for one in plan
                for batch in late.stream(HashRange(one.start, one.end))
                for key in batch.column("key").to_pylist()
            ]
            assert sorted(streamed) == sorted(STATIC)
            c.until("all nodes know of the seals", lambda: _partitions(table) == {*new.ids})
            aged = late.read_any([{"key": key} for key in STATIC], max_staleness_seconds=60)
            assert aged.rows.num_rows == len(STATIC)
            past = table.read([{"key": key} for key in STATIC], as_of=aged.as_of)
            assert past.num_rows == len(STATIC)


@pytest.mark.proves("B-08")
def test_a_seal_ends_a_transaction_and_its_target_knows_how(tmp_path: Path) -> None:
    """A user could not tell whether to begin again, and a commit could be made twice."""
    with cluster(tmp_path, 2, config=zone(1), settings=CALM) as c:
        create_old(c)
        with TableClient(list(c.peers.values())) as table:
            done = table.transaction({"key": b"done"})
            done.write(table_of({b"done": b"1"}))
            done.commit()
            open_, idle = (table.transaction({"key": b"k"}) for _ in range(2))
            open_.write(table_of({b"k": b"1"}))
            reshard(c, 2)
            c.until_each(
                "backfilled", overlaps_of(c), lambda overlap: progress(c, overlap).backfilled
            )
            seal(c, 0)
            for tx in (open_, idle):
                with pytest.raises(TransactionEndedError, match="begin again"):
                    tx.read([{"key": b"k"}])
            with pytest.raises(TransactionEndedError):
                open_.commit()
            assert open_.outcome() is TransactionOutcome.ABORTED
            assert done.outcome() is TransactionOutcome.COMMITTED
            assert table.transaction_outcome(0, done.id) is TransactionOutcome.COMMITTED
            assert idle.commit() is None
            with table.transaction({"key": b"k"}) as again:
                assert again.partition in Layout(1, 2).ids
                assert again.read([{"key": b"k"}]).num_rows == 0
                again.write(table_of({b"k": b"2"}))
            assert value_of(table.read([{"key": b"k"}])) == 2
