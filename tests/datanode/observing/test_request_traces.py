"""One trace of a sampled client request: the client's span, and below it the data node's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from opentelemetry.context import attach, detach
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
from replica_cluster import FAST, Coordinator, cluster

from otlp_receiver import Receiver, attributes, receiver
from rezone.client import ClientSettings, TableClient
from rezone.datanode.node.data import DataChannel
from rezone.wire.codec.schema import Index, TableSchema
from rezone.wire.errors import InvalidRowError, RezoneError
from rezone.wire.messages import ReadRequest, ScanTicket, TraceContext, WriteRequest, ZoneConfig
from rezone.wire.messages.codec import UnreadableError, decode, encode

__all__ = ["receiver"]

pytestmark = pytest.mark.proves("OB-06")

CONFIG = ZoneConfig(zone="orders", zone_uid="u", partitions=1)
CONTEXT = TraceContext(bytes(range(16)), bytes(range(8)))


@pytest.fixture
def c(tmp_path: Path, receiver: Receiver) -> Iterator[Coordinator]:
    """Make a partition on two nodes that send their spans."""
    settings = msgspec.structs.replace(FAST, tracing_endpoint=receiver.address)
    with cluster(tmp_path, 2, config=CONFIG, settings=settings) as made:
        made.create(0, (0, 1))
        yield made


def table(c: Coordinator, ratio: float) -> TableClient:
    """Return a client that samples so many of its requests."""
    return TableClient(list(c.peers.values()), settings=ClientSettings(trace_ratio=ratio))


def sent(c: Coordinator) -> None:
    """Have all data nodes send their spans."""
    for node in (0, 1):
        tracer = c.node(node).tracer
        assert tracer is not None
        tracer.close()


def test_a_write_and_a_read_are_one_trace_each(c: Coordinator, receiver: Receiver) -> None:
    """Nobody could tell whether a slow request waited for the client, a disk or a follower."""
    with table(c, 1.0) as client:
        client.write([{"key": b"a", "value": b"1"}])
        client.read([{"key": b"a"}])
    sent(c)
    (wrote,) = receiver.named("rezone write")
    (read,) = receiver.named("rezone read")
    assert wrote.trace_id != read.trace_id
    assert attributes(wrote) == {
        "rezone.table": "orders",
        "rezone.operation": "write",
        "rezone.partition": 0,
        "rezone.attempts": 1,
        "rezone.bytes": attributes(wrote)["rezone.bytes"],
    }
    (served,) = receiver.named("data node write")
    assert (served.trace_id, served.parent_span_id) == (wrote.trace_id, wrote.span_id)
    assert attributes(served) == {"rezone.node": 0, "rezone.partition": 0}
    steps = [
        span
        for name in ("queue", "append", "replicate", "apply")
        for span in receiver.named(name)
        if span.parent_span_id == served.span_id
    ]
    assert [span.name for span in steps] == ["queue", "append", "replicate", "apply"]
    # One after the other, they are the whole.
    ends = [served.start_time_unix_nano, *(span.end_time_unix_nano for span in steps)]
    assert [span.start_time_unix_nano for span in steps] == ends[:-1]
    assert ends[-1] == served.end_time_unix_nano
    assert len({span.span_id for span in (wrote, read, served, *steps)}) == 7
    (answered,) = receiver.named("data node read")
    assert (answered.trace_id, answered.parent_span_id) == (read.trace_id, read.span_id)
    (rows,) = receiver.named("read")
    assert rows.parent_span_id == answered.span_id


def test_an_error_and_log_lines_are_of_the_trace(
    c: Coordinator, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line about a request that failed could not be found from its trace, nor the other way."""
    bound: list[dict[str, Any]] = []

    def refuse(_channel: DataChannel, message: object, _body: object, _asked: object) -> None:
        if isinstance(message, WriteRequest):
            bound.append(structlog.contextvars.get_contextvars())
            raise InvalidRowError("not this one")

    monkeypatch.setattr(DataChannel, "_take", refuse)
    with table(c, 1.0) as client, pytest.raises(InvalidRowError):
        client.write([{"key": b"a", "value": b"1"}])
    sent(c)
    (wrote,) = receiver.named("rezone write")
    (served,) = receiver.named("data node write")
    assert bound == [{"trace_id": wrote.trace_id.hex()}]
    assert structlog.contextvars.get_contextvars() == {}
    assert attributes(wrote)["error.type"] == "InvalidRow"
    assert "not this one" in wrote.status.message
    assert "not this one" in served.status.message


def test_a_scan_and_a_selection_are_one_trace_over_all_nodes(
    c: Coordinator, receiver: Receiver
) -> None:
    """The slowest reads, which many data nodes answer, would be the ones that no trace shows."""
    with table(c, 0.0) as client:
        client.write([{"key": bytes([n]), "value": b"1"} for n in range(30)])
    with table(c, 1.0) as client:
        assert client.scan().num_rows == 30
        assert client.scan(limit=7).num_rows == 7
    sent(c)
    for name, rows in (("scan", 30), ("select", 7)):
        (whole,) = receiver.named(f"rezone {name}")
        (asked,) = receiver.named(f"rezone {name} request")
        assert attributes(whole) == {
            "rezone.table": "orders",
            "rezone.operation": name,
            "rezone.requests": 1,
            "rezone.rows": rows,
        }
        assert (asked.trace_id, asked.parent_span_id) == (whole.trace_id, whole.span_id)
        assert attributes(asked)["rezone.rows"] == rows
        (served,) = (
            span
            for span in receiver.named("data node scan")
            if span.parent_span_id == asked.span_id
        )
        assert served.trace_id == whole.trace_id
        (read,) = (span for span in receiver.named("read") if span.parent_span_id == served.span_id)
        assert read.end_time_unix_nano == served.end_time_unix_nano


def test_a_lookup_is_one_trace_over_all_nodes(tmp_path: Path, receiver: Receiver) -> None:
    """Asserts one span of a lookup, and below it one of each partition with its data node's.

    Without it a lookup that waits for an index looks like one of the slowest data node.
    """
    schema = TableSchema(indexes=(Index("by_value", ("value",)),))
    config = ZoneConfig(zone="orders", zone_uid="u", partitions=2, table=schema)
    settings = msgspec.structs.replace(FAST, tracing_endpoint=receiver.address)
    with cluster(tmp_path, 2, config=config, settings=settings) as c:
        for partition in (0, 1):
            c.create(partition, (partition,))
        with table(c, 0.0) as client:
            client.write([{"key": bytes([n]), "value": b"%d" % (n % 2)} for n in range(30)])
        with table(c, 1.0) as client:
            assert client.lookup("by_value", (b"1",), (b"1",)).rows.num_rows == 15
        sent(c)
    (whole,) = receiver.named("rezone lookup")
    assert attributes(whole) == {
        "rezone.table": "orders",
        "rezone.operation": "lookup",
        "rezone.requests": 2,
        "rezone.rows": 15,
    }
    asked = receiver.named("rezone lookup request")
    assert {attributes(span)["rezone.partition"] for span in asked} == {0, 1}
    assert sum(attributes(span)["rezone.rows"] for span in asked) == 15
    assert {(span.trace_id, span.parent_span_id) for span in asked} == {
        (whole.trace_id, whole.span_id)
    }
    served = receiver.named("data node lookup")
    assert {span.parent_span_id for span in served} == {span.span_id for span in asked}
    assert {span.trace_id for span in served} == {whole.trace_id}


def test_a_scan_that_fails_says_why(c: Coordinator, receiver: Receiver) -> None:
    """A trace of a scan that was refused would look like one that found nothing."""
    with table(c, 1.0) as client:
        # Of a partition without rows any time may be read, once its leader may promise that.
        client.write([{"key": bytes([n]), "value": b"1"} for n in range(30)])
        with pytest.raises(RezoneError):
            client.scan(as_of=1)
    (whole,) = receiver.named("rezone scan")
    assert attributes(whole)["error.type"] == "VersionsExpired"


def test_polls_of_a_change_feed_are_traced(c: Coordinator, receiver: Receiver) -> None:
    """Whether a feed is late because of a data node or of its consumer could not be told."""
    with table(c, 1.0) as client, client.changes() as feed:
        # Before its first answers a feed without a token has no position to go on from.
        while feed.poll(0.2).token is None:
            pass
        client.write([{"key": b"a", "value": b"1"}])
        while not feed.poll(10).changes.num_rows:
            pass
    sent(c)
    polls = receiver.named("rezone follow_changes")
    served = receiver.named("data node FollowChanges")
    assert any(attributes(poll)["rezone.bytes"] for poll in polls)
    assert {span.parent_span_id for span in served} & {poll.span_id for poll in polls}


def test_a_stream_nobody_reads_to_its_end_is_forgotten(c: Coordinator) -> None:
    """Streams that were given up would keep their places until no request is traced any more."""
    tracer = c.node(0).tracer
    assert tracer is not None
    ticket = ScanTicket(partition=0, trace=CONTEXT)
    stream = tracer.streaming(ticket, iter([1, 2]))
    assert next(stream) == 1
    assert not tracer.begin(CONTEXT, ticket)
    stream.close()  # type: ignore[attr-defined]
    assert tracer.begin(CONTEXT, ticket)


def test_a_request_is_a_part_of_its_caller_s_trace(c: Coordinator, receiver: Receiver) -> None:
    """The trace of an application would end where it asks the table."""
    around = SpanContext(0xA1, 0xB2, is_remote=False, trace_flags=TraceFlags(1))
    token = attach(set_span_in_context(NonRecordingSpan(around)))
    try:
        with table(c, 1.0) as client:
            client.read([{"key": b"a"}])
    finally:
        detach(token)
    (read,) = receiver.named("rezone read")
    assert int.from_bytes(read.trace_id) == 0xA1
    assert int.from_bytes(read.parent_span_id) == 0xB2


def test_as_many_are_traced_as_were_asked_for(c: Coordinator, receiver: Receiver) -> None:
    """All requests, or none, would be traced."""
    settings = ClientSettings(trace_ratio=0.25, shared_calls_max=1)
    with TableClient(list(c.peers.values()), settings=settings, rng=random.Random(7)) as client:
        for _ in range(100):
            client.read([{"key": b"a"}])
    assert 10 <= len(receiver.named("rezone read")) <= 45


def test_nothing_is_traced_unless_it_is_asked_for(tmp_path: Path, receiver: Receiver) -> None:
    """Names of tables would go to whoever stands in a variable of an application's environment."""
    with cluster(tmp_path, 1, config=CONFIG) as c:
        c.create(0, (0,))
        assert c.node(0).tracer is None
        with table(c, 0.0) as client:
            client.write([{"key": b"a", "value": b"1"}])
        # A data node that does not trace serves those of clients that do.
        with table(c, 1.0) as client:
            client.write([{"key": b"a", "value": b"2"}])
    assert len(receiver.named("rezone write")) == 1
    assert not receiver.named("data node write")


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan")])
def test_a_ratio_that_is_none_is_refused(ratio: float) -> None:
    """Every request would be traced by a slip of the pen, or none."""
    with pytest.raises(ValueError, match="trace_ratio"):
        TableClient(["127.0.0.1:1"], settings=ClientSettings(trace_ratio=ratio))


def test_a_message_without_a_trace_is_as_before() -> None:
    """Each small write would carry bytes that nobody has asked for; old nodes would see a change.

    What an old node does with the field is what all messages do with one that they do not know.
    """
    plain = ReadRequest(opaque=1, partition=2)
    assert b"trace" not in encode(plain)
    traced = ReadRequest(opaque=1, partition=2, trace=CONTEXT)
    assert decode(encode(traced)) == traced

    class Before(msgspec.Struct, tag="ReadRequest"):
        """What a read was before it had traces."""

        opaque: int
        partition: int

    assert msgspec.msgpack.decode(encode(traced), type=Before) == Before(1, 2)


@pytest.mark.parametrize("trace", [[b"x" * 15, b"y" * 8], [b"x" * 16, b"y" * 9], [b"x" * 16], 7])
def test_a_trace_that_is_none_is_refused(trace: object) -> None:
    """Ids of another length would end the thread that sends spans."""
    body = {"type": "ReadRequest", "opaque": 5, "partition": 0, "trace": trace}
    with pytest.raises(UnreadableError):
        decode(msgspec.msgpack.encode(body))


def test_the_same_span_twice_and_too_many_are_not_traced(c: Coordinator) -> None:
    """A client that repeats ids would hold memory for ever, or end another request's span."""
    tracer = c.node(0).tracer
    assert tracer is not None
    request = ReadRequest(opaque=1, partition=0)
    assert tracer.begin(CONTEXT, request)
    assert not tracer.begin(CONTEXT, request)
    taken = [
        tracer.begin(TraceContext(bytes(16), number.to_bytes(8)), request) for number in range(2000)
    ]
    assert sum(taken) < 1024
