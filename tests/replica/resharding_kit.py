"""What the tests of re-sharding at data nodes share: sealing, taking over, holding things up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from replica_cluster import Coordinator

from rezone.replica.entry import iter_entries
from rezone.replica.imports import Stand, import_entry
from rezone.replica.partition import Partition
from rezone.replica.range_tail import range_entries
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.flight import NodeClient, from_flight_error
from rezone.wire.layouts import HashRange, layout_of, next_layout_of, sources_of
from rezone.wire.messages import ScanTicket, Seal, SealState

WAIT_SECONDS = 20


def ask_to_seal(c: Coordinator, partition: int) -> None:
    """Ask the leader of the record, once."""
    record = c.records[partition]
    epoch = record.leader_epoch
    c.call(record.leader, Seal(fence=c.fence(), partition=partition, leader_epoch=epoch))


def begin_to_seal(c: Coordinator, partition: int) -> None:
    """Seal a partition as the operator does: authorized, and asked until it has begun."""
    c.change(partition, sealing=True)

    def begun() -> bool:
        try:
            ask_to_seal(c, partition)
        except NotReadyError:
            return False
        return True

    c.until("it begins to seal", begun)


def wait_sealed(c: Coordinator, partition: int) -> int:
    """Wait until the leader says that it has sealed; return the seal's time."""
    leader = c.records[partition].leader
    c.until("it is sealed", lambda: c.report(leader, partition).seal is SealState.SEALED)
    mark = c.replica(leader, partition).store.seal
    assert mark is not None
    return mark.commit_time


def seal(c: Coordinator, partition: int) -> int:
    """Seal a partition to the end; return the seal's time."""
    begin_to_seal(c, partition)
    return wait_sealed(c, partition)


def take_over(c: Coordinator, heir: int) -> None:
    """Have an heir's leader append all that its sources have committed."""
    new = next_layout_of(c.config)
    assert new is not None
    leader = c.replica(c.records[heir].leader, heir)
    for part in sources_of(heir, layout_of(c.config), new):
        source = c.replica(c.records[part.old].leader, part.old)
        _append(leader, source, part.old, HashRange(part.start, part.end))
    leader.wake()


def _append(heir: Partition, source: Partition, number: int, hashes: HashRange) -> None:
    with heir.lock:
        position = heir.store.import_position(number)
        data = source.store.read(position.offset if position is not None else 0, 1 << 20)
        committed = (
            entry
            for entry in iter_entries(data)
            if entry.header.end_offset <= source.positions.committed
        )
        for entry in range_entries(committed, hashes, source.store.meta.failover_log):
            time = max(heir.clock.micros(), heir.store.last_commit_time + 1)
            stand = Stand(heir.leader_epoch, heir.store.log_end, time)
            raw = import_entry(number, entry, heir.store.import_position(number), stand)
            if raw is not None:
                heir.append(raw)


class HeldDisk:
    """A replica's disk, on which nothing more is synced until `let_go`; so nothing is acknowledged.

    A sync that is under way is not held up: wait for `holds` where that matters.
    """

    def __init__(self, partition: Partition) -> None:
        self._go, self._came = threading.Event(), threading.Event()
        self._sync = partition.store.sync
        partition.store.sync = self._wait  # type: ignore[method-assign]

    @property
    def holds(self) -> bool:
        """Whether a sync waits: the partition's job, which is the only one, goes no further."""
        return self._came.is_set()

    def let_go(self) -> None:
        """Sync what waits, and whatever comes."""
        self._go.set()

    def _wait(self) -> int:
        self._came.set()
        assert self._go.wait(WAIT_SECONDS)
        return self._sync()


def in_background(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Call something in a thread of its own; its result or RezoneError is put into the list."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(act())
        except RezoneError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def scan(c: Coordinator, node: int, partition: int, **options: Any) -> list[bytes]:
    """Return the keys of a scan; `options` are the ticket's."""
    ticket = ScanTicket(partition=partition, **options)
    with contextlib.closing(NodeClient(c.nodes[node].address)) as client:
        stream = client.get(ticket)
        try:
            chunks = [chunk.data for chunk in stream]
        except Exception as error:
            raise from_flight_error(error) from error
    return [key for batch in chunks for key in batch[0].to_pylist()]
