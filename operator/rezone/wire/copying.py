"""The copy of one partition: one snapshot read, fed to every receiver of it (SS-06).

The same loop runs in a Spark task and in a data node that pulls for itself. It looks into no
batch: what the source sends, batches and metadata, each receiver gets unchanged and in order.

Each receiver is asked first where it stands (`CopyState`); the read starts at the lowest resume
point, so a copy that died goes on where it was (B-05). A receiver that is further ahead gets
some rows again, which it must take; one that is done is left out.

Concurrency: the caller's thread reads; each receiver has a thread that writes and one that reads
its acknowledgements, behind a queue of a few batches. A receiver that fails or stalls is dropped
and the others go on at their own pace, at most a queue's length apart.
"""

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from rezone.wire import messages
from rezone.wire.channel import CHANNEL_ERRORS
from rezone.wire.copyticket import FILES_SCHEMA, ticket_for
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.flight import NodeClient, from_flight_error
from rezone.wire.messages import (
    BulkInsert,
    CopyState,
    CopyStateRequest,
    PartitionId,
    SnapshotTicket,
)
from rezone.wire.ratelimit import RateLimit

QUEUE_BATCHES = 4
RATE_LOOK_SECONDS = 2.0
"""How often a copy that its rate holds back asks for the present one."""
ABORT_SECONDS = 5.0
"""How long an aborted receiver may take to end its side; after that it is left alone."""


class Sink(Protocol):
    """A receiver of a copy. All calls but `state` come from one thread.

    `bytes_per_second_max` is the zone's limit as the receiver knows it; None when it does not.
    """

    name: str
    bytes_per_second_max: int | None

    def state(self) -> CopyState:
        """Return where the receiver stands."""

    def open(self, schema: Any) -> None:
        """Begin; `schema` is the snapshot stream's."""

    def write(self, batch: Any, metadata: Any) -> None:
        """Take one batch with its metadata; either may be None."""

    def finish(self) -> CopyState:
        """Say that all was written and wait until the receiver has it."""

    def abort(self) -> None:
        """End without the rest; the receiver keeps its resume point."""


class SnapshotSource(Protocol):
    """What the loop needs of a source: `NodeClient.get`."""

    def get(self, ticket: SnapshotTicket) -> Any:
        """Open the snapshot's stream."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Limits of a copy. `bytes_per_second_max` counts what is read; 0 is without a limit.

    Receivers that know the zone's present limit say so, and its `rate_share` then counts instead:
    the part of one copy among those that run at a time (B-03).
    A receiver that takes nothing for `stall_seconds`, or does not confirm for
    `confirm_seconds` after the last batch, has failed.
    """

    batch_bytes: int = 2 << 20
    bytes_per_second_max: int = 0
    rate_share: float = 1.0
    stall_seconds: float = 60.0
    confirm_seconds: float = 600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyReceipt:
    """What came of one receiver. `rows` and `bytes` are those this copy sent to it.

    `files` says that the copy was one of files: its rows are those the source has. `resumed` says
    that the receiver had a part already, `skipped` that it had all; `error` is empty on success.
    """

    partition: PartitionId
    target: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    files: bool = False
    resumed: bool = False
    skipped: bool = False
    error: str = ""


class FlightSink:
    """A receiver on another node, fed by DoPut."""

    def __init__(self, name: str, node: NodeClient, descriptor: BulkInsert) -> None:
        self.name = name
        self.bytes_per_second_max: int | None = None
        self._node = node
        self._descriptor = descriptor
        self._writer: Any = None
        self._reader: Any = None
        self._acks: threading.Thread | None = None
        self._last: CopyState | None = None
        self._error: RezoneError | None = None

    def state(self) -> CopyState:
        """Ask the node where its copy stands."""
        request = CopyStateRequest(partition=self._descriptor.partition)
        state = self._node.call(request, CopyState)
        self.bytes_per_second_max = state.bytes_per_second_max
        return state

    def open(self, schema: Any) -> None:
        """Open the DoPut stream."""
        self._writer, self._reader = self._node.put(self._descriptor, schema)
        # Acknowledgements must be read as they come: unread ones would fill the window and
        # stop the receiver.
        self._acks = threading.Thread(
            target=self._read_acks, name=f"rezone-acks-{self.name}", daemon=True
        )
        self._acks.start()

    def write(self, batch: Any, metadata: Any) -> None:
        """Send one batch as it came."""
        try:
            if batch is None:
                self._writer.write_metadata(metadata)
            elif metadata is None:
                self._writer.write_batch(batch)
            else:
                self._writer.write_with_metadata(batch, metadata)
        except CHANNEL_ERRORS as error:
            raise self._cause(error) from error

    def finish(self) -> CopyState:
        """End the stream and return the receiver's last CopyState."""
        try:
            self._writer.done_writing()
        except CHANNEL_ERRORS as error:
            raise self._cause(error) from error
        assert self._acks is not None  # noqa: S101 - `open` comes first
        self._acks.join()
        if self._error is not None:
            raise self._error
        try:
            self._writer.close()
        except CHANNEL_ERRORS as error:
            # A refusal before the first batch is heard only here.
            if self._last is None or not self._last.done:
                raise self._cause(error) from error
        if self._last is None or not self._last.done:
            raise NotReadyError(f"{self.name} ended the copy without confirming it")
        return self._last

    def abort(self) -> None:
        """Break off; without a trailer the receiver does not take the copy for whole."""
        if self._writer is None or self._acks is None:
            return
        with contextlib.suppress(*CHANNEL_ERRORS):
            # Not close() at once: it waits for a lock that the reading thread holds until the
            # receiver ends, which it does only when it is told that no more comes.
            self._writer.done_writing()
            self._acks.join(ABORT_SECONDS)
            if not self._acks.is_alive():
                self._writer.close()

    def _read_acks(self) -> None:
        try:
            while (ack := self._reader.read()) is not None:
                message = messages.decode(memoryview(ack))
                if isinstance(message, CopyState):
                    self._last = message
                    self.bytes_per_second_max = message.bytes_per_second_max
        except (*CHANNEL_ERRORS, msgspec.MsgspecError) as error:
            self._error = from_flight_error(error)

    def _cause(self, error: BaseException) -> RezoneError:
        """Return why the receiver ended: its own word, which a failed write does not carry."""
        if self._acks is not None:
            self._acks.join(1.0)
        return self._error or from_flight_error(error)


class _Feed:
    """A receiver behind its queue and thread."""

    def __init__(self, sink: Sink, start: CopyState, schema: Any) -> None:
        self.sink = sink
        self.rows = 0
        self.bytes = 0
        self.error = ""
        self.resumed = bool(start.resume_after or start.held)
        self.files = schema == FILES_SCHEMA
        self._schema = schema
        self._queue: queue.Queue[tuple[Any, Any] | None] = queue.Queue(QUEUE_BATCHES)
        self._confirmed = False
        self._cut_short = False
        self._abort = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"rezone-feed-{sink.name}", daemon=True
        )
        self._thread.start()

    def offer(self, batch: Any, metadata: Any, stall_seconds: float) -> None:
        """Queue one batch; a receiver that stalls fails."""
        self._put((batch, metadata), stall_seconds)
        if not self.error and batch is not None:
            self.rows += 0 if self.files else batch.num_rows
            self.bytes += batch.nbytes

    def end(self, stall_seconds: float, reason: str = "") -> None:
        """Say that nothing more comes; with a reason because of a fault elsewhere.

        What is queued is still written: it is good, and the next try goes on after it.
        """
        self._cut_short = bool(reason)
        self._put(None, stall_seconds)
        self.error = self.error or reason

    def join(self, seconds: float) -> None:
        """Wait for the receiver's confirmation."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            self.error = self.error or f"{self.sink.name} did not confirm in {seconds:.0f} s"
            self._abort.set()
        elif not self._confirmed:
            # Whatever ended the thread: what was not confirmed was not copied.
            self.error = self.error or f"the copy to {self.sink.name} ended unconfirmed"

    def _put(self, item: tuple[Any, Any] | None, stall_seconds: float) -> None:
        if self.error:
            return
        try:
            self._queue.put(item, timeout=stall_seconds)
        except queue.Full:
            self.error = f"{self.sink.name} took nothing for {stall_seconds:.0f} s"
            self._abort.set()

    def _run(self) -> None:
        try:
            self.sink.open(self._schema)
            while not self._abort.is_set() and (item := self._queue.get()) is not None:
                self.sink.write(*item)
            if not self._abort.is_set() and not self._cut_short:
                confirmed = self.sink.finish()
                self.rows = confirmed.rows if self.files else self.rows
                self._confirmed = True
                return
        except (RezoneError, *CHANNEL_ERRORS) as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        self.sink.abort()
        # The reader may wait for room: a failed receiver must not hold it.
        self._abort.set()
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return


def copy_partition(
    partition: PartitionId,
    source: SnapshotSource,
    sinks: Sequence[Sink],
    *,
    reader: str,
    options: CopyOptions | None = None,
    rate: RateLimit | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> list[CopyReceipt]:
    """Copy a partition's snapshot to all sinks; one receipt each, in their order.

    Never raises for a fault of the source or of a sink: the receipts say it. `reader` names this
    reader to the source. `cancelled` is asked before each batch.
    """
    options = options or CopyOptions()
    started = clock()
    receipts: dict[str, CopyReceipt] = {}
    states: list[tuple[Sink, CopyState]] = []
    for sink in sinks:
        blank = CopyReceipt(partition=partition, target=sink.name)
        try:
            state = sink.state()
        except RezoneError as error:
            text = f"{type(error).__name__}: {error}"
            receipts[sink.name] = dataclasses.replace(blank, error=text)
            continue
        if state.done:
            receipts[sink.name] = dataclasses.replace(blank, skipped=True)
        else:
            states.append((sink, state))
    if states:
        ticket = ticket_for(
            partition,
            [state for _, state in states],
            reader=reader,
            batch_bytes=options.batch_bytes,
        )
        limit = rate or RateLimit(_ZoneRate(sinks, options, clock), clock=clock)
        feeds, error_text = _pump(
            source, ticket, states, options=options, rate=limit, cancelled=cancelled
        )
        for sink, _ in states:
            feed = feeds.get(sink.name)
            receipts[sink.name] = CopyReceipt(
                partition=partition,
                target=sink.name,
                rows=feed.rows if feed else 0,
                bytes=feed.bytes if feed else 0,
                seconds=clock() - started,
                files=feed.files if feed else False,
                resumed=feed.resumed if feed else False,
                error=(feed.error if feed else "") or error_text,
            )
    return [receipts[sink.name] for sink in sinks]


class _ZoneRate:
    """The limit of one copy at present: its share of what the receivers know of the zone's."""

    def __init__(
        self, sinks: Sequence[Sink], options: CopyOptions, clock: Callable[[], float]
    ) -> None:
        self._sinks = sinks
        self._options = options
        self._clock = clock
        self._asked = clock()

    def __call__(self) -> int:
        # Acknowledgements bring news only while something is sent: whoever is held back asks.
        if (limit := self._known()) and self._clock() - self._asked >= RATE_LOOK_SECONDS:
            self._asked = self._clock()
            for sink in self._sinks:
                with contextlib.suppress(RezoneError):
                    sink.state()
            limit = self._known()
        return limit

    def _known(self) -> int:
        sinks = self._sinks
        known = [s.bytes_per_second_max for s in sinks if s.bytes_per_second_max is not None]
        limits = [limit for limit in known if limit > 0]
        if known:
            return max(1, int(min(limits) * self._options.rate_share)) if limits else 0
        return self._options.bytes_per_second_max


def _pump(
    source: SnapshotSource,
    ticket: SnapshotTicket,
    states: Sequence[tuple[Sink, CopyState]],
    *,
    options: CopyOptions,
    rate: RateLimit,
    cancelled: Callable[[], bool],
) -> tuple[dict[str, _Feed], str]:
    """Feed one read to all sinks; returns the feeds, and why the read ended early or ""."""
    feeds: dict[str, _Feed] = {}
    stream: Any = None
    try:
        stream = source.get(ticket)
        feeds = {sink.name: _Feed(sink, state, stream.schema) for sink, state in states}
        ended = _forward(stream, feeds, options=options, rate=rate, cancelled=cancelled)
    except (RezoneError, *CHANNEL_ERRORS) as error:
        failed = error if isinstance(error, RezoneError) else from_flight_error(error)
        ended = f"the source failed: {type(failed).__name__}: {failed}"
    for feed in feeds.values():
        feed.end(options.stall_seconds, ended)
    if stream is not None:
        with contextlib.suppress(*CHANNEL_ERRORS):
            stream.cancel()
    for feed in feeds.values():
        feed.join(options.confirm_seconds)
    return feeds, ended


def _forward(
    stream: Any,
    feeds: dict[str, _Feed],
    *,
    options: CopyOptions,
    rate: RateLimit,
    cancelled: Callable[[], bool],
) -> str:
    """Offer each batch to every live feed; returns why that ended early, or ""."""
    for chunk in stream:
        if cancelled():
            return "the copy was cancelled"
        live = [feed for feed in feeds.values() if not feed.error]
        if not live:
            return "no receiver is left"
        rate.spend(chunk.data.nbytes if chunk.data is not None else 0)
        for feed in live:
            feed.offer(chunk.data, chunk.app_metadata, options.stall_seconds)
    return ""
