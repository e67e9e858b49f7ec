"""What telling a thousand data nodes of everything costs the operator."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from rezone.controller import notify
from rezone.controller.heard import Heard
from rezone.controller.monitor import WatchedNode
from rezone.controller.notify import NODES_AT_ONCE, PARTITIONS_PER_CALL, Notifier
from rezone.domain import routes
from rezone.domain.route_records import RouteRecords
from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    Fence,
    Message,
    NotifyLeaderAndIsr,
    ZoneConfig,
    decode,
    encode,
)

NODES = 3 * NODES_AT_ONCE
HEARD = Heard(process_id="p", zone_uid="u", version=1, leaving=False, replicas={})


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
    watched = {n: WatchedNode(n, f"10.0.0.{n}:1", network, heard=HEARD) for n in range(NODES)}
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
