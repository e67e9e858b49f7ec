"""Answers are sent by the thread that has made them, but not before it has let its locks go.

A thread that is about to hold locks of partitions opens a `scope`; what is to be sent meanwhile is
noted, and sent at the scope's end or where the thread says that it holds none (`send_now`). Without
a scope the outbox's own thread sends. So nobody waits for a network with a partition's lock held.

Concurrency: what is noted is the thread's own.
"""

import contextlib
import threading
from collections.abc import Callable

from rezone.datanode.scheduling.error_log import UNEXPECTED


class _InlineSends(threading.local):
    """What the present thread has noted, and in how many scopes it is; a scope is entering it."""

    def __init__(self) -> None:
        self.depth = 0
        self._due: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *raised: object) -> None:
        self.depth -= 1
        if not self.depth and self._due:
            self.send()

    def note(self, send: Callable[[], None]) -> bool:
        if self.depth and send not in self._due:
            self._due.append(send)
        return self.depth > 0

    def send(self) -> None:
        while self._due:
            due, self._due = self._due, []
            for send in due:
                with UNEXPECTED.surviving("send"):
                    send()


_inline_sends = _InlineSends()


def scope() -> contextlib.AbstractContextManager[None]:
    """Send at the end what is noted until then; a scope in another one leaves that to it."""
    return _inline_sends


def note(send: Callable[[], None]) -> bool:
    """Have something sent by this thread; whether it will, which it does not without a scope."""
    return _inline_sends.note(send)


def send_now() -> None:
    """Send what was noted; the calling thread holds no lock."""
    _inline_sends.send()
