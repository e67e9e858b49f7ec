"""Clients with transactions in a simulated zone, and what must be true of what they were told.

Each client makes one transaction after the other on partition 0: reads some rows, writes its own
name to some of them, commits, aborts, or walks away. A request goes to a replica that believes to
lead, and again, to any such, when the answer is lost, late, or says to retry: so each is made
twice now and then. Beside them plain writes of the same rows are made once each.
"""

from __future__ import annotations

import collections
import dataclasses
import random
import uuid
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from rezone.datanode.reading.read import own_values
from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.datanode.writing.transacting import prepare_end, prepare_intents
from rezone.storage.engines.base import FLAG_VALUE, TIME_BYTES, time_of
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import RezoneError
from rezone.wire.messages import (
    OwnWrites,
    Role,
    TransactionBegun,
    TransactionEnd,
    TransactionOutcome,
    TransactionResult,
    TransactionTimes,
    WriteRequest,
    WriteResult,
)

if TYPE_CHECKING:
    from rezone.storage.store import PartitionStore
    from simulation.cluster.world import World

PARTITION = 0
ROWS = [b"row%d" % number for number in range(10)]
CLIENTS = 3
PATIENCE_SECONDS = 1.5
PLAIN_CHANCE = 0.05
LOST_ANSWERS = 0.05

Answer = Callable[[Any], None]
Send = Callable[[Replica, Answer], None]
Talk = Generator[Send, Any, None]
Versions = dict[bytes, dict[int, bytes]]
"""The values of each row by commit time; empty where it was deleted."""


@dataclasses.dataclass
class Told:
    """One transaction and what its client knows of it; `order`: its rows, write by write."""

    name: str
    times: TransactionTimes
    # What it writes.
    value: bytes
    order: list[list[bytes]] = dataclasses.field(default_factory=list)
    read: dict[bytes, bytes | None] = dataclasses.field(default_factory=dict)
    outcome: TransactionOutcome | None = None
    commit_time: int = 0
    # Whether it may have committed: it was told of that so late that nobody remembers.
    unsure: bool = False

    @property
    def rows(self) -> set[bytes]:
        """The rows it writes."""
        return {row for rows in self.order for row in rows}


def begin(partition: Replica, answer: Answer) -> None:
    """Ask for a transaction's times."""

    def begun(error: RezoneError | None) -> None:
        try:
            answer(error or partition.transacting.begin(0))
        except RezoneError as failed:  # the node does not know the time
            answer(failed)

    partition.reads.submit(None, begun)


def read(tx: Told, rows: list[bytes]) -> Send:
    """Return what reads these rows within a transaction."""
    own = OwnWrites(tx.name, tx.times, len(tx.order))

    def send(partition: Replica, answer: Answer) -> None:
        def found(error: RezoneError | None) -> None:
            try:
                answer(error or dict(zip(rows, own_values(partition, rows, own), strict=True)))
            except RezoneError as failed:
                answer(failed)

        partition.reads.submit(None, found)

    return send


def write(tx: Told) -> Send:
    """Return what makes the newest of a transaction's writes."""
    rows = tx.order[-1]
    request = WriteRequest(
        opaque=0,
        partition=PARTITION,
        producer_id=tx.name,
        sequence=len(tx.order),
        transaction=tx.times,
    )
    plain = PreparedRows(rows_batch(rows, [0] * len(rows), [tx.value] * len(rows)), 100)

    def send(partition: Replica, answer: Answer) -> None:
        partition.write(request, prepare_intents(partition, plain, tx.times), answer)

    return send


def end(tx: Told, *, commit: bool) -> Send:
    """Return what commits or aborts a transaction."""
    request = TransactionEnd(
        opaque=0,
        partition=PARTITION,
        transaction=tx.name,
        sequence=len(tx.order) + 1,
        commit=commit,
    )

    def send(partition: Replica, answer: Answer) -> None:
        partition.write(request, prepare_end(partition, request), answer)

    return send


class Client:
    """One client: its talk with the leader of the moment, request by request.

    Its transactions are about `rows`; `value_of` makes what they write of their names.
    """

    def __init__(
        self,
        rng: random.Random,
        told: list[Told],
        rows: list[bytes] = ROWS,
        value_of: Callable[[bytes], bytes] = bytes,
    ) -> None:
        self._rng = rng
        self._told = told
        self._rows = rows
        self._value_of = value_of
        self._talk: Talk | None = None
        self._request: Send | None = None
        self._sent_at = float("-inf")
        self._tries = 0
        self._answers: list[Any] = []

    @property
    def idle(self) -> bool:
        """Whether no transaction is under way."""
        return self._request is None

    def step(self, leaders: list[Replica], now: float) -> None:
        """Take an answer that has come, and send what is next, or the same again."""
        if self._request is None:
            self._talk = self._transaction()
            self._go_on(None)
        elif self._answers:
            answer = self._answers[0]
            self._answers, self._sent_at = [], float("-inf")
            if not (isinstance(answer, RezoneError) and answer.retryable):
                self._go_on(answer)
        if self._request is not None and leaders and now - self._sent_at > PATIENCE_SECONDS:
            self._send(self._rng.choice(leaders), self._request)
            self._sent_at = now

    def _go_on(self, answer: Any) -> None:
        assert self._talk is not None
        try:
            self._request = self._talk.send(answer)
            self._tries = 0
        except StopIteration:
            self._request = None

    def _send(self, partition: Replica, request: Send) -> None:
        self._tries += 1
        self._answers = mine = []  # an answer to an earlier try is not waited for any more

        def answer(result: Any) -> None:
            if self._rng.random() >= LOST_ANSWERS:
                mine.append(result)

        try:
            request(partition, answer)
        except RezoneError as error:
            answer(error)

    def _transaction(self) -> Talk:
        rng = self._rng
        begun = yield begin
        if not isinstance(begun, TransactionBegun):
            return
        times = TransactionTimes(begun.read_time, begun.begun)
        name = str(uuid.UUID(int=rng.getrandbits(128)))
        tx = Told(name, times, self._value_of(name.encode()))
        self._told.append(tx)
        for _ in range(rng.randrange(1, 4)):
            found = yield read(tx, self._rows)
            if isinstance(found, RezoneError):
                break
            own = {row for row, value in found.items() if value == tx.value}
            assert own == tx.rows, f"{tx.name} has written {tx.rows} and reads {found}"
            tx.read |= {row: value for row, value in found.items() if row not in own}
            tx.order.append(rng.sample(self._rows, rng.randrange(1, 3)))
            if not isinstance((yield write(tx)), WriteResult):
                break
        else:
            if rng.random() < 0.1:
                return  # its leader aborts it, some day
            yield from self._end(tx, commit=rng.random() < 0.8)
            return
        yield from self._end(tx, commit=False)

    def _end(self, tx: Told, *, commit: bool) -> Talk:
        result = yield end(tx, commit=commit)
        assert isinstance(result, TransactionResult), f"{tx.name} ends with {result!r}"
        tx.outcome, tx.commit_time = result.outcome, result.commit_time
        tx.unsure = commit and self._tries > 1 and tx.outcome is TransactionOutcome.UNKNOWN


class Traffic:
    """Clients of partition 0 for some seconds, and what is checked of them."""

    def __init__(self, world: World, seconds: float) -> None:
        self._world = world
        self._rng = random.Random(f"traffic {world.seed}")
        self.told: list[Told] = []
        self._clients = [Client(self._rng, self.told) for _ in range(CLIENTS)]
        self._until = world.loop.time() + seconds
        self._plain = 0
        before = world.each_step

        def each(world: World) -> None:
            before(world)
            self._step()

        world.each_step = each

    def _step(self) -> None:
        now = self._world.loop.time()
        more = now < self._until
        for client in self._clients:
            if more or not client.idle:
                self._world.disturbed()
                with self._world.mortals():
                    client.step(self._leaders(), now)
        leaders = self._leaders()
        if more and leaders and self._rng.random() < PLAIN_CHANCE:
            with self._world.mortals():
                self._write_plain(self._rng.choice(leaders))
        for store in self._stores():
            half = torn(self.told, _readable(store))
            assert not half, f"half of {half}"

    def _leaders(self) -> list[Replica]:
        return [p for p in self._replicas() if p.role is Role.LEADER]

    def _replicas(self) -> list[Replica]:
        return [p for p in self._world.replicas() if p.partition_id == PARTITION]

    def _stores(self) -> list[PartitionStore]:
        return [replica.store for replica in self._replicas()]

    def _write_plain(self, partition: Replica) -> None:
        self._plain += 1
        row, value = self._rng.choice(ROWS), b"plain %d" % self._plain
        request = WriteRequest(
            opaque=0,
            partition=PARTITION,
            producer_id=str(uuid.UUID(int=self._plain)),
            sequence=1,
        )
        try:
            partition.write(
                request, PreparedRows(rows_batch([row], [0], [value]), 100), lambda _: None
            )
        except RezoneError:
            return

    def unfinished(self) -> list[str]:
        """Return what the clients still have to do, and what is still open somewhere."""
        found = [f"{sum(not c.idle for c in self._clients)} clients"]
        busy = found if any(not c.idle for c in self._clients) else []
        open_ = [s for s in self._stores() if s.has_open_transactions]
        return busy + [f"open transactions in {len(open_)} replicas"] * bool(open_)

    def check(self) -> collections.Counter[str]:
        """Compare all that clients were told with what is there; return how often it was what."""
        whole = max(self._stores(), key=lambda store: store.applied)
        return check_told(self.told, versions(whole))


# --- what must be true --------------------------------------------------------------------------


def torn(told: list[Told], seen: Versions) -> list[str]:
    """Return the transactions of which only a part is there, or at several times."""
    places: dict[bytes, set[tuple[bytes, int]]] = collections.defaultdict(set)
    for row, values in seen.items():
        for time, value in values.items():
            places[value].add((row, time))
    return [
        tx.name
        for tx in told
        if (found := places.get(tx.value))
        and (
            {row for row, _ in found} != tx.rows
            or len(found) != len(tx.rows)
            or len({time for _, time in found}) != 1
        )
    ]


def check_told(told: list[Told], seen: Versions) -> collections.Counter[str]:
    """Compare all that clients were told with what is there; return how often it was what."""
    counts: collections.Counter[str] = collections.Counter()
    for tx in told:
        times = {t for row in tx.rows for t, v in seen[row].items() if v == tx.value}
        counts[tx.outcome.value if tx.outcome else "walked away"] += 1
        if tx.outcome is TransactionOutcome.COMMITTED:
            assert times == {tx.commit_time}, f"{tx.name} is not there as it was told"
            _check_alone(tx, seen)
        elif not tx.unsure:
            assert not times, f"{tx.name} is there though it is {tx.outcome}"
        for row, value in tx.read.items():
            past = max((t for t in seen[row] if t <= tx.times.read_time), default=0)
            assert value == seen[row].get(past), f"{tx.name} has read {row!r} wrong"
    return counts


def _check_alone(tx: Told, seen: Versions) -> None:
    for row in tx.rows:
        others = [t for t in seen[row] if tx.times.read_time < t < tx.commit_time]
        assert not others, f"{tx.name} has overwritten {row!r} of {others} unseen"


def _readable(store: PartitionStore) -> Versions:
    """Return what may be read of a replica.

    A copy that went on with a newer snapshot has brought its last rows as they are later. Nothing
    is read before it is whole, and nothing of a time that its log has not reached yet.
    """
    if store.meta.needs_snapshot:
        return {}
    return {
        row: {time: value for time, value in values.items() if time <= store.applied_time}
        for row, values in versions(store).items()
    }


def versions(store: PartitionStore, rows: list[bytes] = ROWS) -> Versions:
    """Return what a replica has of the rows, intents left out."""
    chains = store.engine.chains_of(sorted(rows))
    found: Versions = {row: {} for row in rows}
    for key, stored in zip(chains.keys, chains.values, strict=True):
        if stored[0] == FLAG_VALUE:
            found[key[:-TIME_BYTES]][time_of(key)] = stored[1:]
    return found
