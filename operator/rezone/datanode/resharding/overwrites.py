"""Which overwrite of its zone a node is asked for (docs/decisions/0500).

A driver tells every node the name of its overwrite, again and again while it lives. The node keeps
that in memory and says it in its report, by which the operator begins an overwrite, and gives up
one that nobody asks for. The zone's configuration says how far the overwrite is.

Concurrency: `ask` runs in the Flight threads of the calls.
"""

import threading
from collections.abc import Callable
from typing import Final

from rezone.datanode.settings import Clock
from rezone.wire.errors import ConflictError, LimitExceededError
from rezone.wire.layouts import next_layout_of
from rezone.wire.messages import AskOverwrite, OverwriteProgress, ZoneConfig

ASKED_SECONDS: Final = 10.0
"""For how long an overwrite counts as asked for: drivers ask every 3 seconds."""

OVERWRITE_SILENT_SECONDS: Final = 600.0
"""After how long without being asked a node says that nobody asks any more."""

NAME_CHARACTERS_MAX: Final = 200


class Overwrites:
    """The answers of one node; `changed` is called when its report has.

    `zone` raises NotReadyError while the node has no zone. `time` is the node's in microseconds
    since 1970, None while it does not know it.
    """

    def __init__(
        self,
        zone: Callable[[], ZoneConfig],
        clock: Clock,
        changed: Callable[[], object],
        *,
        time: Callable[[], int | None] | None = None,
    ) -> None:
        self._zone = zone
        self._clock = clock
        self._time = time or clock.micros
        self._changed = changed
        self._lock = threading.Lock()
        self._name = ""
        # A node that has just begun may have been asked a moment before.
        self._asked_at = clock.monotonic()
        self._told = ("", False)

    def ask(self, request: AskOverwrite) -> OverwriteProgress:
        """Say how far overwrites are, and remember the one that is asked for unless it is done.

        ConflictError while the zone is re-sharded, or overwritten by another name, and when this
        one was cancelled; LimitExceededError for no name, or a longer one than may be.
        """
        if not 0 < len(request.name) <= NAME_CHARACTERS_MAX:
            raise LimitExceededError(
                f"the name of an overwrite has 1 to {NAME_CHARACTERS_MAX} characters"
            )
        config = self._zone()
        if config.cancelled_overwrite == request.name:
            raise ConflictError(f"the overwrite {request.name} was cancelled; ask by another name")
        known = {config.next_filled_by, config.filled_by}  # done, while old partitions stand
        if config.next_partitions and request.name not in known:
            by = (
                f"overwritten by {config.next_filled_by}" if config.next_filled_by else "re-sharded"
            )
            raise ConflictError(f"the zone is being {by}; ask again when that is over")
        if request.begin and config.filled_by != request.name:
            with self._lock:
                self._name, self._asked_at = request.name, self._clock.monotonic()
            self.tick()
        next_layout = next_layout_of(config)
        return OverwriteProgress(
            partitions=config.partitions,
            generation=config.generation,
            next_partitions=config.next_partitions,
            next_generation=next_layout.generation if next_layout is not None else 0,
            next_filled_by=config.next_filled_by,
            filled_by=config.filled_by,
            time=self._time() or 0,
        )

    @property
    def asked(self) -> str:
        """The name of the overwrite that is asked for, empty for none."""
        with self._lock:
            return self._name if self._age < ASKED_SECONDS else ""

    @property
    def silent(self) -> bool:
        """Whether nobody has asked for any for a long time."""
        with self._lock:
            return self._age >= OVERWRITE_SILENT_SECONDS

    @property
    def _age(self) -> float:
        return self._clock.monotonic() - self._asked_at

    def tick(self) -> None:
        """Have the node's report told where it has changed."""
        news = (self.asked, self.silent)
        with self._lock:
            same, self._told = news == self._told, news
        if not same:
            self._changed()
