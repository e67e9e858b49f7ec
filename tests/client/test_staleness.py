"""Reads with a bound on staleness: how old rows are when the caller gets them."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fake_cluster import FakeCluster, FakeNode, Fault

from rezone.client import AgedRows, ClientSettings, ReadTime, StaleRowsError, TableClient
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.messages import Message, ReadRequest, ScanTicket, ZoneConfig

TABLE = TableSchema(columns=(Column("id", ColumnType.INT64),), primary_key=("id",))
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=4, table=TABLE)
LAST = CONFIG.partitions - 1
KEYS = [{"id": i} for i in range(50)]
BOUND_SECONDS = 10.0
SLOW_SECONDS = 28.0
# By a clock that leaps: no request may end, or its node be suspected, by time.
SETTINGS = ClientSettings(
    timeout_seconds=100,
    attempt_timeout_seconds=1000,
    suspect_after_seconds=1000,
    backoff_first_seconds=0.0005,
    backoff_max_seconds=0.005,
)
Read = Callable[[TableClient, float], AgedRows | ReadTime]
READS: list[Any] = [
    pytest.param(lambda c, bound: c.read_any(KEYS, max_staleness_seconds=bound), id="read"),
    pytest.param(lambda c, bound: c.read_time(max_staleness_seconds=bound), id="time"),
    pytest.param(lambda c, bound: c.scan_any(max_staleness_seconds=bound), id="scan"),
    pytest.param(lambda c, bound: c.stream_any(max_staleness_seconds=bound), id="stream"),
]


@dataclasses.dataclass
class World:
    """One node that leads all partitions, and the one clock of it and its client.

    The last partition takes `slow_seconds` for each of so many reads and scans.
    """

    seconds: float = 1000.0
    slow_reads: int = 0
    slow_scans: int = 0
    slow_seconds: float = SLOW_SECONDS
    asked: list[ReadRequest] = dataclasses.field(default_factory=list)

    def clock(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def micros(self) -> int:
        """Return the time in microseconds."""
        return round(self.seconds * 1e6)

    def faults(self, _node: FakeNode, request: Message) -> Fault:
        """Note a read, and let time pass before the last partition answers."""
        if isinstance(request, ReadRequest):
            self.asked.append(request)
            if request.partition == LAST and self.slow_reads:
                self.slow_reads -= 1
                self.seconds += self.slow_seconds
        return Fault.NONE

    def before_batch(self, ticket: ScanTicket, _number: int) -> None:
        """Let time pass before a batch of the last partition."""
        if ticket.partition == LAST and self.slow_scans:
            self.slow_scans -= 1
            self.seconds += self.slow_seconds

    def bounds(self) -> list[int]:
        """Return what nodes were asked for, in milliseconds."""
        return [one.max_age_ms for one in self.asked if one.max_age_ms is not None]

    def age_of(self, found: AgedRows | ReadTime) -> float:
        """Return how old rows are now, in seconds."""
        return (self.micros() - found.as_of) / 1e6


@pytest.fixture
def world() -> World:
    """Give a world in which nothing is slow yet."""
    return World()


@pytest.fixture
def client(world: World) -> Iterator[TableClient]:
    """Give a client of a cluster with rows in every partition."""
    with FakeCluster(CONFIG, nodes=1, faults=world.faults) as cluster:
        cluster.micros = world.micros
        cluster.before_batch = world.before_batch
        with TableClient(cluster.bootstrap, settings=SETTINGS, clock=world.clock) as made:
            made.write(KEYS)
            yield made


@pytest.mark.parametrize("read", READS)
def test_rows_that_became_too_old_on_the_way_are_read_again(
    world: World, client: TableClient, read: Read
) -> None:
    """Asserts that no answer is older than its bound when one partition answers late.

    Without it the caller gets rows as old as the slowest partition made them.
    """
    world.slow_reads = 1
    found = read(client, BOUND_SECONDS)
    assert world.slow_reads == 0
    assert world.age_of(found) <= found.age_seconds + 1e-6
    assert found.age_seconds <= BOUND_SECONDS
    if isinstance(found, AgedRows):
        batches = found.rows.to_batches() if hasattr(found.rows, "to_batches") else found.rows
        assert sorted(i for b in batches for i in b["id"].to_pylist()) == [*range(50)]


def test_a_table_whose_scan_took_too_long_is_read_again(world: World, client: TableClient) -> None:
    """Asserts that the time of the scan counts, not only that of choosing what to read.

    Without it `scan_any` gives rows of any age.
    """
    world.slow_scans = 1
    found = client.scan_any(max_staleness_seconds=BOUND_SECONDS)
    assert world.slow_scans == 0
    assert world.age_of(found) <= found.age_seconds + 1e-6 <= BOUND_SECONDS
    assert found.rows.num_rows == len(KEYS)


def test_a_time_that_is_given_has_no_bound(world: World, client: TableClient) -> None:
    """Asserts that rows as of a time are handed out however long ago that is, with their age.

    Without it a report that is repeated as of its time is refused.
    """
    as_of = world.micros()
    world.slow_scans = 1
    found = client.scan_any(as_of=as_of)
    assert found.as_of == as_of
    assert found.age_seconds >= SLOW_SECONDS
    assert not world.bounds()


@pytest.mark.parametrize("read", READS)
def test_a_bound_that_cannot_be_kept_is_refused(
    world: World, client: TableClient, read: Read
) -> None:
    """Asserts that reading again ends, with an error that says how old the rows were.

    Without it the caller waits for ever, or takes old rows for new ones.
    """
    world.slow_reads = 1000
    with pytest.raises(StaleRowsError, match=r"at most 10\.0 s") as refused:
        read(client, BOUND_SECONDS)
    assert refused.value.max_staleness_seconds == BOUND_SECONDS
    assert refused.value.age_seconds >= SLOW_SECONDS
    assert world.seconds <= 1000 + SETTINGS.timeout_seconds + 2 * SLOW_SECONDS


def test_a_bound_that_is_never_kept_ends_after_a_few_reads_though_time_is_left(
    world: World, client: TableClient
) -> None:
    """Asserts that a bound below what a read takes is refused soon.

    Without it such a read asks all partitions without end until the timeout.
    """
    world.slow_reads, world.slow_seconds = 1000, 0.5
    with pytest.raises(StaleRowsError):
        client.read_any(KEYS, max_staleness_seconds=0.1)
    assert len(world.bounds()) <= 5 * CONFIG.partitions


def test_a_second_try_asks_for_newer_rows(world: World, client: TableClient) -> None:
    """Asserts that nodes are asked for less than the bound, by what the last try has taken.

    Without it a leader that gives rows just as old as asked for is always too late.
    """
    world.slow_reads, world.slow_seconds = 1, 4.0
    found = client.read_any(KEYS, max_staleness_seconds=BOUND_SECONDS)
    assert found.age_seconds <= BOUND_SECONDS
    assert world.bounds() == [9000] * CONFIG.partitions + [2000] * CONFIG.partitions


def test_a_bound_of_zero_is_the_newest_state_of_one_time(world: World, client: TableClient) -> None:
    """Asserts that rows are then not older than the call, however long that takes.

    Without it 0 can never be kept, and no call gives the newest rows of all partitions at once.
    """
    world.slow_reads = 1
    begun = world.micros()
    found = client.read_any(KEYS, max_staleness_seconds=0)
    assert found.as_of >= begun
    assert found.age_seconds >= SLOW_SECONDS, "the age is told"


@pytest.mark.parametrize("bound", [-1.0, float("nan"), float("inf")])
def test_a_bound_that_is_no_time_is_refused(client: TableClient, bound: float) -> None:
    """Asserts that a bound is a number of seconds.

    Without it the comparison with it is always false, or always true.
    """
    with pytest.raises(ValueError, match="max_staleness_seconds"):
        client.read_time(max_staleness_seconds=bound)
