"""One partition's stream on a replication channel, as its leader sees it.

Concurrency: a lock of the channel guards the streams' state; methods say when it is held.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rezone.datanode.commit.lease import Lease
from rezone.storage.log.entry import header_at
from rezone.wire.messages import (
    ClosedTime,
    CommitOffset,
    FetchLog,
    Message,
    NodeId,
    PartitionId,
    StreamEnd,
    StreamRequest,
)


class Source(Protocol):
    """What a producer needs of the partition it streams."""

    partition_id: PartitionId

    @property
    def committed(self) -> int:
        """The commit offset."""
        ...

    def read_log(self, offset: int, bytes_max: int) -> bytes:
        """Return whole raw entries from `offset` on; empty at the end."""
        ...

    def open_stream(self, stream: "ProducerStream", request: StreamRequest) -> Message:
        """Answer a stream request; the stream is attached when the answer is StreamOk."""
        ...

    def will_lead(self, leader_epoch: int) -> bool:
        """Return whether this replica is about to lead in exactly this epoch."""
        ...

    def detach_stream(self, stream: "ProducerStream") -> None:
        """Forget a stream that has ended."""
        ...

    @property
    def log_end(self) -> int:
        """The offset after the newest entry."""
        ...

    def acked(self, stream: "ProducerStream", ack: FetchLog, *, inline: bool) -> None:
        """Take a follower's ack; `inline`: the calling thread may do what follows from it."""
        ...

    def granted(self, stream: "ProducerStream", lease: Lease) -> None:
        """Take a follower's promise not to lead for a while."""
        ...

    def close_time(self) -> ClosedTime | None:
        """Close the latest time that may be, for the followers; None when there is no news."""
        ...


class StreamOwner(Protocol):
    """What a stream asks of the channel that it is on."""

    def wake(self, stream: "ProducerStream", *, here: bool = False) -> None:
        """Queue a stream for the sender, which may be the calling thread: `here`, or unlocked."""
        ...

    def add_control(self, stream: "ProducerStream", control: "Control", *, tell: bool) -> None:
        """Queue a message that has its place after the stream's entries; `tell` the sender."""
        ...

    def end_stream(self, stream: "ProducerStream", message: StreamEnd, *, tell: bool) -> None:
        """End the stream; `tell`: and say so to the other end."""
        ...

    def ask_lease(self) -> None:
        """Begin another round of leases."""
        ...


@dataclass(slots=True)
class Control:
    """A message to be sent when the stream has reached `offset`; nothing follows a `last` one."""

    offset: int
    message: Message
    last: bool
    on_sent: Callable[[], None] | None


@dataclass(eq=False)
class ProducerStream:
    """One partition on one channel; the counters are its statistics (DCP-14)."""

    channel: StreamOwner
    source: Source
    node: NodeId
    opaque: int
    leader_epoch: int
    sent_offset: int
    acked_offset: int
    credit_bytes: int = 0
    in_flight_bytes: int = 0
    committed_sent: int = -1
    bytes_sent: int = 0
    frames_sent: int = 0
    answered: bool = False
    ended: bool = False
    queued: bool = False
    _in_flight: deque[tuple[int, int, int]] = field(default_factory=deque)
    _controls: deque[Control] = field(default_factory=deque)

    def wake(self) -> None:
        """Have the sender look at the stream: there are entries, credit or a new commit offset."""
        self.channel.wake(self)

    def push(self) -> None:
        """Send what there is by the calling thread, which holds no lock, if that cannot block."""
        self.channel.wake(self, here=True)

    def send_at(
        self,
        offset: int,
        message: Message,
        *,
        last: bool = False,
        tell: bool = True,
        on_sent: Callable[[], None] | None = None,
    ) -> None:
        """Send a message once all entries below `offset` are sent; `last` ends the stream.

        The sender is told, unless the caller says that it will push (`tell`).
        """
        self.channel.add_control(self, Control(offset, message, last, on_sent), tell=tell)

    def end(
        self,
        reason: str,
        leader: NodeId | None = None,
        epoch: int | None = None,
        *,
        released_epoch: int = 0,
        tell: bool = True,
    ) -> None:
        """Send StreamEnd, in place of all that was still to be sent.

        The sender is told, unless the caller says that it will push (`tell`).
        """
        message = StreamEnd(
            partition=self.source.partition_id,
            reason=reason,
            leader=leader,
            leader_epoch=epoch,
            released_epoch=released_epoch,
        )
        self.channel.end_stream(self, message, tell=tell)

    def ask_lease(self) -> None:
        """Have the follower's node asked for leases, as soon as may be."""
        self.channel.ask_lease()

    def start(self, credit_bytes: int, committed: int) -> None:
        """Run: the answer with this commit offset goes out first; under the channel's lock."""
        self.answered = True
        self.credit_bytes = credit_bytes
        self.committed_sent = committed

    def close(self) -> None:
        """Send nothing any more; under the channel's lock."""
        self.ended = True

    def enqueue(self) -> bool:
        """Be in the sender's queue; whether it is to be put there; under the channel's lock."""
        if self.queued or self.ended:
            return False
        self.queued = True
        return True

    def dequeue(self) -> None:
        """Be in the sender's queue no more; under the channel's lock."""
        self.queued = False

    def note_committed(self, committed: int) -> None:
        """Note the commit offset that leaves; by the thread that sends."""
        self.committed_sent = committed

    def note_ack(self, ack: FetchLog) -> int:
        """Count an ack and its credit; return which total it shows to be read, or 0.

        Under the channel's lock.
        """
        self.acked_offset = ack.fetch_offset
        self.credit_bytes = ack.max_fetch_bytes
        read = 0
        while self._in_flight and self._in_flight[0][0] <= ack.fetch_offset:
            _, size, read = self._in_flight.popleft()
            self.in_flight_bytes -= size
        return read

    def note_sent(self, end_offset: int, size: int, total: int) -> None:
        """Count entries that leave, the last of a `total` of bytes; under the channel's lock."""
        self.sent_offset = end_offset
        self._in_flight.append((end_offset, size, total))
        self.in_flight_bytes += size
        self.bytes_sent += size
        self.frames_sent += 1

    def add(self, control: Control) -> None:
        """Queue a message behind the entries; under the channel's lock."""
        self._controls.append(control)

    @property
    def lacks(self) -> int:
        """The rows that are still to be sent."""
        return self.source.log_end - self.sent_offset

    @property
    def idle(self) -> bool:
        """Whether a running stream has nothing to send but a commit offset; under the lock."""
        return (
            self.answered
            and not self.ended
            and not self._controls
            and self.sent_offset == self.source.log_end
        )

    def commit_offset(self) -> CommitOffset:
        """Return the commit offset that was last sent."""
        return CommitOffset(
            partition=self.source.partition_id,
            leader_epoch=self.leader_epoch,
            committed_offset=self.committed_sent,
        )

    def take_control(self) -> Control | None:
        """Return the next message that is due; under the channel's lock."""
        if self._controls and self._controls[0].offset <= self.sent_offset:
            return self._controls.popleft()
        return None

    def replace_controls(self, control: Control) -> None:
        """Drop what was still to be sent for one last message; under the channel's lock."""
        self._controls.clear()
        self._controls.append(control)


def end_of(raw: bytes) -> int:
    """Return the offset after the last of these whole entries; unchecked, the log has done that."""
    position, end_offset = 0, 0
    while (header := header_at(raw, position)) is not None:
        position += header.length
        end_offset = header.end_offset
    return end_offset
