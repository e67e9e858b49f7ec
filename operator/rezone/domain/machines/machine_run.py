"""One pass over a machine while it is being decided: what all machines share."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import ClassVar, Generic, Self

from rezone.domain.machines.machine import Table
from rezone.domain.machines.statuses import (
    QUIET_SECONDS,
    Decision,
    Standing,
    StatusT,
    enter,
    entered_time,
    is_late,
    with_conditions,
    with_error,
)
from rezone.domain.model.world import Action
from rezone.resources.conditions import Reason

STEPS_MAX = 16
"""More edges than a table has in a row: a pass that walks further runs in a circle."""


class MachineRun(Generic[StatusT]):
    """The pass: its inputs, and what has been decided so far.

    `state` is where the pass has come to.
    """

    WAKE_SECONDS: ClassVar[float] = 2.0

    def __init__(self, table: Table, status: StatusT, now: datetime) -> None:
        self._table = table
        self.now = now
        self.before: StatusT = status
        self.status: StatusT = status
        self.state = status.state
        self.actions: list[Action] = []
        self.path: list[str] = []
        self.waiting = ""
        self.standing: Standing | None = None
        self.wake_seconds = self.WAKE_SECONDS

    @property
    def late(self) -> bool:
        """Return whether the persisted state's deadline has passed."""
        return is_late(self.status, self.now)

    def begin(self) -> None:
        """Enter the first state, on the first visit."""
        if not self.state:
            self._enter(self._table.states[0].name, "")

    def walk(
        self, steps: Mapping[str, Callable[[Self], bool]], generation: int
    ) -> Decision[StatusT]:
        """Go as far along the edges as the steps allow, and return what that has come to."""
        self.begin()
        for _ in range(STEPS_MAX):
            if self._table.state(self.state).terminal or not steps[self.state](self):
                return self.decision(generation)
        raise AssertionError(f"{self._table.title} run in a circle: {self.path}")

    def go(self, event: str, *, message: str = "") -> bool:
        """Follow an edge."""
        self._enter(self._table.follow(self.state, event), message)
        self.path.append(self.state)
        return True

    def _enter(self, state: str, message: str, extra_seconds: float = 0.0) -> None:
        self.status = enter(
            self.status, self._table, state, self.now, message=message, extra_seconds=extra_seconds
        )
        self.state = state
        self.waiting = ""
        self.standing = None

    def give_up(self, event: str, reason: Reason, message: str) -> bool:
        """Follow an edge to an end, a cancel or a rollback, keeping why."""
        self.status = with_error(self.status, reason, message)
        return self.go(event, message=message)

    def update(self, **changes: object) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)

    def act(self, *actions: Action) -> None:
        """Ask for actions."""
        self.actions.extend(actions)

    def wait(
        self,
        why: str,
        *,
        reason: Reason = Reason.WAITING,
        stalled: bool = False,
        seconds: float | None = None,
    ) -> bool:
        """Stay in the state; `why` is read in the status (B-14). Stalled: a person must act."""
        self.waiting = why
        self.standing = Standing(succeeded=None, reason=reason, message=why, stalled=stalled)
        self.wake_seconds = self.WAKE_SECONDS if seconds is None else seconds
        return False

    @property
    def waits_long(self) -> bool:
        """Return whether the machine has been in its state for long enough to write why."""
        return (self.now - entered_time(self.status, self.now)).total_seconds() >= QUIET_SECONDS

    def decision(self, generation: int) -> Decision[StatusT]:
        """Return what the pass has come to."""
        terminal = self._table.state(self.status.state).terminal
        self.settle_progress()
        self._settle_waiting("" if terminal else self.waiting)
        status = with_conditions(self.status, self._standing(), generation=generation, now=self.now)
        return Decision(
            status=status,
            actions=tuple(self.actions),
            wake_seconds=None if terminal else self.wake_seconds,
            path=tuple(self.path),
        )

    def settle_progress(self) -> None:
        """Write how far the machine is, where it has more than one step to count."""

    def _settle_waiting(self, waiting: str) -> None:
        """Write why it waits, "" when it does not, once that is worth a write."""
        raise NotImplementedError

    def _standing(self) -> Standing:
        """Return what the conditions shall say."""
        raise NotImplementedError
