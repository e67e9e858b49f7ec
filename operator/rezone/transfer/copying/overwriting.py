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
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Protocol

import msgspec

from rezone.transfer.copying.backfill import RangeBackfill, RangeReceipt
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError
from rezone.wire.layouts import Layout, overlaps
from rezone.wire.messages import (
    AskOverwrite,
    BackfillClaim,
    BackfillVersions,
    NodeId,
    OverwriteProgress,
    RoutesRequest,
    RouteTable,
)
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.tls import tls_from_environment

ASK_SECONDS: Final = 3.0
"""How often; data nodes say for three times as long that they were asked."""

PATIENCE_SECONDS: Final = 600.0
"""For how long no row may be brought until the driver gives up."""

TIME_MARGIN_MICROS: Final = 60_000_000
"""How far `time` lies before the clocks of data nodes: one that joins later is not asked."""

TIME_SECONDS_MAX: Final = 60.0
"""For how long all data nodes are asked for their time; a job fails then that has staged its rows.
"""

RANGES_AT_ONCE: Final = 4
CALL_SECONDS: Final = 3.0


class RowSource(Protocol):
    """The rows of an overwrite, all of one commit time."""

    def read(self, claim: BackfillClaim, after: bytes) -> BackfillVersions:
        """Return the next rows of a range behind row id `after`, no more than a chunk."""


class _EndedError(Exception):
    """Ends the tasks of a driver that has returned."""


class OverwriteReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver has brought until its overwrite was done: nothing if it was done before."""

    rows: int = 0
    bytes: int = 0


def nodes_of(bootstrap: Iterable[str], connect: Callable[[str], NodeClient]) -> dict[NodeId, str]:
    """Return the addresses of all data nodes, as one of these says; NotReadyError if none does."""
    last: RezoneError = NotReadyError("no address of a data node is given")
    for address in bootstrap:
        client = connect(address)
        try:
            return dict(
                client.call(RoutesRequest(), RouteTable, timeout_seconds=CALL_SECONDS).peers
            )
        except RezoneError as error:
            last = error
        finally:
            client.close()
    raise last


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
        self._tasks: dict[BackfillRange, tuple[RangeBackfill, Future[RangeReceipt]]] = {}
        self._receipt = OverwriteReceipt()
        self._done = OverwriteReceipt()
        self._begun = False

    def is_done(self) -> bool:
        """Return whether the overwrite of this name is done; nothing is asked for yet.

        ConflictError while the zone is re-sharded or another overwrite runs, and when this one was
        cancelled. NotReadyError when no data node answers.
        """
        try:
            return self._ask(begin=False).filled_by == self._name
        finally:
            self._close()

    def time(self) -> int:
        """Return a commit time for all rows of the overwrite: what is written later is after it.

        It lies a minute before the earliest clock of all data nodes. One that has just begun, or
        that hears its peers late, knows no time for a while. NotReadyError unless all of them
        answer within a minute, and say it; ForbiddenError for a certificate that may fill no
        replicas.
        """
        until = self._clock() + min(TIME_SECONDS_MAX, self._patience_seconds)
        try:
            while True:
                try:
                    return self._earliest_clock() - TIME_MARGIN_MICROS
                except NotReadyError:
                    if self._clock() > until:
                        raise
                self._pause.wait(self._every_seconds)
        finally:
            self._close()

    def _earliest_clock(self) -> int:
        self._find_nodes()
        request = AskOverwrite(name=self._name, begin=False)
        times = [self._call(node, request).time for node in self._nodes]
        if not times or not all(times):
            raise NotReadyError(
                "a data node does not know the time yet, or is of an earlier release; retry"
            )
        return min(times)

    def run(self, rows: RowSource) -> OverwriteReceipt:
        """Return when the zone has these rows and no others of before; errors as `is_done`.

        NotReadyError also when nothing could be brought, or was switched to, for too long; and
        whatever else `rows` raises.
        """
        ended = threading.Event()
        since = self._clock()
        pool = ThreadPoolExecutor(RANGES_AT_ONCE, "overwrite")
        try:
            while True:
                self._find_nodes()
                progress = self._ask(begin=True)
                if progress.filled_by == self._name:
                    self._count()
                    return self._receipt
                if progress.next_filled_by == self._name:
                    self._begun = True
                    self._bring(pool, progress, _Until(ended, rows))
                if self._count():
                    since = self._clock()
                if self._clock() - since > self._patience_seconds:
                    raise NotReadyError(self._no_further())
                self._pause.wait(self._every_seconds)
        finally:
            ended.set()
            pool.shutdown(wait=False, cancel_futures=True)
            self._close()

    def _no_further(self) -> str:
        """Return what to tell of an overwrite that nothing has come of for too long."""
        if self._begun:
            return (
                f"the overwrite {self._name} has come no further for "
                f"{self._patience_seconds:.0f} s; its rebalance task says what it waits for"
            )
        return (
            f"the overwrite {self._name} has not begun for {self._patience_seconds:.0f} s: the "
            "operator begins it when it runs, the zone has no other task, and all data nodes answer"
        )

    def _bring(self, pool: ThreadPoolExecutor, progress: OverwriteProgress, rows: "_Until") -> None:
        """Have every range brought that is not under way.

        Also those that were: a partition that has lost its rows begins again. What else than data
        nodes has failed, such as a file of rows, fails the overwrite.
        """
        old = Layout(progress.generation, progress.partitions)
        new = Layout(progress.next_generation, progress.next_partitions)
        for overlap in overlaps(old, new):
            hash_range = BackfillRange(overlap.new, overlap.old)
            if hash_range in self._tasks:
                task, under_way = self._tasks[hash_range]
                if not under_way.done():
                    continue
                error = under_way.exception()
                if error is not None and not isinstance(error, RezoneError):
                    raise error
                self._done = _with(self._done, task)
            task = RangeBackfill(
                hash_range, self._nodes, connect=self._connect, sleep=rows.sleep, read=rows.read
            )
            self._tasks[hash_range] = task, pool.submit(task.run)

    def _count(self) -> bool:
        """Count what all tasks have brought; whether that is more than before."""
        before = self._receipt
        self._receipt = _with(self._done, *(task for task, _ in self._tasks.values()))
        return self._receipt != before

    # --- asking ----------------------------------------------------------------------------------

    def _find_nodes(self) -> None:
        """Know the data nodes that have joined, and addresses that have changed."""
        for node in list(self._nodes):
            try:
                table = self._client(node).call(
                    RoutesRequest(), RouteTable, timeout_seconds=CALL_SECONDS
                )
            except RezoneError:
                continue
            for each, address in table.peers.items():
                if self._nodes.get(each) != address:
                    self._nodes[each] = address
                    self._drop(each)
            return

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
        return self._client(node).call(request, OverwriteProgress, timeout_seconds=CALL_SECONDS)

    def _client(self, node: NodeId) -> NodeClient:
        if node not in self._clients:
            self._clients[node] = self._connect(self._nodes[node])
        return self._clients[node]

    def _drop(self, node: NodeId) -> None:
        if (client := self._clients.pop(node, None)) is not None:
            client.close()

    def _close(self) -> None:
        for node in list(self._clients):
            self._drop(node)


def _with(receipt: OverwriteReceipt, *tasks: RangeBackfill) -> OverwriteReceipt:
    """Return a receipt with what these tasks have brought besides."""
    return OverwriteReceipt(
        rows=receipt.rows + sum(task.rows for task in tasks),
        bytes=receipt.bytes + sum(task.bytes for task in tasks),
    )


class _Until:
    """Rows for tasks that end when their driver has returned."""

    def __init__(self, ended: threading.Event, rows: RowSource) -> None:
        self._ended = ended
        self._rows = rows

    def read(self, claim: BackfillClaim, after: bytes) -> BackfillVersions:
        """Return the next rows; _EndedError when nobody waits for them any more."""
        if self._ended.is_set():
            raise _EndedError
        return self._rows.read(claim, after)

    def sleep(self, seconds: float) -> None:
        """Wait; _EndedError as `read`."""
        if self._ended.wait(seconds):
            raise _EndedError
