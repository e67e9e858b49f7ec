"""Connections to a server are ended when the other end is gone, also when nothing is sent on them.

A server that waits for its caller to go on, or to read on, sends nothing: what it would learn of a
caller's end may be lost with the network, and then it waits for ever. Flight's servers have no
setting for that, and no call that ends a stream. So the kernel asks: a caller's kernel answers
probes also while the caller is busy, stopped, or reads nothing.
"""

import contextlib
import os
import socket
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

IDLE_SECONDS = 10
PROBE_SECONDS = 5
PROBES_MAX = 3
"""A connection that is idle is probed; where gRPC says how long the kernel waits, that counts."""


def probe_callers(port: int) -> None:
    """Have the connections of this process's server at a port probed, present ones and new ones.

    New ones inherit it from the listening socket, to which Flight gives no access.
    """
    for found in _connections(port):
        with contextlib.suppress(OSError):
            _probe(found)


def cut_off(port: int, caller: str) -> None:
    """End the connections of this process's server at a port with one caller, at once.

    `caller` is as gRPC writes it, "ipv4:127.0.0.1:51234". What is under way on them fails.
    """
    for found in _connections(port):
        with contextlib.suppress(OSError):  # one that listens has nobody at the other end
            if address_of(found.getpeername()) == plain(caller):
                found.shutdown(socket.SHUT_RDWR)


def address_of(name: tuple[str, int]) -> str:
    """Return "host:port" of a socket's end."""
    host, port = name[:2]
    # A socket for both kinds of addresses has those of IPv4 within its own.
    return f"{host.removeprefix('::ffff:')}:{port}"


def plain(caller: str) -> str:
    """Return "host:port" of a caller as gRPC writes it."""
    _, _, address = urllib.parse.unquote(caller).partition(":")
    return address.replace("[", "").replace("]", "")


def _connections(port: int) -> Iterator[socket.socket]:
    """Yield a copy of each socket of this process that is bound to a port, closed afterwards."""
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # gone by now, or no socket
            copy = os.dup(int(link.name))
            try:
                found = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with found:
                if is_of(found, port):
                    yield found


def is_of(found: socket.socket, port: int) -> bool:
    """Whether a socket is one of TCP at a port of this process."""
    if found.proto != socket.IPPROTO_TCP:
        return False
    own: int = found.getsockname()[1]
    return own == port


def _probe(found: socket.socket) -> None:
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
