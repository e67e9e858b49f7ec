"""Telling data nodes of zone and routes: who is told what again, and what a thousand cost."""

from __future__ import annotations

import collections
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rezone.controller.nodes import notify
from rezone.controller.nodes.monitor import WatchedNode, utc_now
from rezone.controller.nodes.node_state import NodeState
from rezone.controller.nodes.notify import NODES_AT_ONCE, PARTITIONS_PER_CALL, Notifier
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.wire.errors import NotReadyError, RezoneError, StaleEpochError
from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    Fence,
    LeaderAndIsr,
    Message,
    NotifyLeaderAndIsr,
    ZoneConfig,
    decode,
    encode,
)

NODES = 3 * NODES_AT_ONCE
HEARD = NodeState(
    process_id="p", zone_uid="u", version=1, coordinator_epoch=0, leaving=False, replicas={}
)


class Network:
    """Takes every call; counts how many are under way, and holds the first ones."""

    def __init__(self) -> None:
        self.most = self._under_way = 0
        self.calls: list[tuple[Message, bytes | None]] = []
        self._lock = threading.Lock()
        self._full = threading.Event()

    def call(self, request: Message, _reply: Any, *, encoded: bytes | None, **_: Any) -> Ack:
        """Answer when as many calls as may be are under way, or have been."""
        with self._lock:
            self.calls.append((request, encoded))
            self._under_way += 1
            self.most = max(self.most, self._under_way)
            if self._under_way == NODES_AT_ONCE:
                self._full.set()
        self._full.wait(10)
        with self._lock:
            self._under_way -= 1
        return Ack()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Yield more threads than may be used."""
    with ThreadPoolExecutor(NODES) as pool:
        yield pool


async def test_all_nodes_are_told_by_few_threads_and_each_record_is_encoded_once(
    executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new coordinator of a large zone would serve no other zone for seconds."""
    encoded: collections.Counter[int] = collections.Counter()

    def counted(message: Message) -> bytes:
        assert isinstance(message, NotifyLeaderAndIsr)
        encoded[message.partitions[0].partition] += 1
        return encode(message)

    monkeypatch.setattr(notify, "encode", counted)
    network: Any = Network()
    watched = {n: WatchedNode(n, f"10.0.0.{n}:1", network, node_state=HEARD) for n in range(NODES)}
    monitor: Any = SimpleNamespace(nodes=lambda: watched)
    table = RouteRecords([routes.initial((0, 1, 2), 1)] * (PARTITIONS_PER_CALL + 1))
    config = ZoneConfig(zone="z", zone_uid="u", partitions=len(table))
    notifier = Notifier(executor, monitor, 5.0)
    assert await notifier.notify(config, {0: "10.0.0.0:1"}, table, Fence(coordinator_epoch=1))
    assert network.most == NODES_AT_ONCE
    assert encoded == {0: 1, PARTITIONS_PER_CALL: 1}
    kinds = collections.Counter(type(request) for request, _ in network.calls)
    assert kinds == {ConfigureNode: NODES, NotifyLeaderAndIsr: 2 * NODES}
    assert all(decode(body) == request for request, body in network.calls if body is not None)


class OneNode:
    """A data node that keeps what it is told, and `refuses` it; `told` forgets what it returns."""

    def __init__(self) -> None:
        self.refuses: RezoneError | None = None
        self._calls: list[Message] = []

    def call(self, request: Message, _reply: Any, **_: Any) -> Ack:
        """Take a call."""
        self._calls.append(request)
        if self.refuses is not None:
            raise self.refuses
        return Ack()

    def told(self) -> list[str | list[int]]:
        """Return what was told: the partitions of records, or the name of another call."""
        calls, self._calls = self._calls, []
        return [
            [each.partition for each in call.partitions]
            if isinstance(call, NotifyLeaderAndIsr)
            else type(call).__name__
            for call in calls
        ]


def alone(executor: ThreadPoolExecutor) -> tuple[OneNode, WatchedNode, Notifier]:
    """Return a node, what is heard of it, and who tells it: nobody else is there."""
    node: Any = OneNode()
    watched = WatchedNode(0, "10.0.0.0:1", node, node_state=HEARD)
    monitor: Any = SimpleNamespace(nodes=lambda: {0: watched})
    return node, watched, Notifier(executor, monitor, 5.0)


@pytest.mark.proves("ZR-12", "ZR-13")
async def test_a_node_is_told_what_it_has_not_confirmed_and_everything_after_a_restart(
    executor: ThreadPoolExecutor,
) -> None:
    """A node would go on with the peers of before, or each pass tell all nodes everything."""
    node, watched, notifier = alone(executor)
    config = ZoneConfig(zone="z", zone_uid="u", partitions=2)
    first, second = routes.initial((0, 1), 1), routes.initial((1, 0), 1)
    changed = routes.confirm(first)
    assert not isinstance(changed, routes.Refusal)

    async def told(*records: LeaderAndIsr, epoch: int = 1) -> list[str | list[int]]:
        fence = Fence(coordinator_epoch=epoch)
        node_state = await notifier.notify(config, {}, RouteRecords(records), fence)
        assert node_state == (node.refuses is None)
        found: list[str | list[int]] = node.told()
        return found

    assert await told(first, second) == ["ConfigureNode", [0, 1]]
    assert await told(first, second) == []
    assert await told(changed, second) == [[0]]
    node.refuses = NotReadyError("not now")
    assert await told(first, second) == [[0]]
    node.refuses = None
    assert await told(first, second) == ["ConfigureNode", [0, 1]], "what it has is not known"
    watched.node_state = dataclasses.replace(HEARD, process_id="another")
    assert await told(first, second) == ["ConfigureNode", [0, 1]]
    assert await told(first, second, epoch=2) == ["ConfigureNode"], "it has persisted the records"


@pytest.mark.proves("ZR-12")
async def test_nodes_without_a_replica_are_told_all_records_too(
    executor: ThreadPoolExecutor,
) -> None:
    """A node that holds nothing of a partition hears who leads it, and of each change.

    Clients that ask it would be sent to an old leader, or to nobody.
    """
    nodes = {n: OneNode() for n in range(4)}
    connections: dict[int, Any] = dict(nodes)
    watched = {
        n: WatchedNode(n, f"10.0.0.{n}:1", each, node_state=HEARD)
        for n, each in connections.items()
    }
    monitor: Any = SimpleNamespace(nodes=lambda: watched)
    notifier = Notifier(executor, monitor, 5.0)
    config = ZoneConfig(zone="z", zone_uid="u", partitions=2)
    before, other = routes.initial((0, 1), 1), routes.initial((1, 2), 1)
    after = routes.confirm(before)
    assert not isinstance(after, routes.Refusal)
    for first in (before, after):
        table = RouteRecords([first, other])
        assert await notifier.notify(config, {}, table, Fence(coordinator_epoch=1))
    for node in nodes.values():
        assert node.told() == ["ConfigureNode", [0, 1], [0]]


def test_nodes_that_answer_hear_that_their_zone_is_deleted(executor: ThreadPoolExecutor) -> None:
    """Their pods would wait for an operator that asks no more; a silent one would hold a thread."""
    node, watched, notifier = alone(executor)
    node.refuses = NotReadyError("not now")
    notifier.zone_deleted(Fence(coordinator_epoch=1), "u")
    watched.unreachable_since = utc_now()
    notifier.zone_deleted(Fence(coordinator_epoch=1), "u")

    executor.shutdown()

    assert node.told() == ["ZoneDeleted"]


REFUSALS = {
    "superseded": (StaleEpochError("behind", superseded=1), True, []),
    "no-answer": (NotReadyError("no answer", unreachable=1), False, [[0], [1]]),
    "deposed": (StaleEpochError("behind", coordinator_epoch=9), False, ["ConfigureNode", [0], [1]]),
}


@pytest.mark.proves("ZR-12", "ZR-13")
@pytest.mark.parametrize(("refusal", "node_state", "again"), REFUSALS.values(), ids=REFUSALS)
async def test_a_refusal_sends_again_what_it_says_nothing_of(
    executor: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    refusal: RezoneError,
    node_state: bool,
    again: list[str | list[int]],
) -> None:
    """In the middle of many moves each late record would have the whole table sent, or be lost."""
    monkeypatch.setattr(notify, "PARTITIONS_PER_CALL", 1)
    node, _, notifier = alone(executor)
    config, fence = ZoneConfig(zone="z", zone_uid="u", partitions=3), Fence(coordinator_epoch=1)
    table = RouteRecords([routes.initial((0, 1), 1)] * 3)
    assert await notifier.notify(config, {}, table, fence)
    assert node.told() == ["ConfigureNode", [0], [1], [2]]
    changed = routes.confirm(table[0])
    assert not isinstance(changed, routes.Refusal)
    table = table.changed({0: changed, 1: changed})
    node.refuses = refusal
    assert await notifier.notify(config, {}, table, fence) == node_state
    assert node.told() == ([[0], [1]] if node_state else [[0]]), "all is sent that may be taken"
    node.refuses = None
    assert await notifier.notify(config, {}, table, fence)
    assert node.told() == (again if "ConfigureNode" not in again else [*again, [2]])


@pytest.mark.proves("ZR-13")
async def test_a_configuration_without_an_answer_is_not_counted_on_to_be_lost(
    executor: ThreadPoolExecutor,
) -> None:
    """What was taken back would stand at the node, which the call reaches late."""
    node, _, notifier = alone(executor)
    fence, table = Fence(coordinator_epoch=1), RouteRecords([routes.initial((0, 1), 1)])
    first = ZoneConfig(zone="z", zone_uid="u", partitions=1)
    second = ZoneConfig(zone="z", zone_uid="u", partitions=1, min_in_sync_replicas=2)
    assert await notifier.notify(first, {}, table, fence)
    node.refuses = NotReadyError("no answer", unreachable=1)
    assert not await notifier.notify(second, {}, table, fence)
    node.refuses = None
    node.told()
    assert await notifier.notify(first, {}, table, fence)
    assert node.told()[0] == "ConfigureNode"
