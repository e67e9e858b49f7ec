"""Drivers of overwrites: they ask, bring rows, wait for the switch, die, and come again.

What a driver asks and brings is the real `Overwriting` and `RangeBackfill`; only their loops are
made up here, a unit of one range at a time, so that nothing waits in a thread. A call may be lost,
its answer may be lost, others go on between two calls, and a driver may die in any of them.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa

from rezone.transfer.copying.backfill import RangeBackfill, RangeReceipt
from rezone.transfer.copying.new_rows import NewRows
from rezone.transfer.copying.overwriting import ASK_SECONDS, Overwriting, _Until
from rezone.wire.errors import ConflictError, NotReadyError, RezoneError
from rezone.wire.messages import AskOverwrite, NodeId
from rezone.wire.transport.flight import NodeClient
from simulation.nodes.disk import MachineDiedError
from simulation.nodes.network import Network

LOST_CHANCE = 0.03
LATE_CHANCE = 0.05
UNIT_CHANCE = 0.3
"""How often a range goes on in a step."""

PAUSE_SECONDS = 1.0
PATIENCE_SECONDS = 40.0
"""For how long a driver may come no further until it ends, and is begun again."""


class DriverDiedError(BaseException):
    """Raised in a driver that dies in a call."""


@dataclasses.dataclass
class Job:
    """What an overwrite is to bring; `read_time` is 0 until it has read the zone."""

    name: str
    values: Mapping[bytes, bytes] = dataclasses.field(repr=False)
    read_time: int = 0

    def rows(self) -> NewRows:
        """Return the rows as data nodes take them."""
        row_ids = pa.array(list(self.values), pa.binary())
        return NewRows(row_ids, pa.array(list(self.values.values()), pa.binary()), self.read_time)


@dataclasses.dataclass
class Calls:
    """How drivers call data nodes; `between` lets others go on."""

    network: Network
    rng: random.Random
    between: Callable[[], object]
    faults: bool = True
    dies_in: int = 0
    """The driver dies in its n-th call from now; 0 for never."""

    def connect(self, address: str) -> NodeClient:
        """Make a line to a data node, as what drivers take it for."""
        return _Line(self, address)  # type: ignore[return-value]

    def call(self, address: str, request: Any) -> Any:
        """Bring a request to a node, and its answer back."""
        if self.dies_in:
            self.dies_in -= 1
            if not self.dies_in:
                raise DriverDiedError
        if self._happens(LATE_CHANCE):
            self.between()
        node = self.network.id_at(address)
        if node is None or node in self.network.hung or self._happens(LOST_CHANCE):
            raise NotReadyError(f"no connection to {address}", unreachable=1)
        try:
            answer = self.network.nodes[node].control.handle(request)
        except MachineDiedError as died:
            self.network.died(died)
            raise NotReadyError(f"node {node} is gone", unreachable=1) from died
        if self._happens(LOST_CHANCE):
            raise NotReadyError(f"{address} does not answer", unreachable=1)
        return answer

    def _happens(self, chance: float) -> bool:
        return self.faults and self.rng.random() < chance


class _Line:
    """What a driver calls one node by; it has the methods of `NodeClient` that drivers use."""

    def __init__(self, calls: Calls, address: str) -> None:
        self.address = address
        self._calls = calls

    def call(self, request: Any, reply: type[Any], *, timeout_seconds: float) -> Any:
        """Call; NotReadyError when the request or the answer is lost."""
        del timeout_seconds  # nothing waits
        answer = self._calls.call(self.address, request)
        assert isinstance(answer, reply)
        return answer

    def close(self) -> None:
        """Need nothing."""


class _AtOnce(Executor):
    """Runs what is submitted where it is submitted."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it; what it raises is the future's, unless the driver has died in it."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except RezoneError as error:
            future.set_exception(error)
        return future


class _Tasks(Executor):
    """The tasks that bring ranges, in place of threads: each is taken a unit further by `step`."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._running: list[tuple[RangeBackfill, Future[RangeReceipt]]] = []
        self._again_at: dict[RangeBackfill, float] = collections.defaultdict(float)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Take a task in."""
        del args, kwargs  # there are none
        task: RangeBackfill = fn.__self__  # type: ignore[attr-defined]
        future: Future[RangeReceipt] = Future()
        self._running.append((task, future))
        return future

    def step(self) -> None:
        """Have tasks bring the next unit of their ranges."""
        for task, future in list(self._running):
            if self._again_at[task] > self._clock() or self._rng.random() > UNIT_CHANCE:
                continue
            try:
                claim = task._claim()
                if not claim.backfilled:
                    task._bring(claim, _AtOnce())
            except RezoneError:
                self._again_at[task] = self._clock() + PAUSE_SECONDS
                continue
            if claim.backfilled:
                self._running.remove((task, future))
                future.set_result(
                    RangeReceipt(hash_range=task._hash_range, rows=task.rows, bytes=task.bytes)
                )


class Driver:
    """One life of a driver; it has `ended` when it was told that all is done, refused, or died."""

    def __init__(
        self,
        job: Job,
        nodes: Mapping[NodeId, str],
        calls: Calls,
        clock: Callable[[], float],
        counts: collections.Counter[str],
    ) -> None:
        assert job.read_time, "it asks before it has read"
        self.job = job
        self.done = self.ended = self.refused = False
        self._calls = calls
        self._clock = clock
        self._counts = counts
        self._until = _Until(threading.Event(), job.rows())
        self._overwriting = Overwriting(job.name, nodes, connect=calls.connect, clock=clock)
        self._tasks = _Tasks(clock, calls.rng)
        self._ask_at = 0.0
        self._since = clock()

    def step(self) -> None:
        """Ask when it is time, and bring rows."""
        try:
            if self._clock() >= self._ask_at:
                self._ask_at = self._clock() + ASK_SECONDS
                self._ask()
            if not self.ended:
                self._tasks.step()
        except DriverDiedError:
            self._counts["driver died"] += 1
            self.ended = True

    def _ask(self) -> None:
        try:
            progress = self._overwriting._ask(begin=True)
        except ConflictError as error:
            self._counts["driver refused"] += 1
            self.refused = "was cancelled" in str(error)
            self.ended = True
            return
        except RezoneError:
            return
        if progress.filled_by == self.job.name:
            self.done = self.ended = True
            return
        if progress.next_filled_by == self.job.name:
            self._overwriting._bring(self._tasks, progress, self._until)  # type: ignore[arg-type]
        if self._overwriting._count():
            self._since = self._clock()
        if self._clock() - self._since > PATIENCE_SECONDS:
            self._counts["driver out of patience"] += 1
            self.ended = True


def is_done(job: Job, calls: Calls, nodes: Mapping[NodeId, str]) -> bool:
    """Return whether every node that answers says that a job's overwrite is done."""
    told: list[str] = []
    for address in nodes.values():
        with contextlib.suppress(RezoneError):
            told.append(calls.call(address, AskOverwrite(name=job.name)).filled_by)
    return bool(told) and {*told} == {job.name}
