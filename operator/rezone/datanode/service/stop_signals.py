"""SIGTERM and SIGINT as something the main thread can wait for, whichever thread gets them.

The kernel gives a signal of the process to any thread that does not block it, and libraries start
threads that nobody asked them to. A handler of Python's runs in the main thread, but nothing wakes
that one when another thread has got the signal and it waits for a lock, as `Event.wait` does. So
the handler in C, which runs where the signal came, writes to a socket that the main thread reads.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType

STACKS_SIGNAL = signal.SIGUSR1
"""Has the main thread write what each thread does to stderr: `kill -USR1`, for a node that hangs.

It is Python's handler, which holds the interpreter's lock. That of `faulthandler` looks at other
threads while they run and end, and a node whose streams broke off at that moment died of it.
"""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Takes over the signals of the process; to be made once, by the main thread.

    `stacks` tells what each thread does now.
    """

    def __init__(self, stacks: Callable[[], str]) -> None:
        self._stacks = stacks
        self._writes = False
        self._read, self._write = socket.socketpair()
        # A handler must not wait, and a socket that is full has enough to wake somebody.
        self._write.setblocking(False)  # noqa: FBT003 - the method's own argument
        for number in STOP_SIGNALS:
            signal.signal(number, _written_down)
        signal.signal(STACKS_SIGNAL, self._write_stacks)
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next one, for ever without `seconds`; returns whether there was one."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            readable, _, _ = select.select([self._read], [], [], left)
            if not readable:
                return False
            if self._read.recv(1) != bytes([STACKS_SIGNAL]):
                return True

    def _write_stacks(self, _number: int, _frame: FrameType | None) -> None:
        """Write the stacks; by the descriptor, since the signal may have come within a print.

        A signal that comes meanwhile calls this within itself, and the next one within that: a
        process that was sent many would end of their depth.
        """
        if self._writes:
            return
        self._writes = True
        try:
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, self._stacks().encode())
        finally:
            self._writes = False


def _written_down(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: the socket has it already."""
