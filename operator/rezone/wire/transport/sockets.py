"""Connections to a server are ended when the other end is gone, also when nothing is sent on them.

A server that waits for its caller to go on, or to read on, sends nothing: what it would learn of a
caller's end may be lost with the network, and then it waits for ever. Flight's servers have no
setting for that, and no call that ends a stream. So the kernel asks: a caller's kernel answers
probes also while the caller is busy, stopped, or reads nothing.
"""

import contextlib
import os
import socket
from pathlib import Path

IDLE_SECONDS = 10
PROBE_SECONDS = 5
PROBES_MAX = 3
"""A connection that is idle is probed; where gRPC says how long the kernel waits, that counts."""


def probe_callers(port: int) -> None:
    """Have the connections of this process's server at a port probed, present ones and new ones.

    New ones inherit it from the listening socket, to which Flight gives no access.
    """
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # gone by now, or no socket
            copy = os.dup(int(link.name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with found:
                if _is_of(found, port):
                    _probe(found)


def _is_of(found: socket.socket, port: int) -> bool:
    if found.proto != socket.IPPROTO_TCP:
        return False
    own: int = found.getsockname()[1]
    return own == port


def _probe(found: socket.socket) -> None:
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
