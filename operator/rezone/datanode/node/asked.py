"""One request of a data channel: it has one answer, and an exception is one as well.

Whoever works for a request does so `with` it: what is raised then becomes its answer. What comes
after the first answer is dropped and counted, for the client has forgotten the request by then.

Concurrency: any threads, at once too.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rezone.datanode.scheduling.error_log import UNEXPECTED
from rezone.datanode.scheduling.requests import Request
from rezone.wire.errors import RezoneError
from rezone.wire.messages import Failure, Message

Send = Callable[[Message, Request, bytes], None]
"""Sends an answer, and counts its request as answered."""


class Asked:
    """A request that is under way; `name` is its type's, for the log."""

    __slots__ = ("_left", "_name", "_opaque", "_send", "_taken")

    def __init__(self, name: str, opaque: int, taken: Request, send: Send) -> None:
        self._name = name
        self._opaque = opaque
        self._taken = taken
        self._send = send
        # Who takes the one that is left answers: taking it is one step, and no lock.
        self._left = [None]

    def answer(self, outcome: Message | RezoneError, body: bytes = b"") -> None:
        """Answer it; never blocks, and the calling thread may hold a partition's lock."""
        if not self._settle(outcome, body):
            UNEXPECTED.note(f"a second answer to a {self._name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        if isinstance(error, RezoneError):
            self._settle(error)
            return True
        if kind is None or not issubclass(kind, Exception):
            return False
        UNEXPECTED.failed(f"a {self._name}")
        self._settle(RezoneError("internal error; the data node's log says more"))
        return True

    def _settle(self, outcome: Message | RezoneError, body: bytes = b"") -> bool:
        try:
            self._left.pop()
        except IndexError:
            return False
        if isinstance(outcome, RezoneError):
            outcome = Failure(opaque=self._opaque, error=outcome.info())
        self._send(outcome, self._taken, body)
        return True
