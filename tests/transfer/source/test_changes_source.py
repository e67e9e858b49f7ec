"""The streaming source and the sinks without a Spark session, on real data nodes."""

import itertools
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from replica_cluster import Coordinator

from rezone.client import ChangeBatch, ChangeFeed, TableClient
from rezone.client.feed import feed as feeds
from rezone.client.feed.bounds import Bound
from rezone.client.feed.token import FeedTokenError, decode_token
from rezone.client.operations.sequenced import SequencedWrites
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.errors import NotReadyError, ProducerFencedError
from rezone.wire.messages import FeedLimits, FollowChanges, ZoneConfig
from rezone.wire.transport.flight import NodeClient

pytest.importorskip("pyspark.sql")
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from rezone.transfer.datasource import RezoneDataSource
from rezone.transfer.sink import writers as sinks
from rezone.transfer.sink.writers import BatchChangedError, StagedRows
from rezone.transfer.source import changes
from rezone.transfer.source.changes import ChangesDataSource, ChangesReader

pytestmark = pytest.mark.spark
TABLE = TableSchema(
    columns=(Column("id", ColumnType.INT64), Column("value", ColumnType.STRING)),
    primary_key=("id",),
)
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)


@pytest.fixture
def table(zone: Coordinator) -> Iterator[TableClient]:
    """Yield a client."""
    with TableClient(list(zone.peers.values())) as client:
        yield client


@pytest.fixture
def open_readers() -> Iterator[list[ChangesReader]]:
    """Stop the readers that are put here."""
    opened: list[ChangesReader] = []
    yield opened
    for each in opened:
        each.stop()


def rows(first: int, last: int, value: str) -> list[dict[str, Any]]:
    """Return rows of these ids."""
    return [{"id": n, "value": value} for n in range(first, last)]


def reader(zone: Coordinator, opened: list[ChangesReader], **options: str) -> ChangesReader:
    """Return a reader as the driver has it."""
    source = ChangesDataSource(CaseInsensitiveDict({"bootstrap": zone.nodes[0].address, **options}))
    found = source.streamReader(source.schema())
    opened.append(found)
    return found


def batch(found: ChangesReader, start: Any, end: Any) -> Counter[tuple[Any, ...]]:
    """Return the changes of a batch, read by tasks that know what was sent to them."""
    changes: Counter[tuple[Any, ...]] = Counter()
    for task in found.partitions(start, end):
        sent = pickle.loads(pickle.dumps((found, task)))  # noqa: S301 - this test's own bytes
        for each in sent[0].read(sent[1]):
            changes.update((r["id"], r["value"], r["_operation"]) for r in each.to_pylist())
    return changes


@pytest.mark.proves("SP-03")
def test_batches_have_each_change_once_and_the_same_when_they_come_again(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """A batch that Spark repeats after a restart must not have other changes than before."""
    first = reader(zone, open_readers, maxRowsPerBatch="150")
    begin = first.initialOffset()
    start = first.latestOffset(begin, ReadMaxRows(150))
    assert batch(first, begin, start) == Counter()
    assert first.latestOffset(start, ReadMaxRows(150)) == start, "a batch without changes"
    for number in range(4):
        table.write(rows(number * 100, number * 100 + 100, f"v{number}"))
    table.delete([{"id": n} for n in range(50)])
    offsets = [start]
    assert first.getDefaultReadLimit() == ReadMaxRows(150)
    found: list[Counter[tuple[Any, ...]]] = []
    while sum(each.total() for each in found) < 450:
        offsets.append(first.latestOffset(offsets[-1], first.getDefaultReadLimit()))
        found.append(batch(first, offsets[-2], offsets[-1]))
    assert all(each.total() <= 150 for each in found)
    zone.move(0, 1)
    again = reader(zone, open_readers)
    for number, before in enumerate(found):
        assert batch(again, offsets[number], offsets[number + 1]) == before
    assert batch(again, offsets[0], offsets[-1]) == sum(found, Counter())
    assert again.latestOffset(offsets[-1], ReadAllAvailable()) == offsets[-1]
    assert batch(again, start, start) == Counter()


@pytest.mark.proves("SP-03")
def test_a_query_begins_with_a_snapshot_and_ends_with_what_was_there(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """A row that is written while the snapshot is read is lost, or a query never ends."""
    table.write(rows(0, 100, "old"))
    found = reader(zone, open_readers, startFrom="snapshot")
    start = found.initialOffset()
    begun = found.latestOffset(start, ReadMaxRows(10))
    table.write(rows(50, 150, "new"))
    found.prepareForTriggerAvailableNow()
    table.write(rows(0, 10, "later"))
    again = reader(zone, open_readers, startFrom="snapshot")  # restarted within the first batch
    assert again.initialOffset() == start
    for each in (found, again):
        assert batch(each, start, begun) == Counter((n, "old", "upsert") for n in range(100))
    part = found.latestOffset(begun, ReadMaxRows(60))
    assert 0 < batch(found, begun, part).total() <= 60
    end = found.latestOffset(begun, ReadAllAvailable())
    assert batch(found, begun, end) == Counter((n, "new", "upsert") for n in range(50, 150))
    assert found.latestOffset(end, ReadAllAvailable()) == end
    from_token = reader(zone, open_readers, startFrom=str(begun["token"]), columns="value")
    assert from_token.initialOffset() == begun
    assert from_token.partitions(begun, begun) == []
    with pytest.raises(FeedTokenError):
        reader(zone, open_readers, startFrom="nonsense")


@pytest.mark.proves("SP-03")
def test_batches_are_limited_in_bytes_too(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """A batch of wide rows does not fit executors' memory, however few rows it has."""
    one = 8 + 1000 + len("upsert") + 8  # id, value, operation, commit time
    found = reader(zone, open_readers, maxBytesPerBatch=str(25 * one), maxRowsPerBatch="1000")
    begin = found.initialOffset()
    offsets = [found.latestOffset(begin, found.getDefaultReadLimit())]
    for number in range(100):
        table.put(id=number, value="x" * 1000)
    batches: list[Counter[tuple[Any, ...]]] = []
    while sum(each.total() for each in batches) < 100:
        offsets.append(found.latestOffset(offsets[-1], found.getDefaultReadLimit()))
        batches.append(batch(found, offsets[-2], offsets[-1]))
    assert sum(batches, Counter()) == Counter((n, "x" * 1000, "upsert") for n in range(100))
    assert all(each.total() <= 25 for each in batches)
    assert batch(found, offsets[0], found.latestOffset(offsets[0], ReadMaxBytes(one))).total() == 1
    everything = found.latestOffset(offsets[0], ReadAllAvailable())
    assert batch(found, offsets[0], everything).total() == 100, "all that is there has no limit"
    narrow = reader(zone, open_readers, maxBytesPerBatch=str(25 * 16), columns="id")
    ids = narrow.latestOffset(offsets[0], narrow.getDefaultReadLimit())
    assert batch_size(narrow, offsets[0], ids) > 10, "columns that are not read count for nothing"
    table.write(rows(0, 60, "x" * 1000))  # two commits at most, which are not cut
    whole = found.latestOffset(everything, ReadMaxBytes(1))
    assert batch(found, everything, whole).total() > 1


@pytest.mark.proves("SP-03")
@pytest.mark.parametrize("is_led", [True, False])
def test_a_batch_ends_while_writers_go_on(
    zone: Coordinator,
    table: TableClient,
    open_readers: list[ChangesReader],
    monkeypatch: pytest.MonkeyPatch,
    is_led: bool,
) -> None:
    """A change waits until a batch is full, for as long as nobody pauses.

    A partition that is not led holds back the time up to which all has come.
    """
    monkeypatch.setattr(changes, "FOLLOW_SECONDS", float("inf") if is_led else 0.0)
    poll = ChangeFeed.poll

    def poll_beside_a_writer(feed: ChangeFeed, seconds: float) -> ChangeBatch:
        table.write(rows(0, 10, "more"))
        found = poll(feed, seconds)
        return found if is_led else found._replace(resolved_time=0)

    found = reader(zone, open_readers, maxRowsPerBatch="5000")
    start = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    monkeypatch.setattr(ChangeFeed, "poll", poll_beside_a_writer)
    end = found.latestOffset(start, found.getDefaultReadLimit())
    # Far from full: a full one ends with the commit before, and has a few less than the limit.
    assert 0 < batch(found, start, end).total() < 2500


@pytest.mark.proves("SP-03")
def test_a_batch_of_few_changes_is_read_by_one_task(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """Each task connects to the zone, which takes longer than to read a few changes."""
    found = reader(zone, open_readers)
    start = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    table.write(rows(0, 100, "few"))
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert len(found.partitions(start, end)) == 1
    again = reader(zone, open_readers)  # after a restart it is not known how many they are
    assert len(again.partitions(start, end)) == 2
    assert batch(found, start, end) == batch(again, start, end)


@pytest.mark.proves("SP-03")
@pytest.mark.parametrize("is_older", [False, True])
def test_data_nodes_count_for_the_driver(
    zone: Coordinator,
    table: TableClient,
    open_readers: list[ChangesReader],
    monkeypatch: pytest.MonkeyPatch,
    is_older: bool,
) -> None:
    """All rows of a stream would come through its driver, to be counted.

    Those of data nodes that are of an older version still do: they do not know that they may count.
    """
    call = NodeClient.call
    found = reader(zone, open_readers, maxRowsPerBatch="70")
    start = found.latestOffset(found.initialOffset(), found.getDefaultReadLimit())
    for number in range(3):
        table.write(rows(number * 50, number * 50 + 50, "v"))
    table.delete([{"id": n} for n in range(50)])
    came: list[bool] = []

    def noted(node: NodeClient, request: Any, reply: Any, **options: Any) -> Any:
        if is_older and isinstance(request, FollowChanges):
            request = msgspec.structs.replace(request, counts_only=False)
        answer = call(node, request, reply, **options)
        if isinstance(request, FollowChanges):
            came.extend(bool(each.rows) for each in answer.ranges)
        return answer

    monkeypatch.setattr(NodeClient, "call", noted)
    offsets = [start]
    while (end := found.latestOffset(offsets[-1], found.getDefaultReadLimit())) != offsets[-1]:
        offsets.append(end)
    assert came
    assert any(came) == is_older
    sizes = [batch_size(found, *both) for both in itertools.pairwise(offsets)]
    assert sum(sizes) == 200
    assert all(0 < each <= 70 for each in sizes)
    assert len(sizes) < 8, "batches are full"


@pytest.mark.proves("SP-03")
def test_a_query_of_what_is_there_has_no_batch_of_what_came_later(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """Data nodes count what they have: an empty batch would follow, or a smaller one."""
    found = reader(zone, open_readers)
    found.prepareForTriggerAvailableNow()
    table.write(rows(0, 100, "later"))
    begin = {"token": found._plan.since(1)}
    table.write(rows(0, 10, "later"))
    end = found.latestOffset(begin, found.getDefaultReadLimit())
    assert end == begin
    assert found.partitions(begin, end) == []


def test_nobody_is_asked_for_changes_behind_the_last_one_that_is_wanted(
    table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes would read changes for a task that has all of its own, and send them."""
    with table.changes() as feed:
        start = feed.poll(10.0).token
    assert start is not None
    table.write(rows(0, 100, "wanted"))
    came = 0
    with table.changes(start) as feed:
        while came < 100:
            found = feed.poll(10.0)
            came += found.changes.num_rows
    end = found.token
    assert end is not None
    asked: list[tuple[int, int, int]] = []
    ask = ChangeFeed._ask

    def noted(feed: ChangeFeed, address: str, ranges: list[Any]) -> None:
        asked.extend((each.start, each.end, each.time) for each in ranges)
        ask(feed, address, ranges)

    monkeypatch.setattr(ChangeFeed, "_ask", noted)
    list(table.changes_between(start, end))
    bound = Bound(decode_token("u", end))
    assert asked
    assert not any(bound.is_reached(*each) for each in asked)


def test_a_feed_rests_while_it_waits_for_a_node(
    table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of several ranges would take a core while others than those that are done have none.

    A range that has all that is wanted is not asked for, and so waits for nothing.
    """
    with table.changes() as feed:
        start = feed.poll(10.0).token
    assert start is not None
    one, other = decode_token("u", start)
    waits: list[float] = []

    def noted(calls: Any, seconds: float, until: str) -> Any:
        waits.append(seconds)
        return futures.wait(calls, seconds, until)

    monkeypatch.setattr("rezone.client.feed.feed.wait", noted)
    with table.changes(start) as feed:
        feed.end_at([one, other._replace(time=other.time + 3_600_000_000)])
        feed.poll(0.2)
    assert max(waits) > 0
    assert sum(each < feeds._PAUSE_SECONDS for each in waits) <= 2, "the last waits are shorter"


def test_a_feed_ends_while_a_node_has_no_news_yet(
    table: TableClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task and each end of a query would wait for answers that nobody wants any more."""
    asked, answered, call = threading.Event(), threading.Event(), NodeClient.call

    def without_news(node: NodeClient, request: Any, reply: Any, **options: Any) -> Any:
        if isinstance(request, FollowChanges):
            asked.set()
            answered.wait(60)
        return call(node, request, reply, **options)

    monkeypatch.setattr(NodeClient, "call", without_news)
    feed = table.changes()
    feed.poll(0.1)
    assert asked.wait(60)
    closing = threading.Thread(target=feed.close, daemon=True)
    closing.start()
    closing.join(20)
    ended = not closing.is_alive()
    answered.set()
    closing.join(60)
    assert ended


def batch_size(found: ChangesReader, start: Any, end: Any) -> int:
    """Return how many changes a batch has."""
    return sum(each.num_rows for task in found.partitions(start, end) for each in found.read(task))


@pytest.mark.proves("SP-03")
def test_a_query_begins_with_the_earliest_change_that_is_kept(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """A query from before what is kept fails; one from now on has less than there is."""
    table.write(rows(0, 100, "old"))
    found = reader(zone, open_readers, startFrom="earliest")
    begin = found.initialOffset()
    found.prepareForTriggerAvailableNow()
    start = found.latestOffset(begin, found.getDefaultReadLimit())
    assert batch(found, begin, start) == Counter()
    end = found.latestOffset(start, found.getDefaultReadLimit())
    assert batch(found, start, end) == Counter((n, "old", "upsert") for n in range(100))


@pytest.mark.proves("CF-01")
def test_rows_before_changes_come_with_the_columns_that_are_read(
    zone: Coordinator, table: TableClient, open_readers: list[ChangesReader]
) -> None:
    """A task would read other columns than Spark was told of."""
    table.write(rows(0, 20, "old"))
    found = reader(zone, open_readers, startFrom="snapshot", oldRows="true", columns="value")
    begin = found.initialOffset()
    start = found.latestOffset(begin, ReadAllAvailable())
    table.write(rows(10, 30, "new"))
    wide = reader(zone, open_readers, oldRows="True", maxBytesPerBatch="1000000")
    end = wide.latestOffset(start, wide.getDefaultReadLimit())

    def old(each: ChangesReader, first: Any, last: Any) -> list[Any]:
        tasks = each.partitions(first, last)
        return [r["_old"] for task in tasks for b in each.read(task) for r in b.to_pylist()]

    assert old(found, begin, start) == [None] * 20, "a snapshot has no rows before"
    narrow = old(found, start, end)
    assert sorted(narrow, key=str) == [None] * 10 + [{"value": "old"}] * 10
    whole = [{"id": n, "value": "old"} for n in range(10, 20)]
    assert sorted(filter(None, old(wide, start, end)), key=lambda row: row["id"]) == whole
    size = 8 + len("new") + len("upsert") + 8 + 8 + len("old")
    limited = wide.latestOffset(start, ReadMaxBytes(25 * size))
    assert limited != start


@pytest.mark.parametrize(
    "wrong",
    [
        {"maxBytesPerBatch": "0"},
        {"maxBytesPerBatch": "-1"},
        {"maxBytesPerBatch": "1MB"},
        {"maxBytesPerBatch": str(1 << 63)},
        {"maxBytesPerBatch": "9" * 5000},
        {"maxRowsPerBatch": "0"},
        {"maxTasksPerBatch": "many"},
        {"oldRows": "yes"},
        {"startFrom": "oldest"},
        {"startFrom": str(1 << 63)},
    ],
)
@pytest.mark.proves("SP-03")
def test_wrong_options_are_refused_when_a_stream_is_loaded(
    zone: Coordinator, wrong: dict[str, str]
) -> None:
    """A query would begin with limits that nobody asked for, or fail later without a name."""
    (name,) = wrong
    source = ChangesDataSource(CaseInsensitiveDict({"bootstrap": zone.nodes[0].address, **wrong}))
    with pytest.raises(ValueError, match=name):
        source.schema()


class Sink:
    """A stream's sink, whose tasks run here."""

    def __init__(self, zone: Coordinator, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        given = {"bootstrap": zone.nodes[0].address, "stagingDirectory": str(directory)}
        source = RezoneDataSource(given)
        self._monkeypatch = monkeypatch
        self.writer = source.streamWriter(None, overwrite=False)

    def put(self, number: int, found: list[dict[str, Any]]) -> StagedRows:
        """Put rows aside as a task does."""
        parts = [found[at : at + 40] for at in range(0, len(found), 40)]
        self._monkeypatch.setattr(
            sinks, "_property", lambda name: str(number) if "batch" in name else "query"
        )
        message: StagedRows = self.writer.write(iter(map(pa.RecordBatch.from_pylist, parts)))
        return message

    def batch(self, number: int, *tasks: list[dict[str, Any]]) -> None:
        """Write a micro-batch of these tasks."""
        self.writer.commit([self.put(number, each) for each in tasks], number)


def offsets(zone: Coordinator) -> list[int]:
    """Return up to where the log of each partition goes."""
    return [zone.replica(p if p < 2 else 0, p).positions.committed for p in range(2)]


@pytest.mark.proves("SP-04")
def test_a_micro_batch_that_comes_again_changes_nothing_and_another_is_refused(
    zone: Coordinator, table: TableClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark repeats a batch whose commit it has not noted; whoever wrote since is overwritten."""
    sink = Sink(zone, tmp_path / "staging", monkeypatch)
    one, other = rows(0, 90, "a"), rows(90, 200, "a")
    sink.batch(0, one, other, [])
    before = offsets(zone)
    sink.batch(0, other, one)  # cut otherwise by other tasks
    assert offsets(zone) == before
    with pytest.raises(BatchChangedError, match="batch 0"):
        sink.batch(0, rows(0, 200, "b"))
    sink.batch(1, rows(0, 10, "c"))
    assert not list((tmp_path / "staging").rglob("*.arrow"))
    monkeypatch.setattr(sinks, "_noted", lambda *noted: sinks._Noted(noted[-1], done=False))
    with pytest.raises(ProducerFencedError):
        sink.batch(0, rows(0, 10, "zombie"))
    assert table.get(5) == {"id": 5, "value": "c"}


@pytest.mark.proves("SP-04")
def test_a_driver_that_dies_within_a_commit_goes_on_where_it_was(
    zone: Coordinator, table: TableClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that another client has written since would be taken back by the repeat."""
    sink = Sink(zone, tmp_path / "staging", monkeypatch)
    found = rows(0, 200, "a")
    write = SequencedWrites._is_written

    def dies(self: SequencedWrites, batch: Any, run: Any, *more: Any, delete: bool) -> bool:
        if run.interval.partition == 1:
            raise NotReadyError("the driver dies")
        return write(self, batch, run, *more, delete=delete)

    monkeypatch.setattr(SequencedWrites, "_is_written", dies)
    with pytest.raises(NotReadyError):
        sink.batch(7, found)
    written = set(table.scan()["id"].to_pylist())
    assert 0 < len(written) < 200
    other = min(written)
    table.put(id=other, value="other")
    before = sum(offsets(zone))
    monkeypatch.setattr(SequencedWrites, "_is_written", write)
    sink.batch(7, found)
    assert sum(offsets(zone)) == before + 200 - len(written), "rows were written twice"
    assert table.get(other) == {"id": other, "value": "other"}
    assert table.scan().num_rows == 200


@pytest.mark.proves("SP-05")
def test_attempts_that_do_not_count_leave_nothing(
    zone: Coordinator, table: TableClient, tmp_path: Path
) -> None:
    """A speculative attempt, or a job that fails, has written rows that nobody asked for."""
    source = RezoneDataSource(
        {"bootstrap": zone.nodes[0].address, "stagingDirectory": str(tmp_path / "staging")}
    )
    writer = source.writer(None, overwrite=False)
    pickled = pickle.dumps(writer)

    def attempt(found: list[dict[str, Any]]) -> Any:
        task = pickle.loads(pickled)  # noqa: S301 - this test's own bytes
        return task.write(iter([pa.RecordBatch.from_pylist(found)]))

    attempt(rows(0, 50, "speculative"))
    kept = attempt(rows(0, 40, "kept"))
    assert table.scan().num_rows == 0, "rows were written before the job was sure of them"
    writer.commit([kept, None])
    assert Counter(table.scan()["value"].to_pylist()) == Counter({"kept": 40})
    failed = source.writer(None, overwrite=False)
    message = failed.write(iter([pa.RecordBatch.from_pylist(rows(100, 140, "failed"))]))
    failed.abort([message, None])
    assert table.scan().num_rows == 40
    assert not list((tmp_path / "staging").rglob("*.arrow"))


@pytest.mark.proves("CF-04")
def test_a_named_stream_acknowledges_what_its_checkpoint_has(
    zone: Coordinator,
    table: TableClient,
    open_readers: list[ChangesReader],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its log would be kept until its limits, or be gone before Spark has stored that it has it."""
    feeds = (FeedLimits("billing", 1 << 30, 86_400),)
    zone.config = msgspec.structs.replace(zone.config, feeds=feeds)
    zone.configure()
    with pytest.raises(ValueError, match=r"spec\.feeds"):
        reader(zone, open_readers, feed="other")
    found = reader(zone, open_readers, feed="billing")
    start = found.latestOffset(found.initialOffset(), ReadMaxRows(150))
    table.write(rows(0, 10, "v"))
    end = found.latestOffset(start, ReadMaxRows(150))

    def told() -> set[int]:
        replicas = [each for node in zone.nodes for each in zone.node(node).partitions()]
        return {each.acknowledged.times(feeds).get("billing", 0) for each in replicas}

    assert told() == {0}, "nothing is stored yet"
    found.commit({"begin": "now"})
    assert told() == {0}
    found.commit(start)
    first = told()
    assert max(first) > 0
    found.commit(end)
    assert told() == first, "not for each batch"
    monkeypatch.setattr("rezone.transfer.source.changes.ACKNOWLEDGE_SECONDS", 0.0)

    def risen() -> bool:
        found.commit(end)  # a follower may not have known the time yet
        return min(told()) > max(first)

    zone.until("the end is told", risen)
    monkeypatch.setattr(TableClient, "acknowledge", _refuse)
    found.commit(end)  # nobody hears it: no reason to fail a query


def _refuse(*_: object) -> None:
    raise NotReadyError("no data node was told")
