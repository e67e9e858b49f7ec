"""The connections of this process's server at a port, and how many descriptors are left.

Flight tells nothing of a connection before its first call. So the process looks at its own
descriptors: each socket is asked once for its other end, and known again by its inode.

Concurrency: belongs to one thread.
"""

import contextlib
import fcntl
import os
import resource
import socket
import stat
import struct
import termios
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rezone.wire.transport.sockets import address_of, is_of

_OWN: Final = Path("/proc/self/fd")
_COUNTERS: Final = struct.Struct("@QQ")
_COUNTERS_AT: Final = 120
"""Where `struct tcp_info` has tcpi_bytes_acked and tcpi_bytes_received."""


class Passed(NamedTuple):
    """The bytes that a connection has brought to this process, and that it has taken from it."""

    received: int
    sent: int


def raise_limit() -> None:
    """Let this process have as many descriptors as it may give itself."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Callers:
    """Those who are connected to a port of this process.

    It looks and cuts off without a descriptor more: there may be none when that is needed most.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, tuple[int, str]] = {}
        self._places: dict[str, int] = {}
        self._open = 0
        self._nothing = os.open(os.devnull, os.O_RDONLY)
        self._memory = os.open("/proc/self/statm", os.O_RDONLY)

    def look(self) -> list[str]:
        """Return the addresses of all, "host:port"."""
        known: dict[int, tuple[int, str]] = {}
        count = 0
        for descriptor in self._descriptors():
            with contextlib.suppress(OSError):  # gone by now
                found = os.fstat(descriptor)
                count += 1
                if stat.S_ISSOCK(found.st_mode):
                    inode, address = self._known.get(descriptor, (0, ""))
                    if inode != found.st_ino:
                        address = self._address(descriptor)
                    known[descriptor] = found.st_ino, address
        self._known, self._open = known, count
        self._places = {address: place for place, (_, address) in known.items() if address}
        return list(self._places)

    def cut(self, address: str) -> None:
        """End the connection with an address that was seen; what is under way on it fails."""
        descriptor = self._places.get(address, -1)
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == self._known[descriptor][0]:
                with _borrowed(descriptor) as found:
                    found.shutdown(socket.SHUT_RDWR)

    def passed(self) -> dict[str, Passed]:
        """Return what has passed by each connection that was seen and is still there."""
        found = {}
        for address, descriptor in self._places.items():
            with contextlib.suppress(OSError, struct.error), _borrowed(descriptor) as each:
                found[address] = _passed(each)
        return found

    def memory(self) -> int:
        """Return the bytes of memory that this process has."""
        pages = int(os.pread(self._memory, 100, 0).split()[1])
        return pages * resource.getpagesize()

    def left(self) -> int:
        """Return about how many descriptors the process may still open: no more than when looked.

        The lowest that is free costs a microsecond, and tells when none is.
        """
        try:
            lowest = os.dup(self._nothing)
        except OSError:
            return 0
        os.close(lowest)
        return max(0, self.limit() - max(lowest, self._open))

    def limit(self) -> int:
        """Return how many descriptors the process may have."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def close(self) -> None:
        """Keep nothing."""
        os.close(self._nothing)
        os.close(self._memory)

    def _descriptors(self) -> Iterable[int]:
        try:
            return [int(link.name) for link in _OWN.iterdir()]
        except OSError:
            return range(self.limit())

    def _address(self, descriptor: int) -> str:
        """Return who is at the other end of a socket; nobody's is empty."""
        with contextlib.suppress(OSError), _borrowed(descriptor) as found:
            if is_of(found, self._port):
                return address_of(found.getpeername())
        return ""


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Give a socket of somebody else, who goes on with it."""
    found = socket.socket(fileno=descriptor)
    try:
        yield found
    finally:
        found.detach()


def _passed(connection: socket.socket) -> Passed:
    """Ask the kernel; what it has received and this process has not read is not counted."""
    size = _COUNTERS_AT + _COUNTERS.size
    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    sent, received = _COUNTERS.unpack_from(told, _COUNTERS_AT)
    (unread,) = struct.unpack("@i", fcntl.ioctl(connection, termios.FIONREAD, bytes(4)))
    return Passed(received - unread, sent)
