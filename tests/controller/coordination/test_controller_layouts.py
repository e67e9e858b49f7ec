"""A coordinator's work on a zone with two layouts: its table, and what data nodes are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.coordination.zone_config import zone_config
from rezone.controller.nodes.monitor import NodeMonitor, WatchedNode
from rezone.controller.nodes.node_state import NodeState
from rezone.controller.nodes.notify import Notifier
from rezone.controller.nodes.report_delta import ReportDelta
from rezone.controller.observing.observe import build_view
from rezone.controller.observing.passes import ZonePass
from rezone.controller.reconcile.plans import make_plan
from rezone.controller.work.keys import ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.model.world import RouteChange
from rezone.domain.rebalance.run import Planned
from rezone.domain.routing import routes
from rezone.domain.routing.route_records import RouteRecords
from rezone.kube.api.errors import UnavailableError
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask, RebalanceTaskSpec, TaskType
from rezone.resources.zone import DistributionZone
from rezone.wire.errors import NotReadyError
from rezone.wire.layouts import Layout, id_of, layout_of, next_layout_of
from rezone.wire.messages import (
    Ack,
    ConfigureNode,
    Fence,
    LeaderAndIsr,
    Message,
    NotifyLeaderAndIsr,
    PartitionId,
    ReplicaReport,
    Role,
)

FENCE, PEERS = Fence(coordinator_epoch=1), {0: "10.0.0.0:1"}
HEARD = NodeState(
    process_id="p", zone_uid="u", version=1, coordinator_epoch=0, leaving=False, replicas={}
)
ZONE = DistributionZone.parse(
    {
        "metadata": {"name": "z", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
        "spec": {"partitions": 3, "replicas": 3, "dataNodes": {"count": 3}},
    }
)


def records(count: int) -> list[LeaderAndIsr]:
    """Return first records."""
    return [routes.initial((0, 1, 2), 1) for _ in range(count)]


OLD = RouteRecords(records(2), generation=1)
BOTH = OLD.with_next(records(3), 3)
NEW = BOTH.without(1)


def next_of(table: RouteRecords, partition: PartitionId) -> LeaderAndIsr:
    """Return the record after a partition's."""
    before = table[partition]
    return msgspec.structs.replace(before, partition_epoch=before.partition_epoch + 1)


def change(table: RouteRecords, partition: PartitionId) -> RouteChange:
    """Return a change of one record."""
    epoch = table[partition].partition_epoch
    return RouteChange(partition=partition, expected_epoch=epoch, state=next_of(table, partition))


# --- what data nodes are told ------------------------------------------------------------------


class Node:
    """A data node's client: notes every call, and refuses some."""

    def __init__(self) -> None:
        self.calls: list[Message] = []
        self.refuses: type[Message] | None = None

    def call(self, request: Message, *_: Any, **__: Any) -> Ack:
        """Take a call."""
        self.calls.append(request)
        if self.refuses is not None and isinstance(request, self.refuses):
            raise NotReadyError("busy")
        return Ack()

    def told(self) -> list[PartitionId]:
        """Return which records have come since the last time."""
        calls, self.calls = self.calls, []
        told = [c for c in calls if isinstance(c, NotifyLeaderAndIsr)]
        return [each.partition for call in told for each in call.partitions]


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    """Yield a thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def node() -> Node:
    """Give a data node."""
    return Node()


@pytest.fixture
def notifier(executor: ThreadPoolExecutor, node: Node) -> Notifier:
    """Give what tells the node."""
    client: Any = node
    watched = {0: WatchedNode(0, PEERS[0], client, node_state=HEARD)}
    monitor: Any = SimpleNamespace(nodes=lambda: watched)
    return Notifier(executor, monitor, 5.0)


async def tell(notifier: Notifier, table: RouteRecords) -> bool:
    """Tell the node of a table."""
    return await notifier.notify(zone_config(ZONE, table), PEERS, table, FENCE)


@pytest.mark.parametrize(
    ("table", "layout", "following"),
    [(OLD, Layout(1, 2), None), (BOTH, Layout(1, 2), Layout(3, 3)), (NEW, Layout(3, 3), None)],
    ids=["before", "meanwhile", "after"],
)
def test_nodes_know_the_layouts_that_have_records(
    table: RouteRecords, layout: Layout, following: Layout | None
) -> None:
    """A node would open a partition for a range that is another one's."""
    config = zone_config(ZONE, table)
    assert (layout_of(config), next_layout_of(config)) == (layout, following)


async def test_a_node_knows_a_layout_before_its_records(notifier: Notifier, node: Node) -> None:
    """It would open replicas without knowing which hashes they have."""
    assert await tell(notifier, OLD)
    assert node.told() == list(OLD)
    assert await tell(notifier, BOTH)
    assert isinstance(node.calls[0], ConfigureNode)
    assert node.calls[0].config.next_partitions == 3
    assert node.told() == [id_of(3, index) for index in range(3)]
    node.refuses = ConfigureNode
    assert not await tell(notifier, NEW.with_next(records(1), 4))
    assert node.told() == []


async def test_records_of_both_layouts_are_told_as_they_change(
    notifier: Notifier, node: Node
) -> None:
    """A change of one generation would be sent under the other's id, or not at all."""
    await tell(notifier, BOTH)
    node.told()
    changed = {p: next_of(BOTH, p) for p in (id_of(1, 1), id_of(3, 1))}
    assert await tell(notifier, BOTH.changed(changed))
    assert node.told() == list(changed)


async def test_a_layout_that_is_over_is_not_told_of(notifier: Notifier, node: Node) -> None:
    """A node would hold old partitions for ever, or be sent those that serve again."""
    await tell(notifier, BOTH)
    node.told()
    assert await tell(notifier, NEW)
    assert [type(call) for call in node.calls] == [ConfigureNode]
    assert node.told() == []
    assert await tell(notifier, NEW)
    assert node.calls == []


async def test_a_node_that_comes_late_is_told_what_there_is(notifier: Notifier, node: Node) -> None:
    """It would open replicas of a layout whose ranges others serve."""
    node.refuses = NotifyLeaderAndIsr
    assert not await tell(notifier, BOTH)
    node.refuses = None
    node.calls = []
    assert await tell(notifier, NEW)
    assert node.told() == list(NEW)


# --- the table -----------------------------------------------------------------------------------


class Table:
    """A route store in memory; `retired` generations wait for the end of their deletion."""

    def __init__(self) -> None:
        self.table = OLD
        self.retired: set[int] = set()
        self.writes: list[list[PartitionId]] = []

    async def load(self) -> RouteRecords:
        """Return the records that are not retired."""
        table = self.table
        for generation in self.retired:
            table = table.without(generation)
        return table

    async def create(self, made: Sequence[LeaderAndIsr], generation: int) -> None:
        """Add a layout."""
        if not self.table.of(generation):
            self.table = self.table.with_next(made, generation)

    async def delete(self, generation: int) -> None:
        """Take a layout away."""
        self.table = self.table.without(generation)
        self.retired.discard(generation)

    async def change(self, changes: Sequence[RouteChange]) -> frozenset[PartitionId]:
        """Make all changes; as on the API server none without its shard."""
        self.writes.append([each.partition for each in changes])
        if not all(each.partition in self.table for each in changes):
            raise UnavailableError("a shard is gone")
        self.table = self.table.changed({each.partition: each.state for each in changes})
        return frozenset(each.partition for each in changes)


@pytest.fixture
def table() -> Any:
    """Give a table of one layout."""
    return Table()


@pytest.fixture
async def runtime(executor: ThreadPoolExecutor) -> AsyncIterator[ZoneRuntime]:
    """Give a zone's runtime without any data node."""
    made = ZoneRuntime(
        ZoneKey("ns", "z"),
        "u",
        1,
        executor=executor,
        settings=CoordinatorSettings(),
        monitor=NodeMonitor(executor, lambda _delta: None, zone_uid="u", timeout_seconds=1.0),
    )
    assert made.has_met_data_nodes()
    yield made
    made.close()


async def test_layouts_come_and_go_while_records_change(runtime: ZoneRuntime, table: Any) -> None:
    """The next pass would decide without the new partitions, or write to those that are gone."""
    assert await runtime.routes(table) == OLD
    await runtime.create_layout(table, records(3), 3)
    await runtime.create_layout(table, records(3), 3)
    assert await runtime.routes(table) == BOTH
    assert await runtime.change_routes(table, [change(BOTH, id_of(3, 2))])
    assert (await runtime.routes(table))[id_of(3, 2)].partition_epoch == 2
    await runtime.delete_layout(table, 1)
    assert list(await runtime.routes(table)) == list(NEW)


async def test_a_change_of_a_layout_that_is_gone_holds_nobody_up(
    runtime: ZoneRuntime, table: Any
) -> None:
    """A repair that comes late would fail together with those of partitions that serve."""
    table.table = NEW
    assert not await runtime.change_routes(table, [change(BOTH, id_of(1, 0))])
    assert table.writes == []
    assert await runtime.change_routes(table, [change(NEW, id_of(3, 0))])


async def test_a_deletion_that_was_begun_is_brought_to_its_end(
    runtime: ZoneRuntime, table: Any
) -> None:
    """ConfigMaps of the old layout would stay when the operator dies while it deletes them."""
    table.table, table.retired = BOTH, {1}
    assert await runtime.routes(table) == NEW
    assert table.table == NEW


def says(partition: PartitionId, partition_epoch: int) -> Any:
    """Return what a node has said of one replica."""
    report = ReplicaReport(
        partition=partition,
        role=Role.LEADER,
        leader=0,
        leader_epoch=1,
        partition_epoch=partition_epoch,
    )
    return SimpleNamespace(node_state=SimpleNamespace(replicas={partition: report}))


@pytest.mark.parametrize(
    ("report", "invalidated"),
    [(says(id_of(3, 1), 2), True), (says(id_of(3, 1), 1), False), (says(id_of(0, 1), 9), False)],
    ids=["newer", "the-same", "of-no-layout"],
)
async def test_reports_are_held_against_the_record_of_their_id(
    runtime: ZoneRuntime,
    table: Any,
    monkeypatch: pytest.MonkeyPatch,
    report: Any,
    invalidated: bool,
) -> None:
    """An outdated table would be believed; or be read again in each pass for what is over."""
    table.table = BOTH
    await runtime.routes(table)
    monkeypatch.setattr(runtime.monitor, "nodes", lambda: {0: report})
    runtime.invalidate_routes()
    table.table = NEW
    assert await runtime.routes(table) == (NEW if invalidated else BOTH)


@pytest.mark.parametrize("wanted", [2, 8])
async def test_a_plan_is_made_for_the_partitions_that_there_are(
    runtime: ZoneRuntime, wanted: int
) -> None:
    """Drains would fail while another number of partitions waits for its turn."""
    stable = {"revision": 1, "replicas": "0,1,2;1,2,0", "layoutVersion": 1}
    members = [{"id": n, "state": "Active", "podName": f"z-{n}"} for n in range(4)]
    zone = DistributionZone.parse(
        {
            "metadata": {"name": "z", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"partitions": wanted, "replicas": 3, "dataNodes": {"count": 4}},
            "status": {"assignments": {"stable": stable}, "dataNodes": members},
        }
    )
    view = build_view(
        zone, runtime, routes=OLD, migrations=(), spark=None, leader_lease_seconds=5.0
    )
    spec = RebalanceTaskSpec(zone_name="z", type=TaskType.DRAIN, nodes=(0,))
    task = RebalanceTask(metadata=ObjectMeta(name="t", namespace="ns"), spec=spec)
    made = make_plan(task, ZonePass(zone, runtime, view, None))
    assert isinstance(made, Planned)
    assert [set(nodes) for nodes in made.target] == [{1, 2, 3}] * 2


def test_news_of_either_layout_wake_who_waits_for_an_index() -> None:
    """A migration would wait for its deadline after its partition has moved to the next layout."""
    delta = ReportDelta(frozenset({id_of(3, 7)}))
    assert delta.changes(7)
    assert not delta.changes(8)
