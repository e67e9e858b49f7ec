"""Data nodes in this process that speak TLS both ways, with certificates made for the test."""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from replica_cluster import FAST, Coordinator, LocalNode, ProcessNode

from rezone.datanode.node.node import DataNode
from rezone.datanode.service.listener import Listener
from rezone.kube.tls.authority import Authority
from rezone.wire.codec.schema import TableSchema
from rezone.wire.messages import ZoneConfig
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.identity import Identity, Role, server_name
from rezone.wire.transport.tls import FILES, LOOK_SECONDS, TlsDirectory, TlsFiles

NAMESPACE, ZONE = "shop", "accounts"
NAME = server_name(NAMESPACE, ZONE)
_UNENDED: list[Listener] = []


def now() -> datetime:
    """Return the time that certificates are valid by."""
    return datetime.now(UTC)


def of_zone(role: Role, zone: str = ZONE, *, node: int | None = None) -> Identity:
    """Return a role in the test's zone."""
    return Identity(role, NAMESPACE, zone, node)


class FixedTls:
    """A source whose files never change."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files

    def current(self) -> TlsFiles:
        """Return the files."""
        return self._files


class Pki:
    """An authority and the directories it has filled; `issue` again is a renewal."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority.create(now())
        self.trusted = self.authority.certificate
        self._directory = directory

    def files(self, identity: Identity, lifetime: timedelta = timedelta(days=1)) -> TlsFiles:
        """Return a certificate that is in no directory; a negative lifetime is one expired."""
        begun = now() - max(-2 * lifetime, timedelta())
        issued = self.authority.issue(identity, begun, abs(lifetime))
        return TlsFiles.parse(self.trusted, issued.certificate, issued.key)

    def issue(self, holder: str, identity: Identity) -> Path:
        """Write the files of a holder, as the kubelet does: all at once, by one link."""
        files = self.files(identity)
        home = self._directory / holder
        version = home / f"..v{len(list(home.glob('..v*')))}"
        version.mkdir(parents=True)
        contents = (files.authority, files.certificate, files.key)
        for name, content in zip(FILES, contents, strict=True):
            (version / name).write_bytes(content)
            with contextlib.suppress(FileExistsError):
                (home / name).symlink_to(Path("..data") / name)
        link = home / "..new"
        link.symlink_to(version.name)
        link.rename(home / "..data")
        return home

    def source(self, holder: str, identity: Identity) -> TlsDirectory:
        """Return a directory that is looked at each time somebody asks."""
        ticks = itertools.count(0, 2 * LOOK_SECONDS)
        return TlsDirectory(self.issue(holder, identity), clock=lambda: next(ticks))


class SecureNode(LocalNode):
    """A node that is served by a `Listener`."""

    def __init__(self, node_id: int, directory: Path, tls: TlsDirectory) -> None:
        super().__init__(node_id, directory, FAST)
        self.tls = tls
        self.listener: Listener | None = None

    def start(self) -> None:
        """Open and serve."""
        connect = functools.partial(NodeClient, tls=self.tls)
        self.node = DataNode(self.node_id, self.directory, settings=self.settings, connect=connect)
        self.node.open()
        self.listener = Listener(self.node, self.address, self.tls)

    def stop(self) -> None:
        """Close as SIGTERM would."""
        if self.node is None or self.listener is None:
            return
        self.node.close()
        if not self.listener.close():
            _UNENDED.append(self.listener)
        self.node = None


class SecureCoordinator(Coordinator):
    """The operator's part, with the operator's certificate."""

    def __init__(
        self, pki: Pki, nodes: Sequence[SecureNode | ProcessNode], config: ZoneConfig
    ) -> None:
        super().__init__(nodes, config)
        self.pki = pki
        self.tls = pki.source("operator", Identity(Role.OPERATOR))
        self._certificate = functools.cache(lambda identity: FixedTls(pki.files(identity)))

    def connect(self, address: str) -> NodeClient:
        """Make a connection with the operator's certificate."""
        return NodeClient(address, self.tls, server_name=NAME)

    def as_(self, identity: Identity, node: int = 0) -> NodeClient:
        """Return a connection by somebody else's certificate, the same for the same identity."""
        tls = self._certificate(identity)
        return NodeClient(self.nodes[node].address, tls, server_name=NAME)

    def connect_as(self, identity: Identity) -> Callable[[str], NodeClient]:
        """Return what connects to any node by somebody's certificate."""
        return functools.partial(NodeClient, tls=self._certificate(identity))

    def secure(self, node: int) -> SecureNode:
        """Return a node."""
        found = self.nodes[node]
        assert isinstance(found, SecureNode)
        return found

    def addresses(self) -> list[str]:
        """Return where the nodes are."""
        return list(self.peers.values())

    def served_certificate(self, node: int) -> bytes:
        """Return the certificate a node shows, in DER, whoever signed it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        host, port = self.nodes[node].address.split(":")
        with (
            socket.create_connection((host, int(port)), 5) as plain,
            context.wrap_socket(plain, server_hostname=NAME) as secure,
        ):
            return secure.getpeercert(binary_form=True) or b""


@contextlib.contextmanager
def secure_cluster(
    directory: Path, count: int, partitions: int = 1, *, table: TableSchema | None = None
) -> Iterator[SecureCoordinator]:
    """Nodes 0..count-1, configured; stopped at the end."""
    pki = Pki(directory / "pki")
    nodes = [
        SecureNode(
            i, directory / f"node{i}", pki.source(f"node{i}", of_zone(Role.DATA_NODE, node=i))
        )
        for i in range(count)
    ]
    config = ZoneConfig(
        zone=ZONE, zone_uid="uid-test", partitions=partitions, table=table or TableSchema()
    )
    coordinator = SecureCoordinator(pki, nodes, config)
    with coordinator.running():
        yield coordinator
