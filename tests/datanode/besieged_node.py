"""One data node in a process of its own that speaks TLS, with an honest client and rude ones."""

from __future__ import annotations

import contextlib
import http.client
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from replica_cluster import ProcessNode, batch_of, free_port
from rude_client import RudeClient, rude_client
from secure_cluster import NAME, ZONE, FixedTls, Pki, SecureCoordinator, of_zone

from rezone.client import ClientSettings, TableClient
from rezone.wire.codec.bodies import to_ipc
from rezone.wire.messages import WriteRequest, ZoneConfig
from rezone.wire.transport.identity import Identity, Role

P = 0
HONEST = ClientSettings(timeout_seconds=5.0)
"""An honest write that takes longer was in the way of what a rude client did."""


class Besieged:
    """The node, and who comes to it."""

    def __init__(self, c: SecureCoordinator, node: ProcessNode, health_port: int) -> None:
        self.c = c
        self.node = node
        self.health_port = health_port
        self._rows = 0

    def honest(self, settings: ClientSettings = HONEST) -> TableClient:
        """Return a client as users have it."""
        tls = FixedTls(self.c.pki.files(of_zone(Role.WRITER)))
        return TableClient(self.c.addresses(), tls=tls, settings=settings)

    def write(self, table: TableClient) -> None:
        """Write a row; fails when that takes too long."""
        self._rows += 1
        table.write(batch_of({b"honest": b"%d" % self._rows}))

    def rude(
        self, identity: Identity | None = None, *, window: int = 0
    ) -> contextlib.AbstractContextManager[RudeClient]:
        """Connect as somebody, by default a writer of the zone."""
        files = self.c.pki.files(identity or of_zone(Role.WRITER))
        return rude_client(self.node.address, files, NAME, window=window)

    def health(self) -> int:
        """Return the status of /healthz."""
        return self._get("/healthz")[0]

    def metric(self, name: str) -> float:
        """Return a metric's value, the sum of all its labels."""
        _, text = self._get("/metrics")
        samples = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
        return sum(float(value) for what, _, value in samples if what.partition("{")[0] == name)

    def _get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.health_port, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def log(self) -> list[dict[str, Any]]:
        """Return what the node has logged."""
        lines = (self.node.directory / "log.txt").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def peak_bytes(self) -> int:
        """Return the most memory that the process has had."""
        assert self.node.process is not None
        status = Path(f"/proc/{self.node.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) << 10


def write_request(opaque: int, **fields: Any) -> WriteRequest:
    """Return a write with an id of its own."""
    given = {"producer_id": uuid.uuid4().hex, "sequence": 1, **fields}
    return WriteRequest(opaque=opaque, partition=P, **given)


def row(key: bytes = b"rude", value: bytes = b"1") -> bytes:
    """Return the body of a write of one row."""
    return to_ipc(batch_of({key: value}))


@contextlib.contextmanager
def besieged_node(directory: Path, **environment: str) -> Iterator[Besieged]:
    """Run the node with one partition that it leads; `environment` has settings by their names."""
    pki = Pki(directory / "pki")
    health_port = free_port()
    node = ProcessNode(0, directory / "node0", f"--health-port={health_port}")
    node.environment = {
        "REZONE_TLS_DIRECTORY": str(pki.issue("node0", of_zone(Role.DATA_NODE, node=0))),
        **{f"REZONE_NODE_{name.upper()}": value for name, value in environment.items()},
    }
    config = ZoneConfig(zone=ZONE, zone_uid="uid-test", partitions=1)
    c = SecureCoordinator(pki, [node], config)
    with c.running():
        c.wait_up(0)
        c.create(P, (0,))
        yield Besieged(c, node, health_port)
