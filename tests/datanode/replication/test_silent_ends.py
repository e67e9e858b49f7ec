"""Connections of which one end is never told that they are over: real data nodes, real TCP.

Each node reaches the others through proxies, which forget what a network that is cut forgets.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_cluster import Client, Coordinator, LocalNode
from tcp_proxy import Proxy

from rezone.datanode.settings import NodeSettings
from rezone.wire.errors import NotReadyError
from rezone.wire.messages import NodeReport, ReportRequest, ZoneConfig
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.liveness import Liveness

P = 0
NODES = (0, 1, 2)
HEARTBEAT_MS, SILENT_MS = 250, 1_000
HEALED_SECONDS_MAX = 8.0
"""The deadline, a new connection and catching up; without a deadline it is never."""

SETTINGS = NodeSettings(
    heartbeat_ms=HEARTBEAT_MS,
    channel_silent_ms_max=SILENT_MS,
    replica_lag_ms_max=2_000,
    reconnect_ms_max=200,
)
CONFIG = ZoneConfig(zone="t", zone_uid="uid-test", partitions=1, replicas=3, min_in_sync_replicas=2)


class Proxied(Coordinator):
    """A coordinator that tells the nodes of each other's proxies, and calls them itself."""

    def __init__(self, nodes: list[LocalNode], proxies: dict[int, Proxy]) -> None:
        super().__init__(nodes, CONFIG)
        self.proxies = proxies

    @property
    def peers(self) -> dict[int, str]:
        """The proxies' addresses."""
        return {n: proxy.address for n, proxy in self.proxies.items()}


@contextlib.contextmanager
def proxied(directory: Path, settings: NodeSettings = SETTINGS) -> Iterator[Proxied]:
    """Run three nodes that follow through proxies; node 0 leads their partition."""
    nodes = [LocalNode(n, directory / str(n), settings) for n in NODES]
    proxies = {node.node_id: Proxy(node.address) for node in nodes}
    c = Proxied(nodes, proxies)
    try:
        with c.running():
            c.create(P, NODES)
            c.watch()
            Client(c).put(P, {b"first": b"1"})
            yield c
    finally:
        for proxy in proxies.values():
            proxy.close()


def in_sync(c: Coordinator, value: bytes) -> None:
    """Write a row and wait until every replica has it and is in sync."""
    Client(c).put(P, {b"row": value})
    end = c.replica(0).store.log_end
    c.until(
        "all replicas have it",
        lambda: c.isr(P) == {*NODES} and all(c.replica(n).store.durable_end >= end for n in NODES),
        HEALED_SECONDS_MAX,
    )


@pytest.mark.proves("NW-01")
def test_a_follower_that_never_hears_of_the_end_connects_again(tmp_path: Path) -> None:
    """It would wait in `receive` for ever, out of sync until somebody kills its process."""
    with proxied(tmp_path) as c:
        c.proxies[0].end_behind()
        in_sync(c, b"2")


@pytest.mark.proves("NW-01")
def test_after_a_cut_replicas_are_in_sync_in_seconds(tmp_path: Path) -> None:
    """What the old connection waits to send again takes up to a minute after a cut of one."""
    with proxied(tmp_path) as c:
        leader = c.proxies[0]
        leader.lets_in = False
        leader.cut()
        c.until("the leader gives them up", lambda: not c.replica(0).leading.streams)
        leader.lets_in = True
        in_sync(c, b"2")


@pytest.mark.proves("NW-01")
def test_heartbeats_alone_keep_a_connection_that_carries_nothing(tmp_path: Path) -> None:
    """Without leases an idle channel would be given up again and again, or never watched."""
    quiet = SETTINGS.__class__(
        heartbeat_ms=HEARTBEAT_MS, channel_silent_ms_max=SILENT_MS, lease_ms=0
    )
    with proxied(tmp_path, quiet) as c:
        (before,) = [each for each in c.node(0).links.producers() if each.node == 1]
        until = time.monotonic() + 3 * SILENT_MS / 1000
        c.until("time passes", lambda: time.monotonic() > until)
        (after,) = [each for each in c.node(0).links.producers() if each.node == 1]
        assert after is before
        c.proxies[0].end_behind()
        in_sync(c, b"2")


@pytest.mark.proves("NW-01")
def test_a_call_that_nobody_answered_is_made_again_on_a_new_connection(tmp_path: Path) -> None:
    """A node would be heard of only when the old connection's packets are sent again."""
    with proxied(tmp_path) as c:
        client = NodeClient(c.proxies[1].address)
        asked = ReportRequest(seen=-1)
        client.call(asked, NodeReport)
        c.proxies[1].cut()
        with pytest.raises(NotReadyError):
            client.call(asked, NodeReport, timeout_seconds=0.3)
        assert client.call(asked, NodeReport, timeout_seconds=5).node == 1
        client.close()


def liveness() -> Liveness:
    """Return an end that has begun at 0 seconds."""
    return Liveness(0.0, heartbeat_ms=1_000, silent_ms_max=3_000)


def look_until(end: Liveness, begin: float, until: float) -> float | None:
    """Look each half second; return when the other end is given up, None for never."""
    now = begin
    while now <= until:
        if end.is_silent(now):
            return now
        now += 0.5
    return None


@pytest.mark.proves("NW-01")
def test_only_listening_in_vain_is_silence() -> None:
    """A node whose disk is slow, or that was stopped, would give up others that are well."""
    end = liveness()
    assert look_until(end, 0.5, 10.0) is None, "it does not listen"
    end.listens(10.0)
    assert look_until(end, 10.5, 20.0) == 13.5
    end.heard(20.0)
    end.listens(20.0)
    assert not end.is_silent(30.0), "it did not run itself"
    assert look_until(end, 30.5, 40.0) == 33.5


@pytest.mark.proves("NW-01")
def test_a_heartbeat_is_due_when_either_direction_is_quiet() -> None:
    """An end that only sends would not learn of the other's death, one that only hears be dead."""
    end = liveness()
    assert not end.beat_is_due(0.9)
    assert end.beat_is_due(1.0)
    assert not end.beat_is_due(1.5), "it was just asked for"
    end.told(2.5)
    end.heard(2.5)
    assert not end.beat_is_due(3.4)
    end.told(3.4)
    assert end.beat_is_due(3.5), "nothing heard"
