"""Which nodes answer nothing just now, and which partitions are asked after at others.

A machine that is lost refuses no request and breaks no connection: whoever waits for the end of an
attempt learns of the new leader that much later. Not thread-safe: its user locks.
"""

from collections.abc import Iterable, Sequence

from rezone.client.requests.request import Request
from rezone.wire.messages import PartitionId

SUSPECTED_MAX = 256
"""How many partitions are asked after at once; the others' turn comes with their next suspicion."""


class Suspects:
    """Notes requests whose node says nothing, to anybody: each time `after_seconds` have passed."""

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._partitions: set[PartitionId] = set()
        self._silent_at: dict[str, float] = {}

    def __bool__(self) -> bool:
        """Whether there is something to ask."""
        return bool(self._partitions)

    def look(self, requests: Iterable[Request], now: float) -> None:
        """Look through the requests under way."""
        for request in requests:
            node = request.connection
            if node is None:
                continue
            if node.received != request.frames_seen:
                request.frames_seen, request.silent_since = node.received, now
            elif now - request.silent_since >= self._after_seconds * (request.suspicions + 1):
                request.suspicions += 1
                self._silent_at[node.address] = now
                if len(self._partitions) < SUSPECTED_MAX:
                    self._partitions.add(request.partition)

    def take(self) -> tuple[PartitionId, ...]:
        """Return what is to be asked after now."""
        taken = tuple(sorted(self._partitions))
        self._partitions.clear()
        return taken

    def silent_last(self, addresses: Sequence[str]) -> list[str]:
        """Return the addresses, those that were suspected behind the others."""
        self._silent_at = {a: self._silent_at[a] for a in addresses if a in self._silent_at}
        return sorted(addresses, key=lambda address: self._silent_at.get(address, float("-inf")))
