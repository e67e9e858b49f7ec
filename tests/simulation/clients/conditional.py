"""Compare-and-set in storms: the client's own code, on simulated data nodes.

Clients write rows that must not be there, or must not have been written since a version that they
know, and others write the same rows without a condition. What decides and repeats is the product's
(`ConditionalWrites`, `Requests`): it waits for answers, so it runs in a thread that goes on only
while the simulation waits for it. Requests are sent to whoever believes to lead, and again when the
answer is lost or late, so that each is made twice now and then.

What must hold: a write that was told as done is there, once, and nobody wrote between the version
that it went by and its own time; one that was told as not done is not there; and who was refused
was refused for a version that is there.
"""

from __future__ import annotations

import collections
import dataclasses
import queue
import random
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from rezone.client.operations.conditional import Condition, ConditionalWrites
from rezone.client.operations.transactions import Transaction, TransactionCommit
from rezone.client.requests.asking import Requests
from rezone.client.requests.calls import Budget
from rezone.client.requests.dispatch import Dispatcher
from rezone.client.requests.request import Request
from rezone.client.settings import (
    ClientSettings,
    TransactionOutcomeUnknownError,
    VersionMismatchError,
)
from rezone.datanode.reading.read import own_values
from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.datanode.writing.transacting import prepare_end, prepare_intents
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import ReshardedError, RezoneError, TransactionEndedError
from rezone.wire.messages import (
    OwnWrites,
    PartitionId,
    TransactionBegun,
    TransactionEnd,
    TransactionOutcome,
    TransactionResult,
    TransactionTimes,
    WriteRequest,
)
from simulation.clients.storm_clients import CopyStormOf, CutOverOf
from simulation.storms.copy_storm import FOR_EVER_SECONDS, PARTITION
from simulation.storms.data_plane import DataPlane, values_of
from simulation.storms.transactions import Answer, Send, begin

CLIENTS = 3
ROWS = 4
PATIENCE_SECONDS = 0.8
TIMEOUT_SECONDS = 12.0
LOST_ANSWERS = 0.1
PLAIN_CHANCE = 0.03
ABSENT_CHANCE = 0.15
THREAD_SECONDS_MAX = 120.0
"""A client's thread goes on at once; so long a loaded machine may take for that."""


class _OverError(Exception):
    """Raised in a client's thread when the run is over before it has an answer."""


class Asked(NamedTuple):
    """What a client waits for: an answer to this, or, without it, that some time passes."""

    partition: PartitionId = -1
    send: Send | None = None


class Talk:
    """What a client does, in a thread that runs only while `go_on` waits for it."""

    def __init__(self, work: Callable[[Talk], None]) -> None:
        self._work = work
        self._asked: queue.SimpleQueue[Asked | BaseException | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="conditional client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answers.get()
            self._work(self)
        except BaseException as error:  # noqa: BLE001 - raised by who waits for the thread
            self._asked.put(error)
        else:
            self._asked.put(None)

    def ask(self, asked: Asked) -> Any:
        """Wait for what comes of it; in the thread."""
        self._asked.put(asked)
        answer = self._answers.get()
        if isinstance(answer, _OverError):
            raise answer
        return answer

    def go_on(self, answer: Any) -> Asked | None:
        """Give it what it waits for; return what is next, None at its end."""
        self._answers.put(answer)
        asked = self._asked.get(timeout=THREAD_SECONDS_MAX)
        if isinstance(asked, BaseException):
            raise asked
        return asked

    def close(self) -> None:
        """End it wherever it is."""
        self._answers.put(_OverError())
        self._thread.join(THREAD_SECONDS_MAX)


@dataclasses.dataclass
class Attempt:
    """A conditional write, and what its client was told of it; `since` None: not to be there.

    `told`: "applied", "mismatch", "refused" or "unknown"; empty while it is under way. `time` is
    its commit time, or the version that it was refused by, None for none.
    """

    row: bytes
    value: bytes
    since: int | None
    told: str = ""
    time: int | None = None
    sealed: bool = False


class SimulatedTransaction(Transaction):
    """A transaction on one row of the simulation, where the product has its own: no table."""

    def __init__(self, client: Client, row: bytes) -> None:
        self.id = str(uuid.UUID(int=client.rng.getrandbits(128)))
        self._client = client
        self._row = row
        self._writes = 0
        self._over = False
        while True:
            self.partition = client.partition_of(row)
            begun = client.ask(Asked(self.partition, begin))
            if isinstance(begun, TransactionBegun):
                break
            if not isinstance(begun, ReshardedError):
                raise begun
        self._times = TransactionTimes(begun.read_time, begun.begun)

    @property
    def read_time(self) -> int:
        """As of when it reads."""
        return self._times.read_time

    def read(self, keys: object) -> Any:
        """Return the row, if it is there."""
        del keys
        own, rows = OwnWrites(self.id, self._times, self._writes), [self._row]

        def send(replica: Replica, answer: Answer) -> None:
            def found(error: RezoneError | None) -> None:
                try:
                    if error is None:
                        with replica.lock:
                            replica.serving.require_since(pa.array(rows), own.times.read_time)
                    answer(error or own_values(replica, rows, own))
                except RezoneError as failed:
                    answer(failed)

            replica.reads.submit(None, found, replica.serving.rows(rows))

        values = self._of_open(send)
        return pa.table({"value": [value for value in values if value is not None]})

    def write(self, data: Any, *, unchanged_since: int | None = None) -> None:
        """Write the row, its value's bytes, unless it was written since."""
        self._writes += 1
        since = self.read_time if unchanged_since is None else unchanged_since
        read_time = min(since, self.read_time)
        times = TransactionTimes(read_time, self._times.begun)
        request = WriteRequest(
            opaque=0,
            partition=self.partition,
            producer_id=self.id,
            sequence=self._writes,
            transaction=times,
        )
        plain = PreparedRows(rows_batch([self._row], [0], [data]), 100)

        def send(replica: Replica, answer: Answer) -> None:
            replica.write(request, prepare_intents(replica, plain, times), answer)

        self._of_open(send)

    def _of_open(self, send: Send) -> Any:
        answer = self._client.ask(Asked(self.partition, send))
        if isinstance(answer, ReshardedError):
            raise TransactionEndedError("the partition was re-sharded") from answer
        if isinstance(answer, RezoneError):
            raise answer
        return answer

    def commit(self) -> TransactionCommit:
        """Commit as `Transaction` does."""
        self._over = True
        result = self._client.requests.end(self.partition, self.id, commit_after=self._writes)
        if result.outcome is not TransactionOutcome.COMMITTED:
            raise TransactionEndedError(f"not committed: {result.outcome}")
        return TransactionCommit(
            partition=self.partition,
            transaction=self.id,
            end_offset=result.end_offset,
            commit_time=result.commit_time,
            leader_epoch=result.leader_epoch,
        )

    def abort(self) -> None:
        """Give it up."""
        if not self._over and self._writes:
            self._over = True
            self._client.requests.end(self.partition, self.id)


class Client(Dispatcher):
    """One client: what it does is in its talk's thread, all else in the simulation's.

    It stands where the product has its dispatcher, and sends each request by itself.
    """

    def __init__(self, storm: Conditional, seed: str) -> None:
        self.rng = random.Random(seed)
        self._storm = storm
        self.requests = Requests(self, Budget(ClientSettings()))
        self._writes = ConditionalWrites(
            lambda key: SimulatedTransaction(self, key["row"]),
            lambda transaction: self.requests.end(transaction.partition, transaction.id),
            clock=storm.plane.loop.monotonic,
            pause=lambda _: self.ask(Asked()),
            timeout_seconds=TIMEOUT_SECONDS,
        )
        self._known: dict[bytes, int] = {}
        self._talk: Talk | None = None
        self._asked = Asked()
        self._sent_at = 0.0
        self._tries = 0
        self._answers: list[Any] = []

    @property
    def idle(self) -> bool:
        """Whether it does nothing."""
        return self._talk is None

    def close(self) -> None:
        """End what it does."""
        if self._talk is not None:
            self._talk.close()

    # --- the client's thread ---------------------------------------------------------------------

    def ask(self, asked: Asked) -> Any:
        """Wait for an answer that is not to be asked for again."""
        assert self._talk is not None
        return self._talk.ask(asked)

    def partition_of(self, row: bytes) -> PartitionId:
        """Return who serves a row, as far as clients know."""
        return self._storm.partition_of(row)

    def target_of(self, partition: PartitionId) -> PartitionId | None:
        """Return who has taken over the start of a partition."""
        return self._storm.target_of(partition)

    def submit(self, request: Request) -> bool:
        """Send the end of a transaction, until it is answered."""
        message = request.message(0)
        assert isinstance(message, TransactionEnd)

        def send(replica: Replica, answer: Answer) -> None:
            replica.write(message, prepare_end(replica, message), answer)

        answer = self.ask(Asked(request.partition, send))
        request.attempts = self._tries
        if isinstance(answer, TransactionResult):
            request.done((answer, memoryview(b"")))
        else:
            request.done(answer)
        return True

    def _work(self, attempt: Attempt) -> None:
        def write(transaction: Transaction) -> None:
            transaction.write(attempt.value, unchanged_since=attempt.since)

        try:
            done = self._writes.change({"row": attempt.row}, Condition(attempt.since), write)
        except VersionMismatchError as mismatch:
            attempt.told, attempt.time = "mismatch", mismatch.version
            attempt.sealed = "re-sharded" in str(mismatch)
        except TransactionOutcomeUnknownError:
            attempt.told = "unknown"
        except RezoneError:
            attempt.told = "refused"
        else:
            attempt.told, attempt.time = "applied", done.commit_time
        if attempt.time is not None:
            self._known[attempt.row] = attempt.time

    # --- the simulation's thread -----------------------------------------------------------------

    def step(self, now: float, *, more: bool) -> None:
        """Take an answer that has come, and send what is next, or the same again."""
        if self._talk is None:
            if more:
                attempt = self._storm.attempt(self.rng, self._known)
                self._talk = Talk(lambda _: self._work(attempt))
                self._go_on(None, now)
        elif self._asked.send is None:
            self._go_on(None, now)
        elif self._answers:
            answer = self._answers[0]
            if isinstance(answer, ReshardedError):
                self._storm.resharded(self._asked.partition)
                self._go_on(answer, now)
            elif isinstance(answer, RezoneError) and answer.retryable:
                self._send(now)
            else:
                self._go_on(answer, now)
        elif now - self._sent_at > PATIENCE_SECONDS:
            self._send(now)

    def _go_on(self, answer: Any, now: float) -> None:
        assert self._talk is not None
        asked = self._talk.go_on(answer)
        if asked is None:
            self._talk = None
            return
        self._asked, self._tries = asked, 0
        if asked.send is not None:
            self._send(now)

    def _send(self, now: float) -> None:
        self._sent_at = now
        self._answers = mine = []  # an answer to an earlier try is not waited for any more
        leaders = self._storm.plane.leaders(self._asked.partition)
        if not leaders:
            return
        self._tries += 1

        def answer(result: Any) -> None:
            if self.rng.random() >= LOST_ANSWERS:
                mine.append(result)

        assert self._asked.send is not None
        try:
            with self._storm.plane.mortals():
                self._asked.send(self.rng.choice(leaders), answer)
        except RezoneError as error:
            answer(error)


class Conditional:
    """The clients of a run, and those that write the same rows without a condition."""

    def __init__(
        self,
        plane: DataPlane,
        seed: int,
        rows: Sequence[bytes],
        partition_of: Callable[[bytes], PartitionId],
        *,
        target_of: Callable[[PartitionId], PartitionId | None] = lambda _: None,
        value_of: Callable[[bytes], bytes] = bytes,
        resharded: Callable[[PartitionId], None] = lambda _: None,
    ) -> None:
        self.plane = plane
        self.partition_of = partition_of
        self.target_of = target_of
        self.resharded = resharded
        self._rng = random.Random(f"conditional writes {seed}")
        self._rows = rows
        self._value_of = value_of
        self._number = 0
        self.attempts: list[Attempt] = []
        self._clients = [Client(self, f"conditional {seed} {n}") for n in range(CLIENTS)]

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return all(client.idle for client in self._clients)

    def step(self, *, storm: bool) -> None:
        """Go on with what each client does; in a storm begin more."""
        for client in self._clients:
            client.step(self.plane.loop.monotonic(), more=storm)
        if storm and self._rng.random() < PLAIN_CHANCE:
            self._write_plain()

    def close(self) -> None:
        """End the clients, whatever they wait for."""
        for client in self._clients:
            client.close()

    def attempt(self, rng: random.Random, known: dict[bytes, int]) -> Attempt:
        """Return the next thing that a client tries; `known`: the versions that it has."""
        row = rng.choice(self._rows)
        since = known.get(row) if rng.random() >= ABSENT_CHANCE else None
        self.attempts.append(Attempt(row, self._next_value(), since))
        return self.attempts[-1]

    def _next_value(self) -> bytes:
        self._number += 1
        return self._value_of(b"conditional %d" % self._number)

    def _write_plain(self) -> None:
        """Write a row without a condition, once; nobody waits for the answer."""
        row = self._rng.choice(self._rows)
        partition = self.partition_of(row)
        request = WriteRequest(
            opaque=0,
            partition=partition,
            producer_id=str(uuid.UUID(int=self._rng.getrandbits(128))),
            sequence=1,
        )
        prepared = PreparedRows(rows_batch([row], [0], [self._next_value()]), 100)
        for leader in self.plane.leaders(partition)[:1]:
            try:
                with self.plane.mortals():
                    leader.write(request, prepared, lambda _: None)
            except RezoneError:
                return

    def check(self, replica_of: Callable[[bytes], Replica]) -> None:
        """Compare all that clients were told with what is there, of all times."""
        kept = {row: values_of(replica_of(row), row) for row in self._rows}
        for attempt in self.attempts:
            self.plane.counts[f"conditional: {attempt.told}"] += 1
            _check(attempt, kept[attempt.row])


def _check(attempt: Attempt, kept: dict[bytes, int]) -> None:
    """Assert that an attempt did what its client was told, by the row's values and their times."""
    time = kept.get(attempt.value)
    if attempt.told == "applied":
        assert time is not None, f"{attempt} is lost"
        assert time == attempt.time, f"{attempt} is there at {time}"
        between = [t for t in kept.values() if (attempt.since or 0) < t < time]
        assert not between, f"{attempt} has overwritten {between} unseen"
    elif attempt.told != "unknown":
        assert time is None, f"{attempt} is there at {time}"
    if attempt.told == "mismatch" and not attempt.sealed and attempt.time is not None:
        since = attempt.since or 0
        seen = [t for t in kept.values() if since < t <= attempt.time]
        assert seen, f"{attempt}: nobody had written the row; {kept}"


class ConditionalCutOver(CutOverOf[Conditional]):
    """A re-sharding under storms, with compare-and-set over its seals."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rows = [bytes([n * 256 // ROWS]) * 8 + b"conditional%d" % n for n in range(ROWS)]
        self.more = Conditional(
            self,
            seed,
            rows,
            self._partition_of,
            target_of=lambda old: self.new.partition_of(self.old.range_of(old).start),
            resharded=self.told.add,
        )

    def _check_end(self) -> None:
        super()._check_end()
        self.more.check(self.leader_of)


class ConditionalCopyStorm(CopyStormOf[Conditional]):
    """Copies in both forms under storms, with compare-and-set at leaders that come and go."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        rows = self._rows_of(b"conditional%d", ROWS)
        self.more = Conditional(self, seed, rows, lambda _: PARTITION, value_of=self._value_of)

    def settle(self) -> None:
        """Wait until all is copied; each replica must have what clients were told."""
        super().settle()
        if self.config.version_retention_seconds == FOR_EVER_SECONDS:
            for replica in self.replicas():
                self.more.check(lambda _, here=replica: here)  # type: ignore[misc]


def storm(seed: int) -> collections.Counter[str]:
    """Run a re-sharding by an even seed, copies by an odd one; returns what has happened."""
    run = ConditionalCopyStorm(seed) if seed % 2 else ConditionalCutOver(seed)
    run.run()
    return run.counts
