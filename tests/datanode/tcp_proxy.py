"""A TCP proxy on loopback that can forget what a network forgets: data, ends, and to say so.

Bytes go both ways between each caller and the node behind it. `cut` makes the connections that
are open forward nothing any more, while neither end hears of it, and `cut_answers` nothing that the
node sends; the proxy still acknowledges everything, as a process that hangs does. `vanish` makes
it acknowledge nothing any more, as a machine that is gone. `end_behind` closes the node's ends
only, so that the callers' are half-open; `lets_in` says whether new connections are made, and
`answer_bytes_max` after how many bytes of the node a new one is cut.

Concurrency: two threads a connection, one that accepts; the lock guards the table.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import threading
import time

_SO_ATTACH_FILTER = 26
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)  # a program of one instruction: keep 0 bytes
_DROP_ALL = ctypes.create_string_buffer(_DROP, len(_DROP))


class _Pair:
    """One connection through the proxy."""

    def __init__(self, caller: socket.socket, node: socket.socket, answer_bytes_max: float) -> None:
        self.caller = caller
        self.node = node
        self._answer_bytes_max = answer_bytes_max
        self._answer_bytes = 0
        self.cut = threading.Event()
        self.cut_answers = threading.Event()
        self.passed_at = time.monotonic()
        ways = ((caller, node, (self.cut,)), (node, caller, (self.cut, self.cut_answers)))
        self._threads = [
            threading.Thread(target=self._forward, args=way, daemon=True) for way in ways
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End both ends."""
        for end in (self.caller, self.node):
            _end(end)
        for thread in self._threads:
            thread.join()
        self.caller.close()
        self.node.close()

    def vanish(self) -> None:
        """Let the kernel drop all that comes from now on, unacknowledged."""
        program = struct.pack("HL", 1, ctypes.addressof(_DROP_ALL))
        for end in (self.caller, self.node):
            end.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)

    def _forward(
        self, source: socket.socket, target: socket.socket, cuts: tuple[threading.Event, ...]
    ) -> None:
        """Pass bytes on until an end closes or the connection is cut, which drops what comes."""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not any(cut.is_set() for cut in cuts):
                    target.sendall(data)
                    self.passed_at = time.monotonic()
                if source is self.node:
                    self._answer_bytes += len(data)
                    if self._answer_bytes >= self._answer_bytes_max:
                        self.cut.set()
        if not any(cut.is_set() for cut in cuts):
            for end in (self.caller, self.node):
                _end(end)


def _end(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


class Proxy:
    """Listens on a port of its own for one address; `close` ends all."""

    def __init__(self, behind: str) -> None:
        host, _, port = behind.rpartition(":")
        self._behind = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._lost: list[_Pair] = []
        self.lets_in = True
        self.answer_bytes_max = float("inf")
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Forward nothing more on what is open, and tell nobody."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
            self._lost += pairs
        for pair in pairs:
            pair.cut.set()

    def ports(self) -> set[int]:
        """Return the ports from which the open connections to the node come."""
        with self._lock:
            return {pair.node.getsockname()[1] for pair in self._pairs}

    def quiet(self, seconds: float) -> bool:
        """Whether nothing has been forwarded for so long."""
        with self._lock:
            return all(time.monotonic() - pair.passed_at > seconds for pair in self._pairs)

    def cut_answers(self) -> None:
        """Forward nothing more that the node sends on what is open, and tell nobody."""
        with self._lock:
            for pair in self._pairs:
                pair.cut_answers.set()

    def vanish(self) -> None:
        """Be gone for what is open: nothing that either end sends is acknowledged."""
        with self._lock:
            pairs = list(self._pairs)
        self.cut()
        for pair in pairs:
            pair.vanish()

    def end_behind(self) -> None:
        """Close the node's ends of what is open; the callers are never told."""
        with self._lock:
            pairs = list(self._pairs)
        self.cut()
        for pair in pairs:
            _end(pair.node)

    def end_all(self) -> None:
        """Close both ends of what is open, as a machine does that restarts."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.close()

    def close(self) -> None:
        """End everything."""
        self.lets_in = False
        _end(self._listening)
        self._thread.join()
        self._listening.close()
        for pair in [*self._pairs, *self._lost]:
            pair.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                if not self.lets_in:
                    caller.close()
                    continue
                self._join(caller)

    def _join(self, caller: socket.socket) -> None:
        try:
            node = socket.create_connection(self._behind, 5)
        except OSError:
            caller.close()
            return
        with self._lock:
            self._pairs.append(_Pair(caller, node, self.answer_bytes_max))
