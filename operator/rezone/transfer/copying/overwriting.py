"""Overwrites a zone: asks for it, brings the new rows, and waits for the switch (decision 0500).

The driver tells every data node the name of its overwrite, again and again until the new layout
serves: nobody else keeps it alive. The operator makes the new partitions; each range of them takes
the rows as a backfill by a job does. What is there stands in the partitions: a driver that comes
again with the same name and rows goes on, or learns that all is done.

Concurrency: one thread asks, some bring ranges.
"""

import functools
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import msgspec

from rezone.transfer.copying.backfill import RangeBackfill, RangeReceipt
from rezone.transfer.copying.new_rows import NewRows
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError
from rezone.wire.layouts import Layout, overlaps
from rezone.wire.messages import AskOverwrite, NodeId, OverwriteProgress
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import tls_from_environment

ASK_SECONDS: Final = 3.0
"""How often; data nodes say for three times as long that they were asked."""

PATIENCE_SECONDS: Final = 600.0
"""For how long no row may be brought until the driver gives up."""

RANGES_AT_ONCE: Final = 4
CALL_SECONDS: Final = 3.0


class OverwriteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver has brought until its overwrite was done: nothing if it was done before."""

    rows: int = 0
    bytes: int = 0


class Overwriting:
    """One overwrite; `nodes` are the addresses of all data nodes by their ids."""

    def __init__(
        self,
        name: str,
        nodes: Mapping[NodeId, str],
        *,
        connect: Callable[[str], NodeClient] | None = None,
        clock: Callable[[], float] = time.monotonic,
        every_seconds: float = ASK_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._name = name
        self._nodes = dict(nodes)
        self._connect = connect or functools.partial(NodeClient, tls=tls_from_environment())
        self._clock = clock
        self._every_seconds = every_seconds
        self._patience_seconds = patience_seconds
        self._pause = threading.Event()
        self._clients: dict[NodeId, NodeClient] = {}
        self._bringing: dict[BackfillRange, Future[RangeReceipt]] = {}
        self._receipt = OverwriteReceipt()

    def is_done(self) -> bool:
        """Return whether the overwrite of this name is done; nothing is asked for yet.

        ConflictError while the zone is re-sharded or another overwrite runs, and when this one was
        cancelled. NotReadyError when no data node answers.
        """
        try:
            return self._ask(begin=False).filled_by == self._name
        finally:
            self._close()

    def run(self, rows: NewRows) -> OverwriteReceipt:
        """Return when the zone has these rows and no others of before; errors as `is_done`.

        NotReadyError also when nothing could be brought, or was switched to, for too long.
        """
        since = self._clock()
        pool = ThreadPoolExecutor(RANGES_AT_ONCE, "overwrite")
        try:
            while True:
                progress = self._ask(begin=True)
                if progress.filled_by == self._name:
                    return self._receipt
                if progress.next_filled_by == self._name and self._bring(pool, progress, rows):
                    since = self._clock()
                if self._clock() - since > self._patience_seconds:
                    raise NotReadyError(
                        f"the overwrite {self._name} has come no further for "
                        f"{self._patience_seconds:.0f} s"
                    )
                self._pause.wait(self._every_seconds)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            self._close()

    def _bring(self, pool: ThreadPoolExecutor, progress: OverwriteProgress, rows: NewRows) -> bool:
        """Have every range brought that is not under way; whether rows have come since.

        Also those that were: a partition that has lost its rows begins again.
        """
        before = self._receipt
        old = Layout(progress.generation, progress.partitions)
        new = Layout(progress.next_generation, progress.next_partitions)
        for overlap in overlaps(old, new):
            hash_range = BackfillRange(overlap.new, overlap.old)
            there = self._bringing.get(hash_range)
            if there is not None and not there.done():
                continue
            if there is not None and there.exception() is None:
                brought = there.result()
                self._receipt = OverwriteReceipt(
                    rows=self._receipt.rows + brought.rows,
                    bytes=self._receipt.bytes + brought.bytes,
                )
            task = RangeBackfill(hash_range, self._nodes, connect=self._connect, read=rows.read)
            self._bringing[hash_range] = pool.submit(task.run)
        return self._receipt != before

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self, *, begin: bool) -> OverwriteProgress:
        """Ask all nodes; return what the one says that knows the newest configuration."""
        found: list[OverwriteProgress] = []
        refused: RezoneError | None = None
        for node in self._nodes:
            try:
                found.append(self._call(node, AskOverwrite(name=self._name, begin=begin)))
            except ConflictError as error:
                refused = error
            except RezoneError as error:
                refused = refused or error
        if not found or (not begin and isinstance(refused, ConflictError)):
            # Some may not have heard yet that what was before is over: that is no reason to end.
            raise refused or NotReadyError("the zone has no data nodes")
        return max(found, key=lambda each: (each.generation, each.next_generation, each.filled_by))

    def _call(self, node: NodeId, request: AskOverwrite) -> OverwriteProgress:
        if node not in self._clients:
            self._clients[node] = self._connect(self._nodes[node])
        return self._clients[node].call(request, OverwriteProgress, timeout_seconds=CALL_SECONDS)

    def _close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()
