"""What is to be sent on a channel leaves by one thread at a time: the asking one, or its own.

A frame that waits for a thread to wake up costs more than the frame. So whoever asks may send
itself, if it holds no lock and the owner says that sending cannot block now (`may_send_here`):
little enough is on its way that it fits into the connection's window even if the other side has
stopped reading. All else is sent by the outbox's thread, which may wait.

`inline` says that it is another one's, for a send that blocks: a thread that others need is not to
wait long (`unread`).

Concurrency: `ask` is safe from any thread. `send_next` is never called twice at once; it sends
one thing, or returns False when there is nothing. Nothing asked for is forgotten: whoever sends
looks again before it stops.
"""

import enum
import queue
import threading
from collections.abc import Callable

from rezone.datanode.scheduling import inline_sends
from rezone.datanode.scheduling.error_log import UNEXPECTED


class _Wake(enum.Enum):
    """What the outbox's thread wakes up for."""

    SEND = enum.auto()
    END = enum.auto()


class Outbox:
    """Sends in turn what its owner has."""

    def __init__(
        self,
        name: str,
        *,
        send_next: Callable[[], bool],
        may_send_here: Callable[[], bool],
    ) -> None:
        self._send_next = send_next
        self._may_send_here = may_send_here
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._wakes: queue.SimpleQueue[_Wake] = queue.SimpleQueue()
        self._busy = False
        self._asked = False
        self._waking = False
        self._closed = False
        self.inline = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self, *, here: bool = False) -> None:
        """Have `send_next` called until it has nothing; `here`: by this thread, if it may."""
        with self._lock:
            self._asked = True
            if self._busy or self._closed:
                return
            if not here:
                self._wake()
                return
            self._busy = True
        self._drain(self._may_send_here, inline=True)

    def ask_unlocked(self) -> None:
        """Have `send_next` called by this thread once it holds no lock, or by the outbox's own."""
        if not inline_sends.note(self._ask_here):
            self.ask()

    def _ask_here(self) -> None:
        self.ask(here=True)

    def close(self) -> None:
        """Send what there is and end; afterwards nothing is sent any more."""
        with self._lock:
            self._wake()
            self._wakes.put(_Wake.END)
        self._thread.join()
        with self._lock:
            self._closed = True
            while self._busy:
                self._idle.wait()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._wakes.put(_Wake.SEND)

    def _run(self) -> None:
        while self._wakes.get() is not _Wake.END:
            with self._lock:
                self._waking = False
                if self._busy:
                    continue
                self._busy = True
            with UNEXPECTED.surviving("send"):
                self._drain(lambda: True, inline=False)

    def _drain(self, may_go_on: Callable[[], bool], *, inline: bool) -> None:
        done = False
        self.inline = inline
        try:
            while not done:
                with self._lock:
                    self._asked = False
                stopped = False
                while not (stopped := not may_go_on()) and self._send_next():
                    pass
                with self._lock:
                    done = stopped or not self._asked
                    if done:
                        self._rest(unsent=stopped)
        finally:
            if not done:
                with self._lock:
                    self._rest(unsent=False)

    def _rest(self, *, unsent: bool) -> None:
        self._busy = False
        self._idle.notify_all()
        if unsent:
            self._wake()
