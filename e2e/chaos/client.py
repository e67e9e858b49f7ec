"""`python -m e2e.chaos.client`: one client that writes and reads rows and records it all.

One thread per partition, as that was when the client began: when a zone is re-sharded, what was
measured of one goes on being measured of the rows of its range. The rows in use change every few
seconds, so that no row's history becomes long; now and then one from before is read again. One more
thread runs transactions on rows of its own (`transactions`).
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections import defaultdict
from pathlib import Path

import click
import numpy as np
import pyarrow as pa

from e2e.chaos.history import Outcome
from e2e.chaos.recording import ClosedLoop, Lines
from e2e.chaos.transactions import GROUP, TransactionWorker
from rezone.client import TableClient
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.keyspace import partitions_of
from rezone.wire.errors import InvalidRowError, RezoneError

_ROWS_AT_ONCE = 2
_WINDOW_SECONDS = 10.0
_KEYS_PER_PARTITION = 1000
_WRITES = 0.7
_EARLIER_READS = 0.3
_CLIENTS_FACTOR = 1 << 40


class Recorder:
    """Notes operations as `history` reads them."""

    def __init__(self, client: int, lines: Lines) -> None:
        self._client = client
        self._lines = lines

    def call(self, partition: int, key: int, value: int, *, write: bool) -> int:
        """Note that an operation begins; returns its number."""
        number = self._lines.number()
        self._lines.put(
            op=number,
            client=self._client,
            partition=partition,
            key=key,
            write=write,
            value=value,
            call_ns=time.monotonic_ns(),
        )
        return number

    def end(self, number: int, outcome: Outcome, error: str = "", **value: int) -> None:
        """Note that an operation has ended, and what was read."""
        now = time.monotonic_ns()
        self._lines.put(op=number, return_ns=now, outcome=outcome, error=error, **value)


class Rows:
    """The rows of one partition: which are in use at a time, and which were before."""

    def __init__(self, keys: list[int], rng: random.Random) -> None:
        self._keys = keys
        self._rng = rng

    def now(self, seconds: float) -> int:
        """Return one of the rows in use."""
        return self._row(int(seconds / _WINDOW_SECONDS))

    def earlier(self, seconds: float, begun: float) -> int:
        """Return a row that was in use at some time since the beginning."""
        return self.now(self._rng.uniform(begun, seconds))

    def every(self, seconds: float, begun: float) -> list[int]:
        """Return all rows that were in use since the beginning."""
        windows = range(int(begun / _WINDOW_SECONDS), int(seconds / _WINDOW_SECONDS) + 1)
        return [self._key(window, number) for window in windows for number in range(_ROWS_AT_ONCE)]

    def _row(self, window: int) -> int:
        return self._key(window, self._rng.randrange(_ROWS_AT_ONCE))

    def _key(self, window: int, number: int) -> int:
        return self._keys[(window * _ROWS_AT_ONCE + number) % len(self._keys)]


def keys_by_partition(table: TableClient, partitions: int) -> dict[int, list[int]]:
    """Return the rows of each partition in the order of their hashes; all clients find the same."""
    numbers = np.arange(1, partitions * _KEYS_PER_PARTITION)
    batch = pa.record_batch({"id": pa.array(numbers, pa.int64())}, schema=table.codec.key_schema)
    hashes = np.asarray(encoded_rows(table.codec, batch).hashes())
    places = partitions_of(hashes, partitions)
    found: dict[int, list[int]] = defaultdict(list)
    for place in np.argsort(hashes, kind="stable"):
        found[int(places[place])].append(int(numbers[place]))
    return dict(found)


class Worker(ClosedLoop):
    """One closed loop on one partition's rows."""

    def __init__(
        self,
        table: TableClient,
        recorder: Recorder,
        *,
        partition: int,
        rows: Rows,
        values: itertools.count[int],
        rng: random.Random,
        pause_seconds: float,
        stop: threading.Event,
    ) -> None:
        super().__init__(f"partition-{partition}", rng, pause_seconds, stop)
        self._table = table
        self._recorder = recorder
        self._partition = partition
        self._rows = rows
        self._values = values

    def run(self) -> None:
        """Write and read until told to stop, then read every row that was written."""
        begun = time.monotonic()
        for _ in self.turns():
            now = time.monotonic()
            if self.rng.random() < _WRITES:
                self._write(self._rows.now(now))
            elif self.rng.random() < _EARLIER_READS:
                self._read(self._rows.earlier(now, begun))
            else:
                self._read(self._rows.now(now))
        for key in self._rows.every(time.monotonic(), begun):
            self._read(key)

    def _write(self, key: int) -> None:
        value = next(self._values)
        number = self._recorder.call(self._partition, key, value, write=True)
        try:
            self._table.write([{"id": key, "value": value}])
        except InvalidRowError as error:
            self._recorder.end(number, Outcome.FAILED, str(error))
        except (RezoneError, TimeoutError) as error:
            # Also an error that says no may follow an attempt that was applied.
            self._recorder.end(number, Outcome.UNKNOWN, str(error))
        else:
            self._recorder.end(number, Outcome.OK)

    def _read(self, key: int) -> None:
        number = self._recorder.call(self._partition, key, 0, write=False)
        try:
            found = self._table.read([{"id": key}]).to_pylist()
        except (RezoneError, TimeoutError) as error:
            self._recorder.end(number, Outcome.FAILED, str(error))
        else:
            value = found[0]["value"] if found else 0
            self._recorder.end(number, Outcome.OK, value=value)


@click.command()
@click.option("--bootstrap", required=True, multiple=True)
@click.option("--partitions", required=True, type=int)
@click.option("--number", required=True, type=int)
@click.option("--seed", required=True, type=int)
@click.option("--pause-seconds", required=True, type=float)
@click.option("--output", required=True, type=click.Path(path_type=Path))
@click.option("--transactions", required=True, type=click.Path(path_type=Path))
def main(
    *,
    bootstrap: tuple[str, ...],
    partitions: int,
    number: int,
    seed: int,
    pause_seconds: float,
    output: Path,
    transactions: Path,
) -> None:
    """Write and read until SIGTERM, then read every row once more."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        TableClient(list(bootstrap)) as table,
        output.open("w") as target,
        transactions.open("w") as transactions_target,
    ):
        recorder = Recorder(number, Lines(target))
        values = itertools.count(number * _CLIENTS_FACTOR + 1)
        pools = keys_by_partition(table, partitions)
        workers: list[threading.Thread] = [
            TransactionWorker(
                table,
                Lines(transactions_target),
                client=number,
                groups=[keys[:GROUP] for keys in pools.values()],
                values=values,
                rng=random.Random(f"{seed}:{number}:transactions"),
                pause_seconds=pause_seconds,
                stop=stop,
            )
        ]
        for partition, keys in sorted(pools.items()):
            rng = random.Random(f"{seed}:{number}:{partition}")
            rows = Rows(keys[GROUP:], rng)
            workers.append(
                Worker(
                    table,
                    recorder,
                    partition=partition,
                    rows=rows,
                    values=values,
                    rng=rng,
                    pause_seconds=pause_seconds,
                    stop=stop,
                )
            )
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    main()
