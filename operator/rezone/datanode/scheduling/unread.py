"""Who does not read what it is sent is cut off; a thread that sends inline is back within a second.

A send blocks while the other side's window is closed, and Flight can neither tell nor give up. So
each send is timed: by the outbox's own thread it may take `unread_ms_max`, and longer for many
bytes; by one that sends inline, which others wait for, `INLINE_SECONDS_MAX`. After that the
connection's socket is shut down, and the send fails. Threads send inline only what fits into the
smallest window there is (`data`, `producer`): who blocks one has made its window smaller, and no
thread sends inline to that peer again for `DISTRUST_SECONDS`.

Concurrency: thread-safe. One thread looks; a channel notes its sends without a lock.
"""

import threading
from collections.abc import Callable
from typing import NamedTuple, Protocol

import structlog

from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.settings import Clock

_log = structlog.get_logger(__name__)

INLINE_SECONDS_MAX = 1.0
"""A machine that is busy sends late, but not so late: what is sent inline has room."""

BYTES_PER_SECOND_MIN = 1 << 20
"""A large answer may take longer, by its bytes: so slow may a client's connection be."""

DISTRUST_SECONDS = 3600.0
_DISTRUSTED_MAX = 1_000
_LOOK_SECONDS = 0.1


class Peer:
    """The other side of one connection: `name` is its certificate's, or where it comes from.

    `identity` is the certificate's alone.
    """

    def __init__(
        self, name: str, unread: "Unread", cut: Callable[[], None], identity: str = ""
    ) -> None:
        self.name = name
        self.identity = identity
        self._unread = unread
        self._cut = cut
        self.sending_bytes = 0

    @property
    def trusted(self) -> bool:
        """Whether a thread that others need may send to it."""
        return self._unread.trusts(self.name)

    def sends(self, size: int) -> None:
        """Note that what is sent next has so many bytes."""
        self.sending_bytes = size

    def cut(self) -> None:
        """End the connection; what is under way on it fails."""
        self._cut()


class Sending(Protocol):
    """What sends to a peer; `sending_since` is when the present send began (monotonic)."""

    sending_since: float | None


class _Watched(NamedTuple):
    peer: Peer
    is_inline: Callable[[], bool]
    seconds_max: float


class Unread:
    """Looks at all that send to others' connections."""

    def __init__(self, clock: Clock, unread_ms_max: int, stopping: threading.Event) -> None:
        self._clock = clock
        self._seconds_max = unread_ms_max / 1000
        self._stopping = stopping
        self._lock = threading.Lock()
        self._watched: dict[Sending, _Watched] = {}
        self._distrusted: dict[str, float] = {}
        self.cut_off = 0

    def trusts(self, name: str) -> bool:
        """Whether a peer has blocked no inline send lately."""
        if not self._distrusted:
            return True
        until = self._distrusted.get(name)
        return until is None or until < self._clock.monotonic()

    def peer(self, name: str, cut: Callable[[], None], identity: str = "") -> Peer:
        """Return the other side of a new connection."""
        return Peer(name, self, cut, identity)

    def watch(
        self,
        channel: Sending,
        peer: Peer,
        is_inline: Callable[[], bool] = lambda: False,
        seconds_max: float | None = None,
    ) -> None:
        """Look at a channel's sends until it is forgotten; `is_inline`: of the present one."""
        most = self._seconds_max if seconds_max is None else seconds_max
        with self._lock:
            self._watched[channel] = _Watched(peer, is_inline, most)

    def forget(self, channel: Sending) -> None:
        """Look at a channel no more; without the lock, as a garbage collection may come here."""
        self._watched.pop(channel, None)

    def run(self) -> None:
        """Look until the node stops; by a thread of its own."""
        while not self._stopping.wait(_LOOK_SECONDS):
            with UNEXPECTED.surviving("look who does not read"):
                self.look(self._clock.monotonic())

    def look(self, now: float) -> None:
        """Cut off whom a send has waited for too long."""
        with self._lock:
            watched = list(self._watched.items())
        for channel, (peer, is_inline, seconds_max) in watched:
            since = channel.sending_since
            if since is None:
                continue
            inline = is_inline()
            slow = peer.sending_bytes / BYTES_PER_SECOND_MIN
            most = INLINE_SECONDS_MAX if inline else seconds_max + slow
            # Another send by now: `inline` may have been that one's.
            if now - since < most or channel.sending_since != since:
                continue
            if inline:
                self._distrust(peer.name, now)
            self.cut_off += 1
            self.forget(channel)
            _log.warning("cut off: it does not read", peer=peer.name, seconds=round(now - since, 1))
            peer.cut()

    def _distrust(self, name: str, now: float) -> None:
        with self._lock:
            if len(self._distrusted) >= _DISTRUSTED_MAX:
                self._distrusted.pop(next(iter(self._distrusted)))
            self._distrusted[name] = now + DISTRUST_SECONDS
