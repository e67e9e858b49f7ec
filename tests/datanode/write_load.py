"""Writers beside what a test does to nodes: what they know to be acknowledged is looked at."""

from __future__ import annotations

import itertools
import threading
import time

from replica_cluster import Client, Coordinator

PARTITION = 0
PAUSE_SECONDS = 0.005
"""Between two writes of a client, so that nodes that start have a processor."""


class Load:
    """Writers that count up one key each; what they know to be acknowledged is checked later.

    Each value is the writer's sequence, so a batch applied twice or out of turn shows as a value
    that is not the last acknowledged one, or as a log longer than the writes.
    """

    def __init__(self, coordinator: Coordinator, writers: int) -> None:
        self.clients = [Client(coordinator) for _ in range(writers)]
        self.acked = [0] * writers
        self.times: list[list[float]] = [[] for _ in range(writers)]
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._enough = threading.Condition()
        self._threads = [
            threading.Thread(target=self._write, args=(i,), daemon=True) for i in range(writers)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, index: int) -> None:
        client = self.clients[index]
        try:
            while not self._stop.wait(PAUSE_SECONDS):
                value = str(client.sequence + 1).encode()
                client.put(PARTITION, {f"key{index}".encode(): value})
                self.acked[index] = client.sequence
                self.times[index].append(time.monotonic())
                with self._enough:
                    self._enough.notify_all()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.errors.append(error)

    def wait_for(self, more: int) -> None:
        """Wait until every writer has that many more acknowledged writes."""
        goals = [count + more for count in self.acked]
        with self._enough:
            assert self._enough.wait_for(
                lambda: self.errors or all(a >= g for a, g in zip(self.acked, goals, strict=True)),
                20,
            )
        assert not self.errors, self.errors

    def stop(self) -> None:
        """End the writers."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        assert not self.errors, self.errors

    @property
    def longest_gap_ms(self) -> float:
        """The longest time in which no write of any writer was acknowledged."""
        times = sorted(t for some in self.times for t in some)
        return max((b - a for a, b in itertools.pairwise(times)), default=0) * 1000

    def check(self) -> int:
        """Every writer's key holds its last acknowledged value; returns the writes in all."""
        keys = [f"key{i}".encode() for i in range(len(self.clients))]
        rows = self.clients[0].get(PARTITION, keys)
        assert rows == {
            key: str(count).encode() for key, count in zip(keys, self.acked, strict=True)
        }
        for client in self.clients:
            client.close()
        return sum(self.acked)
