"""The demo's load: writes to every partition and reads of what was acknowledged.

Each partition has one write on its way at a time and, after its answer, the next one a pause
later; so a partition that hands over slows nobody but itself, and the time between two answers is
its write gap. While a partition's leader moves, its pause is short, to measure the gap finely.
Partitions are those that the zone had when the traffic began: when it is re-sharded, what was
measured of one goes on being measured of the rows of its range, whoever serves them.

Concurrency: one thread sends writes that are due, one reads; answers come on the client's reader
threads and only enter the ledger and set the partition's next due time.
"""

import heapq
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future

from rezone.cli.demo.gaps import WriteAck
from rezone.cli.demo.ledger import Ledger
from rezone.cli.demo.operations import Operations
from rezone.cli.demo.table import DemoTable
from rezone.client import OutcomeUnknownError, PartitionWrite, TableClient
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.keyspace import partitions_of
from rezone.wire.errors import RezoneError

ROWS_PER_WRITE = 4
PAUSE_SECONDS = 0.1
PAUSE_WHILE_MOVING_SECONDS = 0.004
READ_PAUSE_SECONDS = 0.025
READS_PER_PAUSE = 8
READ_KEYS = 20
KEYS_PER_POOL = 64


class Traffic:
    """Writes and reads until it is stopped; `ledger` has what was promised.

    With a ledger of earlier traffic, its rows are written and read further. A partition's next
    write comes `pause_seconds` after the last one's answer; a read comes every eighth of that, and
    not more often than READ_PAUSE_SECONDS. `operations` gets the history of each row; it grows
    until it is taken.
    """

    def __init__(
        self,
        bootstrap: list[str],
        table: DemoTable,
        partitions: int,
        *,
        ledger: Ledger | None = None,
        pause_seconds: float = PAUSE_SECONDS,
        operations: Operations | None = None,
    ) -> None:
        self.ledger = ledger or Ledger()
        self.read_count = 0
        self.read_failures: list[str] = []
        self.stale_reads: list[str] = []
        self.write_failures: list[str] = []
        self.acks: dict[int, list[WriteAck]] = defaultdict(list)
        self._table = table
        self._pause_seconds = pause_seconds
        self._operations = operations
        self._client = TableClient(bootstrap)
        self._reader = TableClient(bootstrap)
        self._moving: frozenset[int] = frozenset()
        self._stop = threading.Event()
        self._due: list[tuple[float, int]] = []
        self._changed = threading.Condition()
        self._open = 0
        self._keys = self._keys_by_partition(partitions)
        self._turn: dict[int, int] = defaultdict(int)
        self._counts: dict[int, int] = defaultdict(int, self.ledger.book().possible)
        self._threads = [
            threading.Thread(target=self._write, name="demo-writer", daemon=True),
            threading.Thread(target=self._read, name="demo-reader", daemon=True),
        ]

    def start(self) -> None:
        """Begin with every partition."""
        now = time.monotonic()
        spread = self._pause_seconds / len(self._keys)
        self._due = [(now + spread * p, p) for p in sorted(self._keys)]
        heapq.heapify(self._due)
        for thread in self._threads:
            thread.start()

    def watch_closely(self, partitions: frozenset[int]) -> None:
        """Write more often to partitions whose leader is about to move."""
        with self._changed:
            self._moving = partitions

    def stop(self) -> None:
        """End after the writes under way are answered."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0, timeout=60)
        self._client.close()
        self._reader.close()

    def _keys_by_partition(self, partitions: int) -> dict[int, list[int]]:
        numbers = list(range(KEYS_PER_POOL * partitions))
        encoded = encoded_rows(self._client.codec, self._table.key_batch(numbers))
        places = partitions_of(encoded.hashes(), partitions)
        pools: dict[int, list[int]] = defaultdict(list)
        for number, place in zip(numbers, places.tolist(), strict=True):
            pools[place].append(number)
        return dict(pools)

    # --- writes ------------------------------------------------------------------------------

    def _write(self) -> None:
        while not self._stop.is_set():
            partition = self._next_due()
            if partition is not None:
                self._send(partition)

    def _next_due(self) -> int | None:
        with self._changed:
            while not self._stop.is_set():
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is not None and wait <= 0:
                    self._open += 1
                    return heapq.heappop(self._due)[1]
                self._changed.wait(wait)
        return None

    def _send(self, partition: int) -> None:
        pool = self._keys[partition]
        turn = self._turn[partition]
        self._turn[partition] = turn + 1
        writes = {}
        for step in range(ROWS_PER_WRITE):
            key = pool[(turn * ROWS_PER_WRITE + step) % len(pool)]
            self._counts[key] += 1
            writes[key] = self._counts[key]
        self.ledger.sent(writes)
        number = self._begun(writes)
        done = self._answered(partition, writes, number)
        try:
            self._client.submit_write(self._table.batch(writes)).add_done_callback(done)
        except RezoneError as error:
            self._ended(number, acknowledged=False)
            self.write_failures.append(f"partition {partition}: {error}")
            self._again(partition)

    def _begun(self, writes: dict[int, int]) -> int:
        if self._operations is None:
            return 0
        return self._operations.begin(writes, time.monotonic_ns())

    def _ended(self, number: int, *, acknowledged: bool) -> None:
        # Also an error that says no may follow an attempt that was applied.
        if self._operations is not None:
            self._operations.end(number, time.monotonic_ns() if acknowledged else None)

    def _answered(
        self,
        partition: int,
        writes: dict[int, int],
        number: int,
    ) -> Callable[["Future[list[PartitionWrite]]"], None]:
        def answered(future: "Future[list[PartitionWrite]]") -> None:
            error = future.exception()
            self._ended(number, acknowledged=error is None)
            if error is None:
                self.ledger.acknowledged(writes)
                epoch = max(done.leader_epoch for done in future.result())
                self.acks[partition].append(WriteAck(time.monotonic(), epoch))
            elif isinstance(error, OutcomeUnknownError):
                self.ledger.unknown(writes)
                self.write_failures.append(f"partition {partition}: {error}")
            else:
                self.write_failures.append(f"partition {partition}: {error}")
            self._again(partition)

        return answered

    def _again(self, partition: int) -> None:
        with self._changed:
            moving = partition in self._moving
            pause = PAUSE_WHILE_MOVING_SECONDS if moving else self._pause_seconds
            heapq.heappush(self._due, (time.monotonic() + pause, partition))
            self._open -= 1
            self._changed.notify_all()

    # --- reads -------------------------------------------------------------------------------

    def _read(self) -> None:
        start = 0
        pause = max(READ_PAUSE_SECONDS, self._pause_seconds / READS_PER_PAUSE)
        while not self._stop.wait(pause):
            keys = self.ledger.some_keys(start, READ_KEYS)
            start += READ_KEYS
            if keys:
                self._read_once(keys)

    def _read_once(self, keys: list[int]) -> None:
        promised = self.ledger.promised(keys)
        call_ns = time.monotonic_ns()
        try:
            found = self._table.writes_of(self._reader.read(self._table.key_batch(keys)))
        except RezoneError as error:
            self.read_failures.append(str(error))
            return
        if self._operations is not None:
            self._operations.read(keys, found, call_ns, time.monotonic_ns())
        self.read_count += 1
        for key, count in promised.items():
            if found.get(key, 0) < count:
                self.stale_reads.append(
                    f"row {key}: read write {found.get(key, 0)} after write {count} "
                    "had been acknowledged"
                )
