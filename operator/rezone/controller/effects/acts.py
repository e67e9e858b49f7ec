"""Carries out what a state machine asked for; one function per kind of action.

Every act is repeatable and its effect is observed by a later pass, so an act that fails is only
logged: the machine sees that nothing has happened and asks again. Acts on the zone's assignment
keys are compare-and-sets on its status by the functions of `domain.assignment.assignments`.
"""

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence
from datetime import datetime

import structlog

from rezone.controller.coordination.coordinator import Coordinator
from rezone.controller.coordination.runtime import ZoneRuntime
from rezone.controller.effects.resharding import ReshardingActs
from rezone.controller.effects.transfers import Transfers
from rezone.controller.nodes.report_delta import ReportDelta
from rezone.controller.nodes.verify import verify_copy
from rezone.controller.work.keys import ZoneKey
from rezone.domain.assignment import assignments
from rezone.domain.assignment.assignments import Skip
from rezone.domain.model import resharding_view, world
from rezone.domain.observed.machine_limits import Rank
from rezone.kube.api.errors import (
    ConflictWriteError,
    ForeignObjectError,
    InvalidWriteError,
    KubeError,
    MissingError,
)
from rezone.resources.migration import RegionMigration, RegionMigrationSpec
from rezone.resources.model import ObjectMeta
from rezone.resources.task import RebalanceTask
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import Assignments, DistributionZoneStatus
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import index_of
from rezone.wire.messages import (
    Ack,
    BeginEmpty,
    Fence,
    Message,
    NodeId,
    RefuseIsr,
    Seal,
    StopReplica,
    Takeover,
    UpgradeCandidate,
)

log = structlog.get_logger(__name__)

ASSIGNMENT_ATTEMPTS_MAX = 5

NodeCall = (
    world.StopReplica
    | world.RefuseProposal
    | world.RequestTakeover
    | world.BeginEmpty
    | world.RequestUpgrade
    | resharding_view.RequestSeal
)


class Acts:
    """Carries out actions for one owner: a zone, or a task or migration of it."""

    def __init__(
        self,
        coordinator: Coordinator,
        zone: DistributionZone,
        runtime: ZoneRuntime,
        owner: DistributionZone | RebalanceTask | RegionMigration,
    ) -> None:
        self._c = coordinator
        self._zone = zone
        self._runtime = runtime
        self._owner = owner
        self._transfers = Transfers(coordinator, zone, runtime)
        self._resharding = ReshardingActs(coordinator, zone, runtime)
        self._taken_names: dict[str, str] = {}

    async def carry_out(self, actions: Sequence[world.Action]) -> None:
        """Carry out all actions in order; failures are logged and left to the next pass.

        Calls to data nodes that follow one another are about different replicas and go out side
        by side: there may be hundreds of leaders to hand over. A name that a migration cannot have
        is kept for the owner's next pass, which asks again.
        """
        self._taken_names = {}
        for calls, group in itertools.groupby(actions, lambda a: isinstance(a, NodeCall)):
            if calls:
                await asyncio.gather(*(self._try(action) for action in group))
            else:
                for action in group:
                    await self._try(action)
        self._runtime.note_taken(self._owner.metadata.uid, self._taken_names)

    async def retain_until(self, migration: str, until: datetime | None) -> None:
        """Write until when the zone keeps what a migration left beside its assignment, now.

        Raises KubeError: who asks says in another object that it was done.
        """
        await self._assign(lambda keys: assignments.retain_until(keys, migration, until))

    async def _try(self, action: world.Action) -> None:
        log.info("acting", action=type(action).__name__, owner=self._owner.metadata.name)
        try:
            await self._one(action)
        except (KubeError, RezoneError) as error:
            log.warning("act failed", action=type(action).__name__, error=str(error))

    async def _one(self, action: world.Action) -> None:  # noqa: C901, PLR0912 - a case per kind
        if isinstance(action, NodeCall):
            await self._call(*_call_of(action, self._fence()))
            return
        match action:
            case world.ChangeRoutes(changes=changes):
                store = self._runtime.route_store(self._c.kube, self._zone)
                await self._runtime.change_routes(store, changes)
                await self._runtime.notify()
                changed = frozenset(change.partition for change in changes)
                self._c.tell(self._runtime.key, ReportDelta(changed))
            case world.EnsureSparkApplication():
                await self._ensure_spark(action)
            case resharding_view.EnsureBackfill():
                await self._transfers.ensure_backfill(self._owner, action)
            case world.DeleteSparkApplication(name=name):
                await self._transfers.delete_spark(self._owner, name)
            case world.PullSnapshots(copies=copies):
                copies = await self._transfers.may_begin(self._owner, copies, self._rank)
                await self._transfers.pull(copies, self._fence())
            case world.AdmitCopies(admitted=admitted, held=held):
                begin = await self._transfers.may_begin(self._owner, admitted, self._rank)
                held = (*held, *(copy for copy in admitted if copy not in begin))
                action = world.AdmitCopies(admitted=begin, held=held)
                await self._transfers.admit(action, self._fence())
            case world.VerifyCopy():
                self._verify_in_background(action)
            case world.EnsureMigration():
                await self._ensure_migration(action)
            case world.CancelMigration(name=name):
                await self._cancel_migration(name)
            case world.WritePending(target=target, revision=revision):
                await self._assign(lambda keys: assignments.request(keys, target, revision))
            case world.WriteStable(revision=revision, target=target, readable_from=readable_from):
                await self._assign(
                    lambda keys: assignments.complete(keys, revision, target, readable_from)
                )
            case world.WriteCancel(revision=revision, old=old, new=new):
                await self._assign(
                    lambda keys: assignments.intend_cancel(keys, revision, old, new)[1],
                )
            case world.ClearPending(revision=revision, ended=ended):
                await self._assign(lambda keys: assignments.clear_pending(keys, revision, ended))
            case world.SettleLeader():
                await self._assign(lambda keys: assignments.settle(keys, action))
            case (
                resharding_view.CreateTargets()
                | resharding_view.DropLayout()
                | resharding_view.VerifyRange()
            ):
                await self._resharding.carry_out(action)
            case world.NotifyFailureDetector():
                self._c.wake_zone(ZoneKey(self._zone.metadata.namespace, self._zone.metadata.name))

    async def _ensure_spark(self, action: world.EnsureSparkApplication) -> None:
        """Create the application; why that failed is kept for the owner's next pass."""
        errors, uid = self._runtime.spark_errors, self._owner.metadata.uid
        errors.pop(uid, None)
        try:
            await self._transfers.ensure_spark(self._owner, action)
        except KubeError as error:
            errors[uid] = str(error)
            # Asking again changes nothing; and what else is to be done must not wait for it.
            if not isinstance(error, InvalidWriteError):
                raise

    @property
    def _rank(self) -> Rank:
        return Rank.REPAIR if isinstance(self._owner, DistributionZone) else Rank.MOVE

    def _fence(self) -> Fence:
        return self._runtime.fence or Fence(coordinator_epoch=self._c.epoch)

    async def _call(self, node: NodeId, request: Message) -> None:
        watched = self._runtime.monitor.get(node)
        if watched is None:
            log.info("node is not there", node=node, request=type(request).__name__)
            return
        call = functools.partial(
            watched.client.call,
            request,
            Ack,
            timeout_seconds=self._c.settings.call_timeout_seconds,
        )
        await watched.answer(self._c.executor, call)

    async def _assign(self, change: Callable[[Assignments], Assignments | Skip]) -> None:
        """Apply one of the assignment functions to the zone as it is stored now."""
        meta = self._zone.metadata
        for _ in range(ASSIGNMENT_ATTEMPTS_MAX):
            zone = await self._c.store.read(DistributionZone, meta.namespace, meta.name)
            if zone.metadata.uid != meta.uid:
                # Deleted since this pass has read it, and made again: this is decided of no other.
                raise MissingError(f"zone {meta.name} is another one by now")
            status = zone.status or DistributionZoneStatus()
            keys = change(status.assignments)
            if isinstance(keys, Skip) or keys == status.assignments:
                return
            try:
                await self._c.store.write_status(
                    zone,
                    status.model_copy(update={"assignments": keys}),
                )
            except ConflictWriteError:
                continue
            self._c.wake_zone(ZoneKey(meta.namespace, meta.name))
            return
        raise ConflictWriteError(f"zone {meta.name} changed under every attempt")

    async def _ensure_migration(self, action: world.EnsureMigration) -> None:
        meta = self._zone.metadata
        migration = RegionMigration(
            metadata=ObjectMeta(
                name=action.name,
                namespace=meta.namespace,
                labels={"rezone.dev/zone": meta.name, "rezone.dev/task": self._owner.metadata.name},
            ),
            spec=RegionMigrationSpec(
                zone_name=meta.name,
                partition=index_of(action.partition),
                target=action.target,
            ),
        )
        try:
            await self._c.store.create(migration, self._owner)
        except ForeignObjectError as error:
            # What an earlier task of this name has left goes away without anybody's doing.
            if not error.going:
                self._taken_names[action.name] = str(error)
            raise

    async def _cancel_migration(self, name: str) -> None:
        namespace = self._zone.metadata.namespace
        try:
            migration = await self._c.store.read(RegionMigration, namespace, name)
        except MissingError:
            return
        if not migration.spec.cancel:
            await self._c.store.patch_spec(migration, {"cancel": True})

    def _verify_in_background(self, action: world.VerifyCopy) -> None:
        """Start a comparison, at most one per copy; its outcome wakes the zone."""
        key = (action.partition, action.target, action.leader_epoch)
        runtime = self._runtime
        source = runtime.monitor.get(action.source)
        target = runtime.monitor.get(action.target)
        if source is None or target is None or not runtime.copies.is_due(key):
            return
        runtime.compare_in_background(
            runtime.copies,
            key,
            lambda: verify_copy(
                self._c.executor, action.partition, source, target, fence=self._fence()
            ),
            lambda: self._c.wake_zone(runtime.key),
        )


def _call_of(action: NodeCall, fence: Fence) -> tuple[NodeId, Message]:
    """Return which data node an action asks, and what for."""
    match action:
        case world.StopReplica():
            return action.node, StopReplica(
                fence=fence,
                partition=action.partition,
                leader_epoch=action.leader_epoch,
                partition_epoch=action.partition_epoch,
            )
        case world.RefuseProposal():
            return action.node, RefuseIsr(
                fence=fence,
                partition=action.partition,
                proposal=action.proposal,
                state=action.state,
                error_code=action.reason,
                error_message=action.message,
            )
        case world.RequestTakeover():
            return action.source, Takeover(
                fence=fence,
                partition=action.partition,
                leader_epoch=action.leader_epoch,
                candidate=action.candidate,
                next_epoch=action.next_epoch,
            )
        case world.BeginEmpty():
            return action.node, BeginEmpty(
                fence=fence,
                partition=action.partition,
                state=action.state,
            )
        case resharding_view.RequestSeal():
            return action.node, Seal(
                fence=fence, partition=action.partition, leader_epoch=action.leader_epoch
            )
        case world.RequestUpgrade():
            return action.candidate, UpgradeCandidate(
                fence=fence,
                partition=action.partition,
                next_epoch=action.next_epoch,
                last_offset=action.last_offset,
                index=action.index,
            )
