"""Whether the other end of a connection is still there: heartbeats, and a deadline at both ends.

A network that is cut tells nobody: what says that a connection is over may be lost with all else,
and then one end waits on it for ever. So each end sends something at least every `heartbeat_ms`,
as a `Heartbeat` when there is nothing else, and gives up an other end that it has heard nothing of
for `silent_ms_max`, though it listened. Pings of HTTP/2 cannot take their place: Flight's
servers hang up on clients that ping often, and a process that hangs answers them.

Only the time spent listening counts: who is busy with a frame, or did not run at all, cannot say
that the other one was silent.

Concurrency: the thread that receives calls `listens` and `heard`, another one the rest; each field
is written by one of them.
"""


class Liveness:
    """What one end knows of the other; all moments by one monotonic clock, in seconds."""

    def __init__(self, now: float, *, heartbeat_ms: int, silent_ms_max: int) -> None:
        self._heartbeat_seconds = heartbeat_ms / 1000
        self._silent_seconds_max = silent_ms_max / 1000
        self._listens_since: float | None = None
        self._heard_at = now
        self._told_at = now
        self._beat_at = now
        self._looked_at = now
        self._excused_at = now

    def listens(self, now: float) -> None:
        """Note that this end waits for a frame from now on."""
        self._listens_since = now

    def heard(self, now: float) -> None:
        """Note a frame of the other end: nothing is waited for until `listens`."""
        self._listens_since = None
        self._heard_at = now

    def told(self, now: float) -> None:
        """Note that something was sent."""
        self._told_at = now

    def beat_is_due(self, now: float) -> bool:
        """Whether to send a heartbeat: one of the directions was quiet; asked for, it is sent."""
        since = max(self._beat_at, min(self._told_at, self._heard_at))
        if now - since < self._heartbeat_seconds:
            return False
        self._beat_at = now
        return True

    def is_silent(self, now: float) -> bool:
        """Whether the other end is to be given up; to be asked more often than it should beat."""
        return self.quiet_seconds(now) > self._silent_seconds_max

    def quiet_seconds(self, now: float) -> float:
        """Return for how long this end has listened in vain; to be asked as often."""
        if now - self._looked_at > self._heartbeat_seconds:
            self._excused_at = now
        self._looked_at = now
        listens_since = self._listens_since
        if listens_since is None:
            return 0.0
        return now - max(listens_since, self._excused_at)
