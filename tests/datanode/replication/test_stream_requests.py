"""Stream requests that meet a takeover: whoever asks early is answered when the leader leads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from replica_cluster import unchecked

from rezone.datanode.replication.producer import PUSH_BYTES_MAX, ProducerChannel
from rezone.datanode.replication.sent_frames import FRAME_BYTES
from rezone.datanode.replication.stream import Source
from rezone.datanode.scheduling import inline_sends
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.storage.log.entry import OP_UPSERT, build_entry, rows_batch
from rezone.wire.errors import NotReadyError, UnknownPartitionError
from rezone.wire.messages import (
    CommitOffset,
    CommitOffsets,
    Entries,
    LeaseGrant,
    LeaseRequest,
    Message,
    StreamEnd,
    StreamOk,
    StreamRefused,
    StreamRequest,
)
from rezone.wire.transport.channel import Channel, unpack

PARTITION = 3
REQUEST = StreamRequest(
    opaque=9,
    partition=PARTITION,
    high_offset=5,
    partition_uuid="u",
    leader_epoch=2,
    max_fetch_bytes=1 << 20,
)
PATIENCE_SECONDS = 30


class Candidate:
    """A replica that is about to lead; `looked` is called when it is asked whether it will."""

    def __init__(self) -> None:
        self.partition_id = PARTITION
        self.leads = False
        self.committed = self.log_end = 5
        self.asked = 0
        self.leads_when_looked_at = ""
        self.looked: Callable[[], None] = lambda: None
        self.detached: list[Any] = []
        self.log = b""
        self.asked_bytes: list[int] = []

    def open_stream(self, _stream: Any, request: StreamRequest) -> Message:
        """Answer only as a leader."""
        self.asked += 1
        if not self.leads:
            raise NotReadyError("does not lead yet")
        return StreamOk(
            opaque=request.opaque,
            partition=PARTITION,
            leader_epoch=2,
            failover_log=(),
            committed_offset=5,
        )

    def will_lead(self, leader_epoch: int) -> bool:
        """Return whether the takeover to this replica is still under way."""
        assert leader_epoch == 2
        self.looked()
        return not self.leads

    def detach_stream(self, stream: Any) -> None:
        """Forget a stream."""
        self.detached.append(stream)

    def close_time(self) -> None:
        """Close nothing."""

    def granted(self, stream: Any, lease: Any) -> None:
        """Count on nobody."""

    def read_log(self, offset: int, bytes_max: int) -> bytes:
        """Return the one entry, if it was not sent."""
        self.asked_bytes.append(bytes_max)
        return self.log if offset < self.log_end else b""

    def append(self, size: int) -> None:
        """Have one entry with a row of so many bytes."""
        rows = rows_batch([b"0123456789key"], [OP_UPSERT], [bytes(size)])
        self.log = build_entry(rows, leader_epoch=2, base_offset=self.log_end, commit_time=1)
        self.log_end += 1


class Wire:
    """A channel on which one request has come in; the connection ends when `over` is set."""

    def __init__(self) -> None:
        self.waited_seconds = 0.0
        self.sent: list[Message] = []
        self.senders: list[threading.Thread] = []
        self.over = threading.Event()
        self.handled = threading.Event()
        self.said = threading.Event()
        self._requests = [REQUEST]

    def receive(self) -> tuple[Message, memoryview] | None:
        """Return the request, then the end."""
        if self._requests:
            return self._requests.pop(), memoryview(b"")
        self.handled.set()
        assert self.over.wait(PATIENCE_SECONDS)
        return None

    def send_packed(self, frame: bytes) -> None:
        """Note a frame."""
        self.senders.append(threading.current_thread())
        self.sent.append(unpack(memoryview(frame))[0])
        self.said.set()


def served(candidate: Candidate, between: Callable[[ProducerChannel], None]) -> list[Message]:
    """Serve the request; `between` is called when it has been handled. Return what was sent."""
    wire = Wire()

    def find(partition: int) -> Any:
        assert partition == PARTITION
        return candidate

    channel = ProducerChannel(
        "c",
        1,
        cast("Channel", wire),
        find,
        settings=NodeSettings(streams_max=1),
        clock=unchecked(SystemClock()),
    )

    def looked() -> None:
        if candidate.leads_when_looked_at:
            candidate.leads = True
        if candidate.leads_when_looked_at == "and resumes":
            channel.resume(PARTITION)

    candidate.looked = looked
    thread = threading.Thread(target=channel.run, daemon=True)
    thread.start()
    assert wire.handled.wait(PATIENCE_SECONDS)
    between(channel)
    # What is still unsent when a connection ends is dropped.
    assert wire.said.wait(PATIENCE_SECONDS)
    wire.over.set()
    thread.join(PATIENCE_SECONDS)
    return [m for m in wire.sent if isinstance(m, (StreamOk, StreamRefused))]


def lead(candidate: Candidate) -> Callable[[ProducerChannel], None]:
    """Return what a takeover's end does."""

    def end(channel: ProducerChannel) -> None:
        candidate.leads = True
        channel.resume(PARTITION)

    return end


@pytest.mark.proves("HS-10")
def test_a_request_that_is_early_is_answered_when_the_candidate_leads() -> None:
    """A follower would pause before it asks again, and every write with it."""
    candidate = Candidate()
    answers = served(candidate, lead(candidate))
    assert [type(a) for a in answers] == [StreamOk]


@pytest.mark.proves("HS-10")
@pytest.mark.parametrize("moment", ["before it is kept", "and resumes"])
def test_a_takeover_that_ends_while_a_request_is_looked_at_answers_it(moment: str) -> None:
    """The request would be refused, or kept for ever: 20 ms to a second without any write."""
    candidate = Candidate()
    candidate.leads_when_looked_at = moment
    answers = served(candidate, lambda _: None)
    assert [type(a) for a in answers] == [StreamOk]
    assert candidate.asked == 2


def test_a_request_is_kept_for_a_second_at_most() -> None:
    """A takeover that never ends would leave a follower without any answer."""
    candidate = Candidate()

    def time_passes(channel: ProducerChannel) -> None:
        channel.tick(100.0)
        channel.tick(102.0)
        lead(candidate)(channel)

    answers = served(candidate, time_passes)
    assert [type(a) for a in answers] == [StreamRefused]


def test_a_partition_that_is_not_here_is_refused_at_once() -> None:
    """A follower would wait for nobody."""
    wire = Wire()

    def find(_partition: int) -> Any:
        raise UnknownPartitionError("not here", partition=PARTITION)

    channel = ProducerChannel(
        "c",
        1,
        cast("Channel", wire),
        find,
        settings=NodeSettings(streams_max=1),
        clock=unchecked(SystemClock()),
    )
    thread = threading.Thread(target=channel.run, daemon=True)
    thread.start()
    assert wire.said.wait(PATIENCE_SECONDS)
    wire.over.set()
    thread.join(PATIENCE_SECONDS)
    assert isinstance(wire.sent[0], StreamRefused)
    assert wire.sent[0].error.code == "UnknownPartition"


def test_a_node_that_answers_nothing_counts_as_broken_off() -> None:
    """A machine that is lost says nothing: writes would wait for the lag limit of each stream."""
    candidate = Candidate()
    candidate.leads = True

    def wait_long(channel: ProducerChannel) -> None:
        (stream,) = channel.statistics()
        listens = SystemClock().monotonic()
        for half_seconds in range(1, 4):
            channel.tick(listens + half_seconds / 2)
            assert channel.statistics() == [stream], "it may answer yet"
        for half_seconds in range(4, 7):
            channel.tick(listens + half_seconds / 2)
        assert channel.statistics() == []
        assert candidate.detached == [stream]

    assert [type(a) for a in served(candidate, wait_long)] == [StreamOk]


@contextlib.contextmanager
def streaming() -> Iterator[tuple[Candidate, Wire, ProducerChannel]]:
    """Run a leader's end of a channel whose follower has its stream."""
    candidate, wire = Candidate(), Wire()
    candidate.leads = True
    channel = ProducerChannel(
        "c",
        1,
        cast("Channel", wire),
        lambda _: cast("Source", candidate),
        settings=NodeSettings(streams_max=1),
        clock=unchecked(SystemClock()),
    )
    thread = threading.Thread(target=channel.run, daemon=True)
    thread.start()
    # The thread that reads sends, too: what there is to say has been said.
    assert wire.handled.wait(PATIENCE_SECONDS)
    try:
        yield candidate, wire, channel
    finally:
        wire.over.set()
        thread.join(PATIENCE_SECONDS)


def test_an_answer_tells_the_commit_offset_and_nothing_repeats_it() -> None:
    """Each follower would have a frame more to read in the middle of the write gap."""
    with streaming() as (candidate, wire, channel):
        assert [type(message) for message in wire.sent] == [StreamOk, LeaseRequest]
        candidate.committed = 6
        channel.statistics()[0].push()
        assert wire.sent[2:] == [CommitOffsets(streams=(CommitOffset(PARTITION, 2, 6),))]


def test_who_leads_no_more_sends_the_end_of_its_streams_itself() -> None:
    """A thread would have to wake up for it in the middle of the write gap."""
    with streaming() as (_, wire, channel):
        del wire.sent[:]
        (stream,) = channel.statistics()
        stream.end("another replica leads", 2, 3, tell=False)
        assert not wire.sent, "its caller has locks"
        channel.push()
        reason = "another replica leads"
        assert wire.sent == [
            StreamEnd(partition=PARTITION, reason=reason, leader=2, leader_epoch=3)
        ]
        channel.push()
        assert len(wire.sent) == 1


def test_who_tells_a_stream_with_locks_sends_once_it_has_none() -> None:
    """The channel's thread would wake up for each entry, or a network be waited for with a lock."""
    with streaming() as (candidate, wire, channel):
        del wire.sent[:], wire.senders[:]
        (stream,) = channel.statistics()
        with inline_sends.scope():
            candidate.append(100)
            stream.wake()
            assert not wire.sent, "its caller may have locks"
        assert [type(message) for message in wire.sent] == [Entries]
        assert wire.senders == [threading.current_thread()]


def test_a_large_entry_is_sent_by_the_thread_that_may_wait() -> None:
    """It does not fit into the smallest window: a job, and all that need it, would wait for it."""
    with streaming() as (candidate, wire, channel):
        del wire.sent[:], wire.senders[:]
        wire.said.clear()
        (stream,) = channel.statistics()
        candidate.append(PUSH_BYTES_MAX)
        del candidate.asked_bytes[:]
        stream.push()
        assert wire.said.wait(PATIENCE_SECONDS)
        assert [type(message) for message in wire.sent] == [Entries]
        assert wire.senders != [threading.current_thread()]
        assert candidate.asked_bytes[0] <= PUSH_BYTES_MAX < candidate.asked_bytes[1]


def test_frames_without_entries_are_counted_until_the_follower_shows_that_it_has_read() -> None:
    """A follower that is dead, with hundreds of partitions, would have the ticking thread wait."""
    with streaming() as (candidate, wire, channel):
        (stream,) = channel.statistics()

        def commit() -> threading.Thread:
            wire.said.clear()
            candidate.committed += 1
            with inline_sends.scope():
                stream.wake()
            assert wire.said.wait(PATIENCE_SECONDS)
            return wire.senders[-1]

        here = 0
        while commit() is threading.current_thread():
            here += 1
            assert here * FRAME_BYTES < PUSH_BYTES_MAX, "more than fits into the smallest window"
        assert here * FRAME_BYTES > PUSH_BYTES_MAX / 4, "a thread wakes up for each"

        channel.ask_lease()
        while not isinstance(wire.sent[-1], LeaseRequest):
            assert wire.said.wait(PATIENCE_SECONDS)
        (*_, asked) = (each.round for each in wire.sent if isinstance(each, LeaseRequest))
        channel._handle(LeaseGrant(round=asked, lease_ms=0))
        with channel.outbox._idle:
            # The thread that has sent the question would send the next frame, too.
            assert channel.outbox._idle.wait_for(lambda: not channel.outbox._busy, PATIENCE_SECONDS)
        assert commit() is threading.current_thread(), "it has read all that came before"


def test_a_large_frame_without_entries_is_sent_by_the_thread_that_may_wait() -> None:
    """One that names thousands of partitions fills the window alone, whatever was read before."""
    with streaming() as (_, wire, channel):
        (stream,) = channel.statistics()
        del wire.sent[:], wire.senders[:]
        wire.said.clear()
        with inline_sends.scope():
            stream.end("r" * PUSH_BYTES_MAX, tell=False)
            channel.push()
        assert wire.said.wait(PATIENCE_SECONDS)
        assert [type(message) for message in wire.sent] == [StreamEnd]
        assert wire.senders != [threading.current_thread()]
