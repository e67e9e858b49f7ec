"""SIGTERM and SIGINT as something the main thread can wait for, whichever thread gets them.

The kernel gives a signal of the process to any thread that does not block it, and libraries start
threads that nobody asked them to. A handler of Python's runs in the main thread, but nothing wakes
that one when another thread has got the signal and it waits for a lock, as `Event.wait` does. So
the handler in C, which runs where the signal came, writes to a socket that the main thread reads.
"""

import select
import signal
import socket
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes over the stop signals of the process; to be made once, by the main thread."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        # A handler must not wait, and a socket that is full has enough to wake somebody.
        self._write.setblocking(False)  # noqa: FBT003 - the method's own argument
        for number in STOP_SIGNALS:
            signal.signal(number, _written_down)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next one, for ever without `seconds`; returns whether there was one."""
        readable, _, _ = select.select([self._read], [], [], seconds)
        if readable:
            self._read.recv(1)
        return bool(readable)


def _written_down(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the socket has it already."""
