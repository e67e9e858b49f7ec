"""Ids of producers and transactions are good for the certificate's name that uses them alone."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from replica_cluster import Client, ProcessNode, Transaction
from secure_cluster import NAME, ZONE, FixedTls, Pki, SecureCoordinator, of_zone

from rezone.wire.errors import ForbiddenError, ProducerFencedError, TransactionEndedError
from rezone.wire.messages import OwnWrites, ScanTicket, TransactionOutcome, ZoneConfig
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.identity import Role

pytestmark = pytest.mark.slow

P = 0
COMMITTED, _, UNKNOWN = TransactionOutcome


class Somebody(Client):
    """A client with a certificate of some role."""

    def __init__(self, c: SecureCoordinator, role: Role, producer_id: str | None = None) -> None:
        super().__init__(c, producer_id)
        self._tls = FixedTls(c.pki.files(of_zone(role)))

    def connect(self, address: str) -> NodeClient:
        """Show the certificate."""
        return NodeClient(address, self._tls, server_name=NAME)


def two_processes(directory: Path) -> SecureCoordinator:
    """Return two data nodes, each in a process of its own."""
    pki = Pki(directory / "pki")
    nodes = [ProcessNode(i, directory / f"node{i}") for i in range(2)]
    for node in nodes:
        issued = pki.issue(f"node{node.node_id}", of_zone(Role.DATA_NODE, node=node.node_id))
        node.environment = {"REZONE_TLS_DIRECTORY": str(issued)}
    return SecureCoordinator(pki, nodes, ZoneConfig(zone=ZONE, zone_uid="uid-test", partitions=1))


def up(c: SecureCoordinator) -> None:
    """Wait for both, and make the partition, led by the first."""
    for node in c.nodes:
        c.wait_up(node)
    c.create(P, (0, 1))


def stolen(transaction: Transaction, thief: Client) -> Transaction:
    """Return the transaction in the hands of somebody who knows all about it."""
    mine = Transaction(thief, P, transaction.times, known_as=transaction.id)
    mine.sequence = transaction.sequence
    return mine


def refused_everything(transaction: Transaction, thief: Client, reader: Client) -> None:
    """Try all that the owner may do; each must be refused as for an id that nobody has used."""
    copy = stolen(transaction, thief)
    for who in (thief, reader):
        with pytest.raises(TransactionEndedError) as unknown:
            stolen(transaction, who).get([b"a"])
        assert unknown.value.details == {"outcome": UNKNOWN.value}
    with pytest.raises(TransactionEndedError) as unknown:
        copy.put({b"b": b"stolen"})
    assert unknown.value.details == {"outcome": UNKNOWN.value}
    copy.sequence = transaction.sequence
    assert copy.commit().outcome is UNKNOWN
    assert copy.end().outcome is UNKNOWN, "it would be aborted"
    with pytest.raises(ForbiddenError):
        stolen(transaction, reader).commit()


def scanned(client: Somebody, node: ProcessNode, own: OwnWrites) -> dict[bytes, bytes]:
    """Return a scan's rows with the writes of a transaction on top."""
    connection = client.connect(node.address)
    try:
        table = connection.get(ScanTicket(partition=P, own=own)).read_all()
    finally:
        connection.close()
    return dict(zip(table[0].to_pylist(), table[1].to_pylist(), strict=True))


@pytest.mark.proves("TR-03")
def test_a_transaction_is_its_identitys_at_every_leader(tmp_path: Path) -> None:
    """Whoever has seen its id could commit it, abort it, and read rows that are not committed."""
    c = two_processes(tmp_path)
    with c.running():
        up(c)
        owner, thief = Somebody(c, Role.WRITER), Somebody(c, Role.ADMIN)
        reader = Somebody(c, Role.READER)
        transaction = owner.begin(P)
        transaction.put({b"a": b"1"})
        refused_everything(transaction, thief, reader)
        own = OwnWrites(transaction.id, transaction.times, transaction.sequence)
        node = c.nodes[0]
        assert isinstance(node, ProcessNode)
        assert scanned(owner, node, own) == {b"a": b"1"}
        with pytest.raises(Exception, match="the transaction is over"):
            scanned(thief, node, own)
        c.move(P, 1)
        refused_everything(transaction, thief, reader)
        assert transaction.get([b"a"]) == {b"a": b"1"}
        assert transaction.commit().outcome is COMMITTED
        assert stolen(transaction, thief).commit().outcome is UNKNOWN, "how it ended was told"
        assert transaction.commit().outcome is COMMITTED, "its owner is not told any more"


@pytest.mark.proves("TR-03")
def test_a_producer_is_its_identitys_over_a_restart(tmp_path: Path) -> None:
    """Batches would be taken for repeats that somebody else has sent, or their producer fenced."""
    c = two_processes(tmp_path)
    with c.running():
        up(c)
        name = uuid.uuid4().hex
        owner, thief = Somebody(c, Role.WRITER, name), Somebody(c, Role.ADMIN, name)
        assert owner.open(P) == 1
        first = owner.put(P, {b"a": b"1"})
        assert thief.open(P) == 1, "it has learned how often the owner has opened"
        assert thief.send(P, 1, {b"t": b"1"}).end_offset > first.end_offset, "taken for a repeat"
        thief.producer_epoch = 7
        thief.send(P, 9, {b"t": b"2"})
        node = c.nodes[0]
        assert isinstance(node, ProcessNode)
        node.kill()
        node.start()
        c.wait_up(0)
        again = owner.send(P, 1, {b"a": b"1"})
        assert (again.end_offset, again.commit_time) == (first.end_offset, first.commit_time)
        owner.put(P, {b"a": b"2"})
        assert owner.get(P, [b"a", b"t"]) == {b"a": b"2", b"t": b"2"}
        late = Somebody(c, Role.WRITER, name)
        assert late.open(P) == 2
        with pytest.raises(ProducerFencedError):
            owner.put(P, {b"a": b"3"})
