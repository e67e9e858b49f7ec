"""The data channel: a client's writes and reads, each answered under its opaque number.

Concurrency: the channel's Flight thread reads frames, checks writes and appends them; it never
waits for a commit. Answers come from any thread. While the client has read all but a few, the
thread sends that has one, once it holds no lock (`inline_sends`); else the outbox's own. A client
that takes its answers no more is cut off (`unread`), and stops nobody but itself.
"""

import threading
from collections import deque
from collections.abc import Callable

import msgspec
import structlog
from structlog.contextvars import bound_contextvars

from rezone.datanode.node.asked import Asked, Send
from rezone.datanode.reading.read import prepare_read, read_keys
from rezone.datanode.replica.replica import Replica
from rezone.datanode.scheduling import inline_sends
from rezone.datanode.scheduling.foreground import Foreground, Requests
from rezone.datanode.scheduling.held import HeldByConnection
from rezone.datanode.scheduling.on_way import OnWay
from rezone.datanode.scheduling.outbox import Outbox
from rezone.datanode.scheduling.requests import Request, operation_of, result_of
from rezone.datanode.scheduling.traced import READ, NodeTracer
from rezone.datanode.scheduling.unread import Peer
from rezone.datanode.scheduling.workers import IDLE_SECONDS
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.datanode.writing.owner import Owner
from rezone.datanode.writing.producing import prepare_open
from rezone.datanode.writing.transacting import prepare_end, prepare_intents
from rezone.datanode.writing.write import prepare
from rezone.storage.budget import Tally
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.codec.rows import RowCodec
from rezone.wire.errors import InvalidRowError, OverloadedError, RezoneError
from rezone.wire.messages import (
    ConnectionClosed,
    Failure,
    Heartbeat,
    LeaderMoved,
    LeaderMoving,
    Message,
    PartitionId,
    ProducerOpen,
    ReadRequest,
    ReadResult,
    TransactionBegin,
    TransactionEnd,
    WriteRequest,
)
from rezone.wire.messages.codec import UnreadableError
from rezone.wire.transport.channel import CHANNEL_ERRORS, Channel, Frame

_log = structlog.get_logger(__name__)

ANSWER_BYTES = 1024
"""What an answer that waits takes beside its body, about; so those of a few bytes are bounded."""

UNSENT_BYTES_MAX = 4 << 20
"""Of one client so many bytes of answers may wait to be sent; it reads on, or is not read."""


class DataChannel:
    """One client's channel; `find` raises UnknownPartitionError, `check` ForbiddenError.

    Refusals are answers as all others: nothing else may send, or whoever answers would wait for it.
    """

    def __init__(
        self,
        channel: Channel,
        find: Callable[[int], Replica],
        codec: Callable[[], RowCodec],
        foreground: Foreground,
        unsent: Tally,
        *,
        check: Callable[[Message], None],
        peer: Peer,
        held: HeldByConnection,
        tracer: NodeTracer | None = None,
    ) -> None:
        self._channel = channel
        self._find = find
        self._codec = codec
        self._requests = Requests(foreground)
        self._unsent = unsent
        self._check = check
        self._peer = peer
        self._held = held
        self._tracer = tracer
        self._owner = Owner(peer.identity)
        self._answers: deque[tuple[Message, bytes]] = deque()
        self._used: set[PartitionId] = set()
        self._on_way = OnWay()
        self._unsent_bytes = 0
        self._counting = threading.Lock()
        self._few_unsent = threading.Condition(self._counting)
        self._broken = False
        self._ended = False
        self.outbox = Outbox(
            "answers", send_next=self._send_next, may_send_here=self._may_send_here
        )

    def run(self) -> None:
        """Serve the channel until the client ends it."""
        self.outbox.start()
        try:
            while (frame := self._receive()) is not None:
                with inline_sends.scope():
                    self._handle(*frame)
                self._wait_until_taken()
        except CHANNEL_ERRORS as error:
            _log.debug("a data channel has broken", error=str(error))
        except msgspec.MsgspecError as error:
            _log.warning("not a frame of this version on a data channel", error=str(error))
        finally:
            self.outbox.close()
            self._ended = True
            self._requests.close()
            self._held.close()
            self._forget_answers()

    def _receive(self) -> Frame | None:
        """Return the next request that can be read; others are refused by their numbers."""
        while True:
            try:
                return self._channel.receive()
            except UnreadableError as error:
                if error.opaque is None:
                    raise
                refused = InvalidRowError(f"a value is out of its range: {error}")
                self._tell(Failure(opaque=error.opaque, error=refused.info()))
                self._wait_until_taken()

    def _wait_until_taken(self) -> None:
        """Read on when the client has taken its answers, or they and the node's are few again."""
        while self._answers and not self._broken:
            if self._unsent.full:
                self._unsent.wait_for_room()
            elif self._unsent_bytes < UNSENT_BYTES_MAX:
                return
            else:
                with self._counting:
                    self._few_unsent.wait_for(lambda: self._unsent_bytes < UNSENT_BYTES_MAX)

    def close(self, reason: str) -> None:
        """Ask the client to hang up: the node is stopping."""
        self._tell(ConnectionClosed(reason=reason))

    def has_used(self, partition: PartitionId) -> bool:
        """Whether the client has written to a partition since it was told of another leader."""
        return partition in self._used

    def warn(self, news: LeaderMoving) -> None:
        """Tell the client that another node will lead: it connects to it while writes go on."""
        self._tell(news)

    def tell(self, news: LeaderMoved, *, here: bool) -> None:
        """Tell the client of a new leader; `here`: by the calling thread, as answers.

        Its next write goes there at once, and not by way of a refusal in the middle of the write
        gap.
        """
        self._used.discard(news.partition)
        self._tell(news, here=here)

    def _tell(self, message: Message, body: bytes = b"", *, here: bool = False) -> None:
        """Queue a frame; `here`: the calling thread may be the one that sends it."""
        self._queue(message, body)
        self.outbox.ask(here=here)
        self._forget_if_ended()

    def _queue(self, message: Message, body: bytes) -> None:
        self._count(ANSWER_BYTES + len(body))
        self._answers.append((message, body))

    def _count(self, size: int) -> None:
        with self._counting:
            waited_for = self._unsent_bytes >= UNSENT_BYTES_MAX
            self._unsent_bytes += size
            if waited_for:
                self._few_unsent.notify_all()
        if size > 0:
            self._unsent.add(size)
        else:
            self._unsent.remove(-size)

    def _forget_if_ended(self) -> None:
        if self._ended:
            self._forget_answers()

    def _handle(self, message: Message, body: memoryview, send: Send | None = None) -> None:
        """Answer a request; also what nobody has thought of, without a word of what that is."""
        if self._tracer is not None and send is None:
            context = getattr(message, "trace", None)
            if context is not None and self._tracer.begin(context, message):
                with bound_contextvars(trace_id=context.trace_id.hex()):
                    self._handle(message, body, self._tracer.answering(context, self._answer))
                return
        if isinstance(message, Heartbeat):
            self._tell(message)
            return
        size = ANSWER_BYTES + len(body)
        held = self._held.take(size)
        taken = Request(operation_of(message), self._requests.begin(), size if held else 0)
        opaque = getattr(message, "opaque", 0)
        with Asked(type(message).__name__, opaque, taken, send or self._answer) as asked:
            if not held:
                raise OverloadedError("too many requests of this client wait; retry later")
            self._take(message, body, asked)

    def _take(self, message: Message, body: memoryview, asked: Asked) -> None:
        """Carry out a request, which is answered later or at once; RezoneError when it is not."""
        self._check(message)
        match message:
            case WriteRequest():
                partition = self._find(message.partition)
                self._on_way.read(message.answers_seen)
                self._used.add(message.partition)
                hash_range = partition.hash_range
                partition.require_may_lead()
                prepared = prepare(message, body, self._codec(), hash_range, self._owner)
                if message.transaction is not None:
                    prepared = prepare_intents(partition, prepared, message.transaction)
                self._change(partition, message, prepared, asked)
            case TransactionEnd():
                partition = self._find(message.partition)
                ending = prepare_end(partition, message, self._owner)
                self._change(partition, message, ending, asked)
            case ProducerOpen():
                partition = self._find(message.partition)
                partition.require_may_lead()
                self._change(partition, message, prepare_open(message, self._owner), asked)
            case TransactionBegin():
                self._begin(message, asked)
            case ReadRequest():
                self._on_way.read(message.answers_seen)
                self._read(message, body, asked)
            case _:
                raise RezoneError(f"{type(message).__name__} is no request of a data channel")

    def _change(
        self, replica: Replica, request: Change, prepared: PreparedRows, asked: Asked
    ) -> None:
        inline = self._channel.waited_seconds >= IDLE_SECONDS
        replica.write(request, prepared, asked.answer, inline=inline)

    def _begin(self, request: TransactionBegin, asked: Asked) -> None:
        partition = self._find(request.partition)

        def answer(error: RezoneError | None) -> None:
            with asked:
                if error is not None:
                    raise error
                asked.answer(partition.transacting.begin(request.opaque))

        partition.reads.submit(None, answer)

    def _read(self, request: ReadRequest, body: memoryview, asked: Asked) -> None:
        codec = self._codec()
        partition = self._find(request.partition)
        read = prepare_read(partition, request, body, codec)
        read = read._replace(own=self._owner.own(read.own))

        def answer(error: RezoneError | None) -> None:
            with asked:
                if error is not None:
                    raise error
                if request.trace is not None and self._tracer is not None:
                    self._tracer.step(request.trace, READ)
                as_of, age_ms = read.told(partition)
                rows = read_keys(partition, read._replace(as_of=as_of), codec)
                result = ReadResult(
                    opaque=request.opaque, rows=rows.num_rows, as_of=as_of, age_ms=age_ms
                )
                asked.answer(result, to_ipc(rows))

        served = partition.serving.rows(read.row_ids)
        partition.reads.submit(read.answered_as_of, answer, served, read.held_bytes)

    def _answer(self, message: Message, taken: Request, body: bytes = b"") -> None:
        """Answer a request, and count it.

        The thread may hold a partition's lock: it sends when it has let that go.
        """
        self._queue(message, body)
        self.outbox.ask_unlocked()
        self._forget_if_ended()
        self._requests.end(taken, result_of(taken.operation, message))
        self._held.give(taken.held_bytes)

    def _forget_answers(self) -> None:
        """Drop what has nobody to go to; any thread may, beside others."""
        while True:
            try:
                _, body = self._answers.popleft()
            except IndexError:
                return
            self._count(-ANSWER_BYTES - len(body))

    def _may_send_here(self) -> bool:
        size = len(self._answers[0][1]) if self._answers else 0
        return self._on_way.has_room(size) and self._peer.trusted

    def _send_next(self) -> bool:
        if not self._answers:
            return False
        answer = self._answers.popleft()
        size = len(answer[1])
        self._count(-ANSWER_BYTES - size)
        if not self._broken:
            self._peer.sends(size)
            try:
                self._channel.send(*answer)
            except (RezoneError, *CHANNEL_ERRORS) as error:
                # The reading thread notices the break; what is left has nobody to go to.
                self._broken = True
                _log.debug("cannot answer on a data channel", error=str(error))
        self._on_way.sent(size)
        return True
