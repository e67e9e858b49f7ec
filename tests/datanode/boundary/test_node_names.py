"""A data node is the one that its certificate names: real processes, over TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from replica_cluster import Client, ProcessNode
from secure_cluster import NAME, ZONE, FixedTls, Pki, SecureCoordinator, of_zone

from rezone.wire.errors import ForbiddenError, NotReadyError
from rezone.wire.messages import (
    NodeStatistics,
    OpenConnection,
    RoutesRequest,
    RouteTable,
    StatisticsRequest,
    ZoneConfig,
)
from rezone.wire.transport.channel import CHANNEL_ERRORS
from rezone.wire.transport.flight import NodeClient, from_flight_error
from rezone.wire.transport.identity import Identity, Role

pytestmark = [pytest.mark.slow, pytest.mark.proves("TR-03")]

P = 0
SHARED = of_zone(Role.DATA_NODE)
THIRD = of_zone(Role.DATA_NODE, node=2)
TOLD = "the node's certificate is not"


class Writer(Client):
    """A client with a writer's certificate."""

    def __init__(self, c: SecureCoordinator) -> None:
        super().__init__(c)
        self._tls = FixedTls(c.pki.files(of_zone(Role.WRITER)))

    def connect(self, address: str) -> NodeClient:
        """Show the certificate."""
        return NodeClient(address, self._tls, server_name=NAME)


@contextlib.contextmanager
def two_processes(
    directory: Path, *names: Identity, accepted: bool = False
) -> Iterator[SecureCoordinator]:
    """Run data nodes 0, which leads, and 1, by default with names of their own."""
    pki = Pki(directory / "pki")
    nodes = [ProcessNode(i, directory / f"node{i}") for i in range(2)]
    for node, name in zip(
        nodes, names or [of_zone(Role.DATA_NODE, node=i) for i in range(2)], strict=True
    ):
        node.environment = {
            "REZONE_TLS_DIRECTORY": str(pki.issue(f"node{node.node_id}", name)),
            "REZONE_NODE_SHARED_NAMES_ACCEPTED": str(accepted).lower(),
        }
    config = ZoneConfig(zone=ZONE, zone_uid="uid-test", partitions=1)
    c = SecureCoordinator(pki, nodes, config)
    with c.running():
        for number in c.nodes:
            c.wait_up(number)
        c.create(P, (0, 1))
        yield c


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCoordinator]:
    """Two nodes with names of their own, that take no others."""
    with two_processes(tmp_path_factory.mktemp("strict")) as c:
        yield c


def claim(c: SecureCoordinator, who: Identity, node: int, name: str = "forged") -> str:
    """Say to the leader by somebody's certificate that this is `node`; return how that ended.

    Empty: it did not; the channel is open.
    """
    client = c.as_(who)
    with contextlib.closing(client):
        channel = client.channel("replication")
        try:
            channel.send(
                OpenConnection(name=name, node=node, zone_uid=c.config.zone_uid, beats=True)
            )
            frame = channel.receive()
        except CHANNEL_ERRORS as error:
            failed = from_flight_error(error)
            assert isinstance(failed, ForbiddenError), failed
            return str(failed)
        finally:
            channel.cancel()
    assert frame is not None
    return ""


def frames_to(c: SecureCoordinator, node: int) -> int:
    """Return how many frames the leader has sent on the stream that it has to a node now."""
    found: NodeStatistics = c.client(0).call(StatisticsRequest(), NodeStatistics)
    (connection,) = [each for each in found.connections if each.producing and each.peer == node]
    return sum(stream.frames for stream in connection.streams)


def refused(c: SecureCoordinator) -> list[str]:
    """Return the lines of the leader's log about what it has refused."""
    node = c.nodes[0]
    assert isinstance(node, ProcessNode)
    return [
        line
        for line in (node.directory / "log.txt").read_text().splitlines()
        if '"event": "refused"' in line
    ]


def test_the_key_of_one_node_is_no_other_s(strict: SecureCoordinator) -> None:
    """Node 2 claims to be node 1, and is refused; its acks would count as those of node 1.

    Without it a write would be acknowledged that node 1 has not, and one broken node could vote
    and take over in the name of all others.
    """
    said = claim(strict, THIRD, 1)
    assert said == f"{THIRD.uri} says that it is data node 1", said
    assert claim(strict, THIRD, 2) == ""
    assert [line for line in refused(strict) if said in line]


def test_a_shared_name_is_no_node(strict: SecureCoordinator) -> None:
    """A certificate that names the zone alone is refused as every node."""
    for node in (0, 1, 2):
        assert "must have a name of its own" in claim(strict, SHARED, node)
    assert "may not replicate" in claim(strict, of_zone(Role.WRITER), 1)


def test_a_connection_ends_none_of_another_node(strict: SecureCoordinator) -> None:
    """Node 2 opens a connection by the name of node 1's, which goes on.

    Connections of one name take each other's place, so every node could end those of all others.
    """
    writer = Writer(strict)
    for i in range(20):
        writer.put(P, {b"before": b"%d" % i})
    before = frames_to(strict, 1)
    assert before >= 20
    assert claim(strict, THIRD, 2, f"{strict.config.zone_uid}:1->0") == ""
    writer.put(P, {b"after": b"1"})
    assert frames_to(strict, 1) > before


def test_a_server_is_asked_for_its_own_name(strict: SecureCoordinator) -> None:
    """Who has the address of a leader and not its certificate would be followed."""
    tls = FixedTls(strict.pki.files(of_zone(Role.DATA_NODE, node=1)))
    for node in (0, 1):
        client = NodeClient(strict.nodes[0].address, tls, node=node)
        with contextlib.closing(client):
            if node == 0:
                client.call(RoutesRequest(), RouteTable)
                continue
            with pytest.raises(NotReadyError, match=TOLD):
                client.call(RoutesRequest(), RouteTable)


def test_a_follower_asks_its_leader_for_its_own_name(tmp_path: Path) -> None:
    """Node 1 does not follow node 0, whose certificate names the zone alone.

    Any certificate of the zone would be good for a leader: who has its address would be followed.
    """
    with two_processes(tmp_path, SHARED, of_zone(Role.DATA_NODE, node=1)) as c:
        follower = c.nodes[1]
        assert isinstance(follower, ProcessNode)
        log = follower.directory / "log.txt"
        c.until("its certificate is refused", lambda: TOLD in log.read_text())


@pytest.mark.parametrize("names", [(SHARED, SHARED), (SHARED, None), (None, SHARED)])
def test_shared_names_are_accepted_where_it_is_said(
    tmp_path: Path, names: tuple[Identity | None, ...]
) -> None:
    """Nodes with names of their own and without replicate both ways, and still are no others.

    A zone that changes from one to the other would be without replicas until all nodes are new.
    """
    named = [each or of_zone(Role.DATA_NODE, node=i) for i, each in enumerate(names)]
    with two_processes(tmp_path, *named, accepted=True) as c:
        c.watch()
        writer = Writer(c)
        writer.put(P, {b"a": b"1"})
        c.until("in sync", lambda: c.isr(P) == {0, 1})
        c.move(P, 1)
        writer.put(P, {b"b": b"1"})
        c.until("in sync", lambda: c.isr(P) == {0, 1})
        assert "says that it is data node 1" in claim(c, THIRD, 1)


def test_a_process_with_another_node_s_certificate_ends(tmp_path: Path) -> None:
    """It would serve, and be refused by all others: a Secret in the wrong pod must be told of."""
    pki = Pki(tmp_path / "pki")
    node = ProcessNode(0, tmp_path / "node0")
    issued = pki.issue("node1", of_zone(Role.DATA_NODE, node=1))
    node.environment = {"REZONE_TLS_DIRECTORY": str(issued)}
    node.start()
    try:
        assert node.process is not None
        assert node.process.wait(60) != 0
    finally:
        node.stop()
    log = (node.directory / "log.txt").read_text()
    assert "data-node-1.accounts.shop.svc is not the name of data node 0" in log
