"""For how long no write could be committed while a partition's leader was transferred, or cut over.

The old leader notes when it appends nothing more. When it asks the next leader for a stream it says
how long ago that was, so each duration is taken by one clock. The next leader notes when it can
commit: its epoch is on its disk, and all in-sync replicas have what it began with. What is left out
is the way of one request.

A leader that follows no planned transfer, as after a failover, has no such figure; nor has one
whose old leader did not come back as a follower.

The cut-over of a re-sharding is measured in the same way, range by range: the old partition's
leader says with the seal how long ago it appended that, and the new partition's leader notes when
it serves the range. There is no figure where either has changed in between.

Concurrency: under the replica's lock.
"""

from dataclasses import dataclass

_NONE = -1


@dataclass
class WriteGap:
    """What a replica knows of the last transfer that it had a part in; times are monotonic."""

    _stopped_epoch: int = _NONE
    _stopped_at: float = 0.0
    _epoch: int = _NONE
    _begun_at: float | None = None
    _ended_at: float | None = None
    _ended_micros: int = 0

    # --- the old leader --------------------------------------------------------------------------

    def stop(self, next_epoch: int, now: float) -> None:
        """Note that this leader appends nothing more: the next one leads with `next_epoch`."""
        self._stopped_epoch, self._stopped_at = next_epoch, now

    def stopped_ms(self, leader_epoch: int, now: float) -> int:
        """Return how long ago this replica has stopped for that epoch's leader; -1: it has not."""
        if leader_epoch != self._stopped_epoch:
            return _NONE
        return max(0, round((now - self._stopped_at) * 1000))

    def told(self) -> None:
        """Forget when this replica stopped: the next leader knows it.

        One that restarts, and leads again with its epoch, would take all the time since for a gap.
        """
        self._stopped_epoch = _NONE

    # --- the next leader -------------------------------------------------------------------------

    def begin(self, leader_epoch: int) -> None:
        """Lead with this epoch: nothing is known of the gap yet."""
        self._epoch, self._begun_at, self._ended_at = leader_epoch, None, None

    def take(self, stopped_ms: int, now: float) -> None:
        """Take what a follower says of when it stopped to lead, -1 of one that did not."""
        if stopped_ms != _NONE and self._begun_at is None:
            self._begun_at = now - stopped_ms / 1000

    @property
    def is_open(self) -> bool:
        """Whether nothing could be committed yet, as far as is known."""
        return self._epoch != _NONE and self._ended_at is None

    def end(self, now: float, micros: int) -> None:
        """Note that writes can be committed from now on; `micros` is the time of day."""
        if self.is_open:
            self._ended_at, self._ended_micros = now, micros

    def milliseconds(self, leader_epoch: int) -> int | None:
        """Return how long the gap before that epoch was, None while that is not known."""
        if leader_epoch != self._epoch or self._begun_at is None or self._ended_at is None:
            return None
        return max(0, round((self._ended_at - self._begun_at) * 1000))

    def ended_micros(self, leader_epoch: int) -> int:
        """Return when that gap was over (microseconds since 1970), 0 while it is not known."""
        return self._ended_micros if self.milliseconds(leader_epoch) is not None else 0
