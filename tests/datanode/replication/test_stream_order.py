"""Streams whose ends do not go at one pace: closed, asked for and left out in the same moment."""

from __future__ import annotations

import contextlib
import queue
import threading
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import test_consumer
import test_stream_requests
from replica_cluster import Client, cluster, unchecked

from rezone.datanode.clock.clock_bound import ClockBound
from rezone.datanode.replication.consumer import ConsumerChannel
from rezone.datanode.replication.producer import ProducerChannel
from rezone.datanode.replication.stream import Source
from rezone.datanode.scheduling.unread import Unread
from rezone.datanode.settings import NodeSettings, SystemClock
from rezone.storage.budget import Tally
from rezone.wire.messages import (
    Ack,
    CloseStream,
    Message,
    PartitionId,
    StopReplica,
    StreamRequest,
    StreamRollback,
)
from rezone.wire.transport.channel import Channel
from rezone.wire.transport.flight import NodeClient

P: PartitionId = 0
WAIT_SECONDS = 20.0


class ClosedTimestamp(test_stream_requests.Candidate):
    """A leader whose channel another thread closes while a stream opens."""

    def __init__(self) -> None:
        super().__init__()
        self.leads = True
        self.attached: list[Any] = []
        self.channel: ProducerChannel | None = None

    def open_stream(self, stream: Any, request: StreamRequest) -> Message:
        """Close the channel, then attach the stream."""
        assert self.channel is not None
        self.channel.close("the sender has met a break")
        answer = super().open_stream(stream, request)
        self.attached.append(stream)
        return answer

    def detach_stream(self, stream: Any) -> None:
        """Forget the stream if it is there."""
        if stream in self.attached:
            self.attached.remove(stream)


def test_no_stream_outlives_its_channel() -> None:
    """Its follower would count as streaming until that node opens another one, dead or not."""
    candidate, wire = ClosedTimestamp(), test_stream_requests.Wire()
    candidate.channel = ProducerChannel(
        "c",
        1,
        cast("Channel", wire),
        lambda _: cast("Source", candidate),
        settings=NodeSettings(streams_max=1),
        clock=unchecked(SystemClock()),
    )
    serving = threading.Thread(target=candidate.channel.run, daemon=True)
    serving.start()
    assert wire.handled.wait(WAIT_SECONDS)
    wire.over.set()
    serving.join(WAIT_SECONDS)
    assert candidate.attached == []


class Slow(test_consumer.Rows):
    """A partition that a rollback holds while the node's tick asks for its stream again."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.rolling, self.go = threading.Event(), threading.Event()
        self.tick_asks, self.late = threading.Event(), threading.Event()

    def stream_request(self, opaque: int) -> StreamRequest:
        """Have the tick's request made before the other one, and sent after it."""
        if threading.current_thread().name == "tick":
            self.tick_asks.set()
            with self.lock:
                pass
            self.late.wait(WAIT_SECONDS)
        return super().stream_request(opaque)

    def roll_back(self, offset: int) -> None:
        """Take long."""
        del offset
        with self.lock:
            self.rolling.set()
            assert self.go.wait(WAIT_SECONDS)


def test_the_last_request_on_the_wire_is_the_one_that_counts() -> None:
    """The leader streams by the last it got: its acks would be dropped, and nobody asks again."""
    wire, rows = test_consumer.Wire(), Slow()
    channel = ConsumerChannel(
        name="c",
        node=1,
        peer=0,
        address="a",
        zone_uid="u",
        settings=test_consumer.SETTINGS,
        clock=unchecked(SystemClock()),
        clock_bound=ClockBound(unchecked(SystemClock()), 1000),
        connect=lambda _: cast("NodeClient", wire),
        unread=Unread(SystemClock(), 10_000, threading.Event()),
        unsent=Tally(1 << 20),
    )
    channel.want(cast("Any", rows))
    first = wire.heard(StreamRequest)
    rollback = StreamRollback(opaque=first.opaque, partition=P, offset=0)
    rolling = threading.Thread(target=lambda: wire.say(rollback))
    rolling.start()
    assert rows.rolling.wait(WAIT_SECONDS)
    later = SystemClock().monotonic() + test_consumer.SETTINGS.channel_silent_ms_max / 1000 + 0.1
    tick = threading.Thread(target=lambda: channel.tick(later), name="tick")
    tick.start()
    assert rows.tick_asks.wait(WAIT_SECONDS)
    rows.go.set()
    rolling.join(WAIT_SECONDS)
    last = wire.heard(StreamRequest)
    rows.late.set()
    tick.join(WAIT_SECONDS)
    with contextlib.suppress(queue.Empty):
        last = wire.sent.get_nowait()
    counts = channel.statistics()[P].opaque
    channel.close(1)
    assert last.opaque == counts


class Replaced(test_consumer.Rows):
    """A partition whose stream is wanted again while the request of the one before is made."""

    def __init__(self, case: test_consumer.Case) -> None:
        super().__init__()
        self.case = case

    def stream_request(self, opaque: int) -> StreamRequest:
        """Have a stream of the next epoch wanted, once."""
        if self.case.rows is self:
            self.case.rows = test_consumer.Rows()
            self.case.want()
        return super().stream_request(opaque)


def test_a_request_of_a_replaced_stream_is_not_sent() -> None:
    """The leader would stream by it, and drop all acks: it waits for a follower that has all.

    A data node that asks again after a pause and hears of a new epoch meanwhile does this.
    """
    case = test_consumer.Case()
    case.rows = Replaced(case)
    case.want()
    wire = case.wire()
    asked = [wire.heard(StreamRequest).opaque]
    wire.ok(case.consumer.statistics()[P].opaque)
    with contextlib.suppress(queue.Empty):
        while True:
            message = wire.sent.get_nowait()
            asked += [message.opaque] if isinstance(message, StreamRequest) else []
    case.consumer.close(WAIT_SECONDS)
    assert asked == [case.consumer.statistics()[P].opaque]


def test_a_deleted_replica_does_not_join_by_its_old_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An in-sync set would count a replica without rows, and the full one may be given up."""
    go = threading.Event()
    handle = ProducerChannel._handle

    def late(self: ProducerChannel, message: Message) -> None:
        if isinstance(message, CloseStream) and self.node == 2:
            go.wait(WAIT_SECONDS)
        handle(self, message)

    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        client = Client(c)
        for number in range(5):
            client.put(P, {b"%d" % number: b"1"})
        monkeypatch.setattr(ProducerChannel, "_handle", late)
        try:
            record = c.change(P, replicas=(0, 1), isr=(0, 1))
            stop = StopReplica(
                fence=c.fence(),
                partition=P,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
            )
            assert c.call(2, stop) == Ack()
            c.change(P, replicas=(0, 1, 2), isr=(0, 1))
            c.until("node 2 has no rows", lambda: c.report(2, P).needs_snapshot)
            for _ in range(5):
                c.settle()
            assert 2 not in c.isr(P)
        finally:
            go.set()


def test_a_replica_that_is_left_out_and_taken_in_again_joins(tmp_path: Path) -> None:
    """Its stream would go on, and the leader would not know that: a learner for ever."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        client = Client(c)
        client.put(P, {b"a": b"1"})
        with c.lock:
            record = c.records[P]
        epoch = record.partition_epoch + 1
        out = msgspec.structs.replace(record, replicas=(0, 1), isr=(0, 1), partition_epoch=epoch)
        c.send(P, out, 0)  # the leader alone hears of it
        back = msgspec.structs.replace(out, replicas=(0, 1, 2), partition_epoch=epoch + 1)
        c.send(P, back)
        c.until_settled("node 2 is in sync", lambda: c.isr(P) == {0, 1, 2})
        client.put(P, {b"b": b"1"})
