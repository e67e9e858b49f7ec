"""What TLS costs: the same zone in plaintext and with TLS both ways, side by side.

    PYTHONPATH=operator:benchmarks python benchmarks/clients/tls.py [--rounds 7] [--rows 40000]

Two zones of three data nodes, each in processes of their own, one partition, three replicas. In
turn each is written to (batches of 1,000 rows, every write on three disks), scanned whole, and
connected to again. Only one zone works at a time. Medians; the ratios are TLS to plaintext. Both
ends share the machine's cores, so what a scan loses is what encryption and decryption cost
together.
"""

import argparse
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.zone import SCHEMA, TABLE, batch_of
from replica_cluster import Coordinator, ProcessNode
from secure_cluster import NAME, ZONE, FixedTls, Pki, of_zone

from rezone.client import TableClient
from rezone.wire.messages import ZoneConfig
from rezone.wire.transport.flight import NodeClient
from rezone.wire.transport.identity import Identity, Role
from rezone.wire.transport.tls import DIRECTORY_VARIABLE, TlsSource

_NODES = 3
_BATCH_ROWS = 1000


class Encrypted(Coordinator):
    """The operator's part with the operator's certificate; nodes find theirs by environment."""

    def __init__(self, nodes: list[ProcessNode], config: ZoneConfig, pki: Pki) -> None:
        super().__init__(nodes, config)
        self._tls = FixedTls(pki.files(Identity(Role.OPERATOR)))

    def client(self, node: int) -> NodeClient:
        """Return a connection to a node."""
        if node not in self._clients:
            address = self.nodes[node].address
            self._clients[node] = NodeClient(address, self._tls, server_name=NAME)
        return self._clients[node]


class Figures(NamedTuple):
    """One round of one zone."""

    write_rows_per_second: float
    scan_mb_per_second: float
    connect_ms: float


class Bench:
    """One zone and a client's certificate, None for plaintext."""

    def __init__(self, coordinator: Coordinator, tls: TlsSource | None) -> None:
        self._addresses = [node.address for node in coordinator.nodes.values()]
        self._tls = tls
        self._client = self._connect()

    def _connect(self) -> TableClient:
        return TableClient(self._addresses, tls=self._tls)

    def round(self, rows: int) -> Figures:
        """Write, scan and connect once."""
        batches = [
            batch_of(list(range(start, start + _BATCH_ROWS)), 0)
            for start in range(0, rows, _BATCH_ROWS)
        ]
        wrote = _timed(lambda: [self._client.write(batch) for batch in batches])
        found = []
        scanned = _timed(lambda: found.append(self._client.scan()))
        connected = _timed(lambda: self._connect().close())
        assert found[0].num_rows == rows
        return Figures(rows / wrote, found[0].nbytes / 1e6 / scanned, connected * 1000)

    def close(self) -> None:
        """Close the client."""
        self._client.close()


def _timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


@contextlib.contextmanager
def _zone(directory: Path, pki: Pki | None) -> Iterator[Bench]:
    nodes = [ProcessNode(i, directory / f"node{i}") for i in range(_NODES)]
    config = ZoneConfig(
        zone=ZONE, zone_uid="uid-bench", partitions=1, table=TABLE, min_in_sync_replicas=2
    )
    if pki is None:
        coordinator, tls = Coordinator(nodes, config), None
    else:
        for node in nodes:
            home = pki.issue(f"node{node.node_id}", of_zone(Role.DATA_NODE))
            node.environment[DIRECTORY_VARIABLE] = str(home)
        coordinator = Encrypted(nodes, config, pki)
        tls = FixedTls(pki.files(of_zone(Role.WRITER)))
    try:
        for node in nodes:
            node.start()
        coordinator.configure()
        coordinator.create(0, tuple(range(_NODES)))
        bench = Bench(coordinator, tls)
        yield bench
        bench.close()
    finally:
        coordinator.close()
        for node in nodes:
            node.stop()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=40_000)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="rezone-bench-"))
    try:
        with (
            _zone(directory / "plain", None) as plain,
            _zone(directory / "secure", Pki(directory / "pki")) as secure,
        ):
            rounds = [
                (plain.round(options.rows), secure.round(options.rows))
                for _ in range(options.rounds + 1)
            ][1:]
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{len(SCHEMA)} columns, rows of about 150 bytes; medians of {options.rounds} rounds")
    print(f"{'':24}{'plaintext':>12}{'TLS':>12}{'ratio':>8}")
    for field in Figures._fields:
        plaintext, encrypted = (
            statistics.median(getattr(sides[side], field) for sides in rounds) for side in (0, 1)
        )
        name = field.replace("_", " ")
        print(f"{name:24}{plaintext:12,.1f}{encrypted:12,.1f}{encrypted / plaintext:8.2f}")


if __name__ == "__main__":
    main()
