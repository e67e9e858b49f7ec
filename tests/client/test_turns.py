"""Requests of calls that have waited take turns at their leader, and none waits for long."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster, FakeNode, Fault

from rezone.client import ClientSettings, TableClient
from rezone.client.requests.turns import Turn, Turns
from rezone.wire.codec.encoded_rows import encoded_rows
from rezone.wire.codec.schema import Column, ColumnType, TableSchema
from rezone.wire.layouts import layout_of
from rezone.wire.messages import Message, WriteRequest, ZoneConfig

NODES = {0: "a", 1: "a", 2: "a", 3: "b"}


class Sender:
    """Sends requests of partitions when they are told, and notes in which order."""

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = Turns(NODES.__getitem__, lambda: self.now)
        self.sent: list[int] = []
        self._under_way: dict[int, Turn] = {}

    def begin(self, partition: int) -> None:
        """Send the request of a partition that has waited for nothing."""
        self._note(partition, self.turns.begin(partition))

    def wait(self, *partitions: int) -> None:
        """Have requests sent at their turns."""
        for partition in partitions:
            self.turns.wait(partition, functools.partial(self._note, partition))

    def end(self, partition: int, after_seconds: float = 1.0) -> None:
        """Have a request answered."""
        self.now += after_seconds
        self.turns.end(self._under_way.pop(partition))

    def _note(self, partition: int, turn: Turn) -> None:
        self.sent.append(partition)
        self._under_way[partition] = turn


@pytest.fixture
def sender() -> Sender:
    """Give who sends, and knows that a request takes a second at each node."""
    made = Sender()
    for partition in (0, 3):
        made.begin(partition)
        made.end(partition)
    made.sent.clear()
    return made


@pytest.mark.proves("PW-02")
def test_who_has_waited_waits_for_others_of_its_leader(sender: Sender) -> None:
    """Partitions of one node would each have a request under way, of a part of the calls."""
    sender.begin(0)
    sender.wait(1, 2, 3)
    assert sender.sent == [0, 3], "the request at another node is no reason to wait"
    sender.end(0, 0.5)
    assert sender.sent == [0, 3, 1]
    sender.end(1, 0.4)
    assert sender.sent == [0, 3, 1, 2]


def test_who_has_not_waited_goes_at_once(sender: Sender) -> None:
    """A call that is alone in its partition would take longer than before."""
    sender.begin(0)
    sender.begin(1)
    sender.wait(2)
    sender.end(0, 0.1)
    assert sender.sent == [0, 1], "a request that went at once counts as any other"
    sender.end(1, 0.1)
    assert sender.sent == [0, 1, 2]


def test_nobody_waits_longer_than_a_request_takes(sender: Sender) -> None:
    """Where requests take long for other reasons than the node's work, its partitions need many."""
    sender.begin(0)
    sender.wait(1)
    sender.now += 0.5
    sender.wait(2)
    sender.now += 0.5
    sender.turns.look()
    assert sender.sent == [0, 1]
    sender.end(1, 0.5)
    assert sender.sent == [0, 1, 2], "the request of partition 0 is under way"


def test_a_request_that_hangs_makes_nobody_wait_for_as_long(sender: Sender) -> None:
    """A partition without its followers would hold up all others of its leader, for minutes."""
    sender.begin(0)
    sender.end(0, 600.0)
    sender.begin(0)
    sender.wait(1)
    sender.now += 1.2
    sender.turns.look()
    assert sender.sent == [0, 0, 1]


def test_a_request_apart_is_waited_for_by_nobody(sender: Sender) -> None:
    """A load would have small writes wait for as long as its batches take."""
    turn = sender.turns.apart()
    sender.wait(1)
    sender.now += 600.0
    sender.turns.end(turn)
    sender.wait(2)
    assert sender.sent == [1]
    sender.now += 1.2
    sender.turns.look()
    assert sender.sent == [1, 2], "what it took is nothing to wait for"


def test_a_node_of_which_nothing_is_known_makes_nobody_wait() -> None:
    """What a request takes there is not known, and the first one may be one that hangs."""
    sender = Sender()
    sender.begin(0)
    sender.wait(1)
    assert sender.sent == [0, 1]


def test_requests_that_end_at_once_do_not_nest(sender: Sender) -> None:
    """A client that is closed ends all of them: thousands would be too deep for the stack."""
    depths = []
    depth = 0

    def end_at_once(turn: Turn) -> None:
        nonlocal depth
        depth += 1
        depths.append(depth)
        sender.turns.end(turn)
        depth -= 1

    sender.begin(0)
    for _ in range(2000):
        sender.turns.wait(1, end_at_once)
    assert not depths
    sender.end(0, 0.1)
    assert depths == [1] * 2000


def test_who_cannot_be_sent_does_not_stop_the_others(sender: Sender) -> None:
    """One error of a sender would end all requests at a node, for ever."""

    def fail(_turn: Turn) -> None:
        raise RuntimeError("of a test")

    sender.begin(0)
    sender.turns.wait(1, fail)
    sender.wait(2)
    with pytest.raises(RuntimeError, match="of a test"):
        sender.end(0, 0.1)
    sender.now += 1.0
    sender.turns.look()
    assert sender.sent == [0, 2]


# --- as lanes take them ---------------------------------------------------------------------

TABLE = TableSchema(columns=(Column("id", ColumnType.INT64),), primary_key=("id",))
CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=2, table=TABLE)
SETTINGS = ClientSettings(attempt_timeout_seconds=30)
WAIT_SECONDS = 20
LONG_SECONDS = 1000.0
MANY = 65


@dataclasses.dataclass
class Lanes:
    """A client of two partitions that one node leads, and rows of each of them."""

    cluster: FakeCluster
    client: TableClient
    faults: dict[int, Fault] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        """Give the next write of a partition its fault, and find rows of each."""
        self.cluster.faults = self._fault
        codec = self.cluster.codec
        ids = [{"id": number} for number in range(400)]
        batch = codec.key_schema.empty_table().from_pylist(ids, codec.key_schema).to_batches()[0]
        layout = layout_of(CONFIG)
        where = [layout.partition_of(h) for h in encoded_rows(codec, batch).hashes().tolist()]
        self._rows = {p: [{"id": n} for n, at in enumerate(where) if at == p] for p in (0, 1)}

    def rows(self, partition: int, count: int = 1) -> list[dict[str, int]]:
        """Return new rows of a partition."""
        taken = self._rows[partition][:count]
        self._rows[partition] = self._rows[partition][count:]
        return taken

    def written(self, partition: int) -> int:
        """Return how many rows of a partition the node has."""
        return len(self.cluster.partitions[partition].data)

    def _fault(self, _node: FakeNode, request: Message) -> Fault:
        if not isinstance(request, WriteRequest):
            return Fault.NONE
        return self.faults.pop(request.partition, Fault.NONE)


@pytest.fixture
def rows_under_way() -> int:
    """Give how many rows the write has that is under way."""
    return 1


@pytest.fixture
def lanes(rows_under_way: int) -> Iterator[Lanes]:
    """Give two lanes; a write of partition 0 is under way, and a thousand seconds are usual."""
    with (
        FakeCluster(CONFIG, nodes=1) as cluster,
        TableClient(cluster.bootstrap, settings=SETTINGS) as client,
    ):
        made = Lanes(cluster, client)
        for partition in (0, 1):
            client.write(made.rows(partition))
        made.faults[0] = Fault.SWALLOW_BEFORE
        client.submit_write(made.rows(0, rows_under_way))
        for node in client._writes._turns._nodes.values():
            node.seconds = LONG_SECONDS
        yield made


@pytest.mark.proves("PW-02")
@pytest.mark.parametrize("count", [1, MANY])
def test_few_rows_that_have_waited_wait_for_their_turn(lanes: Lanes, count: int) -> None:
    """Few would cost a request of their own; many would wait, and have nothing to gain."""
    client = lanes.client
    lanes.faults[1] = Fault.DELAY  # answered with what is asked next
    under_way = client.submit_write(lanes.rows(1))
    waits = client.submit_write(lanes.rows(1, count))
    client.read(lanes.rows(0))
    under_way.result(WAIT_SECONDS)
    if count == 1:
        client.read(lanes.rows(0))  # what was sent by now is carried out before
        assert lanes.written(1) == 2, "a write of partition 0 is under way"
        for node in client._writes._turns._nodes.values():
            node.seconds = 0.001
    assert waits.result(WAIT_SECONDS)[0].rows == count


@pytest.mark.parametrize("rows_under_way", [MANY])
def test_nobody_waits_for_many_rows(lanes: Lanes) -> None:
    """Beside a load each small write that has waited would wait for a batch of it, too."""
    client = lanes.client
    lanes.faults[1] = Fault.DELAY  # answered with what is asked next
    client.submit_write(lanes.rows(1))
    waits = client.submit_write(lanes.rows(1))
    client.read(lanes.rows(0))
    assert waits.result(WAIT_SECONDS)[0].rows == 1


def test_a_call_that_has_not_waited_goes_at_once(lanes: Lanes) -> None:
    """A lone writer would wait for what others write."""
    for _ in range(3):
        lanes.client.submit_write(lanes.rows(1)).result(WAIT_SECONDS)
    assert lanes.written(0) == 1
