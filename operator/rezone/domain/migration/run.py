"""One pass over a RegionMigration while it is being decided: what all its steps share.

A step looks at the view, asks for actions, and moves along an edge or waits. States that do not
persist are walked through in memory only: `state` runs ahead of `status.state`, and a coordinator
that dies starts again at the latter (RM-02).
"""

from datetime import datetime

from rezone.domain.assignment.claims import Claim, Rank
from rezone.domain.machines.machine import Command
from rezone.domain.machines.migration_table import TABLE
from rezone.domain.machines.statuses import (
    QUIET_SECONDS,
    Decision,
    Standing,
    enter,
    entered_time,
    is_late,
    with_conditions,
    with_error,
)
from rezone.domain.model.changes import Step, combine
from rezone.domain.model.world import Action, ChangeRoutes, RouteChange, ZoneView
from rezone.domain.observed.readiness import is_uncompared, node_is_gone
from rezone.domain.routing.routes import Refusal
from rezone.resources.conditions import Reason
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

WAKE_SECONDS = 1.0
WAKE_TAKEOVER_SECONDS = 0.1

_RESULTS = {
    MigrationState.SUCCEEDED: (True, Reason.SUCCEEDED),
    MigrationState.ROLLED_BACK: (False, Reason.CANCELLED),
    MigrationState.FAILED: (False, Reason.FAILED),
}


_FOR_A_PERSON = frozenset({Reason.SPARK_UNAVAILABLE, Reason.NAME_CONFLICT})
"""What does not go on without somebody."""


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


class Run:
    """The pass: its inputs, and what has been decided so far."""

    def __init__(
        self,
        spec: RegionMigrationSpec,
        status: RegionMigrationStatus,
        view: ZoneView,
        now: datetime,
        name: str,
    ) -> None:
        self.spec = spec
        self.view = view
        self.now = now
        self.name = name
        self.before = status
        self.status = status
        self.state = status.state
        self.actions: list[Action] = []
        self.path: list[str] = []
        self._behind: list[str] = []
        self.waiting = ""
        self.waiting_reason = Reason.RUNNING
        self.wake_seconds = WAKE_SECONDS

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

    @property
    def late(self) -> bool:
        """Return whether the persisted state's deadline has passed."""
        return is_late(self.status, self.now)

    def begin(self) -> None:
        """Enter the first state, on the first visit."""
        if not self.state:
            self._enter(MigrationState.SELECT_CANDIDATE, "", 0.0)

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
                self._enter(passed, "", 0.0)
            self._behind = []
            self._enter(target, message, extra_seconds)
        self.state = target
        self.path.append(target)
        return True

    def _enter(self, state: str, message: str, extra_seconds: float) -> None:
        self.status = enter(
            self.status,
            TABLE,
            state,
            self.now,
            message=message,
            extra_seconds=extra_seconds,
        )
        self.state = state
        self.waiting = ""

    def roll_back(self, event: str, reason: Reason, message: str) -> bool:
        """Go to the rollback, keeping why for the end."""
        self.status = with_error(self.status, reason, message)
        return self.go(event, message=message)

    def roll_back_if_asked(self) -> bool:
        """Go to the rollback when a person cancels or the deadline has passed (B-14, ZR-18)."""
        if self.spec.cancel:
            return self.roll_back(Command.CANCEL, Reason.CANCELLED, "cancelled by spec.cancel")
        if self.late:
            why = self.status.waiting_for or self.waiting or "no progress"
            return self.roll_back(
                "deadline",
                Reason.FAILED,
                f"{self.state} did not succeed in time: {why}",
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
        context = self.context.model_copy(update=changes)
        self.status = self.status.model_copy(update={"context": context})

    def wait(
        self, why: str, *, reason: Reason = Reason.WAITING, seconds: float | None = None
    ) -> bool:
        """Stay in the state; `why` is read in the status when it lasts (B-14)."""
        self.waiting = why
        self.waiting_reason = reason
        self.wake_seconds = WAKE_SECONDS if seconds is None else seconds
        return False

    def act(self, *actions: Action) -> None:
        """Ask for actions."""
        self.actions.extend(actions)

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

    def decision(self, generation: int) -> Decision[RegionMigrationStatus]:
        """Return what the pass has come to."""
        terminal = TABLE.state(self.status.state).terminal
        self._settle_waiting(terminal=terminal)
        status = with_conditions(
            self.status,
            self._standing(),
            generation=generation,
            now=self.now,
        )
        return Decision(
            status=status,
            actions=tuple(self.actions),
            wake_seconds=None if terminal else self.wake_seconds,
            path=tuple(self.path),
        )

    def _settle_waiting(self, *, terminal: bool) -> None:
        waiting = "" if terminal else self.waiting
        lasts = (self.now - entered_time(self.status, self.now)).total_seconds() >= QUIET_SECONDS
        person = self.waiting_reason in _FOR_A_PERSON
        if self.status.waiting_for != waiting and (lasts or person or self.status != self.before):
            reason = waiting_reason(self.status.state, self.waiting_reason) if waiting else None
            self.status = self.status.model_copy(
                update={"waiting_for": waiting, "waiting_reason": reason}
            )

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
        reason = self.waiting_reason if status.waiting_for == self.waiting else Reason.WAITING
        return Standing(
            succeeded=None,
            reason=reason,
            message=status.waiting_for,
            stalled=reason in _FOR_A_PERSON,
        )


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
