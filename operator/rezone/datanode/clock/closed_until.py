"""The newest closed timestamp a replica knows, and the offset below which all stands of then."""


class ClosedUntil:
    """A closed timestamp and its offset; guarded by the replica's lock."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.time = 0

    def take(self, end_offset: int, time: int) -> None:
        """Know a newer one."""
        self.end_offset, self.time = end_offset, time

    def time_at(self, applied: int) -> int:
        """Return up to when a replica that has applied and committed so much may be read."""
        return self.time if applied >= self.end_offset else 0

    def forget(self) -> None:
        """Take nothing of another leadership for this one's, which may have other rows there."""
        self.end_offset = self.time = 0
