"""Calls a node by its Service's name where only a cluster's names are answered (test_names.py).

python cluster_names.py RESOLVER    in namespaces of its own, see e2e/chaos/apart.py
"""

import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from e2e.chaos import apart
from pyarrow import flight

from rezone.wire.messages import Ack, ReportRequest, encode
from rezone.wire.transport.flight import NodeClient

CLUSTER = b"cluster.local"
IPV4, NO_SUCH_NAME = 1, 3


def answer(asked: bytes) -> bytes | None:
    """Return what a cluster's name server says; nothing of names that are not the cluster's.

    Those it would ask of a server outside, which does not answer.
    """
    labels, at = [], 12
    while length := asked[at]:
        labels.append(asked[at + 1 : at + 1 + length])
        at += 1 + length
    question, kind = asked[12 : at + 5], struct.unpack_from("!H", asked, at + 1)[0]
    name = b".".join(labels)
    if not name.endswith(CLUSTER):
        return None
    known = name == b"orders.shop.svc." + CLUSTER
    found = known and kind == IPV4
    head = struct.pack("!HHHHHH", 0, 0x8580 | (0 if known else NO_SUCH_NAME), 1, int(found), 0, 0)
    record = struct.pack("!HHHIH4B", 0xC00C, IPV4, 1, 5, 4, 127, 0, 0, 1) if found else b""
    return asked[:2] + head[2:] + question + record


def serve(names: socket.socket) -> None:
    """Answer what a cluster knows; say so where it would ask outside."""
    while True:
        asked, sender = names.recvfrom(512)
        said = answer(asked)
        if said is None:
            sys.stdout.write("a question for a server outside\n")
        else:
            names.sendto(said, sender)


class Node(flight.FlightServerBase):  # type: ignore[misc]
    """Answers every call."""

    def do_action(self, _context: Any, _action: Any) -> Iterator[Any]:
        """Say that it is done."""
        yield flight.Result(pa.py_buffer(encode(Ack())))


def main(resolver: Path) -> None:
    """Serve names and a node, and call the node by its Service's name."""
    apart.raise_loopback()
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 53))
    threading.Thread(target=serve, args=(names,), daemon=True).start()
    search = "shop.svc.cluster.local svc.cluster.local cluster.local"
    resolver.write_text(f"search {search}\nnameserver 127.0.0.1\noptions ndots:5\n")
    subprocess.run(["mount", "--bind", resolver, "/etc/resolv.conf"], check=True)
    with Node("grpc://127.0.0.1:0") as server:
        client = NodeClient(f"orders.shop.svc:{server.port}")
        client.call(ReportRequest(seen=-1), Ack)
        client.close()
    sys.stdout.write("answered\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
