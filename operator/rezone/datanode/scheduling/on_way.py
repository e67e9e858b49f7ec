"""The answers of one connection that its client has not read yet, as far as the node knows.

A thread that must not block sends only what fits beside them into the smallest window that a
connection has. The client tells with its requests how many answers it has read.

Concurrency: one thread at a time sends, one at a time tells of what was read; any may ask.
"""

from collections import deque

UNREAD_ANSWERS_MAX = 64
"""At most so many answers may be on their way when a thread sends that must not block."""

UNREAD_BYTES_MAX = 32 << 10
"""And so many bytes of bodies: half of the smallest window, the headers are a part of the rest."""


class OnWay:
    """Counts answers, and the bytes of their bodies."""

    def __init__(self) -> None:
        self._sent = 0
        self._read = 0
        # The bytes of all that was sent up to each of the last answers, and up to the one before.
        self._totals = deque([0], maxlen=UNREAD_ANSWERS_MAX + 1)

    def sent(self, size: int) -> None:
        """Note an answer that was sent."""
        self._totals.append(self._totals[-1] + size)
        self._sent += 1

    def read(self, count: int) -> None:
        """Note how many answers the client says that it has read.

        What it says that it was never sent would make room that is not there.
        """
        self._read = max(self._read, min(count, self._sent))

    def has_room(self, size: int) -> bool:
        """Whether an answer with so many bytes fits beside those that are not read."""
        unread = self._sent - self._read
        if unread >= UNREAD_ANSWERS_MAX:
            return False
        return self._totals[-1] - self._totals[-1 - unread] + size <= UNREAD_BYTES_MAX
