"""The copy loop over real sockets: one read for all, resume, receivers that fail."""

import base64
import contextlib
import gzip
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from fake_snapshot import FakeStore, rows_of

from rezone.transfer import copy_job
from rezone.transfer.copy_job import CopyFailedError, JobOptions
from rezone.transfer.copying.stream import copy_entry
from rezone.wire import messages
from rezone.wire.copying import backfill_plan
from rezone.wire.copying import plan as copyplan
from rezone.wire.copying.copy import CopyOptions, CopyReceipt, Relay, copy_partition
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import CopyState, SnapshotHeader, SnapshotTrailer
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.ratelimit import RateLimit

ROWS = rows_of(95)


@pytest.fixture
def stores() -> Iterator[list[FakeStore]]:
    """Yield a source with partition 3, and two receivers."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(FakeStore(n)) for n in range(3)]
        made[0].rows[3] = ROWS
        yield made


def plan_of(stores: list[FakeStore], partition: int = 3) -> PartitionCopy:
    """Return the copy of one partition from the first store to the others."""
    return PartitionCopy(
        partition=partition,
        source=stores[0].address,
        source_id=stores[0].node,
        targets=tuple(CopyTarget(id=s.node, address=s.address) for s in stores[1:]),
        revision=9,
    )


@pytest.mark.proves("SS-06")
def test_one_read_feeds_all_receivers(stores: list[FakeStore]) -> None:
    """SS-06: reading the source once per receiver would double its load."""
    receipts = copy_entry(plan_of(stores), attempt="a1")
    assert [r.error for r in receipts] == ["", ""]
    assert [r.rows for r in receipts] == [95, 95]
    assert len(stores[0].tickets) == 1
    for store in stores[1:]:
        assert store.rows[3] == ROWS
        assert store.inserts[0].attempt == "a1"
        assert store.inserts[0].revision == 9


def test_metadata_arrives_as_sent(stores: list[FakeStore]) -> None:
    """Header, marks and trailer carry what makes a copy correct; the loop must not touch them."""
    copy_entry(plan_of(stores), attempt="a")
    first, second = stores[1].received[3], stores[2].received[3]
    assert first == second
    assert isinstance(messages.decode(first[0]), SnapshotHeader)
    assert messages.decode(first[-1]) == SnapshotTrailer(versions=95, bytes=0)
    assert first[1] == b"mark:" + ROWS[9][0]
    assert len(first) == 11


@pytest.mark.proves("B-05")
def test_a_copy_that_died_goes_on_where_it_was(stores: list[FakeStore]) -> None:
    """B-05: the second try must read from the resume point, not from the start."""
    stores[0].source_dies_after = [4]
    receipts = copy_entry(plan_of(stores), attempt="a1")
    assert all("the source died" in r.error for r in receipts)
    assert not any(stores[n].copies[3].done for n in (1, 2) if 3 in stores[n].copies)
    receipts = copy_entry(plan_of(stores), attempt="a2")
    assert [r.error for r in receipts] == ["", ""]
    points = [s.copies[3].resume_after for s in stores[1:]]
    assert stores[0].tickets[1].resume_after > b""
    assert stores[1].rows[3] == stores[2].rows[3] == ROWS
    assert points == [ROWS[-1][0]] * 2
    assert all(r.resumed and r.rows < 95 for r in receipts)


def test_a_failing_receiver_does_not_stop_the_other(stores: list[FakeStore]) -> None:
    """One bad receiver must not cost the others their copy; later it alone goes on."""
    stores[1].receiver_dies_after = [2]
    receipts = copy_entry(plan_of(stores), attempt="a1")
    assert "NotReadyError: the receiver died" in receipts[0].error
    assert receipts[1].error == ""
    assert stores[2].copies[3].done
    receipts = copy_entry(plan_of(stores), attempt="a2")
    assert receipts[0].resumed
    assert receipts[0].error == ""
    assert receipts[1] == CopyReceipt(partition=3, target=receipts[1].target, skipped=True)
    assert stores[1].rows[3] == ROWS
    assert len(stores[2].inserts) == 1


def test_the_lower_resume_point_is_read_from(stores: list[FakeStore]) -> None:
    """Reading from the higher one would leave a hole in the other receiver."""
    stores[1].rows[3] = ROWS[:50]
    stores[1].copies[3] = CopyState(partition=3, resume_after=ROWS[49][0])
    stores[2].rows[3] = ROWS[:20]
    stores[2].copies[3] = CopyState(partition=3, resume_after=ROWS[19][0])
    receipts = copy_entry(plan_of(stores), attempt="a")
    assert [r.error for r in receipts] == ["", ""]
    assert stores[0].tickets[0].resume_after == ROWS[19][0]
    assert stores[1].rows[3] == stores[2].rows[3] == ROWS


def test_nothing_is_read_when_all_have_it(stores: list[FakeStore]) -> None:
    """A repeated job must cost nothing for what is done."""
    for store in stores[1:]:
        store.copies[3] = CopyState(partition=3, done=True)
    receipts = copy_entry(plan_of(stores), attempt="a")
    assert all(r.skipped for r in receipts)
    assert stores[0].tickets == []


def test_a_fenced_receiver_says_so(stores: list[FakeStore]) -> None:
    """The receiver's own word must arrive, not just that the stream broke."""
    stores[1].revision = 10
    receipts = copy_entry(plan_of(stores), attempt="a")
    assert receipts[0].error == "StaleRevisionError: an older trigger"
    assert receipts[1].error == ""


def test_dead_nodes_are_receipts_with_errors(stores: list[FakeStore]) -> None:
    """A node that is gone is an ordinary end of a copy, never an exception."""
    stores[1].shutdown()
    receipts = copy_entry(plan_of(stores), attempt="a")
    assert "does not answer" in receipts[0].error
    assert receipts[1].error == ""
    stores[0].shutdown()
    receipts = copy_entry(plan_of([stores[0], stores[1]]), attempt="b")
    assert receipts[0].error
    with FakeStore(9) as fresh:
        (receipt,) = copy_entry(plan_of([stores[0], fresh]), attempt="c")
        assert receipt.error.startswith("the source failed: ")


def test_a_cancelled_copy_ends_early(stores: list[FakeStore]) -> None:
    """A cancelled rebalance must not copy on, and leaves the receiver able to go on."""
    asked = iter([False] * 3)
    receipts = copy_entry(plan_of(stores), attempt="a", cancelled=lambda: next(asked, True))
    assert [r.error for r in receipts] == ["the copy was cancelled"] * 2
    assert not any(s.copies[3].done for s in stores[1:] if 3 in s.copies)


class _StuckSink:
    """A receiver that takes nothing until it is let go."""

    name = "stuck"
    bytes_per_second_max: int | None = None

    def __init__(self, until: Any) -> None:
        self.until = until
        self.aborted = False

    def state(self) -> CopyState:
        """Return the start."""
        return CopyState(partition=3)

    def open(self, _schema: Any) -> None:
        """Begin."""

    def write(self, _batch: Any, _metadata: Any) -> None:
        """Hang until the other receiver is done."""
        self.until.wait(20)

    def finish(self) -> CopyState:
        """Never reached."""
        raise AssertionError

    def abort(self) -> None:
        """Note it."""
        self.aborted = True


class _ListSink(_StuckSink):
    """A receiver in memory."""

    name = "list"

    def __init__(self, until: Any) -> None:
        super().__init__(until)
        self.batches: list[Any] = []

    def write(self, batch: Any, metadata: Any) -> None:
        """Keep the batch."""
        self.batches.append((batch, metadata))

    def finish(self) -> CopyState:
        """Confirm, and let the other go."""
        self.until.set()
        return CopyState(partition=3, done=True)


class _FailingSink(_StuckSink):
    """A receiver that cannot even begin."""

    def open(self, _schema: Any) -> None:
        """Fail."""
        raise NotReadyError("the receiver is gone")

    def abort(self) -> None:
        """Tell who waits for it."""
        self.until.set()


def test_a_receiver_that_stalls_is_dropped(stores: list[FakeStore]) -> None:
    """One stuck receiver must hold the others only for the stall time."""
    until = threading.Event()
    stuck, good = _StuckSink(until), _ListSink(until)
    source = NodeClient(stores[0].address)
    receipts = copy_partition(
        Relay(
            3,
            source,
            [stuck, good],
            reader="r",
            options=CopyOptions(stall_seconds=0.05, confirm_seconds=5),
        )
    )
    source.close()
    assert "took nothing" in receipts[0].error
    assert receipts[1].error == ""
    assert len(good.batches) == 11
    assert stuck.aborted


def test_the_rate_limit_sleeps_off_what_is_over() -> None:
    """Bytes per second are a promise to the zone's users: burst of a second, then the rate."""
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    rate = RateLimit(100, clock=lambda: now[0], sleep=sleep)
    for _ in range(10):
        rate.spend(50)
    assert sum(slept) == pytest.approx(4.0)
    now[0] += 100
    before = len(slept)
    rate.spend(100)
    assert len(slept) == before
    unlimited = RateLimit(0, clock=lambda: now[0], sleep=sleep)
    unlimited.spend(1 << 40)
    assert len(slept) == before


@pytest.mark.proves("B-03")
def test_a_limit_that_changes_counts_at_once() -> None:
    """Whoever lowers the rate of a running copy would have to wait until it ends, or stop it."""
    now, limit = [0.0], [1]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] >= 10:
            limit[0] = 1000

    rate = RateLimit(lambda: limit[0], clock=lambda: now[0], sleep=sleep)
    rate.spend(5001)
    assert 14 <= now[0] <= 16, "ten seconds at 1 byte a second, then 5,000 bytes at 1,000"
    limit[0] = 0
    rate.spend(1 << 40)
    limit[0] = 100
    before = now[0]
    rate.spend(100)
    assert now[0] - before <= 2, "nothing is owed from the time without a limit"


def test_what_is_owed_is_slept_off_by_a_coarse_clock() -> None:
    """Asserts that no rest is too short for the clock to tell.

    Without it some 1e-17 seconds that are left are asked for again and again, for ever.
    """
    now = [1e9]

    def sleep(seconds: float) -> None:
        assert now[0] + seconds > now[0]
        now[0] += seconds

    rate = RateLimit(1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(1000):
        rate.spend(333)
    assert now[0] - 1e9 == pytest.approx(332, abs=0.01)


@pytest.mark.proves("B-03", "B-05")
def test_a_copy_at_a_low_rate_reads_its_source_often(stores: list[FakeStore]) -> None:
    """Asserts that a batch is no more than what the rate lets pass in `keep_seconds`.

    Without it the source is read each two minutes, and lets go of the snapshot after one.
    """
    options = CopyOptions(bytes_per_second_max=20_000)
    receipts = copy_entry(plan_of(stores), attempt="a", options=options)
    assert [receipt.error for receipt in receipts] == ["", ""]
    (ticket,) = stores[0].tickets
    assert ticket.batch_bytes == 20_000 * options.keep_seconds


@pytest.mark.proves("B-03")
@pytest.mark.parametrize("why", ["the copy was cancelled", "the receiver is gone"])
def test_nobody_waits_for_the_rate_of_a_copy_that_is_not_wanted(
    stores: list[FakeStore], why: str
) -> None:
    """Asserts that a copy ends within a second of its rest, of thousands that are owed.

    Without it a cancelled copy keeps its thread and its source's snapshot until then.
    """
    now, cancelled = [0.0], why == "the copy was cancelled"
    sink = _ListSink(threading.Event()) if cancelled else _FailingSink(threading.Event())

    def sleep(seconds: float) -> None:
        now[0] += seconds
        assert cancelled or sink.until.wait(20), "the receiver has not failed"

    rate = RateLimit(1, clock=lambda: now[0], sleep=sleep)
    source = NodeClient(stores[0].address)
    relay = Relay(
        *(3, source, [sink]), reader="r", rate=rate, cancelled=lambda: cancelled and now[0] > 0
    )
    (receipt,) = copy_partition(relay)
    source.close()
    assert why in receipt.error
    assert now[0] <= 1, "the first batch alone owes a thousand seconds"


def test_plans_round_trip_small_and_big() -> None:
    """A plan of thousands of partitions must fit into a ConfigMap, and be read by the same call."""
    one = PartitionCopy(
        partition=1,
        source="a:1",
        source_id=1,
        targets=(CopyTarget(id=2, address="b:1"),),
        revision=4,
    )
    small = copyplan.dumps([one])
    assert small.startswith("[{")
    assert copyplan.loads(small) == [one]
    many = [
        PartitionCopy(
            partition=n,
            source=f"node-{n % 50}.zone.ns.svc:9090",
            source_id=n % 50,
            targets=(CopyTarget(id=n % 49, address=f"node-{n % 49}.zone.ns.svc:9090"),),
            revision=one.revision,
        )
        for n in range(16_384)
    ]
    big = copyplan.dumps(many)
    assert len(big) < 500_000
    assert copyplan.loads(big) == many


@pytest.mark.parametrize(
    "text", ["", "{}", "[{}]", "H4sIjunk", '[{"partition": 1}]', "not json", "[1]"]
)
def test_bad_plans_are_refused_with_a_reason(text: str) -> None:
    """A wrong plan must end the job before Spark starts, with exit code 2."""
    with pytest.raises(ValueError, match="not a copy plan"):
        copyplan.loads(text)
    assert copy_job.main(["--plan-json", text or " "]) == 2


def test_a_packed_plan_takes_no_more_memory_than_a_plan_may() -> None:
    """Much more would be unpacked before its size is looked at, in the driver's pod."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    part = bytes(1 << 20)
    packed = b"".join(packer.compress(part) for _ in range(256)) + packer.flush()
    text = base64.b64encode(packed).decode()
    assert len(text) < 1 << 20
    tracemalloc.start()
    try:
        for loads in (copyplan.loads, backfill_plan.loads):
            with pytest.raises(ValueError, match="which is the limit"):
                loads(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * copyplan.PLAN_BYTES_MAX


def test_a_packed_plan_that_is_damaged_is_refused() -> None:
    """The job would end with a trace of the library, as for a fault of its own."""
    packed = bytearray(gzip.compress(bytes(100_000), mtime=0))
    packed[20:30] = b"\xff" * 10
    with pytest.raises(ValueError, match="damaged"):
        copyplan.loads(base64.b64encode(packed).decode())


def test_plans_without_sense_are_refused(stores: list[FakeStore]) -> None:
    """Two tasks for one partition would fight over the receiver."""
    entry = plan_of(stores)
    with pytest.raises(ValueError, match="twice"):
        copyplan.loads(copyplan.dumps([entry, entry]))
    with pytest.raises(ValueError, match="no targets"):
        copyplan.loads(copyplan.dumps([plan_of(stores[:1])]))


@pytest.mark.parametrize(
    ("master", "configured", "tries"),
    [
        ("local", None, 1),
        ("local[2]", "7", 1),
        ("local[*]", None, 1),
        ("local[2,4]", None, 4),
        ("local[*, 3]", None, 3),
        ("k8s://https://api", None, 4),
        ("k8s://https://api", "8", 8),
    ],
)
def test_how_often_spark_tries(master: str, configured: str | None, tries: int) -> None:
    """The last try must be known: raising there would stop all other copies."""
    assert copy_job.task_failures_max(master, configured) == tries


def test_a_task_raises_until_its_last_try(stores: list[FakeStore]) -> None:
    """Spark repeats what raises; the last try gives receipts, so that other copies go on."""
    failed = CopyReceipt(partition=3, target="t", error="broken")
    options = JobOptions(application="app", task_failures_max=3, retry_pause_seconds=1.0)
    slept: list[float] = []
    attempts: list[str] = []

    def copy(_entry: PartitionCopy, *, attempt: str, options: CopyOptions) -> list[CopyReceipt]:
        del options
        attempts.append(attempt)
        return [failed]

    for number in range(2):
        with pytest.raises(CopyFailedError, match="t: broken"):
            copy_job.run_task(
                plan_of(stores),
                options,
                attempt_number=number,
                attempt_id=10 + number,
                sleep=slept.append,
                copy=copy,
            )
    assert copy_job.run_task(
        plan_of(stores), options, attempt_number=2, attempt_id=12, sleep=slept.append, copy=copy
    ) == [failed]
    assert slept == [1.0, 2.0]
    assert attempts == ["app/3/10", "app/3/11", "app/3/12"]


def test_the_summary_counts_and_bounds_errors() -> None:
    """The coordinator reads the last line; a thousand errors must not make it unreadable."""
    receipts = [CopyReceipt(partition=n, target="t", error="e") for n in range(100)]
    receipts.append(CopyReceipt(partition=1, target="u", rows=5, bytes=50, resumed=True))
    result = copy_job.summary(receipts, 1.23456, 0.98765)
    assert result["failed"] == 100
    assert result["copies"] == 101
    assert (result["rows"], result["bytes"], result["resumed"]) == (5, 50, 1)
    assert len(result["errors"]) == copy_job.REPORTED_ERRORS_MAX
