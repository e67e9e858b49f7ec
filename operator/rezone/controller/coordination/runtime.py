"""What the coordinator keeps in memory of one zone; all of it can be lost at any time.

The route table is written by this coordinator alone (Lease, epochs), so what was last read or
written is current, but for late writes of the one before, which is why the table is read again
in the beginning; a compare-and-set that fails throws it away, and a new coordinator reads it
from the API server itself, never from a watch's cache (ZR-14).
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from rezone.controller.coordination.volumes import SeenVolumes
from rezone.controller.coordination.zone_config import zone_config
from rezone.controller.nodes.monitor import NodeMonitor
from rezone.controller.nodes.notify import Notifier
from rezone.controller.nodes.verify import Comparisons, Key
from rezone.controller.work.keys import ZoneKey
from rezone.controller.work.settings import CoordinatorSettings
from rezone.domain.assignment.outdated import known_later
from rezone.domain.model.world import CopyKey, RouteChange
from rezone.domain.observed.copy_watch import CopyWatch
from rezone.domain.rebalance.repair_progress import SeenRepairs
from rezone.domain.resharding.observe import RangeKey
from rezone.domain.routing.route_records import RouteRecords
from rezone.domain.zone.status import Obstacle
from rezone.kube.api.client import Kube
from rezone.kube.stored.routes import RouteStore
from rezone.resources.zone import DistributionZone
from rezone.wire.messages import AdmitCopies, Fence, LeaderAndIsr, NodeId, PartitionId

UNSURE_LEASES = 2
"""For how many durations of the Lease a new coordinator expects late writes of the one before."""
READ_AGAIN_SECONDS = 5.0
GONE_SECONDS = 30.0
"""How often it is looked whether somebody has deleted the route table: no watch tells of that."""
REFUSED_SECONDS = 10.0
"""How long a refusal of copies is told of: who still wants them asks again sooner."""
AUTHORIZED_SECONDS = 20.0
"""How long a takeover that is no migration's may take before it is taken back."""


class WantedChanges:
    """Changes of routes that somebody waits for, and what has become of them."""

    def __init__(self, changes: Sequence[RouteChange]) -> None:
        self.changes = changes
        self.partitions = frozenset(change.partition for change in changes)
        self.answered = False
        self.made = False
        self.error: Exception | None = None

    def answer(self, *, made: bool = False, error: Exception | None = None) -> None:
        """Say whether all were made, or why that is not known."""
        self.answered, self.made, self.error = True, made, error


def together(
    wanted: Sequence[WantedChanges],
) -> tuple[list[WantedChanges], list[WantedChanges]]:
    """Return those that fit into one write, first come first served, and the others.

    Two changes of one partition do not: the second was decided on what the first changes.
    """
    taken: list[WantedChanges] = []
    others: list[WantedChanges] = []
    seen: set[PartitionId] = set()
    for each in wanted:
        (others if each.partitions & seen else taken).append(each)
        seen |= each.partitions
    return taken, others


def _without_refused(
    batch: Sequence[WantedChanges], may_write: Callable[[RouteChange], bool]
) -> list[WantedChanges]:
    """Answer those with a change that may not be written; return the others."""
    for each in batch:
        if not all(map(may_write, each.changes)):
            each.answer(made=False)
    return [each for each in batch if not each.answered]


class ZoneRuntime:
    """The monitor, the notifier and the caches of one zone."""

    def __init__(
        self,
        key: ZoneKey,
        uid: str,
        coordinator_epoch: int,
        *,
        executor: Executor,
        settings: CoordinatorSettings,
        monitor: NodeMonitor,
    ) -> None:
        self.key = key
        self.uid = uid
        self.coordinator_epoch = coordinator_epoch
        self.monitor = monitor
        self.notifier = Notifier(executor, self.monitor, settings.call_timeout_seconds)
        self.copy_watch = CopyWatch()
        self.copies: Comparisons[CopyKey] = Comparisons("copy")
        self.ranges: Comparisons[RangeKey] = Comparisons("range")
        self.obstacle: Obstacle | None = None
        self.repairs: SeenRepairs | None = None
        self.volumes: SeenVolumes | None = None
        # By the task's uid: whose objects have the names of migrations that its last pass wanted.
        self.taken_names: dict[str, Mapping[str, str]] = {}
        # By the owner's uid: why its SparkApplication could not be created, when last tried.
        self.spark_errors: dict[str, str] = {}
        self.looked_at = False
        # By the owner's uid: when it asked for copies last, and why some may not begin.
        self._refused: dict[str, tuple[float, Mapping[PartitionId, str]]] = {}
        # By node: what it was last told of copies that may begin, and when.
        self.admissions: dict[NodeId, tuple[float, AdmitCopies]] = {}
        self.zone: DistributionZone | None = None
        self.peers: dict[NodeId, str] = {}
        self.fence: Fence | None = None
        self._routes: RouteRecords | None = None
        self._authorized: dict[tuple[PartitionId, int], float] = {}
        self._read_at = 0.0
        self._looked_at = 0.0
        self._met = False
        lease = settings.lease_duration_seconds
        self._sure_from = asyncio.get_running_loop().time() + UNSURE_LEASES * lease
        self._store: RouteStore | None = None
        self._wanted: list[WantedChanges] = []
        # Zone, task and migration passes run side by side and share the table.
        self._table = asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()

    def note_taken(self, task_uid: str, names: Mapping[str, str]) -> None:
        """Keep which names a task's pass has found taken, and by whom: those of that pass alone."""
        if names:
            self.taken_names[task_uid] = names
        else:
            self.taken_names.pop(task_uid, None)

    def note_refused(self, owner: str, now: float, why: Mapping[PartitionId, str]) -> None:
        """Keep why an owner's copies may not begin, by partition, for its next pass."""
        self._refused = {o: r for o, r in self._refused.items() if now - r[0] < REFUSED_SECONDS}
        self._refused[owner] = (now, why)

    def copies_refused(self, owner: str | None = None) -> dict[PartitionId, str]:
        """Return why copies may not begin, by partition: of one owner, or of all."""
        now = asyncio.get_running_loop().time()
        found: dict[PartitionId, str] = {}
        for uid, (at, why) in self._refused.items():
            if owner in {None, uid} and now - at < REFUSED_SECONDS:
                found.update(why)
        return found

    def route_store(self, kube: Kube, zone: DistributionZone) -> RouteStore:
        """Return the zone's one route store: it keeps the base of the next guarded write."""
        if self._store is None:
            self._store = RouteStore(kube, zone)
        return self._store

    async def routes(self, store: RouteStore) -> RouteRecords:
        """Return the route table, empty when the zone has none yet."""
        async with self._table:
            return await self._loaded(store)

    async def create_layout(
        self, store: RouteStore, records: Sequence[LeaderAndIsr], generation: int
    ) -> None:
        """Write the records of a layout unless they are there; see `RouteStore.create`."""
        async with self._table:
            self._routes = None
            await store.create(records, generation)

    async def delete_layout(self, store: RouteStore, generation: int) -> None:
        """Delete the records of a layout that is over; see `RouteStore.delete`."""
        async with self._table:
            self._routes = None
            await store.delete(generation)

    def has_met_data_nodes(self) -> bool:
        """Return whether a new coordinator has heard of every data node, or that it is silent.

        What data nodes know may be later than the objects say (`domain.assignment.outdated`).
        """
        self._met = self._met or self.monitor.has_met_all
        return self._met

    def invalidate_routes(self) -> None:
        """Forget the route table when a data node knows a newer record than is remembered here.

        A write of the coordinator before may arrive after this one has read the table. Without
        this the nodes would refuse this one's records as outdated, and it their proposals as too
        new, until it makes a change to the same ConfigMap of its own.
        """
        known = self._routes
        if known is None:
            return
        nodes = self.monitor.nodes().items()
        node_state = {
            node: seen.node_state.replicas for node, seen in nodes if seen.node_state is not None
        }
        if known_later(known, node_state):
            self._routes = None

    def overdue_takeovers(self) -> frozenset[PartitionId]:
        """Return the partitions whose takeover has been authorized for too long, as seen here."""
        now = asyncio.get_running_loop().time()
        since = self._authorized
        self._authorized = {
            (partition, record.next_epoch): since.get((partition, record.next_epoch), now)
            for partition, record in (self._routes or RouteRecords()).items()
            if record.next_epoch is not None
        }
        return frozenset(
            partition
            for (partition, _), begun in self._authorized.items()
            if now - begun > AUTHORIZED_SECONDS
        )

    async def change_routes(self, store: RouteStore, changes: Sequence[RouteChange]) -> bool:
        """Write changes by compare-and-set; returns whether every one was made.

        What is asked for while a write is under way goes out together with the next one: many
        partitions share a ConfigMap, and many leaders may move at once. Whatever happens, the
        cache afterwards is empty or what the API server holds.
        """
        wanted = WantedChanges(changes)
        self._wanted.append(wanted)
        try:
            while not wanted.answered:
                async with self._table:
                    if not wanted.answered:
                        await self._write_together(store)
        finally:
            # One that was cancelled while it waited must not be written for nobody.
            if wanted in self._wanted:
                self._wanted.remove(wanted)
        if wanted.error is not None:
            raise wanted.error
        return wanted.made

    async def _write_together(self, store: RouteStore) -> None:
        batch, self._wanted = together(self._wanted)
        try:
            routes = await self._loaded(store)
            # Data nodes may know later records (`assignment.outdated`): the zone's pass asks first.
            there = routes.keys() if self._met else frozenset()
            later = known_later(routes, self.monitor.replicas())
            batch = _without_refused(
                batch, lambda c: c.partition in there and (c.learned or c.partition not in later)
            )
            if not batch:
                return
            self._routes = None
            made = await store.change([change for each in batch for change in each.changes])
        except Exception as error:  # noqa: BLE001 - every one who waits gets it
            for each in batch:
                each.answer(error=error)
            return
        except BaseException:
            # Only the one who writes is cancelled: the others write themselves. A change that
            # has been carried out already counts as made then.
            self._wanted = batch + self._wanted
            raise
        for each in batch:
            each.answer(made=each.partitions <= made)
        if all(each.made for each in batch):
            changes = (change for each in batch for change in each.changes)
            self._routes = routes.changed({each.partition: each.state for each in changes})

    async def _loaded(self, store: RouteStore) -> RouteRecords:
        now = asyncio.get_running_loop().time()
        # The coordinator before may have been frozen in the middle of a write: what was read in
        # the first time after its Lease is read again.
        stale = self._read_at < self._sure_from and now - self._read_at >= READ_AGAIN_SECONDS
        if self._routes and not stale and now - self._looked_at >= GONE_SECONDS:
            stale, self._looked_at = await store.is_gone(), now
        if self._routes is None or stale:
            self._routes = None
            loaded = await store.load()
            for generation in sorted(store.retired):
                # Its deletion was begun, perhaps by the coordinator before.
                await store.delete(generation)
            self._routes, self._read_at, self._looked_at = loaded, now, now
        return self._routes

    async def notify(self) -> bool:
        """Send nodes what they have not confirmed; returns whether all reachable ones have."""
        if self.zone is None or self.fence is None or not self._routes:
            return False
        # By the very records that are sent: nodes know the layouts before they get these.
        config = zone_config(self.zone, self._routes)
        return await self.notifier.notify(config, self.peers, self._routes, self.fence)

    def compare_in_background(
        self,
        comparisons: Comparisons[Key],
        key: Key,
        compare: Callable[[], Awaitable[None]],
        ended: Callable[[], None],
    ) -> None:
        """Start a comparison beside the passes; `ended` is called when another may be due."""
        comparisons.under_way.add(key)
        self.background(comparisons.run(key, compare, ended))

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the passes; it ends with the zone."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def close(self) -> None:
        """Stop what runs beside the passes."""
        for task in self._background:
            task.cancel()
