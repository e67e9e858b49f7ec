"""One pass over a RegionMigration while it is being decided: what all its steps share.

A step looks at the view, asks for actions, and moves along an edge or waits. States that do not
persist are walked through in memory only: `state` runs ahead of `status.state`, and a coordinator
that dies starts again at the latter (RM-02).
"""

from datetime import datetime

from rezone.domain.assignment.claims import Claim, Rank
from rezone.domain.machines.machine import DEADLINE, Command
from rezone.domain.machines.machine_run import MachineRun
from rezone.domain.machines.migration_table import TABLE
from rezone.domain.machines.statuses import Standing
from rezone.domain.machines.waits import with_waiting
from rezone.domain.model.changes import Step, combine
from rezone.domain.model.world import ChangeRoutes, RouteChange, ZoneView
from rezone.domain.observed.leader_transfer import LeaderTransfer
from rezone.domain.observed.readiness import is_uncompared, node_is_gone
from rezone.domain.observed.write_gaps import gap_ms
from rezone.domain.rebalance.progress import is_worth_writing
from rezone.domain.routing.routes import Refusal
from rezone.resources.conditions import Reason
from rezone.resources.copy_progress import CopiesProgress
from rezone.resources.machine_status import WaitingReason
from rezone.resources.migration import (
    MigrationContext,
    MigrationState,
    OldLeaderPolicy,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.wire.layouts import id_of
from rezone.wire.messages import LeaderAndIsr, NodeId, PartitionId

WAKE_TAKEOVER_SECONDS = 0.1

_RESULTS = {
    MigrationState.SUCCEEDED: (True, Reason.SUCCEEDED),
    MigrationState.ROLLED_BACK: (False, Reason.CANCELLED),
    MigrationState.FAILED: (False, Reason.FAILED),
}


_WAITING_IN = {
    MigrationState.OPEN_CANDIDATE: WaitingReason.COPYING,
    MigrationState.UPDATE_METADATA_DOWN: WaitingReason.SWITCHING,
    MigrationState.DOWNGRADE_LEADER: WaitingReason.SWITCHING,
    MigrationState.UPGRADE_CANDIDATE: WaitingReason.SWITCHING,
    MigrationState.UPDATE_METADATA_UP: WaitingReason.SWITCHING,
    MigrationState.UPDATE_METADATA_ROLLBACK: WaitingReason.SWITCHING,
    MigrationState.UNCLEAN_ELECTION: WaitingReason.NO_LEADER,
    MigrationState.CLOSE_OLD_LEADER: WaitingReason.STOPPING,
}


class Run(MachineRun[RegionMigrationStatus]):
    """The pass: its inputs, and what has been decided so far."""

    WAKE_SECONDS = 1.0

    def __init__(
        self,
        spec: RegionMigrationSpec,
        status: RegionMigrationStatus,
        view: ZoneView,
        now: datetime,
        name: str,
    ) -> None:
        super().__init__(TABLE, status, now)
        self.spec = spec
        self.view = view
        self.name = name
        self.copy_progress: CopiesProgress | None = None
        self._behind: list[str] = []

    @property
    def partition(self) -> PartitionId:
        """Return the id of the partition whose leader moves.

        Chosen with the candidate, from the layout of that time: the index alone would be another
        partition's after a re-sharding.
        """
        if self.status.context is not None:
            return self.status.context.partition
        return id_of(self.view.generation, self.spec.partition)

    @property
    def record(self) -> LeaderAndIsr:
        """Return the partition's persisted route."""
        return self.view.routes[self.partition]

    @property
    def context(self) -> MigrationContext:
        """Return the persistent context; it stands from SelectCandidate on."""
        if self.status.context is None:
            raise AssertionError(f"migration {self.name} is in {self.state} without a context")
        return self.status.context

    def go(self, event: str, *, message: str = "", extra_seconds: float = 0.0) -> bool:
        """Follow an edge; the status is written when the state left, or the one entered, persists.

        The success of states that persist behind is written with that of the last of them. A
        rollback is an intent and is written when it is entered, wherever it comes from.
        """
        source = self.state
        target = TABLE.follow(source, event)
        rollback = target == MigrationState.UPDATE_METADATA_ROLLBACK
        waits = TABLE.state(source).behind and TABLE.state(target).behind
        if waits:
            self._behind.append(target)
        elif TABLE.state(source).persists or rollback or TABLE.state(target).terminal:
            for passed in () if rollback else self._behind:
                self._enter(passed, "")
            self._behind = []
            self._enter(target, message, extra_seconds)
        self.state = target
        self.path.append(target)
        return True

    @property
    def transfer(self) -> LeaderTransfer:
        """Return the transfer that the context is about."""
        at = self.context
        source, candidate, epochs = at.from_node, at.to_node, (at.leader_epoch, at.next_epoch)
        return LeaderTransfer(self.view, self.partition, source, candidate, *epochs)

    def roll_back_if_asked(self) -> bool:
        """Go to the rollback when a person cancels or the deadline has passed (B-14, ZR-18)."""
        if self.spec.cancel:
            return self.give_up(Command.CANCEL, Reason.CANCELLED, "cancelled by spec.cancel")
        if self.late:
            why = self.status.waiting_for or self.waiting or "no progress"
            return self.give_up(
                DEADLINE, Reason.FAILED, f"{self.state} did not succeed in time: {why}"
            )
        return False

    @property
    def by_person(self) -> bool:
        """Return whether a person applied it: a task's has its place in an assignment already."""
        own = next((m for m in self.view.migrations if m.name == self.name), None)
        return own is None or not own.owner_task

    @property
    def claim(self) -> Claim:
        """Return the claim with which it waits for others before it begins."""
        return Claim(Rank.OF_PERSON if self.by_person else Rank.OF_TASK, self.name)

    def changes_stable(self, old: NodeId, new: NodeId) -> bool:
        """Return whether the assignment follows this move of the leader from `old` to `new`."""
        return self._leaves_stable(new) or self.gives_place_up(old, new)

    def _leaves_stable(self, node: NodeId) -> bool:
        """Return whether a person moves the leader to a node that `stable` does not have."""
        assigned = self.view.assigned(self.partition)
        return self.by_person and assigned is not None and node not in assigned

    def has_place(self, node: NodeId) -> bool:
        """Return whether a node is of the partition's assignment, now or by what is pending."""
        assigned = self.view.assigned(self.partition) or ()
        return node in assigned or node in (self.view.target(self.partition) or ())

    def gives_place_up(self, old: NodeId, new: NodeId) -> bool:
        """Return whether `old` is to be removed although its place does not go to `new`.

        Both are of the assignment: it would be one replica short.
        """
        removed = self.by_person and self.spec.old_leader_policy is OldLeaderPolicy.REMOVE
        return removed and {old, new} <= set(self.view.assigned(self.partition) or ())

    def set_context(self, **changes: int | bool | datetime | None) -> None:
        """Change fields of the persistent context."""
        self.update(context=self.context.model_copy(update=changes))

    def change_route(self, *steps: Step) -> str:
        """Ask for the route to be changed by these steps at once; return why not, or ""."""
        after = combine(self.record, self.view.coordinator_epoch, *steps)
        if isinstance(after, Refusal):
            return after.message
        if after is not self.record:
            change = RouteChange(
                partition=self.partition,
                expected_epoch=self.record.partition_epoch,
                state=after,
            )
            self.act(ChangeRoutes(changes=(change,)))
        return ""

    def wait_briefly(self, why: str) -> bool:
        """Stay in the state, and look again while writes are held."""
        return self.wait(why, seconds=WAKE_TAKEOVER_SECONDS)

    def write_route(self, *steps: Step) -> bool:
        """Ask for the route to be changed by these steps at once, and stay until it is."""
        return self.wait_briefly(self.change_route(*steps) or "the route is being written")

    def settle_progress(self) -> None:
        """Write how far the copy is, and with whatever else for how long writes have stopped.

        The copy in steps, and not alone while it may be over in a moment.
        """
        new, old = self.copy_progress, self.status.copy_progress or CopiesProgress()
        step = self.waits_long and new is not None and is_worth_writing(old, new)
        if new is not None and (step or self.status != self.before):
            self.update(copy_progress=new)
        status, context = self.status, self.status.context
        if context is None or not context.next_epoch or status == self.before:
            return
        if status.write_unavailable_milliseconds is None and self.partition in self.view.routes:
            found = gap_ms(self.view, self.partition, context.next_epoch)
            self.update(write_unavailable_milliseconds=found)

    def _settle_waiting(self, waiting: str) -> None:
        person = self.standing is not None and self.standing.stalled
        worth = self.waits_long or person or self.status != self.before
        if self.status.waiting_for != waiting and worth:
            kind = self.standing.reason if self.standing is not None else Reason.RUNNING
            reason = waiting_reason(self.status.state, kind) if waiting else None
            self.status = with_waiting(self.status, waiting, reason, self.now)

    def _standing(self) -> Standing:
        status = self.status
        error = status.last_error
        if status.state in _RESULTS:
            succeeded, reason = _RESULTS[MigrationState(status.state)]
            if not succeeded and error is not None:
                reason = Reason(error.reason)
            message = status.history[-1].message
            if not succeeded and error is not None:
                message = error.message
            # Whoever cancelled knows; everything else that did not succeed wants a look.
            stalled = not succeeded and reason is not Reason.CANCELLED
            return Standing(succeeded=succeeded, reason=reason, message=message, stalled=stalled)
        if not status.waiting_for:
            return Standing(succeeded=None, reason=Reason.RUNNING, message=f"in {status.state}")
        if self.standing is not None and status.waiting_for == self.waiting:
            return self.standing
        return Standing(succeeded=None, reason=Reason.WAITING, message=status.waiting_for)


def why_never_compared(run: Run, node: NodeId) -> str:
    """Return why a copy cannot be compared any more, so that it must not lead (B-04), else ""."""
    leader = run.record.leader
    gone = node_is_gone(run.view, leader, run.now)
    if not gone or not is_uncompared(run.view, run.partition, node):
        return ""
    return (
        f"the copy on node {node} was never compared, and leader {leader} is gone: bring that "
        f"back, or ask by spec.uncleanElection that node {node} leads"
    )


def waiting_reason(state: str, reason: Reason) -> WaitingReason | None:
    """Return why a transfer waits, in one word: by its reason, or else by the state it is in."""
    return WaitingReason.of(reason) or _WAITING_IN.get(MigrationState(state))
