"""How large copies travel, whoever needs them: by one SparkApplication, or node to node.

A rebalance task, a migration, and a zone that repairs what it has lost decide alike. Which of the
two ways is decided once, by size, and persisted with the application's name before that is created
(rule: persist before act). A failed application is followed by another one for the copies that
are left; receivers go on where they stand (B-05). The limits and commands are those of streams.
"""

import collections
import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime

from rezone.domain.model.world import (
    Action,
    AdmitCopies,
    Copy,
    DeleteSparkApplication,
    EnsureSparkApplication,
    PullSnapshots,
    SparkView,
    ZoneView,
)
from rezone.domain.observed.spark_states import SparkState, is_overdue, watch, why_unavailable
from rezone.domain.rebalance.survey import Needed, copies
from rezone.resources.conditions import Reason
from rezone.resources.machine_status import LastError, SparkCopies
from rezone.wire.messages import NodeId, PartitionId

SPARK_ATTEMPTS_MAX = 5
TURN_SECONDS = 30
"""How long a copy by Spark that does not begin keeps its place from others."""


@dataclasses.dataclass(kw_only=True)
class BulkCopies:
    """The copies of one owner in one pass.

    `state` is what the owner has persisted, and is to persist before `actions` are carried out.
    `name_of` returns the name of the application of an attempt. `error` is a failure that another
    application follows, or why copies stream after all; `failed` is why there will be none.
    """

    view: ZoneView
    state: SparkCopies
    needed: Sequence[Needed]
    bytes_done: int
    paused: bool
    now: datetime
    name_of: Callable[[int], str]
    actions: list[Action] = dataclasses.field(default_factory=list)
    error: LastError | None = None
    failed: str = ""

    def choose(self) -> None:
        """Decide how the copies travel; once."""
        name = self.name_of(1) if self._is_bulk else ""
        self.state = SparkCopies(attempt=1, application=name)

    def run(self) -> None:
        """Ask for what is to be done now; `choose` comes first."""
        if self.state.application:
            self._by_spark()
        else:
            self._stream()

    @property
    def spark(self) -> SparkView | None:
        """The present application, None when there is none."""
        spark = self.view.spark
        there = spark is not None and spark.state and spark.name == self.state.application
        return spark if there else None

    @property
    def taken(self) -> SparkView | None:
        """Whose object has the name of the application that is to be made, None without one."""
        spark = self.view.spark
        if spark is None or not spark.taken or spark.name != self.state.application:
            return None
        return spark if self.needed else None

    @property
    def unavailable(self) -> str:
        """Why no copy advances by Spark and what a person can do, "" while there is time."""
        name = self.state.application
        if not name or not self.needed or self.view.stream_without_spark or not self._is_overdue:
            return ""
        why = why_unavailable(name, self.view.spark)
        return f"{why}; or set the zone's transfer.whenSparkUnavailable to Stream"

    @property
    def _is_bulk(self) -> bool:
        threshold = self.view.spark_threshold_bytes
        size = sum(n.bytes_estimate for n in self.needed)
        return bool(self.needed) and (threshold == 0 or size > threshold)

    def _stream(self) -> None:
        """Ask for the pulls that may run; the same each pass until one is done: a repeat joins."""
        if not self.paused:
            needed = sorted(self.needed, key=_turn)
            self.actions.append(PullSnapshots(copies=self._within_limits(needed)))

    def _by_spark(self) -> None:
        spark = self.spark
        if spark is not None and spark.state == SparkState.FAILED:
            if self.state.attempt >= SPARK_ATTEMPTS_MAX:
                self.failed = (
                    f"{self.state.attempt} SparkApplications failed, the last: {spark.error}"
                )
                return
            message = f"{spark.name}: {spark.error}"[:4096]
            self.error = LastError(reason=Reason.FAILED, message=message)
            self._next_application()
        elif spark is not None and spark.state == SparkState.COMPLETED:
            if not self._is_bulk:
                # Stragglers: a replica that came back later, or whose report is a moment old.
                self._stream()
                return
            if self.state.attempt >= SPARK_ATTEMPTS_MAX:
                self.failed = (
                    f"after {self.state.attempt} SparkApplications replicas still need a copy"
                )
                return
            self._next_application()
        elif self.taken is not None or self._is_watched():
            return
        if not self.paused:
            name = self.state.application
            self.actions.append(EnsureSparkApplication(name=name, copies=copies(self.needed)))

    def _next_application(self) -> None:
        attempt = self.state.attempt + 1
        self.state = SparkCopies(attempt=attempt, application=self.name_of(attempt))

    def _is_watched(self) -> bool:
        """Do what an application that has not ended asks for; False when one is to be made."""
        if self._gives_up():
            self._admit(())
            return True
        if self.spark is None:
            return False
        self._admit(() if self.paused else self._within_limits(self._in_turn()))
        return True

    def _admit(self, admitted: tuple[Copy, ...]) -> None:
        """Let these copies begin and hold the others."""
        begin = {copy.partition for copy in admitted}
        held = tuple(c for c in copies(self.needed) if c.partition not in begin)
        self.actions.append(AdmitCopies(admitted=admitted, held=held))

    def _in_turn(self) -> list[Needed]:
        """Return what needs a copy, those under way first, the others in turns.

        The application may not begin one that is admitted: its plan was made before, or it has done
        with it. It must not keep the others from their turn.
        """
        needed = sorted(self.needed, key=lambda n: n.copy.partition)
        waiting = [n for n in needed if not n.started]
        turns = int(self.now.timestamp() // TURN_SECONDS)
        first = turns * self.view.max_concurrent_migrations % max(1, len(waiting))
        return [*(n for n in needed if n.started), *waiting[first:], *waiting[:first]]

    def _gives_up(self) -> bool:
        """Watch the application's deadline; True when it is given up for streams.

        It is deleted first, and copies stream once it is gone: it must not begin to copy beside.
        """
        self._watch()
        seen = self.state.watch
        if seen is None or not seen.given_up:
            if seen is None or not self.view.stream_without_spark or not self._is_overdue:
                return False
            why = why_unavailable(self.state.application, self.view.spark)
            self.error = LastError(reason=Reason.SPARK_UNAVAILABLE, message=why[:4096])
            given_up = seen.model_copy(update={"given_up": True})
            self.state = self.state.model_copy(update={"watch": given_up})
        self.actions.append(DeleteSparkApplication(name=self.state.application))
        if self.spark is None:
            self.state = SparkCopies(attempt=self.state.attempt)
            self._stream()
        return True

    def _watch(self) -> None:
        """Note since when the application is as it is; a pause does not count."""
        seen = self.state.watch
        if seen is not None and seen.given_up:
            return
        if self.paused:
            seen = None
        else:
            seconds = self.view.spark_timeout_seconds
            state = self.spark.state if self.spark is not None else ""
            seen = watch(seen, state, self.bytes_done, self.now, seconds=seconds)
        self.state = self.state.model_copy(update={"watch": seen})

    @property
    def _is_overdue(self) -> bool:
        seen, seconds = self.state.watch, self.view.spark_timeout_seconds
        return seen is not None and is_overdue(seen, self.now, seconds=seconds)

    def _within_limits(self, needed: Sequence[Needed]) -> tuple[Copy, ...]:
        """Return the copies that may run now, in this order (B-03); source and target count."""
        used: collections.Counter[NodeId] = collections.Counter()
        chosen: list[Copy] = []
        for need in needed:
            if len(chosen) >= self.view.max_concurrent_migrations:
                break
            nodes = (need.copy.source, *need.copy.targets)
            if all(used[n] < self.view.max_migrations_per_node for n in nodes):
                used.update(nodes)
                chosen.append(need.copy)
        return tuple(chosen)


def _turn(need: Needed) -> tuple[bool, bool, int, PartitionId]:
    return not need.started, need.failing, need.after, need.copy.partition
