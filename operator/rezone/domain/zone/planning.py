"""What one pass of a zone decides about assignments: the first one, or the next by a trigger.

See `triggers` for what a trigger is, `assignments` for how it is written down (ZR-04, ZR-05).
"""

from datetime import datetime, timedelta
from typing import Self

from rezone.domain.assignment import assignments
from rezone.domain.assignment.assignments import SKIP
from rezone.domain.model.world import ZoneView
from rezone.domain.observed.maintenance import admitted, kept_ids
from rezone.domain.planner.plan import NotPlaceableError, PlanRequest, plan
from rezone.domain.resharding.plan import OldZone, plan_resharding
from rezone.domain.routing.topology_text import Topology
from rezone.domain.zone.data_nodes import eligible_ids, placed, planner_nodes
from rezone.domain.zone.triggers import (
    find_due,
    usable_ids,
    wants_partitions,
    with_trigger_times,
)
from rezone.resources.conditions import Reason
from rezone.resources.zone import DistributionZone
from rezone.resources.zone_status import (
    Assignment,
    Assignments,
    DataNodeState,
    DistributionZoneStatus,
    RetainedReplica,
)
from rezone.wire.layouts import Layout
from rezone.wire.messages import NodeId

PLACEMENT_GRACE = timedelta(seconds=60)
"""So long the first placement waits for all data nodes; then for as many as there are replicas."""
PARTITION_BYTES_TAKEN = 1 << 20
"""What a partition counts when targets are placed: all old ones alike, so that ranges decide."""


def leaders_of(
    keys: Assignments, assignment: Assignment, leaders: tuple[NodeId, ...]
) -> tuple[NodeId, ...] | None:
    """Return who leads the partitions of an assignment, None where that is not known.

    `leaders` are those of the stable partitions: not known for those of another layout.
    """
    stable = keys.stable
    there = stable is not None and stable.layout_version == assignment.layout_version
    return leaders or None if there else None


def old_zone(before: Assignment, current: Topology, leaders: tuple[NodeId, ...] | None) -> OldZone:
    """Return what a re-sharding starts from; `current` is the assignment's topology."""
    return OldZone(
        layout=Layout(before.layout_version, len(current)),
        topology=current,
        leaders=leaders or tuple(row[0] for row in current),
        partition_bytes=(PARTITION_BYTES_TAKEN,) * len(current),
    )


class ZonePlanning:
    """Decides about one zone at one time, `now`; `leaders` are those of its stable partitions.

    `avoided` are the data nodes to which copies have failed lately, `overwrite` the name of the
    overwrite that is to be begun, empty for none.
    Then `status` is the next one, `place` the first assignment when there is none yet, `stalled`
    why there can be none, and after `wake_seconds` a trigger is due at the earliest.
    """

    def __init__(
        self,
        zone: DistributionZone,
        status: DistributionZoneStatus,
        *,
        leaders: tuple[NodeId, ...],
        now: datetime,
        avoided: frozenset[NodeId] = frozenset(),
        overwrite: str = "",
    ) -> None:
        self.zone = zone
        self.status = status
        self._leaders = leaders
        self._now = now
        self._avoided = avoided
        self._overwrite = overwrite
        self.place: Topology | None = None
        self.stalled: tuple[Reason, str] | None = None
        self.wake_seconds = float("inf")

    def run(self) -> Self:
        """Decide, and return itself."""
        keys = assignments.settle_declined(self.status.assignments, self.zone.spec.partitions)
        self.status = self.status.model_copy(update={"assignments": keys})
        newest = keys.planned or keys.pending or keys.stable
        try:
            if newest is None:
                self._first_placement()
            elif self.zone.spec.paused:
                self._note_triggers(assignments.parse(newest.replicas))
            elif wants_partitions(keys, self.zone.spec.partitions):
                self._ask_for_partitions(keys.pending or keys.stable or newest)
            elif self._overwrite:
                current = assignments.parse(newest.replicas)
                self._ask_for_layout(newest, current, len(current), self._overwrite)
            else:
                self._look_for_trigger(newest)
        except NotPlaceableError as error:
            self.stalled = (Reason.NOT_ENOUGH_DATA_NODES, str(error))
        if self.stalled is None and newest is not None and keys.cancelled_partitions:
            there = len(assignments.parse(newest.replicas))
            self.stalled = (Reason.CANCELLED, _declined(keys.cancelled_partitions, there))
        return self

    def keep(self, kept: tuple[RetainedReplica, ...]) -> None:
        """Put what is still kept beside the assignment into the status."""
        keys = self.status.assignments.model_copy(update={"retained": kept})
        self.status = self.status.model_copy(update={"assignments": keys})

    def admit(self, view: ZoneView) -> None:
        """Let maintenance begin that waits and is safe now."""
        nodes = admitted(self.status.data_nodes, view)
        self.status = self.status.model_copy(update={"data_nodes": nodes})

    def _first_placement(self) -> None:
        usable = (DataNodeState.STARTING, DataNodeState.ACTIVE)
        wanted = [n for n in self.status.data_nodes if n.state in usable]
        eligible = eligible_ids(wanted)
        request = self._request(None, frozenset(n.id for n in wanted))
        plan(request)  # says at once when the wanted nodes can never do
        created = self.zone.metadata.creation_timestamp
        waited = created is not None and self._now - created > PLACEMENT_GRACE
        if len(eligible) == len(wanted) or (waited and len(eligible) >= self.zone.spec.replicas):
            self.place = plan(self._request(None, eligible)).target

    def _ask_for_partitions(self, before: Assignment) -> None:
        """Ask for another number of partitions than those of the assignment before (ZR-02)."""
        current, wanted = assignments.parse(before.replicas), self.zone.spec.partitions
        if len(current) == wanted:
            # What is under way already: only what was to come after it is taken back.
            self._request_keys(current, before.layout_version)
            return
        self._ask_for_layout(before, current, wanted)

    def _ask_for_layout(
        self, before: Assignment, current: Topology, wanted: int, filled_by: str = ""
    ) -> None:
        """Ask for another layout: of another number of partitions, or with other rows."""
        keys = self.status.assignments
        nodes = self.status.data_nodes
        eligible = eligible_ids(nodes) - kept_ids(nodes)
        generation = keys.last_layout_version + 1
        made = plan_resharding(
            old_zone(before, current, self._leaders_of(before)),
            Layout(generation, wanted),
            replicas=self.zone.spec.replicas,
            nodes=planner_nodes(nodes, eligible),
            revision=int(self.zone.metadata.resource_version),
        )
        self._request_keys(made.target, generation, filled_by)

    def _request_keys(self, target: Topology, generation: int, filled_by: str = "") -> None:
        """Write what a trigger asks for into the keys, unless a newer one was (ZR-04, ZR-05)."""
        revision = int(self.zone.metadata.resource_version)
        keys = assignments.request(self.status.assignments, target, revision, generation, filled_by)
        if keys is not SKIP:
            self.status = self.status.model_copy(update={"assignments": keys})
            self._mark_placed(again=True)

    def _look_for_trigger(self, assignment: Assignment) -> None:
        newest = assignments.parse(assignment.replicas)
        self._note_triggers(newest)
        nodes, spec = self.status.data_nodes, self.zone.spec
        due = find_due(
            newest,
            nodes,
            spec.data_nodes.auto_adjust,
            replicas=spec.replicas,
            now=self._now,
            avoided=self._avoided,
        )
        self.wake_seconds = due.wake_seconds
        if due.trigger is None:
            return
        eligible = usable_ids(nodes, newest, self._avoided)
        if len(eligible | due.frozen) < spec.replicas:
            eligible = eligible_ids(nodes)
        request = self._request(
            newest, eligible, leaders=self._leaders_of(assignment), frozen=due.frozen
        )
        target = plan(request).target
        if target != newest:
            self._request_keys(target, assignment.layout_version)
            self._note_triggers(target)
        elif not due.frozen:
            # Nothing better can be had, such as for a node whose failure domain is full already.
            # To ask for it again would write a new revision in every pass, for ever.
            self._mark_placed(again=True)

    def _note_triggers(self, topology: Topology) -> None:
        """Write down since when each data node differs from what it is taken for."""
        self._mark_placed(again=False)
        nodes = with_trigger_times(self.status.data_nodes, topology, self._now)
        self.status = self.status.model_copy(update={"data_nodes": nodes})

    def _leaders_of(self, assignment: Assignment) -> tuple[NodeId, ...] | None:
        return leaders_of(self.status.assignments, assignment, self._leaders)

    def _mark_placed(self, *, again: bool) -> None:
        nodes = placed(self.status.data_nodes, again=again)
        self.status = self.status.model_copy(update={"data_nodes": nodes})

    def _request(
        self,
        current: Topology | None,
        eligible: frozenset[int],
        leaders: tuple[NodeId, ...] | None = None,
        frozen: frozenset[int] = frozenset(),
    ) -> PlanRequest:
        return PlanRequest(
            partitions=self.zone.spec.partitions if current is None else len(current),
            replicas=self.zone.spec.replicas,
            nodes=planner_nodes(self.status.data_nodes, eligible, frozen),
            current=current,
            leaders=leaders,
        )


def _declined(wanted: int, there: int) -> str:
    return (
        f"the re-sharding to {wanted} partitions was cancelled: set spec.partitions to {there}, "
        f"which the zone has, and to {wanted} again if you want it after all"
    )
