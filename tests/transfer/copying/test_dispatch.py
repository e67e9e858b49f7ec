"""Copies of a plan begin when their receivers admit them, and not before."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import pytest
from fake_snapshot import FakeStore, rows_of

from rezone.transfer.copying.dispatch import SILENT_SECONDS_MAX, Receivers, dispatch
from rezone.transfer.copying.stream import copy_entry
from rezone.wire.copying.copy import CopyReceipt
from rezone.wire.copying.plan import CopyTarget, PartitionCopy, target_name
from rezone.wire.transport.flight import NodeClient

WAIT_SECONDS = 20


@pytest.fixture
def stores() -> Iterator[list[FakeStore]]:
    """Yield a source with partitions 0 to 3, and two receivers."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(FakeStore(n)) for n in range(3)]
        made[0].rows = {p: rows_of(30 + p) for p in range(4)}
        yield made


def entry(stores: Sequence[FakeStore], partition: int) -> PartitionCopy:
    """Return the copy of a partition from the first store to the others."""
    return PartitionCopy(
        partition=partition,
        source=stores[0].address,
        source_id=stores[0].node,
        targets=tuple(CopyTarget(id=s.node, address=s.address) for s in stores[1:]),
        revision=9,
    )


def copied(each: PartitionCopy) -> list[CopyReceipt]:
    """Return the receipts of a copy that went well."""
    return [CopyReceipt(partition=each.partition, target=target_name(t)) for t in each.targets]


@pytest.mark.proves("B-03")
def test_a_copy_begins_when_all_its_receivers_admit_it(stores: list[FakeStore]) -> None:
    """What one receiver holds waits; what no receiver needs any more is over at once.

    The limits of a zone would not hold, or a copy that is not needed would keep the job alive.
    """
    plan = [entry(stores, p) for p in range(4)]
    stores[1].held, stores[2].held = {1}, {2}
    with Receivers() as receivers:
        assert [e.partition for e in receivers.ready(plan)] == [0, 3]
        stores[1].held.clear()
        assert [e.partition for e in receivers.ready(plan)] == [0, 1, 3]
        assert receivers.ready([]) == []


def test_a_receiver_that_is_silent_holds_its_copies_for_a_while_only(
    stores: list[FakeStore],
) -> None:
    """After a minute Spark tries, and says in its receipts what is wrong.

    A job would never end while the data node of one copy is gone.
    """
    now = [0.0]
    gone = FakeStore(7)
    address = gone.address
    gone.shutdown()
    plan = [entry([stores[0], stores[1]], 0), entry([stores[0], gone], 1)]
    assert plan[1].targets[0].address == address
    with Receivers(clock=lambda: now[0]) as receivers:
        assert [e.partition for e in receivers.ready(plan)] == [0]
        now[0] += SILENT_SECONDS_MAX + 1
        assert [e.partition for e in receivers.ready(plan)] == [0, 1]


def test_a_receiver_that_holds_a_copy_is_not_read_for(stores: list[FakeStore]) -> None:
    """A copy held after all opens no snapshot at its source, and is no failure.

    A pause would cost the source a snapshot for each copy that Spark had queued.
    """
    stores[1].held = {0}
    held, whole = copy_entry(entry(stores, 0), attempt="a")
    assert (held.held, whole.held, whole.error) == (True, False, "")
    assert whole.rows == 30
    held, skipped = copy_entry(entry(stores, 0), attempt="b")
    assert (held.held, skipped.skipped) == (True, True)
    assert len(stores[0].tickets) == 1


@pytest.mark.proves("B-03", "B-05")
def test_each_copy_is_begun_once_and_again_where_it_was_held(stores: list[FakeStore]) -> None:
    """A held receiver's copy is tried again for it alone; all receipts come in the end.

    A pause in the midst of a job would end the copies that had just not begun.
    """
    plan = [entry(stores, p) for p in range(3)]
    begun: list[tuple[int, int]] = []
    lock, first = threading.Lock(), plan[0].targets[0]

    def copy(each: PartitionCopy) -> list[CopyReceipt]:
        with lock:
            again = any(partition == each.partition for partition, _ in begun)
            begun.append((each.partition, len(each.targets)))
        if each.partition == 1:
            raise RuntimeError("Spark has lost all executors")
        receipts = copied(each)
        if each.partition == 0 and not again:
            receipts[0] = CopyReceipt(partition=0, target=target_name(first), held=True, error="x")
        return receipts

    receipts = dispatch(plan, list, copy, sleep=lambda _: None)
    assert sorted(begun) == [(0, 1), (0, 2), (1, 2), (2, 2)]
    assert len(receipts) == 6
    assert not any(receipt.held for receipt in receipts)
    failed = [receipt for receipt in receipts if receipt.error]
    assert {receipt.partition for receipt in failed} == {1}
    assert all("lost all executors" in receipt.error for receipt in failed)


def test_a_copy_that_waits_keeps_no_other_from_its_place(stores: list[FakeStore]) -> None:
    """While one copy waits for its turn, the others run and end.

    Copies that may not begin yet would fill all places of Spark, and none would be made.
    """
    plan = [entry(stores, p) for p in range(4)]
    done: list[int] = []
    all_others = threading.Event()
    slept: list[float] = []

    def ready(entries: Sequence[PartitionCopy]) -> list[PartitionCopy]:
        return [e for e in entries if e.partition or all_others.is_set()]

    def copy(each: PartitionCopy) -> list[CopyReceipt]:
        done.append(each.partition)
        if len(done) == 3:
            all_others.set()
        return copied(each)

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        assert all_others.wait(WAIT_SECONDS)

    assert len(dispatch(plan, ready, copy, sleep=sleep)) == 8
    assert done[-1] == 0


def test_connections_are_kept_and_closed(stores: list[FakeStore]) -> None:
    """Each receiver is asked on one connection.

    Every second of a long copy would cost each data node a new connection.
    """
    made: list[str] = []

    def connect(address: str) -> NodeClient:
        made.append(address)
        return NodeClient(address)

    with Receivers(connect) as receivers:
        for _ in range(3):
            receivers.ready([entry(stores, 0), entry(stores, 1)])
    assert sorted(made) == sorted(s.address for s in stores[1:])
    assert stores[1].asked == 3
