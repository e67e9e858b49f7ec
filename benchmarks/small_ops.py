"""Writes and point reads of single rows by 1, 16 and 64 clients, and etcd's in the same run.

    PYTHONPATH=operator python benchmarks/small_ops.py [--clients 1 16 64] [--seconds 5]
                                                       [--calls-max 1 256] [--no-etcd] [--apart]

Three data nodes are processes of their own, all replicas are on disk. The clients are threads of
one process with one `TableClient`, and each has one operation under way; `--calls-max` is how many
calls may share a request, 1 for none. With `--apart` each thread has a `TableClient` of its own
instead, as pods have: nothing is shared before the leader. Reads are linearizable. Processor time
is that of one operation, in microseconds: of the client's process, and of the three nodes together.

etcd has three members that sync their logs. Its clients are threads as well, each with a
connection of its own to one of the members' JSON gateways, which costs its members more than gRPC:
compare rates by their ratio, and with the load that is printed.
"""

import argparse
import base64
import contextlib
import functools
import itertools
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from harness.leaders import NotHereError, etcd
from harness.zone import SCHEMA, cpu_of, percentile, running_zone

from rezone.client import ClientSettings, TableClient
from rezone.datanode.process import SWITCH_INTERVAL_SECONDS

_KEYS = 10_000
_PAYLOAD = "x" * 70
_WARM_SECONDS = 1.0
_OPENING_CALLS = 8
_READ_BYTES = 1 << 16
_KEY_SCHEMA = pa.schema([SCHEMA.field("id")])

Operation = Callable[[int], object]
"""One write or read of the key with this number."""


class Figures(NamedTuple):
    """What a number of clients got done."""

    rate: float
    median_ms: float
    slowest_ms: float
    client_us: float
    nodes_us: float


def row_of(number: int) -> pa.RecordBatch:
    """Return one row of about 100 bytes."""
    columns = [[number], [f"row-{number}"], [number], [_PAYLOAD]]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def key_of(number: int) -> pa.RecordBatch:
    """Return one row's key."""
    return pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], schema=_KEY_SCHEMA)


def write(client: TableClient, number: int) -> None:
    """Write one row."""
    client.write(row_of(number))


def read(client: TableClient, number: int) -> None:
    """Read one row."""
    client.read(key_of(number))


def run(operations: list[Operation], seconds: float, nodes_cpu: Callable[[], float]) -> Figures:
    """Run each operation in a loop of its own thread; the first second is not counted."""
    begin = time.monotonic() + _WARM_SECONDS
    end = begin + seconds
    spent: list[list[float]] = [[] for _ in operations]

    def work(operation: Operation, mine: list[float], first: int) -> None:
        for turn in itertools.count(first):
            started = time.monotonic()
            if started >= end:
                return
            operation(turn * 7919 % _KEYS)
            if started >= begin:
                mine.append(time.monotonic() - started)

    threads = [
        threading.Thread(target=work, args=(operation, mine, index * 1013), daemon=True)
        for index, (operation, mine) in enumerate(zip(operations, spent, strict=True))
    ]
    for thread in threads:
        thread.start()
    threading.Event().wait(begin - time.monotonic())
    client, nodes = time.process_time(), nodes_cpu()
    threading.Event().wait(end - time.monotonic())
    client, nodes = time.process_time() - client, nodes_cpu() - nodes
    for thread in threads:
        thread.join()
    times = [one * 1000 for mine in spent for one in mine]
    each = 1e6 / max(1, len(times))
    return Figures(
        len(times) / seconds,
        percentile(times, 0.5),
        percentile(times, 0.99),
        client * each,
        nodes * each,
    )


class Gateway:
    """One connection to a member's JSON gateway, with as little code around it as may be."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _call(self, path: str, request: dict[str, str]) -> bytes:
        body = json.dumps(request).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._more()
        head_bytes, _, rest = answer.partition(b"\r\n\r\n")
        assert head_bytes.startswith(b"HTTP/1.1 200"), answer
        length = int(head_bytes.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        while len(rest) < length:
            rest += self._more()
        return rest

    def _more(self) -> bytes:
        got = self._socket.recv(_READ_BYTES)
        assert got, "etcd has closed the connection"
        return got

    def put(self, number: int) -> None:
        """Write one row."""
        value = base64.b64encode(f"row-{number:012}{number:012}{_PAYLOAD}".encode()).decode()
        self._call("/v3/kv/put", {"key": _etcd_key(number), "value": value})

    def get(self, number: int) -> None:
        """Read one row, linearizably."""
        self._call("/v3/kv/range", {"key": _etcd_key(number)})

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def _etcd_key(number: int) -> str:
    return base64.b64encode(number.to_bytes(8, "big")).decode()


def show(name: str, clients: int, figures: Figures, peer: Figures | None) -> None:
    """Print one line; `peer`: what etcd has done with as many clients."""
    line = (
        f"{name:<26}{clients:8}{figures.rate:10,.0f}{figures.median_ms:9.1f}"
        f"{figures.slowest_ms:9.1f}{figures.client_us:10,.0f}{figures.nodes_us:10,.0f}"
    )
    if peer is not None:
        line += f"{figures.rate / peer.rate:9.2f}{figures.nodes_us / peer.nodes_us:9.2f}"
    print(f"{line}   load {os.getloadavg()[0]:.1f}", flush=True)


Peers = dict[tuple[str, int], Figures]


def etcd_figures(given: argparse.Namespace) -> Iterator[tuple[str, int, Figures]]:
    """Run etcd's part."""
    with tempfile.TemporaryDirectory() as directory, etcd(Path(directory)) as peer:

        def cpu() -> float:
            return sum(map(cpu_of, peer.pids))

        for clients in given.clients:
            with contextlib.ExitStack() as open_ones:
                ports = itertools.islice(itertools.cycle(peer.ports), clients)
                made = [open_ones.enter_context(contextlib.closing(Gateway(p))) for p in ports]
                yield "writes", clients, run([one.put for one in made], given.seconds, cpu)
                yield "reads", clients, run([one.get for one in made], given.seconds, cpu)


def apart_figures(
    given: argparse.Namespace, peers: Peers, addresses: list[str], cpu: Callable[[], float]
) -> None:
    """Run clients that share nothing with each other, and print it."""
    for clients in given.clients:
        with contextlib.ExitStack() as open_ones:
            made = [open_ones.enter_context(TableClient(addresses)) for _ in range(clients)]
            for kind, call in (("writes", write), ("reads", read)):
                works: list[Operation] = [functools.partial(call, client) for client in made]
                for one in works:
                    for number in range(_OPENING_CALLS):
                        one(number)  # its connections and its producer
                figures = run(works, given.seconds, cpu)
                show(f"{kind}, apart", clients, figures, peers.get((kind, clients)))


def own_figures(given: argparse.Namespace, peers: Peers) -> None:
    """Run the zone's part, and print it."""
    with running_zone(3, given.partitions, 3) as zone:

        def cpu() -> float:
            return sum(zone.cpu_seconds().values())

        addresses = [node.address for node in zone.coordinator.nodes.values()]
        if given.apart:
            apart_figures(given, peers, addresses, cpu)
            return
        for clients, calls_max in itertools.product(given.clients, given.calls_max):
            settings = ClientSettings(shared_calls_max=calls_max)
            with TableClient(addresses, settings=settings) as client:
                works: dict[str, Operation] = {
                    "writes": functools.partial(write, client),
                    "reads": functools.partial(read, client),
                }
                for kind, work in works.items():
                    figures = run([work] * clients, given.seconds, cpu)
                    name = f"{kind}, {calls_max} a request"
                    show(name, clients, figures, peers.get((kind, clients)))


def main() -> None:
    """Measure etcd, then a zone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--calls-max", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--no-etcd", action="store_true")
    parser.add_argument("--apart", action="store_true")
    given = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    print("rates are operations a second; the last two: times etcd's rate, times its members' CPU")
    print(f"{'':26} clients      rate   median     99 % client us  nodes us     rate      CPU")
    peers: Peers = {}
    if not given.no_etcd:
        try:
            for kind, clients, figures in etcd_figures(given):
                peers[kind, clients] = figures
                show(f"etcd, {kind}", clients, figures, None)
        except NotHereError as error:
            print(f"left out: {error}")
    own_figures(given, peers)


if __name__ == "__main__":
    main()
