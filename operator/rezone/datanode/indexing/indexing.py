"""What a replica does for its secondary indexes, whatever its role.

They follow what is applied a little later and in large slices, after writes have been answered
and acked. Two do not wait for that: a lookup, which indexes what is missing itself, and the
candidate of a takeover, whose old leader waits for it (DCP-08). From a takeover's beginning the old
leader's indexer stands still, and lookups there wait for its end, which is near. An index that was
added is built by the node's thread for it (`index_builds`), and refused to lookups until then.

Concurrency: `pump`, `build` and `wait_for` are called without the partition's lock, `tick` under
it, all else from anywhere.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.state.runner import entry
from rezone.storage.snapshot.throttle import StepBytes
from rezone.storage.state.history import is_of_history
from rezone.wire.codec.indexes import IndexCodec
from rezone.wire.codec.keyspace import hash_in
from rezone.wire.codec.schema import TableSchema
from rezone.wire.errors import IndexNotBuiltError, NotReadyError, UnknownIndexError
from rezone.wire.messages import FailoverEntry, IndexBuild, IndexPosition, Role

_CANDIDATE_SECONDS = 0.01
"""How often the candidate of a takeover indexes, and says how far it is."""


class Lacks(NamedTuple):
    """What an index lacks of another one; false when it lacks nothing.

    `final`: waiting does not help.
    """

    why: str = ""
    final: bool = False

    def __bool__(self) -> bool:
        """Whether anything is lacking."""
        return bool(self.why)

    def __str__(self) -> str:
        """Say it, to follow on whose index it is."""
        return self.why


def index_lacks(
    history: tuple[FailoverEntry, ...],
    stopped: IndexPosition | None,
    have: IndexPosition | None,
) -> Lacks:
    """Return what an index that stands at `have` lacks of one that was `stopped` (DCP-08).

    It must be as far, of the same history, and built where the other one is. Nothing is lacking of
    an index that is none, or that was being made again.
    """
    if stopped is None or not stopped.offset:
        return Lacks()
    if have is None:
        return Lacks("index has not said how far it is")
    if have.offset < stopped.offset:
        return Lacks(f"index is at {have.offset}, before {stopped.offset}")
    if not is_of_history(history, have) or not is_of_history(history, stopped):
        return Lacks("index is of another history", final=True)
    if unbuilt := {*stopped.built} - {*have.built}:
        return Lacks(f"index is not built yet in {len(unbuilt)} of its parts")
    return Lacks()


class IndexDuties:
    """A partition's part in keeping its indexes; idle where the zone has none."""

    def __init__(self, replica: ReplicaState) -> None:
        self._replica = replica
        self.runner = replica.runner
        self.log = replica.log
        self._indexer = replica.store.indexer
        self._pumped_at = float("-inf")

    @property
    def told(self) -> IndexPosition | None:
        """What acks say of the indexes: only to an old leader that waits for them."""
        if not self._indexer.enabled or not self._replica.transfer.eager:
            return None
        return self._indexer.position

    def still_wanted(self, position: IndexPosition | None) -> IndexPosition | None:
        """Return a position without the indexes that this node knows to be dropped since."""
        if position is None:
            return None
        built = tuple(index for index in position.built if index in self._indexer.wanted)
        return msgspec.structs.replace(position, built=built)

    def lacks(self, stopped: IndexPosition | None) -> str:
        """Return why the indexes are not enough to lead; empty when they are (DCP-08)."""
        history = self._replica.store.meta.failover_log
        lacking = index_lacks(history, self.still_wanted(stopped), self._indexer.position)
        return f"the {lacking}" if lacking else ""

    # --- takeovers -------------------------------------------------------------------------------

    def stop(self) -> IndexPosition | None:
        """Index nothing more, and return how far the indexes are; None without any (DCP-08)."""
        return self._indexer.stop() if self._indexer.enabled else None

    def resume(self) -> None:
        """Go on; under the lock."""
        self._indexer.resume()
        if self._indexer.enabled:
            self._replica.look_again(self._replica.clock.monotonic())
            self._replica.changed.notify_all()

    # --- following -------------------------------------------------------------------------------

    def pump(self) -> None:
        """Index what is applied, if it is due: all of what the log has."""
        replica, indexer = self._replica, self._indexer
        if not self.waits:
            return
        now = replica.clock.monotonic()
        if not self._is_due(now):
            self._wait()
            return
        self._pumped_at = now
        indexer.catch_up()

    @entry
    def _wait(self) -> None:
        self._replica.look_again(self._due_at)

    def tick(self, now: float) -> None:
        """Wake the job when entries have waited for long enough."""
        if not self.waits:
            return
        if self._is_due(now):
            self._replica.wake()
        else:
            self._replica.look_again(self._due_at)

    @property
    def waits(self) -> bool:
        """Whether there is something to index; without a lock, as of about now."""
        return not self._indexer.stopped and self._indexer.unfollowed_rows > 0

    @property
    def _due_at(self) -> float:
        interval = self._replica.settings.index_interval_ms / 1000
        if self._replica.transfer.eager:
            # Not with each write either: the one that ends the takeover must not wait for it.
            interval = min(interval, _CANDIDATE_SECONDS)
        return self._pumped_at + interval

    def _is_due(self, now: float) -> bool:
        return now >= self._due_at or (
            self._indexer.unfollowed_rows >= self._replica.settings.index_rows_max
        )

    # --- indexes that are new or gone ------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether entries are to be made of rows of before, or removed."""
        return self._indexer.unfinished and not self._indexer.stopped

    def redefine(self, table: TableSchema) -> None:
        """Take the table that the node has persisted; entries are made later."""
        if self._indexer.redefine(table):
            self._replica.touched(at_once=True)

    def build(self, step_bytes: StepBytes) -> bool:
        """Take the next step of that, of so many bytes; whether there is more to do."""
        more = self._indexer.build(step_bytes)
        self._replica.touched(at_once=not more)
        return more

    @property
    def builds(self) -> tuple[IndexBuild, ...]:
        """The zone's indexes that do not have all rows yet; none while all are made again."""
        if self._indexer.rebuilding:
            return ()
        return tuple(
            IndexBuild(part.id, self._percent(part.at or b"")) for part in self._indexer.unbuilt
        )

    def _percent(self, row_id: bytes) -> int:
        """Return which part of the partition's hash range lies before a row."""
        start, end = self._replica.hash_range
        return max(0, min(99, 100 * (hash_in(row_id) - start) // (end - start)))

    # --- lookups ---------------------------------------------------------------------------------

    def wait_for(self, codec: IndexCodec, offset: int) -> int:
        """Return when an index has everything below an applied offset, by this thread if need be.

        What is returned is to be given to `require`. IndexNotBuiltError while the index is new,
        UnknownIndexError when it was dropped since it was asked for, NotLeaderError when a takeover
        it waited for has ended elsewhere, NotReadyError when it takes too long.
        """
        dropped = self._indexer.dropped
        for _ in self._turns():
            if self._indexer.position.offset >= offset:
                break
            self._indexer.step()
        self._require_built(codec)
        self._require_indexed(offset)
        return dropped

    def require(self, codec: IndexCodec, offset: int, dropped: int) -> None:
        """Raise unless what was read since `wait_for` was the whole of an index."""
        self._require_built(codec)
        self._require_indexed(offset)
        if dropped != self._indexer.dropped:
            raise NotReadyError(
                f"the indexes of partition {self._replica.partition_id} have changed; retry"
            )

    def _require_built(self, codec: IndexCodec) -> None:
        if codec.id not in self._indexer.wanted:
            raise UnknownIndexError(
                f"the zone has no index {codec.name!r} any more, or this node no such one yet",
                index=codec.name,
            )
        if not self._indexer.is_unbuilt(codec.id):
            return
        percent = next((b.percent for b in self.builds if b.index == codec.id), 0)
        raise IndexNotBuiltError(
            f"index {codec.name!r} is being built: partition {self._replica.partition_id} has "
            f"{percent} % of it",
            index=codec.name,
            percent=percent,
        )

    def _require_indexed(self, offset: int) -> None:
        if self._indexer.position.offset < offset:
            lag = self._indexer.lag_rows
            raise NotReadyError(
                f"the indexes of partition {self._replica.partition_id} lack {lag} rows; retry",
                lag_rows=lag,
            )

    def _turns(self) -> Iterator[None]:
        """Yield while there is time, as soon as the indexer may go on."""
        replica = self._replica
        deadline = replica.clock.monotonic() + replica.settings.hold_ms_max / 1000
        led = replica.role is Role.LEADER
        while replica.clock.monotonic() < deadline and not replica.closed:
            with replica.changed:
                replica.changed.wait_for(
                    lambda: not self._indexer.stopped or replica.closed,
                    max(0.0, deadline - replica.clock.monotonic()),
                )
                if led and replica.role is not Role.LEADER:
                    raise replica.not_leader()
            yield
