"""The copy of one partition: one snapshot read, fed to every receiver of it (SS-06).

The same loop runs in a Spark task and in a data node that pulls for itself. It looks into no
batch: what the source sends, batches and metadata, each receiver gets unchanged and in order.

Each receiver is asked first where it stands (`CopyState`); the read starts at the lowest resume
point, so a copy that died goes on where it was (B-05). A receiver that is further ahead gets
some rows again, which it must take; one that is done is left out.

Concurrency: the caller's thread reads; each receiver has a thread that writes, behind a queue of a
few batches. A receiver that fails or stalls is dropped and the others go on at their own pace, at
most a queue's length apart. Each thread does nothing but repeat one step of `Relay` or `Feed`: a
simulation calls these by itself.
"""

import contextlib
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rezone.wire.copying.sink import Sink
from rezone.wire.copying.ticket import FILES_SCHEMA, ticket_for
from rezone.wire.errors import RezoneError
from rezone.wire.messages import CopyState, PartitionId, SnapshotTicket
from rezone.wire.transport.channel import CHANNEL_ERRORS
from rezone.wire.transport.flight import from_flight_error
from rezone.wire.transport.ratelimit import RateLimit

QUEUE_BATCHES = 4
TRIED_BYTES_PER_SECOND_MIN = 5_000_000
"""A receiver reads files through before it confirms them, on a busy machine at no higher rate."""

RATE_LOOK_SECONDS = 2.0
"""How often a copy that its rate holds back asks for the present one."""


class SnapshotSource(Protocol):
    """What the loop needs of a source: `NodeClient.get`."""

    def get(self, ticket: SnapshotTicket) -> Any:
        """Open the snapshot's stream."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Limits of a copy. `bytes_per_second_max` counts what is read; 0 is without a limit.

    Where receivers know what this copy may take of the zone's rate, that counts instead (B-03).
    A receiver that takes nothing for `stall_seconds`, or does not confirm for
    `confirm_seconds` after the last batch, and longer by the files that it has, has failed. While
    files are awaited the source is asked each `keep_seconds` to keep them and its log: it lets go
    of both a minute after the last reader.
    """

    batch_bytes: int = 2 << 20
    bytes_per_second_max: int = 0
    stall_seconds: float = 60.0
    confirm_seconds: float = 600.0
    keep_seconds: float = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyReceipt:
    """What came of one receiver. `rows` and `bytes` are those this copy sent to it.

    `files` says that the copy was one of files: its rows are those the source has. `resumed` says
    that the receiver had a part already, `skipped` that it had all; `error` is empty on success.
    `held` says that the copy may not begin yet: it is no failure, and is to be tried again.
    """

    partition: PartitionId
    target: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    files: bool = False
    resumed: bool = False
    skipped: bool = False
    held: bool = False
    error: str = ""


class Feed:
    """A receiver behind its queue; `write_next` is a step of its thread.

    Its counts are of what was queued for it; `error` is empty until it has failed.
    """

    def __init__(self, sink: Sink, start: CopyState, schema: Any) -> None:
        self.sink = sink
        self.rows = 0
        self.bytes = 0
        self.error = ""
        self.resumed = bool(start.resume_after or start.held)
        self.files = schema == FILES_SCHEMA
        self._schema = schema
        self._opened = False
        self._queue: queue.Queue[tuple[Any, Any] | None] = queue.Queue(QUEUE_BATCHES)
        self._confirmed = False
        self._cut_short = False
        self._abort = threading.Event()

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

    def _put(self, item: tuple[Any, Any] | None, stall_seconds: float) -> None:
        if self.error:
            return
        try:
            self._queue.put(item, timeout=stall_seconds)
        except queue.Full:
            self.give_up(f"{self.sink.name} took nothing for {stall_seconds:.0f} s")

    def give_up(self, error: str) -> None:
        """Let its thread end, whatever is still queued; the first error is told."""
        self.error = self.error or error
        self._abort.set()

    def write_on(self) -> None:
        """Write all that comes."""
        while self.write_next():
            pass

    def write_next(self) -> bool:
        """Open the receiver, write what comes next, or end; whether there is more to do.

        Waits for what comes next.
        """
        try:
            if not self._opened:
                self._opened = True
                self.sink.open(self._schema)
                return True
            item = None if self._abort.is_set() else self._queue.get()
            if item is not None:
                self.sink.write(*item)
                return True
            if not self._abort.is_set() and not self._cut_short:
                confirmed = self.sink.finish()
                self.rows = confirmed.rows if self.files else self.rows
                self._confirmed = True
                return False
        except (RezoneError, *CHANNEL_ERRORS) as error:
            self.error = self.error or f"{type(error).__name__}: {error}"
        self.sink.abort()
        self._drain()
        return False

    def _drain(self) -> None:
        """Make room: the reader may wait for some, and a failed receiver must not hold it."""
        self._abort.set()
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return

    @property
    def outcome(self) -> str:
        """What is wrong with the copy of a receiver whose thread has ended; empty for nothing."""
        if self._confirmed:
            return self.error
        # Whatever ended the thread: what was not confirmed was not copied.
        return self.error or f"the copy to {self.sink.name} ended unconfirmed"


class _UnwantedError(Exception):
    """Nobody wants the rest of a copy."""


class Relay:
    """One read of a partition on its way to all receivers that need it, step by step.

    After `begin`, `forward` is called until it is False, and beside it each feed's `write_next`
    until that is False; then `end`. Nothing is raised for a fault of the source or of a receiver:
    `receipts` say it. `reader` names this reader to the source, and `cancelled` is asked before
    each batch, and twice a second while the rate holds one back.
    """

    def __init__(
        self,
        partition: PartitionId,
        source: SnapshotSource,
        sinks: Sequence[Sink],
        *,
        reader: str,
        options: CopyOptions | None = None,
        rate: RateLimit | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._partition = partition
        self._source = source
        self._sinks = sinks
        self._reader = reader
        self._options = options = options or CopyOptions()
        self._rate = rate or RateLimit(_ZoneRate(sinks, options, clock), clock=clock)
        self._cancelled = cancelled
        self._clock = clock
        self._started = clock()
        self._receipts: dict[str, CopyReceipt] = {}
        self._stream: Any = None
        self._ended = ""
        self.feeds: dict[str, Feed] = {}

    def begin(self) -> bool:
        """Ask the receivers where they stand and open the read; whether there is one."""
        states = [(sink, state) for sink in self._sinks if (state := self._state_of(sink))]
        if not states:
            return False
        ticket = ticket_for(
            self._partition,
            [state for _, state in states],
            reader=self._reader,
            batch_bytes=self._batch_bytes,
        )
        try:
            self._stream = self._source.get(ticket)
            schema = self._stream.schema
        except (RezoneError, *CHANNEL_ERRORS) as error:
            self._source_failed(error)
            return False
        self.feeds = {sink.name: Feed(sink, state, schema) for sink, state in states}
        return True

    def _state_of(self, sink: Sink) -> CopyState | None:
        """Return where a receiver stands; None when it takes no part."""
        blank = CopyReceipt(partition=self._partition, target=sink.name)
        try:
            state = sink.state()
        except RezoneError as error:
            text = f"{type(error).__name__}: {error}"
            self._receipts[sink.name] = dataclasses.replace(blank, error=text)
            return None
        if state.done:
            self._receipts[sink.name] = dataclasses.replace(blank, skipped=True)
            return None
        if state.admitted is False:
            why = f"{sink.name} may not begin yet"
            self._receipts[sink.name] = dataclasses.replace(blank, held=True, error=why)
            return None
        return state

    def forward(self) -> bool:
        """Offer the next batch to every live receiver; whether there may be another.

        Waits for room in their queues, and for what is over the rate.
        """
        try:
            chunk = next(self._stream, None)
        except (RezoneError, *CHANNEL_ERRORS) as error:
            self._source_failed(error)
            return False
        if chunk is None:
            return False
        size = chunk.data.nbytes if chunk.data is not None else 0
        try:
            self._require_wanted()
            self._rate.spend(size, meanwhile=self._require_wanted)
        except _UnwantedError as error:
            self._ended = str(error)
            return False
        for feed in self.feeds.values():
            feed.offer(chunk.data, chunk.app_metadata, self._options.stall_seconds)
        return True

    @property
    def _batch_bytes(self) -> int:
        """The bytes of a batch: at a low rate, what passes before the source is read again.

        A source that is not read for a minute lets go of the snapshot.
        """
        most, rate = self._options.batch_bytes, self._rate.bytes_per_second
        return min(most, max(1, int(rate * self._options.keep_seconds))) if rate > 0 else most

    def _require_wanted(self) -> None:
        """Raise _UnwantedError when the copy was cancelled, or all its receivers have failed."""
        if self._cancelled():
            raise _UnwantedError("the copy was cancelled")
        if all(feed.error for feed in self.feeds.values()):
            raise _UnwantedError("no receiver is left")

    def _source_failed(self, error: BaseException) -> None:
        failed = error if isinstance(error, RezoneError) else from_flight_error(error)
        self._ended = f"the source failed: {type(failed).__name__}: {failed}"

    def end(self) -> None:
        """Tell the receivers that nothing more comes, and the source that nothing more is read."""
        for feed in self.feeds.values():
            feed.end(self._options.stall_seconds, self._ended)
        if self._stream is not None:
            with contextlib.suppress(*CHANNEL_ERRORS):
                self._stream.cancel()

    def await_confirmed(self, feed: Feed, thread: threading.Thread) -> None:
        """Wait until the thread of a feed has ended; one that takes too long is given up."""
        begun, most = self._clock(), self._options.confirm_seconds
        while thread.is_alive() and (left := begun + most - self._clock()) > 0:
            thread.join(min(left, self._options.keep_seconds))
            if thread.is_alive() and feed.files:
                held = self._keep(feed.sink)
                most = max(most, self._options.confirm_seconds + held / TRIED_BYTES_PER_SECOND_MIN)
        if thread.is_alive():
            feed.give_up(f"{feed.sink.name} did not confirm in {most:.0f} s")

    def _keep(self, sink: Sink) -> int:
        """Have the source keep the files that a receiver holds, and what follows them in the log.

        Who reads them again, if only their names, is a reader. Return how many bytes it holds.
        """
        with contextlib.suppress(RezoneError, *CHANNEL_ERRORS):
            state = sink.state()
            if state.held is None or state.done:
                return 0
            ticket = ticket_for(
                self._partition, [state], reader=self._reader, batch_bytes=self._batch_bytes
            )
            stream = self._source.get(ticket)
            try:
                next(stream, None)
            finally:
                stream.cancel()
            return sum(file.bytes for file in state.held.files)
        return 0

    @property
    def receipts(self) -> list[CopyReceipt]:
        """One receipt for each receiver, in their order; once all feeds have ended."""
        return [self._receipts.get(sink.name) or self._receipt_of(sink) for sink in self._sinks]

    def _receipt_of(self, sink: Sink) -> CopyReceipt:
        seconds = self._clock() - self._started
        blank = CopyReceipt(partition=self._partition, target=sink.name, seconds=seconds)
        feed = self.feeds.get(sink.name)
        if feed is None:
            return dataclasses.replace(blank, error=self._ended)
        return dataclasses.replace(
            blank,
            rows=feed.rows,
            bytes=feed.bytes,
            files=feed.files,
            resumed=feed.resumed,
            error=feed.outcome,
        )


def copy_partition(relay: Relay) -> list[CopyReceipt]:
    """Copy a partition's snapshot to all receivers; one receipt each, in their order.

    Never raises for a fault of the source or of a receiver: the receipts say it.
    """
    begun = relay.begin()
    threads = [(feed, _thread_of(feed)) for feed in relay.feeds.values()]
    while begun and relay.forward():
        pass
    relay.end()
    for feed, thread in threads:
        relay.await_confirmed(feed, thread)
    return relay.receipts


def _thread_of(feed: Feed) -> threading.Thread:
    thread = threading.Thread(
        target=feed.write_on, name=f"rezone-feed-{feed.sink.name}", daemon=True
    )
    thread.start()
    return thread


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
            return min(limits, default=0)
        return self._options.bytes_per_second_max
