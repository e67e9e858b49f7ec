"""Writers slowed so that a move converges (B-16), and no more than that.

A replica that catches up must take rows faster than writers bring them, or it never arrives. So
while one does, writers get at most `catch_up_percent_max` of the rows per second it has lately
made durable; what is left over is what it gains. A partition of the next layout that pulls this
one counts as a replica that catches up. Nobody is slowed to less than
`catch_up_rows_min` rows per second for that: a replica slower than this is ill, and not the
writers' business. The same floor holds while the log that is kept for copies is over
`kept_log_bytes_max`.

A takeover waits until its candidate misses `takeover_rows_max` rows at most. When that takes long,
writes wait until it has acked enough.

A write is never refused for this. It waits its turn here, in order, and its answer says how long
(`WriteResult.paced_ms`). What waits has a byte limit; over it a write gets OverloadedError, as
with every limit on pending writes, and clients try again.

Concurrency: everything is called under the partition's lock.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from rezone.datanode.commit.insync import Outcome, Reply
from rezone.datanode.commit.protocol import Leadership
from rezone.datanode.settings import NodeSettings
from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.writing.change import Change, PreparedRows
from rezone.storage.budget import Budget
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import NodeId, WriteResult

WriteNow = Callable[[Change, PreparedRows, Reply], None]
"""Append a write, or hold it while it is not known who takes it."""

_BURST_SECONDS = 0.05
_LOOK_SECONDS = 0.02


class CatchUpRate:
    """How many rows per second writers may bring while replicas catch up. Pure.

    None is without a limit. What a replica takes is measured from one look to the next that is at
    least `catch_up_window_ms` later.
    """

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._since: dict[NodeId, tuple[float, int]] = {}
        self._taken: dict[NodeId, float] = {}

    def look(
        self, now: float, log_end: int, durable: Mapping[NodeId, int], *, log_full: bool
    ) -> float | None:
        """Return the limit, given up to where each replica that catches up is durable."""
        for node in [node for node in self._since if node not in durable]:
            del self._since[node]
            self._taken.pop(node, None)
        floor = float(self._settings.catch_up_rows_min)
        limits = [floor] if log_full else []
        for node, offset in durable.items():
            self._measure(node, now, offset)
            behind = log_end - offset > self._settings.takeover_rows_max
            if behind and node in self._taken:
                share = self._settings.catch_up_percent_max / 100
                limits.append(max(floor, self._taken[node] * share))
        return min(limits, default=None)

    def _measure(self, node: NodeId, now: float, offset: int) -> None:
        begun, first = self._since.setdefault(node, (now, offset))
        seconds = now - begun
        if seconds * 1000 >= self._settings.catch_up_window_ms:
            # By half a window at most: acks come in lumps, and one may be late.
            self._taken[node] = max((offset - first) / seconds, self._taken.get(node, 0.0) / 2)
            self._since[node] = (now, offset)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A write that waits its turn."""

    request: Change
    prepared: PreparedRows
    reply: Reply
    since: float


class WritePacer:
    """The writes of one partition that wait so that a replica can catch up.

    `missing_rows` tells what the candidate of a takeover that drags on lacks, if there is one.
    """

    def __init__(
        self,
        replica: ReplicaState,
        node_budget: Budget,
        write_now: WriteNow,
        missing_rows: Callable[[float], int | None],
    ) -> None:
        self._replica = replica
        self._write_now = write_now
        self._missing_rows = missing_rows
        self._node_budget = node_budget
        self._budget = Budget(
            replica.settings.paced_bytes_max,
            f"writes of partition {replica.partition_id} that wait for a replica to catch up",
        )
        self._catching_up = CatchUpRate(replica.settings)
        self._waiting: deque[_Waiting] = deque()
        self._tokens = 0.0
        self._then = 0.0
        self.rows_per_second: float | None = None
        self.log_full = False
        self.waited_seconds = 0.0

    @property
    def waiting_bytes(self) -> int:
        """The bytes of writes that wait."""
        return self._budget.used

    def look_at_log(self, *, full: bool) -> None:
        """Note whether more of the log is kept for others than may be: then writers are slowed."""
        self.log_full = full

    def holds_back(self, request: Change, prepared: PreparedRows, reply: Reply) -> bool:
        """Whether the write must wait; it is then appended later. OverloadedError at the limit."""
        now = self._replica.clock.monotonic()
        self._look(now)
        if not self._waiting and self._may_pass(prepared.rows.num_rows):
            return False
        self._budget.take(prepared.size)
        try:
            self._node_budget.take(prepared.size)
        except RezoneError:
            self._budget.give(prepared.size)
            raise
        self._waiting.append(_Waiting(request, prepared, reply, now))
        self._replica.look_again(now + _LOOK_SECONDS)
        return True

    def release(self) -> None:
        """Append what may go on now."""
        if not self._waiting and self.rows_per_second is None:
            return  # the next write looks whether it has to wait
        now = self._replica.clock.monotonic()
        self._look(now)
        while self._waiting and self._may_pass(self._waiting[0].prepared.rows.num_rows):
            waiting = self._take(now)
            try:
                self._write_now(waiting.request, waiting.prepared, waiting.reply)
            except RezoneError as error:
                self._replica.answer(waiting.reply, error)
            except OSError as error:
                refusal = NotReadyError(f"the log cannot be written: {error}")
                self._replica.answer(waiting.reply, refusal)
            self._replica.wake()
        if self._waiting:
            self._replica.look_again(now + _LOOK_SECONDS)

    def fail_all(self, error: RezoneError) -> None:
        """Answer what waits with an error."""
        while self._waiting:
            waiting = self._take(self._replica.clock.monotonic())
            self._replica.answer(waiting.reply, error)

    def _take(self, now: float) -> _Waiting:
        waiting = self._waiting.popleft()
        self._budget.give(waiting.prepared.size)
        self._node_budget.give(waiting.prepared.size)
        seconds = now - waiting.since
        self.waited_seconds += seconds
        reply = _saying(waiting.reply, max(1, round(seconds * 1000)))
        return replace(waiting, reply=reply)

    def _look(self, now: float) -> None:
        """Bring limit and tokens up to date."""
        state = self._replica.leadership
        if self._replica.store.seal is not None:
            state = None  # nothing more is written
        catching_up = {} if state is None else self._those_catching_up(state)
        if not catching_up and not self.log_full and self.rows_per_second is None:
            return
        limit = self._catching_up.look(
            now,
            self._replica.store.log_end,
            catching_up,
            log_full=self.log_full and state is not None,
        )
        if limit is not None and self.rows_per_second is None:
            self._tokens, self._then = 0.0, now
            self._replica.log.warning("writers are slowed", rows_per_second=round(limit))
            self._replica.touched(at_once=True)
        elif limit is None and self.rows_per_second is not None:
            self._replica.log.info("writers are no longer slowed")
            self._replica.touched(at_once=True)
        self.rows_per_second = limit
        if limit is not None:
            earned = (now - self._then) * limit
            self._tokens, self._then = min(limit * _BURST_SECONDS, self._tokens + earned), now

    def _those_catching_up(self, state: Leadership) -> dict[int, int]:
        """Return up to where each has the rows: replicas, and partitions that pull this one.

        Those are named by numbers below zero, which no node has.
        """
        silent_seconds = self._replica.settings.channel_silent_ms_max / 1000
        reshard_streams = self._replica.reshard_targets.catching_up(silent_seconds)
        return {
            **state.catching_up(),
            **{-1 - target: at for target, at in reshard_streams.items()},
        }

    def _may_pass(self, rows: int) -> bool:
        """Whether a write of so many rows may be appended now; if so, it counts."""
        replica = self._replica
        missing = self._missing_rows(replica.clock.monotonic())
        if missing is not None and missing and missing + rows > replica.settings.takeover_rows_max:
            return False
        if self.rows_per_second is None:
            return True
        if self._tokens <= 0:
            return False
        # Into debt, so that a batch larger than what ever gathers passes too.
        self._tokens -= rows
        return True


def _saying(reply: Reply, milliseconds: int) -> Reply:
    def answer(outcome: Outcome) -> None:
        if isinstance(outcome, WriteResult):
            outcome = msgspec.structs.replace(outcome, paced_ms=milliseconds)
        reply(outcome)

    return answer
