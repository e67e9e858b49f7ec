"""Who has connected and is nobody yet: few of them, not for long, and never the last descriptors.

A connection is a stranger's until a call on it was let in (`welcome`), whatever it has shown or
sent until then: nothing, a handshake, headers one byte at a time. Strangers that are too old are
cut off, those of one address that are too many, and, when the node has few descriptors left for its
own files, the oldest of all; then the newest connections of the address that has most. Whoever
sends most that becomes no message is cut off when all of it is too much (`intake`).

Concurrency: `welcome` is safe from any thread; one thread looks.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from rezone.datanode.scheduling.error_log import REFUSED, UNEXPECTED
from rezone.datanode.service.intake import Intake, Taken
from rezone.datanode.settings import Clock, NodeSettings
from rezone.wire.transport.callers import Callers, Passed
from rezone.wire.transport.sockets import plain

LOOK_SECONDS = 1.0
CHECK_SECONDS = 0.1
"""How often it is looked whether descriptors are left, and memory: a microsecond each."""

GROWN_BYTES = 32 << 20
"""The process has so much more memory than when connections were looked at: they are again."""

_RESERVE_SHARE = 4
"""At most such a part of the process's descriptors is reserved: where it has few, some clients are
to be served too."""


class Connections(Protocol):
    """What `Callers` is of one port."""

    def look(self) -> list[str]:
        """Return the addresses of all."""
        ...

    def cut(self, address: str) -> None:
        """End one."""
        ...

    def passed(self) -> dict[str, Passed]:
        """Return what has passed by each that was seen."""
        ...

    def left(self) -> int:
        """Return how many descriptors are left."""
        ...

    def limit(self) -> int:
        """Return how many there may be."""
        ...


class Door:
    """Looks at the connections of a node's port."""

    def __init__(self, settings: NodeSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._welcome: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._intake = Intake(settings.unfinished_bytes_max)
        self._closed = threading.Event()

    def welcome(self, caller: str) -> Taken:
        """Note that a call was let in; returns what it tells the sizes of messages it takes.

        `caller` is as gRPC writes it.
        """
        address = self._welcome.get(caller)
        if address is None:
            address = self._welcome[caller] = plain(caller)
        return self._intake.taken(address)

    def start(self, port: int) -> None:
        """Look until it is closed, by a thread of its own."""
        threading.Thread(target=self._run, args=(port,), name="door", daemon=True).start()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _run(self, port: int) -> None:
        callers = Callers(port)
        due, memory = 0.0, 0
        while not self._closed.wait(CHECK_SECONDS):
            with UNEXPECTED.surviving("look who has connected"):
                now = self._clock.monotonic()
                grown = callers.memory() - memory > GROWN_BYTES
                if now >= due or grown or callers.left() < self._reserve(callers):
                    due, memory = now + LOOK_SECONDS, callers.memory()
                    self.look(callers, now)
        callers.close()

    def look(self, connections: Connections, now: float) -> None:
        """Cut off who may not stay."""
        before = list(self._welcome)
        addresses = connections.look()
        connected = set(addresses)
        for caller in before:
            if self._welcome[caller] not in connected:
                self._intake.forget(self._welcome.pop(caller))
        known = set(self._welcome.values())
        self._since = {address: self._since.get(address, now) for address in addresses}
        strangers = sorted((a for a in addresses if a not in known), key=self._since.__getitem__)
        cut = set(self._unwanted(strangers, now))
        reserve, left = self._reserve(connections), connections.left() + len(cut)
        if left < reserve:
            # More than is missing: who waits to be accepted takes what is let go.
            missing = 2 * reserve - left
            rest = [a for a in strangers if a not in cut]
            cut.update(rest[:missing])
            cut.update(self._newest(known & connected, missing - len(rest)))
        for address in cut:
            REFUSED.note(_host(address), reason="connections without a call, or too many of them")
            connections.cut(address)
        for address in self._intake.count(connections.passed(), now):
            REFUSED.note(_host(address), reason="too much of messages that are not whole")
            connections.cut(address)

    def _unwanted(self, strangers: list[str], now: float) -> Iterator[str]:
        """Yield those that are too old, and of the others what is too much of one address."""
        oldest = now - self._settings.stranger_ms_max / 1000
        count = Counter(_host(address) for address in strangers)
        for address in strangers:
            host = _host(address)
            if self._since[address] <= oldest or count[host] > self._settings.strangers_address_max:
                count[host] -= 1
                yield address

    def _newest(self, known: Iterable[str], count: int) -> list[str]:
        """Return the newest connections of the address that has most."""
        if count <= 0 or not known:
            return []
        (host, _), *_ = Counter(_host(address) for address in known).most_common(1)
        own = sorted((a for a in known if _host(a) == host), key=self._since.__getitem__)
        return own[1:][-count:]

    def _reserve(self, connections: Connections) -> int:
        return min(self._settings.descriptors_reserved, connections.limit() // _RESERVE_SHARE)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
