"""Copies of a partition: the snapshot that leaves a source, and the one that comes in.

A snapshot stream begins with an empty batch whose metadata is the SnapshotHeader and ends with
an empty one whose metadata is the SnapshotTrailer. A receiver is a learner that needs a copy; it
persists its progress as it goes, and another attempt goes on there (B-05).

Concurrency: a source runs in its Flight thread, a receiver in that of the DoPut or in a thread
of `Pulls`. The store fences attempts of the same copy against each other. What follows from what
comes in is decided by `core.copy_intake`, which is pure; here it is done.
"""

import contextlib
import errno
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import structlog

from rezone.datanode.core.copy_intake import (
    Abort,
    Attempt,
    Broken,
    Chunk,
    Effect,
    Event,
    Finish,
    Finished,
    Form,
    Header,
    Load,
    Opened,
    Refuse,
    Switch,
    Trailer,
    Write,
)
from rezone.datanode.scheduling.foreground import CopySteps, Foreground
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.storage.copies.bulk import BulkLoader
from rezone.storage.copies.fileload import FileLoader
from rezone.storage.copies.incoming import Loader
from rezone.storage.snapshot.checkpoints import FileSnapshot
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.storage.snapshot.snapshot import BatchMark, SnapshotSource
from rezone.storage.snapshot.throttle import Throttle
from rezone.wire import messages
from rezone.wire.codec.bodies import require_valid
from rezone.wire.copying.copy import Relay, copy_partition
from rezone.wire.copying.ticket import FILES_SCHEMA
from rezone.wire.errors import CorruptionError, NoSpaceError, RezoneError
from rezone.wire.messages import (
    CopyFailure,
    CopyProgress,
    CopyState,
    FileChunk,
    PullSnapshot,
    SnapshotBatch,
    SnapshotHeader,
    SnapshotTrailer,
)
from rezone.wire.transport.fetch import WatchedSource
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.ratelimit import RateLimit

_log = structlog.get_logger(__name__)

ROWS_WEIGHT = 2.0
FILES_WEIGHT = 8.0
"""What sending costs clients in all, as a multiple of the sending thread's processor time.

The kernel, the disk and, on the same machine, the receiver do the rest; most of it where the
sender only passes on a file's bytes. For files found by `benchmarks/moves/foreground.py`, for rows
by the processor time of both nodes (decisions 0184, 0194).
"""


def snapshot_stream(source: SnapshotSource | FileSnapshot, foreground: Foreground) -> Iterator[Any]:
    """Yield (batch, metadata) of a snapshot, throttled by clients; it is closed at the end."""
    empty = pa.RecordBatch.from_pylist([], schema=source.schema)
    with source:
        yield empty, _metadata(source.header)
        weight = FILES_WEIGHT if isinstance(source, FileSnapshot) else ROWS_WEIGHT
        steps = CopySteps(foreground, weight)
        source.throttle_by(steps.step_bytes, steps.throttle)
        for batch, mark in source:
            yield batch, _metadata(_message_of(mark))
        yield empty, _metadata(source.trailer)


def _message_of(mark: BatchMark | FileChunk) -> messages.Message:
    if isinstance(mark, FileChunk):
        return mark
    return SnapshotBatch(early=mark.early, last_row_id=mark.last_row_id)


def _metadata(message: messages.Message) -> Any:
    return pa.py_buffer(messages.encode(message))


class Receiver:
    """One attempt to take a snapshot in; batches and metadata as the source sent them.

    `throttle` is called after each.
    """

    def __init__(self, replica: ReplicaState, attempt: str, throttle: Throttle) -> None:
        self._replica = replica
        self.runner = replica.runner
        self._attempt = attempt
        self._throttle = throttle
        self._core = Attempt()
        self._loader: Loader | None = None
        self._rows_total = 0
        self._shown = (-1, -1)

    @entry
    def begin(self) -> None:
        """Refuse with ConflictError unless this replica waits for a copy."""
        replica = self._replica
        needed = replica.store.meta.needs_snapshot
        self._step(Opened(replica.partition_id, replica.role, needed))

    def take(self, batch: Any, metadata: Any) -> CopyState | None:
        """Take one batch; return the state when more of it has become durable."""
        message = messages.decode(memoryview(metadata)) if metadata is not None else None
        match self._step(_event_of(message)):
            case Load() if isinstance(message, SnapshotHeader):
                with self._replica.applying:
                    self._loader = self._replica.store.incoming.begin(message, self._attempt)
                self._rows_total = message.rows_estimate
            case Write():
                self._write(batch, message)
            case Finish() if isinstance(message, SnapshotTrailer):
                self._finish(message)
        self._throttle()
        return self._progress()

    def _step(self, event: Event) -> Effect | None:
        """Return what follows from an event; raise what is refused."""
        effect = self._core.step(event)
        if isinstance(effect, Refuse):
            raise effect.error
        return effect

    def _write(self, batch: Any, message: messages.Message | None) -> None:
        if isinstance(message, SnapshotBatch) and isinstance(self._loader, BulkLoader):
            require_valid(batch, VERSIONS_SCHEMA)
            mark = BatchMark(early=message.early, last_row_id=message.last_row_id)
            self._loader.write(batch, mark)
        elif isinstance(message, FileChunk) and isinstance(self._loader, FileLoader):
            require_valid(batch, FILES_SCHEMA)
            self._loader.write(batch, message)

    def abort(self, error: str, failure: CopyFailure) -> None:
        """Give up; what is durable stays for the next attempt.

        One that the next attempt has fenced off by then says nothing: the copy goes on.
        """
        loader, incoming = self._loader, self._replica.store.incoming
        outdated = loader is not None and incoming.has_after(loader)
        match self._step(Broken(outdated, error, failure)):
            case Abort(tell):
                if loader is not None:
                    loader.abort()
                if tell:
                    show_failed(self._replica, error, failure)

    def _finish(self, trailer: SnapshotTrailer) -> None:
        assert self._loader is not None, "the header came first"  # noqa: S101 - invariant
        self._loader.finish(trailer, self._replica.applying)
        self._loader = None
        if isinstance(self._step(Finished()), Switch):
            self._replica.snapshot_done()

    def _progress(self) -> CopyState | None:
        state = self._replica.store.incoming.state()
        received = self._loader.received if self._loader is not None else None
        self._replica.show_copy(
            CopyProgress(
                rows=max(state.rows, received.versions if received else 0),
                bytes=max(state.bytes, received.bytes if received else 0),
                rows_total=self._rows_total,
                done=state.done,
            )
        )
        rate = _rate_of(self._replica)
        if (state.rows, rate) == self._shown and not state.done:
            return None
        self._shown = (state.rows, rate)
        return msgspec.structs.replace(state, bytes_per_second_max=rate)


def _event_of(message: messages.Message | None) -> Event:
    """Return what has come by a message."""
    match message:
        case SnapshotHeader():
            return Header(Form.FILES if message.format else Form.ROWS)
        case SnapshotTrailer():
            return Trailer()
        case SnapshotBatch():
            return Chunk(Form.ROWS)
        case FileChunk():
            return Chunk(Form.FILES)
        case _:
            return Chunk(Form.NONE)


def failure_of(error: BaseException) -> CopyFailure:
    """Return the kind of an error at the receiver; engines tell of a full disk by text alone."""
    codes = (errno.ENOSPC, errno.EDQUOT)
    known = isinstance(error, OSError) and error.errno in codes
    known = known or isinstance(error, NoSpaceError)
    if known or any(os.strerror(code) in str(error) for code in codes):
        return CopyFailure.NO_SPACE
    return CopyFailure.CORRUPTION if isinstance(error, CorruptionError) else CopyFailure.RECEIVER


def show_failed(replica: ReplicaState, error: str, failure: CopyFailure) -> None:
    """Report that the last attempt has failed, and how far the copy had come."""
    state = replica.store.incoming.state()
    replica.show_copy(
        CopyProgress(rows=state.rows, bytes=state.bytes, error=error, failure=failure)
    )


class LocalSink:
    """This node as a receiver of the shared copy loop."""

    def __init__(self, replica: ReplicaState, attempt: str, foreground: Foreground) -> None:
        self.name = f"node {replica.node_id}"
        self.bytes_per_second_max: int | None = None  # whoever has ordered the pull has said
        self._replica = replica
        self._attempt = attempt
        self._foreground = foreground
        self._receiver: Receiver | None = None
        self.failure = CopyFailure.SOURCE  # unless something fails here

    def state(self) -> CopyState:
        """Return where the copy stands; whoever has ordered the pull has admitted it."""
        return msgspec.structs.replace(current_state(self._replica), admitted=None)

    def open(self, schema: Any) -> None:
        """Begin."""
        del schema
        throttle = CopySteps(self._foreground).throttle
        self._receiver = Receiver(self._replica, self._attempt, throttle)
        with self._noted():
            self._receiver.begin()

    def write(self, batch: Any, metadata: Any) -> None:
        """Take one batch."""
        assert self._receiver is not None, "`open` comes first"  # noqa: S101 - invariant
        with self._noted():
            self._receiver.take(batch, metadata)

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        try:
            yield
        except (RezoneError, OSError) as error:
            self.failure = failure_of(error)
            raise

    def finish(self) -> CopyState:
        """Return the state at the end."""
        return self._replica.store.incoming.state()

    def abort(self) -> None:
        """End without the rest."""
        if self._receiver is not None:
            self._receiver.abort("the copy was broken off", self.failure)


def current_state(replica: ReplicaState) -> CopyState:
    """Return where a partition's copy stands; done when it needs none."""
    state = replica.store.incoming.state()
    if not replica.store.meta.needs_snapshot and not state.done:
        state = CopyState(partition=replica.partition_id, done=True)
    return msgspec.structs.replace(
        state,
        bytes_per_second_max=_rate_of(replica),
        admitted=replica.admission.admitted,
    )


def _rate_of(replica: ReplicaState) -> int:
    known = replica.admission.bytes_per_second_max
    return replica.config.copy_bytes_per_second_max if known is None else known


class Pulls:
    """The copies this node makes for itself, one thread each; a repeat joins the one under way."""

    def __init__(self, connect: Callable[[str], NodeClient], foreground: Foreground) -> None:
        self._connect = connect
        self._foreground = foreground
        self._lock = threading.Lock()
        self._running: dict[int, threading.Thread] = {}
        self._rates: dict[int, int] = {}
        self._closed = threading.Event()

    def start(self, replica: ReplicaState, request: PullSnapshot) -> None:
        """Start to copy unless that is under way or done; its rate is that of the last call."""
        with self._lock:
            self._rates[replica.partition_id] = request.bytes_per_second_max
            running = self._running.get(replica.partition_id)
            if self._closed.is_set() or (running is not None and running.is_alive()):
                return
            if not replica.store.meta.needs_snapshot:
                return
            thread = threading.Thread(
                target=self._pull,
                args=(replica, request),
                name=f"pull {replica.partition_id}",
                daemon=True,
            )
            self._running[replica.partition_id] = thread
            thread.start()

    def close(self, timeout_seconds: float) -> None:
        """Break all copies off."""
        self._closed.set()
        with self._lock:
            running = list(self._running.values())
        for thread in running:
            thread.join(timeout_seconds)

    def _pull(self, replica: ReplicaState, request: PullSnapshot) -> None:
        attempt = uuid.uuid4().hex
        client = self._connect(request.source)
        sink = LocalSink(replica, attempt, self._foreground)
        try:
            receipts = copy_partition(
                Relay(
                    request.partition,
                    WatchedSource(client),
                    [sink],
                    reader=f"node {replica.node_id}",
                    rate=RateLimit(lambda: self._rates[replica.partition_id]),
                    cancelled=lambda: self._closed.is_set() or replica.closed,
                )
            )
            _log.info("pulled a snapshot", partition=request.partition, receipt=receipts[0])
            if receipts[0].error:
                show_failed(replica, receipts[0].error, sink.failure)
        except RezoneError as error:
            show_failed(replica, str(error), CopyFailure.SOURCE)
        finally:
            with contextlib.suppress(Exception):
                client.close()
