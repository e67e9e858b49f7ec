"""Turns at data nodes: when calls that have waited for their partition's request are sent.

A request costs data nodes as much as some fifty rows of one (docs/decisions/0520). So the calls
that have come while a request of their partition was under way wait for a turn: until no other
request of these turns is under way at their leader. More calls come meanwhile, and share theirs.
They wait no longer than a request takes there, which is looked at when one ends, and by `look`
where none does. Who has not waited for a request of its partition goes at once.

Concurrency: any thread may call. `send` is called without the lock, by whichever thread has made
room, and never from within another `send` of its node.
"""

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from rezone.wire.messages import PartitionId

WEIGHT = 0.2
"""How much the latest request counts in what a request takes."""


class Turn(NamedTuple):
    """A request that is under way, since when by the client's clock."""

    node: "_Node"
    since: float


Send = Callable[[Turn], None]
"""Sends a request; the turn ends (`Turns.end`) when it is answered, or was not sent."""


@dataclasses.dataclass(eq=False)
class _Node:
    """The requests at one data node; `seconds` is what one takes, 0 before any has ended."""

    under_way: int = 0
    seconds: float = 0.0
    waiting: deque[tuple[float, Send]] = dataclasses.field(default_factory=deque)
    is_sending: bool = False

    def take(self, now: float) -> Send | None:
        """Take out who waits and may be sent; None when there is nobody."""
        if not self.waiting:
            return None
        since, send = self.waiting[0]
        if self.under_way and now - since < self.seconds:
            return None
        self.waiting.popleft()
        return send

    def note(self, seconds: float) -> None:
        """Note what a request took; one that hung may not make others wait for long."""
        if not self.seconds:
            self.seconds = seconds
        self.seconds += WEIGHT * (min(seconds, 2 * self.seconds) - self.seconds)


class Turns:
    """The turns of one kind of request; `leader` says where a partition's requests go."""

    def __init__(self, leader: Callable[[PartitionId], str], clock: Callable[[], float]) -> None:
        self._leader = leader
        self._clock = clock
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}

    def begin(self, partition: PartitionId) -> Turn:
        """Begin at once."""
        leader = self._leader(partition)
        with self._lock:
            node = self._nodes.setdefault(leader, _Node())
            node.under_way += 1
        return Turn(node, self._clock())

    def apart(self) -> Turn:
        """Begin a request that nobody waits for: its rows are what takes long."""
        return Turn(_Node(under_way=1), self._clock())

    def wait(self, partition: PartitionId, send: Send) -> None:
        """Have `send` called when it is its turn: now, or later by another thread."""
        leader = self._leader(partition)
        with self._lock:
            node = self._nodes.setdefault(leader, _Node())
            node.waiting.append((self._clock(), send))
        self._send(node)

    def end(self, turn: Turn) -> None:
        """End a turn: the next one begins."""
        node = turn.node
        with self._lock:
            node.under_way -= 1
            node.note(self._clock() - turn.since)
        self._send(node)

    def look(self) -> None:
        """Send for those who have waited for long enough, where no request ends."""
        with self._lock:
            nodes = [node for node in self._nodes.values() if node.waiting]
        for node in nodes:
            self._send(node)

    def _send(self, node: _Node) -> None:
        """Send for all whose turn it is; who is called by `send` leaves it to the caller."""
        with self._lock:
            if node.is_sending:
                return
            node.is_sending = True
        while True:
            with self._lock:
                now = self._clock()
                send = node.take(now)
                if send is None:
                    node.is_sending = False
                    return
                node.under_way += 1
            try:
                send(Turn(node, now))
            except BaseException:
                with self._lock:
                    node.is_sending = False
                raise
