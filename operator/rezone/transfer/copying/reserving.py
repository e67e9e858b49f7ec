"""Has data nodes leave the rows of a re-sharding to the job that brings them (decision 0486).

Tasks claim the ranges that they are at. What no task has come to yet, data nodes would backfill
through their logs. So the driver reserves all ranges, again and again while rows come. When none
have come for a while it stops, and data nodes go on by themselves.

Concurrency: one thread, and some for its calls.
"""

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import RezoneError
from rezone.wire.messages import BackfillsReserved, NodeId, ReserveBackfills
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import tls_from_environment

RESERVE_SECONDS: Final = 3.0
"""How often; data nodes wait for three times as long."""

IDLE_SECONDS: Final = 60.0
"""For how long no rows may come, executors not be there for instance, until nothing is reserved."""

CALL_SECONDS: Final = 3.0
NODES_AT_ONCE: Final = 16


class Reservations:
    """The ranges of one job; a context in which they are reserved."""

    def __init__(
        self,
        ranges: Sequence[BackfillRange],
        nodes: Mapping[NodeId, str],
        *,
        connect: Callable[[str], NodeClient] | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_seconds: float = RESERVE_SECONDS,
    ) -> None:
        self._all = tuple((each.target, each.source) for each in ranges)
        self._addresses = dict(nodes)
        self._connect = connect or functools.partial(NodeClient, tls=tls_from_environment())
        self._clock = clock
        self._every_seconds = every_seconds
        self._clients: dict[NodeId, NodeClient] = {}
        self._ingested: dict[NodeId, int] = {}
        self._progress_at = clock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew_on, name="reserve", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for client in self._clients.values():
            client.close()

    def renew(self) -> bool:
        """Reserve once, while rows come; return whether they do. Nodes that are away are left."""
        goes_on = self._clock() - self._progress_at < IDLE_SECONDS
        request = ReserveBackfills(self._all if goes_on else ())
        with ThreadPoolExecutor(NODES_AT_ONCE, "reserve") as pool:
            told = dict(
                zip(
                    self._addresses,
                    pool.map(lambda node: self._ask(node, request), self._addresses),
                    strict=True,
                )
            )
        for node, ingested in told.items():
            if ingested is not None and ingested != self._ingested.get(node, 0):
                self._ingested[node] = ingested
                self._progress_at = self._clock()
        return goes_on

    def _renew_on(self) -> None:
        while not self._over.is_set():
            self.renew()
            self._over.wait(self._every_seconds)

    def _ask(self, node: NodeId, request: ReserveBackfills) -> int | None:
        try:
            if node not in self._clients:
                self._clients[node] = self._connect(self._addresses[node])
            answer = self._clients[node].call(
                request, BackfillsReserved, timeout_seconds=CALL_SECONDS
            )
        except RezoneError:
            return None
        return answer.ingested_bytes
