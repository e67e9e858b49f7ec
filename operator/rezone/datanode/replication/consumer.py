"""The follower's side of a replication channel: one connection to each node that leads for us.

A `ConsumerChannel` keeps its connection up as long as some partition wants a stream, asks for the
streams (DCP-03), rolls back and asks again (DCP-05), and hands entries to their partitions.

Concurrency: one thread per channel connects, receives and handles; acks are sent by whichever
thread has made the rows durable. The channel's lock guards the stream table and is not held
while anything is sent or stored. Every request has a new opaque number: what arrives for an
older one is refused (DCP-12).
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from rezone.datanode.clock.checked_clock import CheckedClock, Exchange
from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.commit.lease import Promise, left_of
from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.unread import Unread
from rezone.datanode.scheduling.workers import IDLE_SECONDS
from rezone.datanode.settings import NodeSettings
from rezone.storage.budget import Tally
from rezone.wire.errors import NotReadyError, RezoneError, error_from
from rezone.wire.messages import (
    ClosedTime,
    ClosedTimes,
    CloseStream,
    CommitOffset,
    CommitOffsets,
    ConnectionClosed,
    Entries,
    FetchLog,
    Heartbeat,
    LeaseGrant,
    LeaseRequest,
    Message,
    NodeId,
    OpenConnection,
    PartitionId,
    SetState,
    StreamEnd,
    StreamNeedsSnapshot,
    StreamOk,
    StreamRefused,
    StreamRequest,
    StreamRollback,
    TakeoverState,
)
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel, pack
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.liveness import Liveness

_log = structlog.get_logger(__name__)
_ERROR_CHARACTERS = 200
_EMPTY = memoryview(b"")
_NO_REQUEST = -1

UNANSWERED_MS_MAX = 300_000
"""For how long a stream request may be unanswered before it is made again, unless the setting is
longer: an answer that is lost costs no more than this, and no leader takes as long."""


class Sink(Protocol):
    """What a consumer needs of the partition it fills; errors are RezoneErrors."""

    partition_id: PartitionId

    def stream_request(self, opaque: int) -> StreamRequest:
        """Return what to ask the leader for."""
        ...

    def stream_started(self, answer: StreamOk) -> None:
        """Persist the leader's failover log over the own one (DCP-04)."""
        ...

    def roll_back(self, offset: int) -> None:
        """Drop everything from `offset` on, or more."""
        ...

    def snapshot_needed(self, log_start: int) -> None:
        """Note that the leader's log no longer reaches back far enough."""
        ...

    def receive(self, entries: Entries, body: memoryview, *, inline: bool = False) -> None:
        """Append entries and take the commit offset.

        `inline`: the calling thread may do what follows from it.
        """
        ...

    def ack_of(self, opaque: int) -> FetchLog:
        """Return the ack of what is durable now."""
        ...

    def state_set(self, message: SetState) -> None:
        """Take the producer's state change (DCP-10)."""
        ...

    def time_closed(self, news: ClosedTime) -> None:
        """Take a time that the leader has closed."""
        ...

    def follows(self, leader: NodeId, leader_epoch: int) -> bool:
        """Return whether the replica still follows exactly this leadership."""
        ...

    def stream_ended(self, message: StreamEnd) -> None:
        """Note that the leader has ended the stream."""
        ...

    def stream_failed(self, error: str) -> None:
        """Note why there is no stream, for the report; empty when there is."""
        ...

    def leader_silent(self, seconds: float) -> None:
        """Note for how long the leader has not been heard, 0 while it is."""
        ...


@dataclass(slots=True)
class ConsumerStream:
    """One partition's stream; `retry_at` is set while it waits to be asked for again.

    `asked_at` while its request is unanswered. `over`: the leader has ended it, and need not be
    told. `heard_at`: when it ran and its leader was heard, or when it was wanted.
    """

    sink: Sink
    heard_at: float
    opaque: int = 0
    leader_epoch: int = 0
    active: bool = False
    over: bool = False
    asked_at: float | None = None
    retry_at: float | None = None
    retries: int = 0
    entries: int = 0
    bytes_received: int = 0

    def ask(self, opaque: int, now: float) -> None:
        """Begin a request with this number; under the channel's lock."""
        self.active = self.over = False
        self.retry_at = None
        self.opaque = opaque
        self.asked_at = now

    def asks_in(self, leader_epoch: int) -> None:
        """Note the epoch that the request on its way is for; one request at a time."""
        self.leader_epoch = leader_epoch

    def start(self) -> None:
        """Run: the leader has answered; under the channel's lock."""
        self.active = True
        self.asked_at = None
        self.retries = 0

    def stop(self) -> None:
        """Run no more, and take nothing that is still on the wire; under the channel's lock."""
        self.disconnect()
        self.opaque = _NO_REQUEST

    def disconnect(self) -> None:
        """Run no more until a connection is there; under the channel's lock."""
        self.active = False
        self.asked_at = self.retry_at = None

    def retry(self, at: float) -> None:
        """Run no more, and ask again at a time; under the channel's lock."""
        self.active = False
        self.asked_at = None
        self.retries += 1
        self.retry_at = at

    def take_due(self, now: float, silent_ms_max: int) -> bool:
        """Whether it is to be asked for now, once for each pause; under the channel's lock.

        A request that is unanswered is due after `silent_ms_max` at first. Longer with each time:
        who takes long to answer must not be asked again before it has. Up to `UNANSWERED_MS_MAX`.
        """
        if self.asked_at is not None:
            patience_ms = min(silent_ms_max << min(self.retries, 16), UNANSWERED_MS_MAX)
            if now - self.asked_at <= max(patience_ms, silent_ms_max) / 1000:
                return False
            self.retries += 1
        elif self.retry_at is None or self.retry_at > now:
            return False
        self.retry_at = None
        return True

    def hear(self, at: float) -> None:
        """Note when its leader was heard, while it runs; under the channel's lock."""
        if self.active:
            self.heard_at = max(self.heard_at, at)

    def count(self, size: int) -> None:
        """Count entries that have come."""
        self.entries += 1
        self.bytes_received += size

    def leader_ends(self, *, over: bool) -> None:
        """Note whether the leader has sent its last message on it."""
        self.over = over


class ConsumerChannel:
    """The connection to one leader's node; starts its thread at once."""

    def __init__(
        self,
        *,
        name: str,
        node: NodeId,
        peer: NodeId,
        address: str,
        zone_uid: str,
        settings: NodeSettings,
        clock: CheckedClock,
        clock_bound: ClockBound,
        connect: Callable[[str], NodeClient],
        unread: Unread,
        unsent: Tally,
    ) -> None:
        self.name = name
        self._unread = unread
        self._unsent = unsent
        self.peer = peer
        self.address = address
        self._hello = OpenConnection(name=name, node=node, zone_uid=zone_uid, beats=True)
        self._settings = settings
        self._clock = clock
        self._times = Exchange(clock, peer)
        self._clock_bound = clock_bound
        self._connect = connect
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._asking = threading.Lock()
        self._streams: dict[PartitionId, ConsumerStream] = {}
        self._channel: Channel | None = None
        self._liveness = self._new_liveness()
        self._answers = False
        self._closed = False
        self._warm = False
        self._promise = Promise()
        self._opaques = itertools.count(1)
        self._thread = threading.Thread(target=self._run, name=f"receive {name}", daemon=True)
        self._thread.start()

    # --- called by the node, from any thread -----------------------------------------------------

    def want(self, sink: Sink) -> None:
        """Have a stream of this partition, from its present end on; a running one starts again."""
        with self._changed:
            stream = ConsumerStream(sink, self._clock.monotonic())
            if (old := self._streams.get(sink.partition_id)) is not None:
                # A request of it that is not on the wire yet must not come after this one's.
                old.stop()
            self._streams[sink.partition_id] = stream
            channel = self._channel
            self._changed.notify_all()
        if channel is not None:
            self._request(channel, stream)

    def unwant(self, partition: PartitionId) -> None:
        """End the stream; refuse what is still on the wire (DCP-12).

        Until the leader is told, the stream stays in the table, and so out of all leases.
        """
        with self._lock:
            stream = self._streams.get(partition)
            channel = self._channel
            if stream is not None:
                stream.stop()
        if stream is None:
            return
        if channel is not None and not stream.over:
            self._send(channel, CloseStream(partition=partition))
        with self._lock:
            if self._streams.get(partition) is stream:
                del self._streams[partition]

    def warm_up(self) -> None:
        """Connect although no stream is wanted yet: a takeover to the peer is planned."""
        with self._changed:
            self._warm = True
            self._changed.notify_all()

    def cool_down(self) -> None:
        """Hang up if no stream is wanted: nobody looks for the peer any more."""
        with self._changed:
            self._warm = False
            channel = self._channel if not self._streams else None
        if channel is not None:
            channel.cancel()

    def hears(self, now: float, seconds_max: float) -> bool:
        """Whether the peer has said something on this connection within so many seconds."""
        with self._lock:
            answers, liveness = self._answers, self._liveness
        return answers and liveness.quiet_seconds(now) < seconds_max

    def look_at_leaders(self, now: float) -> None:
        """Tell the followers for how long their leaders have been silent (NW-02)."""
        with self._lock:
            quiet = self._liveness.quiet_seconds(now)
            streams = list(self._streams.values())
            for stream in streams:
                stream.hear(now - quiet)
        for stream in streams:
            stream.sink.leader_silent(now - stream.heard_at if not stream.active else quiet)

    def ack(self, partition: PartitionId) -> None:
        """Tell the leader what is durable, if the stream runs."""
        with self._lock:
            stream = self._streams.get(partition)
            channel = self._channel
            if stream is None or not stream.active or channel is None:
                return
            opaque = stream.opaque
        self._send(channel, stream.sink.ack_of(opaque))

    def active(self, partition: PartitionId) -> bool:
        """Whether the partition's stream runs."""
        with self._lock:
            stream = self._streams.get(partition)
            return stream is not None and stream.active

    def tick(self, now: float) -> None:
        """Ask again for streams whose pause is over, and for those that nobody has answered for.

        A connection whose other end is silent is broken off: what says that it is over may never
        come, and the next one does not wait for what the old one has to send again.
        """
        with self._lock:
            channel, liveness = self._channel, self._liveness
            patience_ms = self._settings.channel_silent_ms_max
            due = [s for s in self._streams.values() if s.take_due(now, patience_ms)]
        if channel is not None and liveness.is_silent(now):
            _log.info("a leader's node is silent", channel=self.name)
            channel.cancel()
        elif channel is not None:
            for stream in due:
                self._request(channel, stream)

    def _new_liveness(self) -> Liveness:
        settings = self._settings
        return Liveness(
            self._clock.monotonic(),
            heartbeat_ms=settings.heartbeat_ms,
            silent_ms_max=settings.channel_silent_ms_max,
        )

    @property
    def promise(self) -> Promise:
        """What the peer was promised for the partitions that it leads."""
        return self._promise

    def statistics(self) -> dict[PartitionId, ConsumerStream]:
        """Return the streams, for their counters (DCP-14)."""
        with self._lock:
            return dict(self._streams)

    def move_to(self, address: str) -> None:
        """Connect again: the peer has another address."""
        self.address = address
        self.hang_up()

    def hang_up(self) -> None:
        """Break the connection as a network fault would; the channel connects again."""
        with self._lock:
            channel = self._channel
        if channel is not None:
            channel.cancel()

    def close(self, timeout_seconds: float) -> None:
        """End the connection and the thread."""
        with self._changed:
            self._closed = True
            channel = self._channel
            self._changed.notify_all()
        if channel is not None:
            channel.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_seconds)

    # --- the channel's thread --------------------------------------------------------------------

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._closed and not self._streams and not self._warm:
                    self._changed.wait()
                if self._closed:
                    return
            client = self._connect(self.address)
            try:
                if self._serve(client):
                    failures = 0
            except (RezoneError, *CHANNEL_ERRORS) as error:
                if failures == 0 and not self._closed:
                    _log.info(
                        "a replication channel has broken",
                        channel=self.name,
                        error=str(error)[:_ERROR_CHARACTERS],
                    )
            except Exception:  # noqa: BLE001 - told with its trace; the stream is asked for again
                UNEXPECTED.failed(f"follow node {self.peer}")
            finally:
                self._disconnected()
                client.close()
            failures += 1
            self._pause(failures)

    def _pause(self, failures: int) -> None:
        limits = self._settings
        pause_ms = min(limits.reconnect_ms_max, limits.reconnect_ms_min << min(failures - 1, 16))
        deadline = self._clock.monotonic() + pause_ms / 1000
        with self._changed:
            while not self._closed and (left := deadline - self._clock.monotonic()) > 0:
                self._changed.wait(left)

    def _serve(self, client: NodeClient) -> bool:
        """Serve one connection to its end; whether the other side ever answered."""
        channel = client.channel("replication")
        channel.send(self._hello)
        liveness = self._new_liveness()
        with self._lock:
            self._channel, self._liveness = channel, liveness
            streams = list(self._streams.values())
            closed = self._closed
        if closed:
            channel.cancel()
        cut = self._unread.peer(f"node {self.peer}", channel.cancel)
        seconds_max = self._settings.channel_silent_ms_max / 1000
        self._unread.watch(channel, cut, seconds_max=seconds_max)
        for stream in streams:
            self._request(channel, stream)
        answered = False
        try:
            while True:
                liveness.listens(self._clock.monotonic())
                frame = channel.receive()
                liveness.heard(self._clock.monotonic())
                if frame is None:
                    break
                answered = self._answers = True
                message, body = frame
                if isinstance(message, ConnectionClosed):
                    _log.info("the producer hangs up", channel=self.name, reason=message.reason)
                    break
                if isinstance(message, CommitOffsets):
                    for news in message.streams:
                        self._handle(channel, _without_entries(news), _EMPTY)
                elif isinstance(message, ClosedTimes):
                    self._closed_times(message)
                elif isinstance(message, Heartbeat):
                    self._send(channel, message)
                else:
                    self._handle(channel, message, body)
        finally:
            self._unread.forget(channel)
            channel.close()
        return answered

    def _closed_times(self, message: ClosedTimes) -> None:
        with self._lock:
            active = {p: stream.sink for p, stream in self._streams.items() if stream.active}
        for news in message.streams:
            if (sink := active.get(news.partition)) is not None:
                sink.time_closed(news)

    def _disconnected(self) -> None:
        with self._lock:
            self._channel, self._answers = None, False
            streams = list(self._streams.values())
            for stream in streams:
                stream.disconnect()
        for stream in streams:
            stream.sink.stream_failed(f"no connection to node {self.peer} at {self.address}")

    def _request(self, channel: Channel, stream: ConsumerStream) -> None:
        with self._lock:
            if self._streams.get(stream.sink.partition_id) is not stream:
                return
            opaque = next(self._opaques)
            stream.ask(opaque, self._clock.monotonic())
        request = stream.sink.stream_request(opaque)
        with self._asking:
            # On the wire in the order of their numbers: the leader goes by the last one.
            if stream.opaque != opaque:
                return
            stream.asks_in(request.leader_epoch)
            self._send(channel, request)

    def _send(self, channel: Channel, message: Message) -> None:
        """Send a frame; counted while a leader that reads nothing has it wait here."""
        frame = pack(message)
        self._unsent.add(len(frame))
        try:
            channel.send_packed(frame)
        except CHANNEL_ERRORS:
            # The receiving thread sees the same break and connects again.
            channel.cancel()
        finally:
            self._unsent.remove(len(frame))

    def _grant(self, channel: Channel, request: LeaseRequest) -> None:
        """Grant read leases for all streams that run and are still followed."""
        lease_ms = self._settings.lease_ms
        self._times.heard(request.clock)
        try:
            self._clock.require_near(request.time)
            self._clock_bound.reach(request.time)
        except (OSError, NotReadyError) as error:
            _log.error("no lease is granted: what is promised must be kept", error=str(error))
            self._grant_none(channel, request)
            return
        # First the promise, then the look at who has left: a replica does it the other way round.
        until = self._clock.monotonic() + lease_ms / 1000
        self._promise = Promise(
            max(self._promise.until, until), max(self._promise.time, request.time)
        )
        with self._lock:
            streams = dict(self._streams)
        followed = {
            partition: stream.active and stream.sink.follows(self.peer, stream.leader_epoch)
            for partition, stream in streams.items()
        }
        grant = LeaseGrant(
            round=request.round,
            lease_ms=lease_ms,
            left=left_of(followed),
            clock=self._times.say(),
        )
        self._send(channel, grant)

    def _grant_none(self, channel: Channel, request: LeaseRequest) -> None:
        """Tell a leader what time it is here: it may be its own that is wrong."""
        with self._lock:
            left = tuple(sorted(self._streams))
        self._send(
            channel, LeaseGrant(round=request.round, lease_ms=0, left=left, clock=self._times.say())
        )

    def _handle(self, channel: Channel, message: Message, body: memoryview) -> None:
        if isinstance(message, LeaseRequest):
            self._grant(channel, message)
            return
        partition = getattr(message, "partition", None)
        with self._lock:
            stream = self._streams.get(partition) if partition is not None else None
            if stream is None:
                return
            opaque = getattr(message, "opaque", None)
            if opaque != stream.opaque if opaque is not None else not stream.active:
                return
        try:
            self._dispatch(channel, stream, message, body)
        except (RezoneError, OSError, AssertionError) as error:
            _log.warning(
                "a stream has failed", channel=self.name, partition=partition, error=str(error)
            )
            self._send(channel, CloseStream(partition=stream.sink.partition_id))
            self._retry_later(stream, str(error))

    def _dispatch(
        self, channel: Channel, stream: ConsumerStream, message: Message, body: memoryview
    ) -> None:
        sink = stream.sink
        match message:
            case Entries():
                stream.count(len(body))
                inline = channel.waited_seconds >= IDLE_SECONDS
                sink.receive(message, body, inline=inline)
            case StreamOk():
                sink.stream_started(message)
                with self._lock:
                    stream.start()
                sink.stream_failed("")
                self.ack(sink.partition_id)
            case StreamRollback():
                sink.roll_back(message.offset)
                self._request(channel, stream)
            case StreamNeedsSnapshot():
                self._retry_later(stream, "the leader's log does not reach back far enough")
                sink.snapshot_needed(message.log_start_offset)
            case StreamRefused():
                self._retry_later(stream, str(error_from(message.error)))
            case SetState():
                stream.leader_ends(over=message.state is TakeoverState.ACTIVE)
                sink.state_set(message)
            case StreamEnd():
                stream.leader_ends(over=True)
                self._retry_later(stream, f"the leader has ended the stream: {message.reason}")
                sink.stream_ended(message)
            case _:
                _log.warning("unexpected on a replication channel", message=type(message).__name__)

    def _retry_later(self, stream: ConsumerStream, why: str) -> None:
        limits = self._settings
        pause_ms = min(limits.reconnect_ms_max, limits.reconnect_ms_min << min(stream.retries, 16))
        with self._lock:
            stream.retry(self._clock.monotonic() + pause_ms / 1000)
        stream.sink.stream_failed(why)


def _without_entries(news: CommitOffset) -> Entries:
    return Entries(
        partition=news.partition,
        leader_epoch=news.leader_epoch,
        committed_offset=news.committed_offset,
    )
