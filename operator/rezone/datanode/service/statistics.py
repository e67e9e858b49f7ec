"""What a node counts of its replication, under the connections' names (DCP-14).

Asked for over the wire and over HTTP; never metrics, whose labels must stay few.
"""

from rezone.datanode.node.links import Links
from rezone.datanode.replication.consumer import ConsumerChannel
from rezone.datanode.replication.producer import ProducerChannel
from rezone.datanode.replication.stream import ProducerStream
from rezone.wire.messages import ConnectionStatistics, NodeStatistics, StreamStatistics


def node_statistics(node: int, links: Links) -> NodeStatistics:
    """Return every connection with its streams, by name; numbers of one moment each."""
    connections = [_of_producer(channel) for channel in links.producers()]
    connections += [_of_consumer(channel) for channel in links.consumers()]
    connections.sort(key=lambda found: (found.name, found.producing))
    return NodeStatistics(node=node, connections=tuple(connections))


def _of_producer(channel: ProducerChannel) -> ConnectionStatistics:
    streams = sorted(channel.statistics(), key=lambda stream: stream.source.partition_id)
    return ConnectionStatistics(
        name=channel.name,
        peer=channel.node,
        producing=True,
        streams=tuple(_of_stream(stream) for stream in streams),
    )


def _of_stream(stream: ProducerStream) -> StreamStatistics:
    return StreamStatistics(
        partition=stream.source.partition_id,
        active=stream.answered and not stream.ended,
        frames=stream.frames_sent,
        bytes=stream.bytes_sent,
        sent_offset=stream.sent_offset,
        acked_offset=stream.acked_offset,
        in_flight_bytes=stream.in_flight_bytes,
        missing_rows=max(0, stream.source.log_end - stream.acked_offset),
    )


def _of_consumer(channel: ConsumerChannel) -> ConnectionStatistics:
    return ConnectionStatistics(
        name=channel.name,
        peer=channel.peer,
        producing=False,
        streams=tuple(
            StreamStatistics(
                partition=partition,
                active=stream.active,
                frames=stream.entries,
                bytes=stream.bytes_received,
            )
            for partition, stream in sorted(channel.statistics().items())
        ),
    )
