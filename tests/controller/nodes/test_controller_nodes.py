"""The coordinator's side of the wire: who is silent, who is told what, whose copy is right.

Against tiny real Flight servers, so that what is sent is what arrives.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from pyarrow import flight

from rezone.controller.nodes.monitor import (
    POLL_MS,
    NodeMonitor,
    WatchedNode,
    silence_began,
    utc_now,
)
from rezone.controller.nodes.monitors import WAITING_PAUSE_SECONDS
from rezone.controller.nodes.node_state import NodeState
from rezone.controller.nodes.notify import PARTITIONS_PER_CALL, Notifier
from rezone.controller.nodes.verify import (
    DIFFERENCES_MAX,
    Comparisons,
    CopyDiffersError,
    DiffersSoFarError,
    NotComparedError,
    verify_copy,
)
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.wire.errors import NotReadyError, RezoneError
from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    DigestReply,
    DigestRequest,
    Fence,
    Message,
    NodeReport,
    NoteCompared,
    NotifyLeaderAndIsr,
    ReplicaReport,
    ReportRequest,
    Role,
    ZoneConfig,
)
from rezone.wire.transport.flight import NodeClient, answer_action

CONFIG = ZoneConfig(zone="z", zone_uid="u", partitions=4)
FENCE = Fence(coordinator_epoch=3, revision=7)
PEERS = {0: "127.0.0.1:1"}


class Node(flight.FlightServerBase):  # type: ignore[misc]
    """A data node that remembers its calls; `fails` makes the next calls fail."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(f"grpc://127.0.0.1:{port}")
        self.calls: list[Message] = []
        self.fails: list[RezoneError] = []
        self.digests: list[DigestReply] = []
        self.process_id = "first"
        self.version = 1
        self.silly = False
        self.node = 0
        self.zone_uid = "u"
        self._changed = threading.Condition()

    @property
    def address(self) -> str:
        """Where it serves."""
        return f"127.0.0.1:{self.port}"

    def do_action(self, _: Any, action: Any) -> Iterator[Any]:
        """Answer one call."""
        return answer_action(action, self._handle)

    def change(self, **values: Any) -> None:
        """Change what the report says."""
        with self._changed:
            for name, value in values.items():
                setattr(self, name, value)
            self.version += 1
            self._changed.notify_all()

    def take(self, kind: type[Message]) -> list[Any]:
        """Return the calls of a kind and forget all."""
        found = [call for call in self.calls if isinstance(call, kind)]
        self.calls = []
        return found

    def _handle(self, request: Message) -> Message:
        if isinstance(request, ReportRequest):
            return self._report(request)
        self.calls.append(request)
        if self.fails:
            raise self.fails.pop(0)
        if isinstance(request, DigestRequest):
            return self.digests.pop(0)
        return Ack()

    def _report(self, request: ReportRequest) -> Message:
        with self._changed:
            self._changed.wait_for(
                lambda: self.version != request.seen, min(request.timeout_ms, 100) / 1000
            )
            if self.silly:
                return Ack()
            return NodeReport(
                node=self.node,
                zone_uid=self.zone_uid,
                version=self.version,
                coordinator_epoch=1,
                replicas=(),
                process_id=self.process_id,
            )


@pytest.fixture
def node() -> Iterator[Node]:
    """Serve one data node."""
    with Node() as served:
        yield served


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Give threads for calls."""
    with ThreadPoolExecutor(8) as made:
        yield made


class Listener:
    """Counts what the monitor has to tell."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def __call__(self, _: object) -> None:
        """Note news."""
        self._event.set()

    async def until(self, check: Callable[[], Any]) -> Any:
        """Wait until news make `check` true."""
        async with asyncio.timeout(10):
            while not (found := check()):
                self._event.clear()
                await self._event.wait()
            return found


@pytest.fixture
async def news() -> Listener:
    """Give the listener."""
    return Listener()


@pytest.fixture
async def monitor(executor: ThreadPoolExecutor, news: Listener) -> AsyncIterator[NodeMonitor]:
    """Give a monitor that watches nothing yet."""
    made = NodeMonitor(executor, news, zone_uid="u", timeout_seconds=1.0)
    yield made
    made.close()


# --- the monitor -----------------------------------------------------------------------------


def reachable(monitor: NodeMonitor, node: int = 0) -> bool:
    """Return whether a watched node answers."""
    watched = monitor.get(node)
    return watched is not None and watched.reachable


async def test_monitor_hears_of_a_restart(node: Node, monitor: NodeMonitor, news: Listener) -> None:
    """A restarted data node would be taken for one that still knows its routes."""
    monitor.watch({0: node.address})
    await news.until(lambda: reachable(monitor))
    assert monitor.silent_since(0) is None
    node.change(process_id="second")
    watched = monitor.get(0)
    assert watched is not None
    await news.until(lambda: watched.node_state and watched.node_state.process_id == "second")


async def test_silence_lasts_from_the_last_answer_to_the_next(
    node: Node, monitor: NodeMonitor, news: Listener
) -> None:
    """A leader's lease would begin again with every failed poll, and nobody ever take over."""
    address = node.address
    monitor.watch({0: address})
    await news.until(lambda: reachable(monitor))
    await asyncio.to_thread(node.shutdown)
    since = await news.until(lambda: monitor.silent_since(0))
    assert not reachable(monitor)
    with Node(int(address.rpartition(":")[2])) as again:
        assert again.address == address
        await news.until(lambda: reachable(monitor))
    assert isinstance(since, datetime)


@pytest.mark.parametrize(
    ("late", "counted"),
    [(-0.9, 0.0), (0.0, 0.0), (0.5, 0.5), (2.0, 2.0), (3600.0, 2.0)],
)
def test_silence_counts_from_when_an_answer_was_due(late: float, counted: float) -> None:
    """Waiting in vain would prolong a write gap; an hour asleep ourselves is no node's silence."""
    now = datetime(2026, 11, 22, tzinfo=UTC)
    since = silence_began(now, late_seconds=late, timeout_seconds=2.0)
    assert now - since == timedelta(seconds=counted)


@pytest.mark.parametrize("begun", [-0.999, -0.5, 0.0, WAITING_PAUSE_SECONDS])
@pytest.mark.parametrize(("lease", "timeout"), [(5.0, 2.0), (1.0, 2.0), (8.0, 0.5)])
def test_a_lost_leader_is_waited_for_as_long_as_is_documented(
    begun: float, lease: float, timeout: float
) -> None:
    """Sooner: a living leader is overtaken. Later: writes wait for longer than was promised.

    The node is lost at 0; the poll that nobody answers began a moment before or a pause after.
    """
    lost = datetime(2026, 11, 22, tzinfo=UTC)
    open_for = POLL_MS / 1000
    failed = lost + timedelta(seconds=begun + open_for + timeout)
    since = silence_began(failed, late_seconds=timeout, timeout_seconds=timeout)
    waited = (max(failed, since + timedelta(seconds=lease)) - lost).total_seconds()
    assert lease <= waited <= open_for + max(lease, timeout) + WAITING_PAUSE_SECONDS


async def test_a_frozen_node_is_silent_since_its_answer_was_due(
    executor: ThreadPoolExecutor, news: Listener
) -> None:
    """A machine that is lost refuses nothing: what its poll was waited for would count for none."""

    class Frozen:
        def call(self, *_: object, timeout_seconds: float) -> NodeReport:
            threading.Event().wait(timeout_seconds)
            raise NotReadyError("no answer", unreachable=1)

    made = NodeMonitor(
        executor,
        news,
        zone_uid="u",
        timeout_seconds=0.2,
        connect=lambda _: Frozen(),  # type: ignore[arg-type, return-value]
    )
    made.watch({0: "127.0.0.1:1"})
    since = await news.until(lambda: made.silent_since(0))
    assert utc_now() - since >= timedelta(seconds=0.2)
    made.close()


async def test_a_node_that_falls_silent_holds_up_no_call(
    executor: ThreadPoolExecutor, news: Listener
) -> None:
    """A pass that told a node something when its machine was lost would replace no leader."""
    released = threading.Event()

    class Falling:
        fails = threading.Event()

        def call(self, *_: object, timeout_seconds: float) -> NodeReport:
            del timeout_seconds
            self.fails.wait(30)
            raise NotReadyError("no answer", unreachable=1)

    node = Falling()
    made = NodeMonitor(
        executor,
        news,
        zone_uid="u",
        timeout_seconds=1.0,
        connect=lambda _: node,  # type: ignore[arg-type, return-value]
    )
    made.watch({0: "127.0.0.1:1"})
    watched = made.get(0)
    assert watched is not None

    def hang() -> Ack:
        node.fails.set()
        released.wait(30)
        raise NotReadyError("given up", unreachable=1)

    try:
        with pytest.raises(NotReadyError, match="data node 0 has fallen silent"):
            await asyncio.wait_for(watched.answer(executor, hang), 10)
    finally:
        released.set()
        made.close()


async def test_a_node_without_a_pod_is_silent(
    node: Node, monitor: NodeMonitor, news: Listener
) -> None:
    """A leader whose pod was deleted would never be replaced: nothing polls it, nothing fails."""
    monitor.watch({0: node.address}, expected={0, 1})
    await news.until(lambda: reachable(monitor))
    first = monitor.silent_since(1)
    assert first is not None, "it should have an address and has none"
    monitor.watch({}, expected={0, 1})
    gone = monitor.silent_since(0)
    assert gone is not None
    monitor.watch({}, expected={0, 1})
    assert (monitor.silent_since(0), monitor.silent_since(1)) == (gone, first)
    # The pod is there again, but does not serve yet: the silence goes on.
    monitor.watch({0: "127.0.0.1:1"}, expected={0, 1})
    assert monitor.silent_since(0) == gone
    monitor.watch({0: node.address}, expected={0})
    assert monitor.silent_since(0) == gone
    await news.until(lambda: reachable(monitor))
    assert monitor.silent_since(0) is None
    assert monitor.silent_since(1) is None, "nobody expects it any more"


async def test_an_answer_that_is_none_is_silence(
    node: Node, monitor: NodeMonitor, news: Listener
) -> None:
    """One bad answer would end the watch of a node for good, and freeze what is known of it."""
    node.silly = True
    monitor.watch({0: node.address})
    await news.until(lambda: monitor.silent_since(0))
    node.change(silly=False)
    await news.until(lambda: reachable(monitor))


@pytest.mark.parametrize("wrong", [{"node": 7}, {"zone_uid": "another"}], ids=["node", "zone"])
async def test_another_nodes_answer_is_silence(
    node: Node, monitor: NodeMonitor, news: Listener, wrong: dict[str, Any]
) -> None:
    """A leader whose address another pod has inherited would count as alive for ever."""
    node.change(**wrong)
    monitor.watch({0: node.address})
    await news.until(lambda: monitor.silent_since(0))
    assert not reachable(monitor)
    node.change(node=0, zone_uid="")
    await news.until(lambda: reachable(monitor))


# --- the notifier ----------------------------------------------------------------------------


@pytest.fixture
async def notifier(
    executor: ThreadPoolExecutor, monitor: NodeMonitor, node: Node, news: Listener
) -> Notifier:
    """Give a notifier of a zone of one reachable node."""
    monitor.watch({0: node.address})
    await news.until(lambda: reachable(monitor))
    return Notifier(executor, monitor, 5.0)


def table(count: int = 4) -> RouteRecords:
    """Return first records."""
    return RouteRecords([routes.initial((0, 1, 2), 1) for _ in range(count)])


def partitions_in(calls: list[NotifyLeaderAndIsr]) -> list[int]:
    """Return the partitions of calls."""
    return [assignment.partition for call in calls for assignment in call.partitions]


async def test_only_what_is_not_confirmed_is_sent(notifier: Notifier, node: Node) -> None:
    """Every pass would send every route to every node; or a changed one would not arrive."""
    records = table()
    assert await notifier.notify(CONFIG, PEERS, records, FENCE)
    assert isinstance(node.calls[0], ConfigureNode)
    assert node.calls[0] == ConfigureNode(fence=FENCE, config=CONFIG, peers=PEERS, number=1)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [0, 1, 2, 3]
    assert await notifier.notify(CONFIG, PEERS, records, FENCE)
    assert node.calls == []
    records = records.changed({2: msgspec.structs.replace(records[2], partition_epoch=9)})
    assert await notifier.notify(CONFIG, PEERS, records, FENCE)
    assert [type(call) for call in node.calls] == [NotifyLeaderAndIsr]
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [2]


async def test_a_table_that_is_read_again_is_not_sent_again(notifier: Notifier, node: Node) -> None:
    """Each doubt about the table would send all of it to all nodes; or what has changed is lost."""
    await notifier.notify(CONFIG, PEERS, table(), FENCE)
    node.take(Message)
    await notifier.notify(CONFIG, PEERS, RouteRecords(), FENCE)
    read = table().changed({3: msgspec.structs.replace(table()[3], partition_epoch=9)})
    await notifier.notify(CONFIG, PEERS, read, FENCE)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [3]


class Overtaken(Notifier):
    """The table changes while its first records are on their way."""

    later = RouteRecords()

    async def _call(
        self,
        watched: WatchedNode,
        request: ConfigureNode | NotifyLeaderAndIsr,
        encoded: bytes | None = None,
    ) -> None:
        if isinstance(request, NotifyLeaderAndIsr):
            self._changed.take(self.later)
        await super()._call(watched, request, encoded)


async def test_changes_during_a_call_are_sent_afterwards(
    executor: ThreadPoolExecutor, monitor: NodeMonitor, node: Node, news: Listener
) -> None:
    """What changes while a node is being told would count as told."""
    monitor.watch({0: node.address})
    await news.until(lambda: reachable(monitor))
    notifier, records = Overtaken(executor, monitor, 5.0), table()
    newer = msgspec.structs.replace(records[3], partition_epoch=9)
    notifier.later = records.changed({3: newer})
    await notifier.notify(CONFIG, PEERS, records, FENCE)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [0, 1, 2, 3]
    await notifier.notify(CONFIG, PEERS, notifier.later, FENCE)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [3]


@pytest.mark.parametrize("what", ["config", "peers", "epoch"])
async def test_changed_zone_is_sent_without_its_routes(
    notifier: Notifier, node: Node, what: str
) -> None:
    """A node would not learn a new peer's address, or be sent all routes for it."""
    await notifier.notify(CONFIG, PEERS, table(), FENCE)
    node.take(Message)
    config = msgspec.structs.replace(CONFIG, min_in_sync_replicas=2) if what == "config" else CONFIG
    peers = PEERS | {1: "127.0.0.1:2"} if what == "peers" else PEERS
    fence = Fence(coordinator_epoch=4, revision=7) if what == "epoch" else FENCE
    await notifier.notify(config, peers, table(), fence)
    assert [type(call) for call in node.calls] == [ConfigureNode]


async def test_restarted_process_gets_everything_again(
    notifier: Notifier, node: Node, news: Listener, monitor: NodeMonitor
) -> None:
    """A data node that lost its memory would answer from routes that it does not have."""
    await notifier.notify(CONFIG, PEERS, table(), FENCE)
    node.take(Message)
    node.change(process_id="second")
    watched = monitor.get(0)
    assert watched is not None
    await news.until(lambda: watched.node_state and watched.node_state.process_id == "second")
    assert await notifier.notify(CONFIG, PEERS, table(), FENCE)
    assert isinstance(node.calls[0], ConfigureNode)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [0, 1, 2, 3]


@pytest.mark.parametrize("good_calls", [0, 1], ids=["configure-fails", "routes-fail"])
async def test_failed_call_is_repeated(notifier: Notifier, node: Node, good_calls: int) -> None:
    """A lost call would leave a node with old routes for ever (ZR-13)."""
    if good_calls:
        await notifier.notify(CONFIG, PEERS, RouteRecords(), FENCE)
        node.take(Message)
    node.fails = [NotReadyError("busy")]
    assert not await notifier.notify(CONFIG, PEERS, table(), FENCE)
    node.take(Message)
    assert await notifier.notify(CONFIG, PEERS, table(), FENCE)
    # It may have refused because it has lost its zone: that goes out again as well.
    assert isinstance(node.calls[0], ConfigureNode)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [0, 1, 2, 3]


async def test_many_routes_go_in_parts(notifier: Notifier, node: Node) -> None:
    """A call of 16,384 routes would not fit in a message."""
    count = PARTITIONS_PER_CALL + 1
    await notifier.notify(CONFIG, PEERS, table(count), FENCE)
    calls = node.take(NotifyLeaderAndIsr)
    assert [len(call.partitions) for call in calls] == [PARTITIONS_PER_CALL, 1]


async def test_unreachable_nodes_hold_nobody_up(
    notifier: Notifier, node: Node, monitor: NodeMonitor, news: Listener
) -> None:
    """A dead node would keep the living ones from their routes."""
    monitor.watch({0: node.address, 1: "127.0.0.1:1"})
    await news.until(lambda: monitor.silent_since(1))
    assert await notifier.notify(CONFIG, PEERS, table(), FENCE)
    assert partitions_in(node.take(NotifyLeaderAndIsr)) == [0, 1, 2, 3]


# --- comparing copies ------------------------------------------------------------------------


def digest(*digests: str, offset: int = 10) -> DigestReply:
    """Return a digest as of one time."""
    return DigestReply(digests=digests, rows=(1,) * len(digests), as_of=77, applied_offset=offset)


def said(uncompared: str) -> NodeState:
    """Return what data node 1 has said of its copy of partition 5."""
    copy = ReplicaReport(
        partition=5,
        role=Role.FOLLOWER,
        leader=0,
        leader_epoch=1,
        partition_epoch=1,
        uncompared=uncompared,
    )
    return NodeState(
        process_id="p",
        zone_uid="u",
        version=1,
        coordinator_epoch=3,
        leaving=False,
        replicas={5: copy},
    )


@pytest.fixture
def pair() -> Iterator[tuple[WatchedNode, WatchedNode, Node, Node]]:
    """Serve a source and a target."""
    with Node() as source, Node() as target:
        yield (
            WatchedNode(0, source.address, NodeClient(source.address)),
            WatchedNode(1, target.address, NodeClient(target.address)),
            source,
            target,
        )


Pair = tuple[WatchedNode, WatchedNode, Node, Node]


@pytest.mark.proves("B-04")
async def test_equal_copy_is_verified_at_the_sources_time(
    pair: Pair, executor: ThreadPoolExecutor
) -> None:
    """Two digests of two times would differ under writes, or agree by chance."""
    source, target, there, here = pair
    there.digests = [digest("a", "b")]
    here.digests = [digest("a", "b", offset=12)]
    await verify_copy(executor, 5, source, target, fence=FENCE)
    (asked,) = there.take(DigestRequest)
    (compared,) = here.take(DigestRequest)
    assert (asked.partition, asked.as_of) == (5, None)
    assert (compared.partition, compared.as_of) == (5, 77)


@pytest.mark.proves("B-04")
async def test_an_equal_copy_is_told_so_and_counts_when_its_report_says_so(
    pair: Pair, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy's own word for what was compared goes back to it, and the outcome waits for that.

    Another copy that was made meanwhile would lead; or the next pass, by the report of before,
    compare everything again.
    """
    source, target, there, here = pair
    copy = msgspec.structs.replace(digest("a"), uncompared="s-1")
    there.digests, here.digests = [digest("a")] * 2, [copy] * 2
    target.node_state = said("s-1")
    monkeypatch.setattr("rezone.controller.nodes.verify.TOLD_SECONDS", 0.0)
    with pytest.raises(NotComparedError, match="has not said yet"):
        await verify_copy(executor, 5, source, target, fence=FENCE)
    (told,) = here.take(NoteCompared)
    assert (told.partition, told.uncompared, told.fence) == (5, "s-1", FENCE)
    assert target.called == {1}, "its epoch there would be taken for another coordinator's"
    target.node_state = said("")
    monkeypatch.undo()
    await verify_copy(executor, 5, source, target, fence=FENCE)
    assert here.take(NoteCompared) == [told]
    there.digests, here.digests = [digest("a")], [digest("b")]
    with pytest.raises(CopyDiffersError):
        await verify_copy(executor, 5, source, target, fence=FENCE)
    assert here.take(NoteCompared) == []


async def test_copy_that_is_behind_is_neither_equal_nor_wrong(
    pair: Pair, executor: ThreadPoolExecutor
) -> None:
    """A copy that only lags would be thrown away, or be let lead without its last rows."""
    source, target, there, here = pair
    there.digests = [digest("a", "b")]
    here.digests = [digest("a", "x", offset=9)]
    with pytest.raises(NotComparedError, match="data node 1 has not applied all rows of data node"):
        await verify_copy(executor, 5, source, target, fence=FENCE)


@pytest.mark.proves("B-04")
async def test_copy_that_differs_is_named(pair: Pair, executor: ThreadPoolExecutor) -> None:
    """A wrong copy would lead; or nobody would know which range to look at."""
    source, target, there, here = pair
    there.digests = [digest("a", "b")]
    here.digests = [digest("a", "x")]
    with pytest.raises(CopyDiffersError, match=r"partition 5: range 1 .* data node 1 differs"):
        await verify_copy(executor, 5, source, target, fence=FENCE)


async def test_silence_proves_nothing(pair: Pair, executor: ThreadPoolExecutor) -> None:
    """A node that does not answer would count as compared."""
    source, target, there, here = pair
    there.digests = [digest("a")]
    here.fails = [NotReadyError("busy")]
    with pytest.raises(NotReadyError):
        await verify_copy(executor, 5, source, target, fence=FENCE)


@pytest.mark.proves("B-04")
async def test_a_node_that_is_lost_ends_its_comparison(
    pair: Pair, executor: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebalance would wait for the digest of a machine that is gone until its deadline, minutes.

    A moment of silence ends none: a digest of a large partition would never come to its end.
    """
    source, target, there, here = pair
    there.digests, here.digests = [digest("a")], [digest("a")]
    reads, goes_on = threading.Event(), threading.Event()

    def call(*_: object, timeout_seconds: float) -> DigestReply:
        reads.set()
        assert goes_on.wait(timeout_seconds)
        return digest("a")

    def fall_silent() -> None:
        target.unreachable_since = utc_now()
        target.silent.set()

    monkeypatch.setattr(target.client, "call", call)
    comparing = asyncio.create_task(verify_copy(executor, 5, source, target, fence=FENCE))
    await asyncio.to_thread(reads.wait, 10)
    fall_silent()
    await asyncio.sleep(0)
    target.silent.clear()
    goes_on.set()
    await asyncio.wait_for(comparing, 10)
    reads.clear()
    goes_on.clear()
    there.digests = [digest("a")] * 2
    monkeypatch.setattr("rezone.controller.nodes.verify.SILENT_SECONDS_MAX", 0.01)
    comparing = asyncio.create_task(verify_copy(executor, 5, source, target, fence=FENCE))
    try:
        await asyncio.to_thread(reads.wait, 10)
        fall_silent()
        with pytest.raises(NotReadyError, match="data node 1 has fallen silent"):
            await asyncio.wait_for(comparing, 10)
        with pytest.raises(NotReadyError, match="data node 1 is silent"):
            await verify_copy(executor, 5, source, target, fence=FENCE)
    finally:
        goes_on.set()


class Rests:
    """Rests between comparisons that last until the test has noted how long they were asked for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        """Rest."""
        self.seconds.append(seconds)


async def compare_often(
    compared: Comparisons[str], times: int, outcome: Callable[[], Awaitable[None]]
) -> list[bool]:
    """Compare "copy" so often; returns whether another was due each time that one had ended."""
    due: list[bool] = []
    for _ in range(times):
        compared.under_way.add("copy")
        await compared.run("copy", outcome, lambda: due.append(compared.is_due("copy")))
    return due


@pytest.mark.proves("B-14")
async def test_what_cannot_be_compared_rests_longer_each_time_and_says_why() -> None:
    """Two nodes would read a whole partition every half second, for ever, and nobody know why."""
    rests = Rests()
    compared = Comparisons[str]("copy", rests)

    async def in_vain() -> None:
        raise NotReadyError("data node 7 is busy")

    due = await compare_often(compared, 14, in_vain)
    assert due == [False, True] * 14, "a pass in between would begin another one"
    assert rests.seconds[0] == 0.5
    assert rests.seconds == sorted(rests.seconds)
    assert rests.seconds[-1] == max(rests.seconds) == 60.0
    assert compared.failing == {"copy": "data node 7 is busy"}

    async def well() -> None:
        pass

    assert await compare_often(compared, 1, well) == [False]
    assert (compared.verified, compared.failing) == ({"copy"}, {})


@pytest.mark.proves("B-04", "B-14")
async def test_rows_that_go_on_differing_differ() -> None:
    """A part of a source without any commit would be compared for ever, though it is wrong."""
    compared = Comparisons[str]("part", Rests())
    answers = iter([*["differs"] * (DIFFERENCES_MAX - 1), "silent", *["differs"] * DIFFERENCES_MAX])

    async def compare() -> None:
        if next(answers) == "silent":
            raise NotReadyError("busy")
        raise DiffersSoFarError("2 rows against 1")

    await compare_often(compared, 2 * DIFFERENCES_MAX - 1, compare)
    assert compared.differing == set(), "only differences in a row count"
    await compare_often(compared, 1, compare)
    assert compared.differing == {"copy"}
    assert not compared.is_due("copy")
