"""The data nodes that are up, the links between them, and the coordinator's calls to them.

A call takes a moment each way. It may be late, so late that its sender has given up or is dead;
its answer may be lost. Both are what timeouts leave open. Calls to nodes that are `isolated` are
lost, and answers of those that are `unreported`; a process that is `hung` does nothing and says
nothing, though its connections stand; one that is `stalled` answers no call and does nothing for
what it leads, but says that it is there. `holds` picks calls that are kept back
until `release`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from rezone.datanode.replica.replica import Replica
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import DigestRequest, Message, NodeId, ReportRequest
from simulation.loop import Later, VirtualLoop
from simulation.nodes.disk import MachineDiedError
from simulation.nodes.node import SimulatedNode

CALL_SECONDS = 0.002
FAILED_CONNECTION_SECONDS = 0.02
LOOK_SECONDS = 0.02
"""How often a digest that has to wait for rows looks whether they are there."""


class Caller(Protocol):
    """Who calls data nodes: a life of the operator."""

    dead: bool

    def reach(self, label: str) -> bool:
        """Pass a crash point; returns whether the caller is dead behind it."""


class Network:
    """Who is up and who can talk to whom."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.nodes: dict[NodeId, SimulatedNode] = {}
        self.isolated: set[NodeId] = set()
        self.cut: set[frozenset[NodeId]] = set()
        self.silent: set[frozenset[NodeId]] = set()
        self.lossy: set[tuple[NodeId, NodeId]] = set()
        self.warm: dict[tuple[NodeId, NodeId], float] = {}
        self.unreported: set[NodeId] = set()
        self.hung: set[NodeId] = set()
        self.stalled: set[NodeId] = set()
        self.late_seconds: Callable[[], float] = lambda: 0.0
        self.answer_is_lost: Callable[[], bool] = lambda: False
        self.loses_active: Callable[[], bool] = lambda: False
        self.after_call: Callable[[], None] = lambda: None
        self.died: Callable[[MachineDiedError], None] = lambda _: None
        self.dropped: Callable[[NodeId, Replica], None] = lambda _node, _partition: None
        self.holds: Callable[[str, Message], bool] = lambda _address, _request: False
        self.held: list[tuple[Caller, str, Message, Later]] = []

    def node(self, node: NodeId) -> SimulatedNode:
        """Return a node that is up."""
        found = self.nodes.get(node)
        if found is None:
            raise NotReadyError(f"node {node} is down")
        return found

    def id_at(self, address: str) -> NodeId | None:
        """Return who is at an address."""
        return next((n for n, node in self.nodes.items() if node.place == address), None)

    def linked(self, one: NodeId, other: NodeId) -> bool:
        """Return whether two nodes can talk."""
        both = one in self.nodes and other in self.nodes
        return both and frozenset((one, other)) not in self.cut

    def arrives(self, sender: NodeId, receiver: NodeId) -> bool:
        """Return whether what one node sends another arrives; if not, neither is told so."""
        silent = frozenset((sender, receiver)) in self.silent or (sender, receiver) in self.lossy
        return not silent and not self.hung & {sender, receiver}

    def is_silent(self, one: NodeId, other: NodeId) -> bool:
        """Return whether two nodes cannot make a connection, and neither is told why."""
        return not (self.arrives(one, other) and self.arrives(other, one))

    def heal(self) -> None:
        """End all cuts, in every direction, and let hung processes go on."""
        for cuts in (self.isolated, self.unreported, self.hung, self.stalled):
            cuts.clear()
        for links in (self.cut, self.silent, self.lossy):
            links.clear()

    def call(self, process: Caller, address: str, request: Message, timeout: float) -> Later:
        """Send a call; only those that change something are crash points."""
        later = Later()
        reads = isinstance(request, ReportRequest | DigestRequest)
        label = f"{type(request).__name__} to {address}"
        if process.dead or (not reads and process.reach(f"before {label}")):
            return later
        timer = self._loop.call_later(timeout, _time_out, later, address)
        later.future.add_done_callback(lambda _: timer.cancel())
        if self.holds(address, request):
            self.held.append((process, address, request, later))
            return later
        late = 0.0 if reads else self.late_seconds()
        self._loop.call_later(CALL_SECONDS + late, self._deliver, process, address, request, later)
        return later

    def release(self) -> None:
        """Deliver what was held back: its sender has given up long ago, or is dead."""
        held, self.held = self.held, []
        for call in held:
            self._deliver(*call)

    def _deliver(self, process: Caller, address: str, request: Message, later: Later) -> None:
        number = self.id_at(address)
        if number is None:
            error = NotReadyError(f"no connection to {address}", unreachable=1)
            self._loop.call_later(FAILED_CONNECTION_SECONDS, later.fail, error)
            return
        if number in self.isolated | self.hung | self.stalled:
            return
        node = self.nodes[number]
        if isinstance(request, ReportRequest):
            self._poll(node, request, later)
            return
        if isinstance(request, DigestRequest):
            until = self._loop.time() + node.settings.hold_ms_max / 1000
            self._digest(node, request, later, until)
            return
        inner = Later()
        try:
            node.answer(request, inner)
        except MachineDiedError as died:
            self.died(died)
            return
        self.after_call()
        process.reach(f"after {type(request).__name__} to {address}")
        if not self.answer_is_lost() and self._is_heard(node):
            self._loop.call_later(CALL_SECONDS, _pass_on, inner, later)

    def _poll(self, node: SimulatedNode, request: ReportRequest, later: Later) -> None:
        """Pass a long poll's answer on, unless the node is cut off by then."""
        inner = Later()

        def pass_on(_: object) -> None:
            if self._is_heard(node):
                _pass_on(inner, later)

        inner.future.add_done_callback(pass_on)
        node.answer(request, inner)
        self._loop.call_later(request.timeout_ms / 1000, self._end_poll, node, inner)

    def _is_heard(self, node: SimulatedNode) -> bool:
        """Return whether what a node answers the operator arrives."""
        return node.node_id not in self.isolated | self.unreported | self.hung | self.stalled

    def _digest(
        self, node: SimulatedNode, request: DigestRequest, later: Later, until: float
    ) -> None:
        """Ask until it is answered, or time is over: the real call waits where this one cannot."""
        if later.future.done() or not self._may_answer(node):
            return
        inner = Later()
        try:
            node.answer(request, inner)
        except MachineDiedError as died:
            self.died(died)
            return
        self.after_call()
        if isinstance(inner.future.exception(), NotReadyError) and self._loop.time() < until:
            self._loop.call_later(LOOK_SECONDS, self._digest, node, request, later, until)
        elif not self.answer_is_lost() and self._is_heard(node):
            self._loop.call_later(CALL_SECONDS, _pass_on, inner, later)

    def _may_answer(self, node: SimulatedNode) -> bool:
        cut_off = self.isolated | self.hung | self.stalled
        return self.nodes.get(node.node_id) is node and node.node_id not in cut_off

    def _end_poll(self, node: SimulatedNode, later: Later) -> None:
        is_up = self.nodes.get(node.node_id) is node and node.node_id not in self.hung
        if not later.future.done() and is_up:
            node.flush(overdue=later)


def _time_out(later: Later, address: str) -> None:
    later.fail(NotReadyError(f"{address} does not answer", unreachable=1))


def _pass_on(inner: Later, later: Later) -> None:
    error: Any = inner.future.exception()
    if error is None:
        later.answer(inner.future.result())
    else:
        assert isinstance(error, RezoneError), f"a data node has a bug: {error!r}"
        later.fail(error)
