"""Streams between real nodes of which one end is gone without a word: copies, scans, channels.

A proxy stands between a node and who calls it. Where it vanishes, the kernel gets no
acknowledgement any more, as from a machine that is gone; where it is cut, it still acknowledges
everything, as a process that hangs, and only what nodes say to each other tells.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_cluster import Client, Coordinator, LocalNode, ProcessNode, cluster
from tcp_proxy import Proxy

from rezone.client.connections import connection
from rezone.client.connections.connection import Connection
from rezone.wire.copying import sink as copysink
from rezone.wire.copying.copy import Relay, copy_partition
from rezone.wire.copying.sink import FlightSink
from rezone.wire.messages import (
    AdmitCopies,
    AdmittedCopy,
    BulkInsert,
    CopyState,
    CopyStateRequest,
    PullSnapshot,
    ReadRequest,
    ScanTicket,
    SnapshotTicket,
)
from rezone.wire.transport import fetch, flight, sockets
from rezone.wire.transport.fetch import WatchedSource
from rezone.wire.transport.flight import NodeClient

P = 0
BEAT_SECONDS, ANSWER_SECONDS = 0.3, 1.0
QUIET_SECONDS = 0.5
GONE_SECONDS_MAX = 40.0
"""gRPC's servers let the kernel wait for 20 s; probes, and a slow machine, come on top."""


@contextlib.contextmanager
def two_nodes(directory: Path) -> Iterator[tuple[Coordinator, Proxy, Proxy]]:
    """Run node 0 with 8 MB of rows and node 1 as a learner, each with a proxy."""
    with cluster(directory, 2) as c:
        c.create(P, (0,))
        k = Client(c)
        for i in range(16):
            k.put(P, {b"%d-%d" % (i, j): bytes(8192) for j in range(64)})
        k.close()
        c.change(P, replicas=(0, 1))
        proxies = (Proxy(c.nodes[0].address), Proxy(c.nodes[1].address))
        try:
            yield c, *proxies
        finally:
            for proxy in proxies:
                proxy.close()


def connections(ports: set[int], node: LocalNode | ProcessNode) -> set[int]:
    """Return those of the ports from which the node still has a connection."""
    found = set()
    own = int(node.address.rpartition(":")[2])
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            local, remote = (int(at.rpartition(":")[2], 16) for at in line.split()[1:3])
            if local == own and remote in ports:
                found.add(remote)
    return found


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask soon whether the other end is there, and wait for no answer for long."""
    monkeypatch.setattr(fetch, "BEAT_SECONDS", BEAT_SECONDS)
    monkeypatch.setattr(copysink, "BEAT_SECONDS", BEAT_SECONDS)
    monkeypatch.setattr(flight, "ANSWER_SECONDS", ANSWER_SECONDS)
    monkeypatch.setattr(connection, "BEAT_SECONDS", BEAT_SECONDS)


def admit(c: Coordinator) -> BulkInsert:
    """Let a copy to node 1 begin, and return what it is opened with."""
    copy = (AdmittedCopy(P, 0),)
    c.call(1, AdmitCopies(fence=c.fence(), admitted=copy, held=(), seconds=60.0))
    return BulkInsert(partition=P, snapshot_source=0, attempt="test", revision=c.fence().revision)


@pytest.mark.proves("NW-01")
def test_a_node_keeps_nothing_for_callers_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node would keep threads, snapshots and places of those that it waits for, for two hours.

    It has nothing to send to them: they have not read on, or it is they who were to send.
    """
    monkeypatch.setattr(sockets, "IDLE_SECONDS", 1)
    with two_nodes(tmp_path) as (c, source, receiver):
        reader, sender = NodeClient(source.address), NodeClient(receiver.address)
        scan = reader.get(ScanTicket(partition=P, batch_rows=16))
        snapshot = reader.get(SnapshotTicket(partition=P, reader="gone", batch_bytes=64 << 10))
        channel = reader.channel("data")
        channel.send(ReadRequest(opaque=1, partition=P))
        assert channel.receive() is not None
        put = sender.put(admit(c), snapshot.schema)
        header = next(snapshot)
        put[0].write_with_metadata(header.data, header.app_metadata)
        c.until("it has begun", lambda: c.report(1, P).copy)
        c.until("all wait", lambda: source.quiet(QUIET_SECONDS) and receiver.quiet(QUIET_SECONDS))
        assert c.node(0).data_channels() == 1
        assert c.replica(0).store.outgoing.readers == 1
        held = {0: source.ports(), 1: receiver.ports()}
        source.vanish()
        receiver.vanish()
        assert all(connections(ports, c.nodes[n]) for n, ports in held.items())
        c.until("the channel has ended", lambda: not c.node(0).data_channels(), GONE_SECONDS_MAX)
        c.until("the snapshot has ended", lambda: not c.replica(0).store.outgoing.readers)
        c.until("the receiver gives up", lambda: (r := c.report(1, P).copy) and r.error)
        assert not any(connections(ports, c.nodes[n]) for n, ports in held.items())
        del scan, put


@pytest.mark.proves("NW-01")
@pytest.mark.usefixtures("impatient")
def test_a_node_gives_up_a_source_that_is_silent_and_pulls_again(tmp_path: Path) -> None:
    """It would read for ever, and each further order to pull would join that copy."""
    with two_nodes(tmp_path) as (c, source, _):
        source.answer_bytes_max = 2 << 20
        pull = PullSnapshot(fence=c.fence(), partition=P, source=source.address)
        c.call(1, pull)
        c.until("told", lambda: (r := c.report(1, P).copy) and "silent" in r.error)
        source.answer_bytes_max = float("inf")

        def done() -> bool:
            c.call(1, pull)
            state: CopyState = c.call(1, CopyStateRequest(partition=P), CopyState)
            return state.done

        c.until("copied", done)


@pytest.mark.proves("NW-01")
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("end", ["source", "receiver"])
def test_a_copier_gives_up_a_node_that_is_silent(tmp_path: Path, end: str) -> None:
    """A Spark task would wait for ever to open a snapshot, or ten minutes for a receiver's word.

    The proxy acknowledges everything, so the kernel has nothing to complain of.
    """
    with two_nodes(tmp_path) as (c, source, receiver):
        sender, reader = NodeClient(receiver.address), NodeClient(source.address)
        for node in (sender, reader):
            assert node.is_there()
        relay = Relay(P, WatchedSource(reader), [FlightSink("node 1", sender, admit(c))], reader="")
        if end == "source":
            source.cut()
            assert "silent" in copy_partition(relay)[0].error
            return
        assert relay.begin()
        (feed,) = relay.feeds.values()
        while relay.forward():
            assert feed.write_next()
        assert feed.write_next()
        relay.end()
        receiver.cut_answers()
        while feed.write_next():
            pass
        assert "silent" in feed.outcome


@pytest.mark.proves("NW-01")
@pytest.mark.usefixtures("impatient")
def test_a_client_that_asks_nothing_finds_out_that_its_channel_is_dead(tmp_path: Path) -> None:
    """The first request after a quiet hour would wait for an answer that cannot come."""
    with two_nodes(tmp_path) as (c, node, _):
        client = NodeClient(node.address)
        idle = Connection(
            node.address,
            lambda: client.channel("data"),
            on_frame=lambda _: None,
            on_broken=lambda opaques, _: pytest.fail(f"{opaques} are lost"),
            window=4,
        )
        idle.open()
        c.until("it is asked", lambda: idle.received >= 3)
        assert idle.is_open
        node.cut()
        c.until("it gives up", lambda: not idle.is_open)
        idle.close()
