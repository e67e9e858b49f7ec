"""The lowest time that a replica may give a row: what was read at, or promised, stays below it.

A leader gives each write a commit time later than every time that was read at, that was closed
(`closed_timestamp`), or that an earlier leader has promised. All of these meet in one number, the
floor. It has one owner, and it can only rise: no rollback, copy or empty beginning lowers it,
because a reader may have been told of a time before it. A replica that is opened again starts with
a new `WriteClock`, at the highest floor that its disk, its node and its last life know of.

Times are microseconds since 1970. Pure: the caller reads the node's clock, and holds the
partition's lock.
"""


class WriteClock:
    """The floor of one replica, and the times that follow from it; it begins above all `bounds`."""

    __slots__ = ("_floor",)

    def __init__(self, *bounds: int) -> None:
        self._floor = max(bounds, default=0)

    @property
    def floor(self) -> int:
        """The latest time that no later row may get, nor any time before it."""
        return self._floor

    def raise_to(self, time: int) -> None:
        """Give no row this time or an earlier one; an earlier floor changes nothing."""
        self._floor = max(self._floor, time)

    def next_time(self, now: int, last_commit_time: int) -> int:
        """Return the commit time of the next row, `now` by the node's clock.

        It is the earliest one that is later than the floor and than the last row of the log.
        """
        return max(now, last_commit_time + 1, self._floor + 1)


def latest_promise(now: int | None, told: float) -> int:
    """Return the latest time that may be promised: it is over here, and known to all others.

    0 for none: `now` is None while the node does not know the time. `told` is the latest time that
    all who may lead next know of, infinite where nobody else may lead.
    """
    return 0 if now is None else int(min(now - 1, told))
