"""TLS both ways on real sockets: who is let in, to do what, and how certificates are renewed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from pyarrow import flight
from replica_cluster import batch_of
from secure_cluster import (
    NAME,
    FixedTls,
    Pki,
    SecureCoordinator,
    now,
    of_zone,
    secure_cluster,
)

from rezone.client import ClientSettings, TableClient
from rezone.kube.tls.authority import Authority
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.transfer.copying.stream import copy_entry
from rezone.wire.copying.plan import CopyTarget, PartitionCopy
from rezone.wire.errors import ForbiddenError, NotReadyError, RezoneError
from rezone.wire.messages import (
    Ack,
    AdmitCopies,
    AdmittedCopy,
    BulkInsert,
    ConfigureNode,
    DigestReply,
    DigestRequest,
    NodeReport,
    PullSnapshot,
    ReportRequest,
    RoutesRequest,
    RouteTable,
    ScanTicket,
    SnapshotTicket,
    StopReplica,
    WriteRequest,
)
from rezone.wire.transport import flight as wire_flight
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import TlsFiles, TlsFilesError

pytestmark = [pytest.mark.slow, pytest.mark.proves("B-12")]
PARTITION = 0
UNREAD_REFUSALS = 4_000
"""Far more than what fits into the window that a caller opens."""
SHORT = ClientSettings(timeout_seconds=1.0, attempt_timeout_seconds=0.5)


@pytest.fixture
def zone(tmp_path: Path) -> Iterator[SecureCoordinator]:
    """One node with one partition and one row."""
    with secure_cluster(tmp_path, 1) as c:
        c.create(PARTITION, (0,))
        with writer(c) as client:
            client.write(batch_of({b"k": b"before"}))
        yield c


def writer(c: SecureCoordinator, role: Role = Role.WRITER) -> TableClient:
    """Return a table client with a certificate of the zone."""
    return TableClient(c.addresses(), tls=FixedTls(c.pki.files(of_zone(role))), settings=SHORT)


def end(c: SecureCoordinator, node: int = 0) -> int:
    """Return how many row changes a node has: what was refused has added none."""
    return c.report(node, PARTITION).log_end_offset


def rows(c: SecureCoordinator) -> dict[bytes, bytes]:
    """Return what a reader reads."""
    with writer(c, Role.READER) as client:
        table = client.scan()
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def raw(c: SecureCoordinator, files: TlsFiles | None) -> flight.FlightClient:
    """Return Arrow's own client, which checks nothing of its own certificate."""
    own = {} if files is None else {"cert_chain": files.certificate, "private_key": files.key}
    return flight.connect(
        f"grpc+tls://{c.nodes[0].address}",
        tls_root_certs=c.pki.trusted,
        override_hostname=NAME,
        **own,
    )


@pytest.mark.proves("TR-03")
def test_who_reads_no_refusals_stops_nobody(
    zone: SecureCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel's thread would wait, holding what partitions need to answer on that channel."""
    small_window = ("grpc.http2.bdp_probe", 0)
    monkeypatch.setattr(wire_flight, "_OPTIONS", [*wire_flight._OPTIONS, small_window])
    channel = zone.as_(of_zone(Role.READER)).channel("data")
    refused = WriteRequest(opaque=1, partition=PARTITION, producer_id="reader", sequence=1)

    def send() -> None:
        for _ in range(UNREAD_REFUSALS):
            channel.send(refused, bytes(16 << 10))

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    sending.join(20)
    assert not sending.is_alive(), "the node does not read on"
    with writer(zone) as client:
        client.write(batch_of({b"k": b"meanwhile"}))
    channel.cancel()


def test_a_reader_reads_and_its_writes_are_refused(zone: SecureCoordinator) -> None:
    """Whoever may read would be able to change what others read."""
    before = end(zone)
    with writer(zone, Role.READER) as reader:
        with pytest.raises(ForbiddenError, match="reader may not write: only admin or writer may"):
            reader.write(batch_of({b"k": b"forged"}))
        with pytest.raises(ForbiddenError, match="may not write"):
            reader.delete(pa.record_batch([pa.array([b"k"], pa.binary())], names=["key"]))
        # The channel the refusal came on goes on.
        key = pa.record_batch([pa.array([b"k"], pa.binary())], names=["key"])
        assert reader.read(key)["value"].to_pylist() == [b"before"]
    assert end(zone) == before
    assert rows(zone) == {b"k": b"before"}


@pytest.mark.parametrize("role", [Role.TRANSFER, Role.DATA_NODE])
def test_the_systems_own_certificates_are_no_clients(zone: SecureCoordinator, role: Role) -> None:
    """Whoever gets hold of a pod's Secret could read and write as a client does."""
    before = end(zone)
    with writer(zone, role) as client:
        with pytest.raises(ForbiddenError, match="may not write"):
            client.write(batch_of({b"k": b"forged"}))
        with pytest.raises(ForbiddenError, match="may not read"):
            client.read(pa.record_batch([pa.array([b"k"], pa.binary())], names=["key"]))
    assert end(zone) == before


@pytest.mark.parametrize("role", [Role.WRITER, Role.ADMIN])
def test_writers_and_admins_write(zone: SecureCoordinator, role: Role) -> None:
    """Nobody could fill a zone that speaks TLS."""
    with writer(zone, role) as client:
        client.write(batch_of({b"k": b"after"}))
    assert rows(zone) == {b"k": b"after"}


def test_an_authority_that_is_not_ours_is_refused(
    zone: SecureCoordinator, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Anybody could sign a certificate for himself and be let in, or be taken for a node."""
    before = end(zone)
    stranger = Pki(tmp_path / "other")
    forged = stranger.files(of_zone(Role.ADMIN))
    trusting = FixedTls(TlsFiles.parse(zone.pki.trusted, forged.certificate, forged.key))
    client = NodeClient(zone.nodes[0].address, trusting, server_name=NAME)
    with pytest.raises(NotReadyError, match="hung up in the TLS handshake") as refused:
        client.call(RoutesRequest(), RouteTable)
    assert refused.value.details["unreachable"] == 1
    # The other way round: a client that trusts another authority does not talk to our node.
    distrustful = NodeClient(zone.nodes[0].address, FixedTls(forged), server_name=NAME)
    with pytest.raises(NotReadyError, match="certificate is not one of this zone's"):
        distrustful.call(RoutesRequest(), RouteTable)
    with (
        TableClient(zone.addresses(), tls=trusting, settings=SHORT) as table,
        pytest.raises(NotReadyError, match="that its authority did not sign"),
    ):
        table.write(batch_of({b"k": b"forged"}))
    assert end(zone) == before
    assert "certificate verify failed" in capfd.readouterr().err


def test_an_expired_certificate_is_refused(zone: SecureCoordinator) -> None:
    """A certificate that was lost would be good for ever."""
    before = end(zone)
    expired = zone.pki.files(of_zone(Role.ADMIN), timedelta(days=-1))
    assert expired.not_after < now()
    with (
        TableClient(zone.addresses(), tls=FixedTls(expired), settings=SHORT) as table,
        pytest.raises(ForbiddenError, match="has expired on"),
    ):
        table.write(batch_of({b"k": b"late"}))
    # The node refuses it too, whatever a client thinks of its own.
    client = raw(zone, expired)
    with pytest.raises(flight.FlightUnavailableError):
        list(client.do_action(flight.Action("RoutesRequest", b"")))
    client.close()
    assert end(zone) == before


def test_who_shows_no_certificate_is_refused(zone: SecureCoordinator) -> None:
    """TLS one way would keep secrets and let everybody write."""
    before = end(zone)
    client = raw(zone, None)
    with pytest.raises(flight.FlightUnavailableError):
        list(client.do_action(flight.Action("RoutesRequest", b"")))
    client.close()
    with (
        TableClient(zone.addresses(), settings=SHORT) as table,
        pytest.raises(NotReadyError, match="REZONE_TLS_DIRECTORY must be set"),
    ):
        table.write(batch_of({b"k": b"plain"}))
    assert end(zone) == before


def test_another_zones_certificate_is_refused(zone: SecureCoordinator) -> None:
    """The owner of one zone would own all of them."""
    before = end(zone)
    foreign = FixedTls(zone.pki.files(of_zone(Role.ADMIN, "orders")))
    with (
        TableClient(zone.addresses(), tls=foreign, settings=SHORT) as table,
        pytest.raises(NotReadyError, match="Peer name orders"),
    ):
        table.write(batch_of({b"k": b"foreign"}))
    # And when it does not mind whose node that is:
    client = NodeClient(zone.nodes[0].address, foreign, server_name=NAME)
    with pytest.raises(ForbiddenError, match="this is zone accounts of namespace shop"):
        client.call(RoutesRequest(), RouteTable)
    channel = client.channel("data")
    with pytest.raises(flight.FlightError, match="this is zone accounts"):
        channel.receive()
    channel.close()
    assert end(zone) == before


@pytest.mark.parametrize("role", [r for r in Role if r is not Role.OPERATOR])
def test_control_is_the_operators(zone: SecureCoordinator, role: Role) -> None:
    """A client could delete replicas, or make a node lead that must not."""
    client = zone.as_(of_zone(role))
    epoch, fence = zone.epoch, zone.fence()
    for request in (
        ConfigureNode(fence=fence, config=zone.config, peers={0: "127.0.0.1:1"}),
        StopReplica(fence=fence, partition=PARTITION, leader_epoch=99, partition_epoch=99),
        PullSnapshot(fence=fence, partition=PARTITION, source=zone.nodes[0].address),
    ):
        with pytest.raises(ForbiddenError, match="may not control data nodes: only operator may"):
            client.call(request, Ack)
    client.close()
    node = zone.secure(0).node
    assert node is not None
    assert node.zone.state.peers == zone.peers
    assert node.zone.state.coordinator_epoch == epoch
    assert rows(zone) == {b"k": b"before"}


@pytest.mark.parametrize("role", [Role.READER, Role.WRITER, Role.ADMIN, Role.OPERATOR])
def test_replication_and_copies_are_not_for_clients(zone: SecureCoordinator, role: Role) -> None:
    """A client could take a whole log, or put rows into a replica past its leader."""
    identity = Identity(role) if role is Role.OPERATOR else of_zone(role)
    client = zone.as_(identity)
    channel = client.channel("replication")
    with pytest.raises(flight.FlightError, match="may not replicate"):
        channel.receive()
    channel.close()
    with pytest.raises(ForbiddenError, match="may not take snapshots"):
        client.get(SnapshotTicket(partition=PARTITION, reader="thief"))
    insert = BulkInsert(partition=PARTITION, snapshot_source=0, attempt="forged", revision=9)
    put, answers = client.put(insert, VERSIONS_SCHEMA)
    put.done_writing()
    assert answers.read() is None
    with pytest.raises(flight.FlightError, match="may not fill replicas"):
        put.close()
    client.close()


def test_reports_and_digests_are_for_operators_and_admins(zone: SecureCoordinator) -> None:
    """A reader would learn of rows by their digests, or a writer of every node's state."""
    for role in (Role.READER, Role.WRITER, Role.DATA_NODE):
        client = zone.as_(of_zone(role))
        with pytest.raises(ForbiddenError, match="reports, digests"):
            client.call(ReportRequest(seen=-1), NodeReport)
    admin = zone.as_(of_zone(Role.ADMIN))
    assert admin.call(DigestRequest(partition=PARTITION), DigestReply).rows


def test_a_scan_needs_a_client_of_the_zone(zone: SecureCoordinator) -> None:
    """The operator's or a copy job's certificate would read what its holder has no use for."""
    for identity in (Identity(Role.OPERATOR), of_zone(Role.TRANSFER), of_zone(Role.DATA_NODE)):
        with pytest.raises(ForbiddenError, match="may not read"):
            zone.as_(identity).get(ScanTicket(partition=PARTITION))


class Writing:
    """Writers that go on until `stop`, each with every write counted."""

    def __init__(self, clients: list[TableClient]) -> None:
        self._clients = clients
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self.written: dict[bytes, bytes] = {}
        self.failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(i, c)) for i, c in enumerate(clients)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, number: int, client: TableClient) -> None:
        sequence = 0
        while not self._stop.is_set():
            key, value = f"k{number}-{sequence % 50}".encode(), f"{sequence}".encode()
            try:
                client.write(batch_of({key: value}))
            except RezoneError as error:
                self.failed.append(error)
                return
            sequence += 1
            with self._changed:
                self.written[key] = value
                self.count = sequence
                self._changed.notify_all()

    count = 0

    def wait_for_more(self, writes: int) -> None:
        """Wait until some writer has made so many more writes."""
        with self._changed:
            goal = self.count + writes
            assert self._changed.wait_for(lambda: self.count >= goal or self.failed, 20)

    def stop(self) -> None:
        """End the writers."""
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        for client in self._clients:
            client.close()


def test_rotation_under_load_fails_no_write(tmp_path: Path) -> None:
    """Every renewal would cost writes; here the authority itself is replaced, in three steps."""
    with secure_cluster(tmp_path, 3) as c:
        c.create(PARTITION, (0, 1, 2))
        c.watch()
        sources = [c.pki.source(f"writer{i}", of_zone(Role.WRITER)) for i in range(2)]
        old_client = c.as_(of_zone(Role.WRITER))
        writing = Writing([TableClient(c.addresses(), tls=source) for source in sources])
        writing.wait_for_more(20)

        def renew_all() -> None:
            c.pki.issue("operator", Identity(Role.OPERATOR))
            for i in range(len(sources)):
                c.pki.issue(f"writer{i}", of_zone(Role.WRITER))
            for i in c.nodes:
                before = c.served_certificate(i)
                c.pki.issue(f"node{i}", of_zone(Role.DATA_NODE, node=i))
                listener = c.secure(i).listener
                assert listener is not None
                listener.renew()
                assert c.served_certificate(i) != before
                writing.wait_for_more(10)

        old, new = c.pki.authority, Authority.create(now())
        c.pki.trusted = old.certificate + new.certificate
        renew_all()
        c.pki.authority = new
        renew_all()
        c.pki.trusted = new.certificate
        renew_all()
        writing.stop()
        assert writing.failed == []
        served = x509.load_der_x509_certificate(c.served_certificate(0))
        served.verify_directly_issued_by(x509.load_pem_x509_certificate(new.certificate))
        tls = FixedTls(c.pki.files(of_zone(Role.READER)))
        with TableClient(c.addresses(), tls=tls) as reader:
            table = reader.scan()
        found = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert found == writing.written
        c.until("in sync", lambda: c.isr(PARTITION) == {0, 1, 2})
        digests = c.until("digests", lambda: c.digests(PARTITION))
        assert len({d.digests for d in digests.values()}) == 1
        with pytest.raises(NotReadyError):
            NodeClient(c.nodes[0].address, old_client._tls, server_name=NAME).call(
                RoutesRequest(), RouteTable
            )
        old_client.close()


def test_a_scan_under_way_outlives_a_renewal(zone: SecureCoordinator) -> None:
    """A long scan or copy would begin again with each renewal, and never end if it is long."""
    with writer(zone) as client:
        for i in range(20):
            client.write(batch_of({f"{i}-{j}".encode(): b"x" * 1000 for j in range(1000)}))
    reader = zone.as_(of_zone(Role.READER))
    scan = reader.get(ScanTicket(partition=PARTITION, batch_rows=500))
    count = scan.read_chunk().data.num_rows
    zone.pki.issue("node0", of_zone(Role.DATA_NODE, node=0))
    listener = zone.secure(0).listener
    assert listener is not None
    listener.renew()  # unless the node was quicker
    # The new server answers while the old one still has the scan.
    zone.until("the new server answers", lambda: zone.report(0, PARTITION))
    assert any(thread.is_alive() for _, thread in listener._ending)
    count += sum(chunk.data.num_rows for chunk in scan)
    assert count == 20_001
    reader.close()


def test_new_files_are_found_by_the_node_itself(tmp_path: Path) -> None:
    """A renewed Secret would lie there until the old certificate expires."""
    with secure_cluster(tmp_path, 1) as c:
        before = c.served_certificate(0)
        c.pki.issue("node0", of_zone(Role.DATA_NODE, node=0))

        def renewed() -> bool:
            with contextlib.suppress(OSError):  # between the old server and the new one
                return c.served_certificate(0) != before
            return False

        c.until("the new certificate", renewed, 10)


def test_files_that_are_no_data_nodes_change_nothing(tmp_path: Path) -> None:
    """A Secret filled with a client's certificate would take a node off the network."""
    with secure_cluster(tmp_path, 1) as c:
        before = c.served_certificate(0)
        c.pki.issue("node0", of_zone(Role.READER))
        listener = c.secure(0).listener
        assert listener is not None
        with pytest.raises(TlsFilesError, match="no name of a data node"):
            listener.renew()
        assert c.served_certificate(0) == before


def test_a_copy_job_needs_no_more_than_its_own_certificate(tmp_path: Path) -> None:
    """Spark would have to hold the operator's certificate, or copies would not work at all."""
    with secure_cluster(tmp_path, 2) as c:
        c.create(PARTITION, (0,))
        with writer(c) as client:
            client.write(batch_of({b"k%d" % i: b"v" for i in range(100)}))
        c.change(PARTITION, replicas=(0, 1))
        entry = PartitionCopy(
            partition=PARTITION,
            source=c.nodes[0].address,
            source_id=0,
            targets=(CopyTarget(id=1, address=c.nodes[1].address),),
            revision=c.revision,
        )
        admitted = (AdmittedCopy(PARTITION),)
        c.call(1, AdmitCopies(fence=c.fence(), admitted=admitted, held=(), seconds=60.0))
        (refused,) = copy_entry(entry, attempt="a", connect=c.connect_as(of_zone(Role.ADMIN)))
        assert "may not fill replicas" in refused.error
        (receipt,) = copy_entry(entry, attempt="b", connect=c.connect_as(of_zone(Role.TRANSFER)))
        assert receipt.error == ""
        assert receipt.rows == 100


def test_a_node_pulls_a_copy_by_its_own_certificate(tmp_path: Path) -> None:
    """Small copies, which go from node to node, would not work with TLS."""
    with secure_cluster(tmp_path, 2) as c:
        c.create(PARTITION, (0,))
        with writer(c) as client:
            client.write(batch_of({b"k%d" % i: b"v" for i in range(100)}))
        c.change(PARTITION, replicas=(0, 1))
        fence = c.fence()
        pull = PullSnapshot(fence=fence, partition=PARTITION, source=c.nodes[0].address)
        c.call(1, pull)
        c.watch()
        c.until("the copy is in sync", lambda: c.isr(PARTITION) == {0, 1})
        digests = c.until("digests", lambda: c.digests(PARTITION))
        assert len({d.digests for d in digests.values()}) == 1


def test_a_forbidden_write_never_reaches_the_partition(zone: SecureCoordinator) -> None:
    """A request could be refused after it was taken: its answer alone proves nothing."""
    client = zone.as_(of_zone(Role.READER))
    channel = client.channel("data")
    for sequence in range(1, 4):
        channel.send(
            WriteRequest(
                opaque=sequence, partition=PARTITION, producer_id="w" * 32, sequence=sequence
            )
        )
        frame = channel.receive()
        assert frame is not None
        assert getattr(frame[0], "opaque", None) == sequence
    channel.close()
    client.close()
    assert end(zone) == 1


def test_keys_that_are_not_pem_are_told(tmp_path: Path) -> None:
    """GRPC would say no more than that its server did not start."""
    pki = Pki(tmp_path)
    files, other = pki.files(of_zone(Role.DATA_NODE)), pki.files(of_zone(Role.DATA_NODE))
    with pytest.raises(TlsFilesError, match="does not belong"):
        TlsFiles.parse(files.authority, files.certificate, other.key)
    with pytest.raises(TlsFilesError, match="in PEM"):
        TlsFiles.parse(files.authority, b"nonsense", other.key)
    der = x509.load_pem_x509_certificate(files.certificate).public_bytes(serialization.Encoding.DER)
    with pytest.raises(TlsFilesError, match="in PEM"):
        TlsFiles.parse(files.authority, der, files.key)
