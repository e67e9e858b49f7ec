"""The reshard streams of a simulated node: the real requests, in turn, on lines that fail.

A request may not arrive, and its answer may be lost, or come late: then other things happen before
it does, which is what threads would make of it. A node that is killed meanwhile never sees it.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rezone.wire.errors import NotReadyError
from rezone.wire.messages import (
    BeginReshard,
    NodeId,
    ReadOlderLog,
    ReshardBackfill,
    ReshardCatchUp,
)
from simulation.nodes.disk import MachineDiedError

if TYPE_CHECKING:
    from rezone.wire.transport.flight import NodeClient
    from simulation.nodes.network import Network
    from simulation.nodes.node import SimulatedNode

LOST_CHANCE = 0.1
LATE_CHANCE = 0.1
BACKFILL_CHANCE = 0.2
"""How often a node fetches rows in a step: so that sources are written to meanwhile."""


class KilledError(BaseException):
    """Raised in a node that was killed while it waited for an answer."""


class Line:
    """What a node calls another one by; it has the methods of `NodeClient` that pulls use."""

    def __init__(self, lines: Lines, address: str) -> None:
        self.address = address
        self._lines = lines

    def call(self, request: Any, reply: type[Any], *, timeout_seconds: float) -> Any:
        """Call; NotReadyError when the request or the answer is lost."""
        del timeout_seconds  # nothing waits
        answer = self._lines.ask(self.address, request)
        assert isinstance(answer, reply)
        return answer

    def close(self) -> None:
        """Need nothing."""


class Lines:
    """The lines of one node to all others; `meanwhile` lets things happen before a late answer."""

    def __init__(
        self,
        network: Network,
        rng: random.Random,
        meanwhile: Callable[[], None],
        counts: collections.Counter[str],
        backfill_chance: Callable[[], float] = lambda: BACKFILL_CHANCE,
    ) -> None:
        self._network = network
        self._rng = rng
        self._meanwhile = meanwhile
        self._counts = counts
        self._backfill_chance = backfill_chance
        self.node: SimulatedNode | None = None

    def connect(self, address: str) -> NodeClient:
        """Make a line, as what reshard streams take it for."""
        return Line(self, address)  # type: ignore[return-value]

    def step(self) -> None:
        """Do what the threads of the reshard streams would: one request each."""
        node = self.node
        assert node is not None
        try:
            node.reshard_pulls.sort()
            for leader in node.reshard_pulls.leaders:
                node.reshard_pulls.follow(leader)
            if self._rng.random() < self._backfill_chance():
                node.reshard_pulls.backfill()
        except KilledError:
            self._counts["killed"] += 1

    def pull_log(self) -> None:
        """Do what the thread that brings older log would: one request of each replica."""
        assert self.node is not None
        try:
            self.node.older_log.step()
        except KilledError:
            self._counts["killed"] += 1

    def ask(self, address: str, request: Any) -> Any:
        """Bring a request to a node, and its answer back."""
        assert self.node is not None
        other = self._network.id_at(address)
        linked = other is not None and self._network.linked(self.node.node_id, other)
        if other is None or not linked or self._rng.random() < LOST_CHANCE:
            raise NotReadyError(f"no connection to {address}", unreachable=1)
        answer = self._answer(other, request)
        if self._rng.random() < LATE_CHANCE:
            self._counts["late"] += 1
            self._meanwhile()
            if self._network.nodes.get(self.node.node_id) is not self.node:
                raise KilledError
        if self._rng.random() < LOST_CHANCE:
            raise NotReadyError(f"{address} does not answer", unreachable=1)
        self._counts[type(request).__name__] += 1
        return answer

    def _answer(self, other: NodeId, request: Any) -> Any:
        node = self._network.node(other)
        source = node.reshard_source
        try:
            if isinstance(request, ReadOlderLog):
                return node.older_log.source.read(request)
            if isinstance(request, BeginReshard):
                return source.begin(request)
            if isinstance(request, ReshardBackfill):
                return source.backfill(request)
            assert isinstance(request, ReshardCatchUp)
            return source.catch_up(request)
        except MachineDiedError as died:
            self._network.died(died)
            raise NotReadyError(f"node {other} is gone", unreachable=1) from died
