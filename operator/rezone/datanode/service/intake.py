"""What callers have sent and no call has taken: messages that are not whole are kept in memory.

gRPC asks for a message's limit once all of it is there, up to 4 GiB each. So the kernel is asked
how much has come by each connection, and calls say what they have taken of it. Whatever is
between the two is unfinished; while all of it is too much, the connections with most are cut off.

Concurrency: `taken` may be told from any thread; one thread counts.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping

from rezone.wire.transport.callers import Passed

CALL_BYTES = 1024
"""What a call takes beside its messages, about: its headers."""

_MESSAGE_BYTES = 128
_SHARE = 64
"""For what HTTP/2 and TLS put around a message: so many bytes, and that part of it."""

_OTHER_BYTES_PER_SECOND = 16 << 10
"""Pings of a connection, and the like."""

Taken = Callable[[int], None]


class Unfinished:
    """The account of one connection."""

    def __init__(self, passed: Passed) -> None:
        self.size = 0
        self._passed = passed

    def count(self, passed: Passed, taken: deque[int], seconds: float) -> int:
        """Take in what has come since the last time; returns how much is unfinished."""
        before, self._passed = self._passed, passed
        whole = 0
        while taken:
            size = taken.popleft()
            whole += size + size // _SHARE + _MESSAGE_BYTES
        # Who is sent something opens its window for more, in proportion.
        other = (passed.sent - before.sent) // _SHARE + int(_OTHER_BYTES_PER_SECOND * seconds)
        self.size = max(0, self.size + passed.received - before.received - whole - other)
        return self.size


class Intake:
    """The accounts of all connections of a port, by their addresses."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._accounts: dict[str, Unfinished] = {}
        self._taken: dict[str, deque[int]] = {}
        self._counted = 0.0

    def taken(self, address: str) -> Taken:
        """Return what a call tells the sizes of messages that it has taken."""
        return self._taken.setdefault(address, deque()).append

    def forget(self, address: str) -> None:
        """Keep nothing of a connection that is gone."""
        self._taken.pop(address, None)

    def count(self, passed: Mapping[str, Passed], now: float) -> Iterator[str]:
        """Yield the addresses of connections to cut off; `passed` is what all have."""
        seconds, self._counted = now - self._counted, now
        for address in self._accounts.keys() - passed.keys():
            del self._accounts[address]
        total = 0
        for address, bytes_ in passed.items():
            account = self._accounts.setdefault(address, Unfinished(Passed(0, 0)))
            total += account.count(bytes_, self._taken.get(address, deque()), seconds)
        for address in sorted(passed, key=lambda each: -self._accounts[each].size):
            if total <= self._bytes_max:
                return
            total -= self._accounts[address].size
            yield address
