"""Calls that share requests in storms: the client's own lanes, over the real data nodes.

Processes submit calls of one row each, several at a time, so that those of one partition share
requests. The lanes are the client's (`Writes`), the rows are checked and encoded by the node's own
`prepare`; only the dispatcher is simulated, without threads: it sends to who believes to lead,
loses answers, repeats, and learns of seals by refusals. The nodes take shorter values than the
clients, as after a change of the limits: a call with a long one is refused, and must be so alone.
Now and then another process goes on under the same name with a higher epoch, beside the one before.

What must hold: a call that is acknowledged is there, once; one that is refused is nowhere, and no
other call of its request is refused for it; the rows of one process keep the order of its calls.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import random
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

import pyarrow as pa

from rezone.client.operations.producer import OpenedProducer
from rezone.client.operations.writes import Writes
from rezone.client.requests.calls import Budget, Ended, settling
from rezone.client.requests.gathering import Gathering
from rezone.client.requests.request import Outcome, Request
from rezone.client.requests.turns import Turns
from rezone.client.routing.placement import Placement
from rezone.client.settings import ClientSettings, OutcomeUnknownError
from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.write import prepare
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import RowLimits
from rezone.wire.errors import (
    InvalidRowError,
    NotReadyError,
    ProducerFencedError,
    ReshardedError,
    RezoneError,
    RowLockedError,
)
from rezone.wire.messages import WriteRequest, WriteResult
from simulation.clients.storm_clients import CutOverOf
from simulation.storms.cut_over import CutOver
from simulation.storms.data_plane import values_of

ROWS = 8
CALLS_MAX = 4
"""So many calls a process makes in a step at most, while fewer than `OPEN_CALLS_MAX` wait."""

OPEN_CALLS_MAX = 24
TOGETHER_CHANCE = 0.5
LONG_CHANCE = 0.05
VALUE_BYTES_MAX = 64
TAKE_OVER_CHANCE = 0.01
LOST_ANSWERS = 0.1
PATIENCE_SECONDS = 0.6
PAUSE_SECONDS = 0.05
SETTINGS = ClientSettings(timeout_seconds=6.0, shared_calls_max=8)


@dataclasses.dataclass(eq=False)
class _Sent:
    """A request on its way: its newest attempt, and the answer to that."""

    request: Request
    since: float = float("-inf")
    outcome: Outcome | None = None


class SimulatedDispatcher:
    """Sends requests to leaders and repeats them, in steps: what lanes use of `Dispatcher`."""

    def __init__(self, plane: CutOver, rng: random.Random, codec: RowCodec) -> None:
        self._plane = plane
        self._rng = rng
        self._codec = codec
        self._sent: list[_Sent] = []
        self._numbers = itertools.count(1)
        self._turns = Turns(lambda partition: str(partition % 2), plane.loop.monotonic)
        self.placement = Placement(plane.old, plane.new)

    def turns(self) -> Turns:
        """Return the turns of writes, as if two nodes led."""
        return self._turns

    def submit(self, request: Request) -> bool:
        """Take a request; it ends in a step."""
        now = self._plane.loop.monotonic()
        request.deadline = request.deadline or now + SETTINGS.timeout_seconds
        self._plane.counts["shared requests"] += request.shared
        self._sent.append(_Sent(request))
        return True

    def step(self, now: float) -> None:
        """Go on with each request."""
        self._learn()
        self._turns.look()
        for sent in list(self._sent):
            self._go_on(sent, now)

    def _learn(self) -> None:
        told = frozenset(self._plane.told)
        if self.placement.sealed != told:
            self.placement = Placement(self._plane.old, self._plane.new, told)

    def _go_on(self, sent: _Sent, now: float) -> None:
        request, outcome = sent.request, sent.outcome
        if outcome is None and now - sent.since < PATIENCE_SECONDS:
            return
        if isinstance(outcome, ReshardedError):
            # As in the client's: who gets this finds others in the placement, or asks in a loop.
            self._plane.told.add(request.partition)
            self._learn()
        if isinstance(outcome, RezoneError):
            request.last_error = outcome
            once = request.shared and request.attempts == 1 and isinstance(outcome, RowLockedError)
            again = outcome.retryable and not isinstance(outcome, ReshardedError) and not once
            if again and now < request.deadline:
                if now - sent.since >= PAUSE_SECONDS:
                    self._send(sent, now)
                return
        elif outcome is None and now < request.deadline:
            self._send(sent, now)
            return
        self._sent.remove(sent)
        request.done(outcome or request.last_error or NotReadyError("no answer"))

    def _send(self, sent: _Sent, now: float) -> None:
        """Make an attempt, at one that believes to lead; its answer may be lost."""
        request = sent.request
        sent.outcome, sent.since = None, now
        if self.placement.is_over(request.partition):
            sent.outcome = ReshardedError("over", partition=request.partition)
            return
        leaders = self._plane.leaders(request.partition)[:1]
        if not leaders:
            return
        request.attempts += 1
        request.opaque = number = next(self._numbers)
        self._plane.counts["shared repeats"] += request.shared and request.attempts > 1
        message: Any = request.message(number)
        assert isinstance(message, WriteRequest)
        lost = self._rng.random() < LOST_ANSWERS

        def reply(outcome: Any) -> None:
            if request.opaque != number or lost:
                return
            answered = isinstance(outcome, WriteResult)
            sent.outcome = (outcome, memoryview(b"")) if answered else outcome

        try:
            with self._plane.mortals():
                (leader,) = leaders
                body = memoryview(request.body)
                prepared = prepare(message, body, self._codec, leader.hash_range)
                leader.write(message, prepared, reply)
        except RezoneError as error:
            reply(error)


class _Epoch:
    """The producer of one process: the same id as that of the one before, and a higher epoch."""

    def __init__(self, producer_id: str, epoch: int) -> None:
        self.opened = OpenedProducer(producer_id, epoch)
        self.lost: RezoneError | None = None

    def open(self) -> OpenedProducer:
        """Return id and epoch; raises the error that has ended it."""
        if self.lost is not None:
            raise self.lost
        return self.opened

    def lose(self, error: RezoneError) -> None:
        """Write no more."""
        self.lost = self.lost or error


class _Later:
    """In place of the client's thread that moves lanes: it does so in steps."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        """Note a call."""
        self._waiting.append(lambda: call(*arguments))

    def step(self) -> None:
        """Make those that were noted."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


class _Call(NamedTuple):
    """One call: its row and value as they are stored, and whether nodes refuse that value."""

    row: bytes
    stored: bytes
    refused: bool
    future: Future[Any]


class _Made(NamedTuple):
    """The row of a call, and what ends its future."""

    batch: Any
    ended: Ended


class _Process:
    """One client."""

    def __init__(self, plane: CutOver, rng: random.Random, producer_id: str, epoch: int) -> None:
        self._plane = plane
        self._rng = rng
        self.epoch = epoch
        self.calls: list[_Call] = []
        self._codec = RowCodec(plane.config.table)
        node_codec = RowCodec(plane.config.table, RowLimits(value_bytes_max=VALUE_BYTES_MAX))
        self._dispatcher = SimulatedDispatcher(plane, rng, node_codec)
        self.producer = _Epoch(producer_id, epoch)
        self._gathering = Gathering()
        made: Any = Writes(
            self.producer,  # type: ignore[arg-type]
            dispatcher=self._dispatcher,  # type: ignore[arg-type]
            budget=Budget(SETTINGS),
            settings=SETTINGS,
            gathering=self._gathering,
            clock=plane.loop.monotonic,
            on_ack=None,
        )
        made.close()
        made._mover = self._moves = _Later()
        self._writes: Writes = made

    @property
    def waiting(self) -> int:
        """How many calls are not answered yet."""
        return sum(not call.future.done() for call in self.calls)

    def submit(self, number: int) -> None:
        """Make a call, unless the producer has ended."""
        made, future = self._made(number)
        try:
            self._writes.submit(self._codec, made.batch, made.ended, delete=False)
        except ProducerFencedError:
            return
        self.calls.append(future)

    def submit_together(self, numbers: range) -> None:
        """Make calls as a turn of an event loop does, unless the producer has ended."""
        made = [self._made(number) for number in numbers]
        calls = [(one.batch, one.ended) for one, _ in made]
        try:
            with self._gathering.calls():
                self._writes.submit_together(self._codec, calls, delete=False)
        except ProducerFencedError:
            return
        self.calls += [call for _, call in made]

    def _made(self, number: int) -> tuple[_Made, _Call]:
        refused = self._rng.random() < LONG_CHANCE
        value = b"shared %d" % number + b"." * (VALUE_BYTES_MAX if refused else 0)
        key = b"shared%d" % self._rng.randrange(ROWS)
        columns = {"key": [key], "value": [value]}
        batch = pa.RecordBatch.from_pydict(columns, schema=self._codec.arrow_schema)
        (row,) = encoded_rows(self._codec, batch).row_id_list()
        (stored,) = self._codec.value_bytes(batch)
        future, ended = settling()
        return _Made(batch, ended), _Call(row, stored, refused, future)

    def step(self, now: float) -> None:
        """Go on with all that waits."""
        self._moves.step()
        self._dispatcher.step(now)


class Sharing:
    """The processes of a run."""

    def __init__(self, plane: CutOver, seed: int) -> None:
        self._plane = plane
        self._rng = random.Random(f"shared calls {seed}")
        self._producer_id = str(uuid.UUID(int=self._rng.getrandbits(128)))
        self._number = 0
        self._processes = [self._begun(1)]

    def _begun(self, epoch: int) -> _Process:
        return _Process(self._plane, self._rng, self._producer_id, epoch)

    @property
    def idle(self) -> bool:
        """Whether each call has ended."""
        return not any(process.waiting for process in self._processes)

    def close(self) -> None:
        """End nothing: no process waits in a thread."""

    def step(self, *, storm: bool) -> None:
        """Go on with what each process does; in a storm make more calls."""
        now = self._plane.loop.monotonic()
        if storm and self._rng.random() < TAKE_OVER_CHANCE:
            self._processes.append(self._begun(len(self._processes) + 1))
        for process in self._processes[-2:] if storm else ():
            if process.waiting < OPEN_CALLS_MAX:
                first, count = self._number + 1, self._rng.randrange(CALLS_MAX + 1)
                self._number += count
                numbers = range(first, first + count)
                if self._rng.random() < TOGETHER_CHANCE:
                    process.submit_together(numbers)
                    continue
                for number in numbers:
                    process.submit(number)
        for process in self._processes:
            process.step(now)

    def check(self, leader_of: Callable[[bytes], Replica]) -> None:
        """Assert what must hold of each call, where clients look for its row."""
        for process in self._processes:
            of_rows: dict[bytes, list[_Call]] = collections.defaultdict(list)
            for call in process.calls:
                of_rows[call.row].append(call)
            for row, calls in of_rows.items():
                self._check_row(calls, values_of(leader_of(row), row))

    def _check_row(self, calls: list[_Call], kept: dict[bytes, int]) -> None:
        times = []
        for call in calls:
            error = call.future.exception(0)
            self._plane.counts[type(error).__name__ if error else "acknowledged calls"] += 1
            if isinstance(error, NotReadyError):
                # It has met no leader until its deadline: no attempt was made.
                assert call.stored not in kept, f"{call} was never sent"
                continue
            if call.refused:
                assert error is not None, f"{call} should be refused"
                assert call.stored not in kept, f"{call} was refused"
            elif error is None:
                assert call.stored in kept, f"{call} is lost"
            elif isinstance(error, InvalidRowError):
                raise AssertionError(f"{call} was refused for another call")
            assert error is None or isinstance(
                error, InvalidRowError | OutcomeUnknownError | ProducerFencedError
            ), error
            if call.stored in kept:
                times.append(kept[call.stored])
        assert times == sorted(set(times)), f"out of order: {times}"


class SharedCutOver(CutOverOf[Sharing]):
    """A re-sharding under storms, with calls that share requests."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.more = Sharing(self, seed)

    def _check_end(self) -> None:
        super()._check_end()
        self.more.check(self.leader_of)
