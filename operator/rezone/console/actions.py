"""What a person may do to a task, and the patch that asks for it.

A task is a RebalanceTask or a RegionMigration. All of it is declared in the spec; the operator acts
on it. Pure.
"""

import enum
from dataclasses import dataclass
from typing import Final

from rezone.kube.api.kinds import Manifest
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, RegionMigration
from rezone.resources.task import TERMINAL_TASK_STATES, PlanSummary, RebalanceTask, TaskState

Task = RebalanceTask | RegionMigration


class Action(enum.StrEnum):
    """What can be asked for; the values stand in addresses."""

    APPROVE = "approve"
    SUSPEND = "suspend"
    RESUME = "resume"
    CANCEL = "cancel"


@dataclass(frozen=True)
class Wording:
    """How an action is offered: the button's text, and what follows from it."""

    button: str
    effect: str


WORDS: Final[dict[type[Task], dict[Action, Wording]]] = {
    RebalanceTask: {
        Action.APPROVE: Wording(
            "Approve this plan",
            "The operator carries out exactly this plan. If the cluster has changed since it was "
            "made, the operator refuses it instead.",
        ),
        Action.SUSPEND: Wording(
            "Suspend",
            "No new moves start until the task is resumed. Moves that are running finish.",
        ),
        Action.RESUME: Wording("Resume", "The task starts moves again."),
        Action.CANCEL: Wording(
            "Cancel",
            "Every partition that has not switched goes back to where it was. Partitions that have "
            "switched stay. A cancel cannot be taken back.",
        ),
    },
    RegionMigration: {
        Action.CANCEL: Wording(
            "Cancel",
            "The partition stays with its old leader, as long as the new one does not lead yet. "
            "A cancel cannot be taken back.",
        ),
    },
}
_NOUNS: Final[dict[type[Task], str]] = {
    RebalanceTask: "task",
    RegionMigration: "leader transfer",
}
_CHANGES: Final[dict[Action, Manifest]] = {
    Action.SUSPEND: {"suspend": True},
    Action.RESUME: {"suspend": False},
    Action.CANCEL: {"cancel": True},
}


class ActionRefusedError(Exception):
    """Raised when an action does not fit the object as it is now; the message says why."""


def plan_of(task: Task) -> PlanSummary | None:
    """Return the plan of a rebalance, None without one; a leader transfer has none."""
    if isinstance(task, RegionMigration) or task.status is None:
        return None
    return task.status.plan


def possible_actions(task: Task) -> tuple[Action, ...]:
    """Return what a person can ask of a task now."""
    state = task.status.state if task.status is not None else ""
    if state in TERMINAL_TASK_STATES | TERMINAL_MIGRATION_STATES or task.spec.cancel:
        return ()
    if isinstance(task, RegionMigration):
        return (Action.CANCEL,)
    if state == TaskState.CANCELLING:
        return ()
    plan = plan_of(task) if state == TaskState.PLANNED else None
    offered = {
        Action.APPROVE: plan is not None and task.spec.approved_plan != plan.hash,
        Action.SUSPEND: not task.spec.suspend,
        Action.RESUME: task.spec.suspend,
        Action.CANCEL: True,
    }
    return tuple(action for action, possible in offered.items() if possible)


def require_possible(task: Task, action: Action) -> None:
    """Raise ActionRefusedError for an action that a task cannot be asked for now."""
    if action not in possible_actions(task):
        raise _too_late(task, action)


def action_patch(task: Task, action: Action, *, uid: str, plan: str = "") -> Manifest:
    """Return the patch that asks a task for an action.

    `uid` and `plan` are those that the person saw: the API server refuses the patch for another
    task of the same name, and the operator refuses another plan than the approved one. Raises
    ActionRefusedError when the action is not possible now, or the plan is another one by now.
    """
    require_possible(task, action)
    if task.metadata.uid != uid:
        raise _too_late(task, action)
    found = plan_of(task)
    if action is not Action.APPROVE or found is None:
        return {"metadata": {"uid": uid}, "spec": _CHANGES[action]}
    if found.hash != plan:
        raise ActionRefusedError(
            f"The plan has changed: you looked at {plan or 'none'}, it is {found.hash} now."
        )
    return {"metadata": {"uid": uid}, "spec": {"approvedPlan": plan}}


def _too_late(task: Task, action: Action) -> ActionRefusedError:
    return ActionRefusedError(f"The {_NOUNS[type(task)]} cannot be asked to {action} any more.")
