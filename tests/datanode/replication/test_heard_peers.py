"""What data nodes report of whom they hear, when networks between them are cut: real nodes, TCP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Coordinator
from test_silent_ends import HEALED_SECONDS_MAX, proxied

from rezone.controller.nodes.node_state import with_answer
from rezone.datanode.node.hearing import Hearing
from rezone.datanode.settings import NodeSettings
from rezone.wire.messages import ConfigureNode, NodeReport, ReplicaReport

QUICK = NodeSettings(lease_ms=600, heartbeat_ms=150, channel_silent_ms_max=1_500)


def report(c: Coordinator, node: int) -> NodeReport:
    """Return what a node says of itself."""
    return c.node(node).report()


def replica(c: Coordinator, node: int) -> ReplicaReport:
    """Return what a node says of its replica."""
    (found,) = report(c, node).replicas
    return found


def hears(c: Coordinator, node: int, *others: int) -> Callable[[], bool]:
    """Return whether a node says that it hears exactly these."""
    return lambda: report(c, node).hears == others


def hears_leader(c: Coordinator, node: int, *, heard: bool) -> Callable[[], bool]:
    """Return whether a node says that it hears its leader, or that it does not."""
    return lambda: replica(c, node).leader_heard is heard


@pytest.mark.proves("NW-02", "NW-03")
def test_followers_say_that_their_leader_is_silent_and_whom_they_hear_instead(
    tmp_path: Path,
) -> None:
    """The coordinator alone would judge, and choose a leader that nobody hears."""
    with proxied(tmp_path, QUICK) as c:
        c.until("the leader hears both", hears(c, 0, 1, 2))
        for node in (1, 2):
            c.until("a follower hears it", hears(c, node, 0))
            assert replica(c, node).leader_heard
        assert replica(c, 0).leader_heard is None
        c.proxies[0].lets_in = False
        c.proxies[0].cut()
        for node in (1, 2):
            c.until("it is deaf", hears_leader(c, node, heard=False))
            c.until("it hears the other follower", hears(c, node, 3 - node))
        c.until("the leader hears nobody", hears(c, 0))
        c.proxies[0].lets_in = True
        for node in (1, 2):
            c.until("it hears again", hears_leader(c, node, heard=True))
            c.until("nobody else is looked for", hears(c, node, 0), HEALED_SECONDS_MAX)


@pytest.mark.proves("NW-02")
def test_the_coordinator_hears_at_once_who_is_not_heard_any_more(tmp_path: Path) -> None:
    """A change that does not count would be told with the next whole report."""
    with proxied(tmp_path, QUICK) as c:
        c.until("it hears the leader", lambda: report(c, 1).hears == (0,))
        before = report(c, 1)
        c.proxies[0].lets_in = False
        c.proxies[0].cut()
        c.until("it says so", lambda: report(c, 1).version > before.version)
        c.until("it is deaf", lambda: with_answer(None, report(c, 1)).hears != frozenset({0}))


@pytest.mark.proves("NW-02", "NW-06")
def test_a_leader_whose_address_is_not_known_is_not_heard(tmp_path: Path) -> None:
    """Objects that were put back do not name its data node: it would lead for ever, and be gone."""
    with proxied(tmp_path, QUICK) as c:
        others = {node: address for node, address in c.peers.items() if node != 0}
        for node in (1, 2):
            c.until("a follower hears it", hears_leader(c, node, heard=True))
            c.call(node, ConfigureNode(fence=c.fence(), config=c.config, peers=others))
            c.until("it is deaf", hears_leader(c, node, heard=False))
        c.configure()
        for node in (1, 2):
            c.until("it hears again", hears_leader(c, node, heard=True))


def is_told(c: Coordinator, node: int) -> Callable[[], bool]:
    """Return whether a node has heard of a time that the leader has closed."""
    return lambda: c.replica(node).closed_until.time_at(1 << 60) > 0


def is_stalled(c: Coordinator, node: int, *, stalled: bool) -> Callable[[], bool]:
    """Return whether a node says that its leader only sends heartbeats, or that it does not."""
    return lambda: replica(c, node).leader_stalled is stalled


@contextlib.contextmanager
def held(lock: contextlib.AbstractContextManager[object]) -> Iterator[None]:
    """Have another thread hold a lock, as one does that does not come back."""
    holds, over = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.proves("NW-02")
def test_followers_say_that_their_leader_only_sends_heartbeats(tmp_path: Path) -> None:
    """It serves nobody, and would be heard for as long as it stands still."""
    settings = msgspec.structs.replace(QUICK, replica_lag_ms_max=1_000)
    with proxied(tmp_path, settings) as c:
        leader = c.replica(0)
        for node in (1, 2):
            c.until("it is told of a time", is_told(c, node))
        with held(leader.lock):
            for node in (1, 2):
                c.until("it says so", is_stalled(c, node, stalled=True))
                c.until("it hears the other follower", hears(c, node, 0, 3 - node))
        for node in (1, 2):
            c.until("it is well", is_stalled(c, node, stalled=False))


def test_looking_around_costs_nothing_most_of_the_time() -> None:
    """Every tick would ask every channel."""
    looked: list[float] = []

    class Peers:
        def look_at_leaders(self, now: float) -> None:
            looked.append(now)

        def keep_warm(self, nodes: object) -> None:
            assert not nodes

        def heard(self, now: float, seconds_max: float) -> frozenset[int]:
            return frozenset((int(now * seconds_max * 10),))

    changes: list[float] = []
    hearing = Hearing(Peers(), list, QUICK, lambda: changes.append(1.0))
    for tick in range(11):
        hearing.tick(tick * 0.02)
    assert len(looked) == len(changes) + 1 == 3
    assert hearing.heard == {1}
