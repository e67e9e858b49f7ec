"""What a person may do to a RebalanceTask or a RegionMigration, and the patch that asks for it.

All of it is declared in the spec; the operator acts on it. Pure.
"""

import enum
from dataclasses import dataclass
from typing import Final

from rezone.kube.kinds import Manifest
from rezone.resources.migration import TERMINAL_MIGRATION_STATES, RegionMigration
from rezone.resources.task import TERMINAL_TASK_STATES, RebalanceTask, TaskState


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


TASK_WORDS: Final = {
    Action.APPROVE: Wording(
        "Approve this plan",
        "The operator carries out exactly this plan. If the cluster has changed since it was made, "
        "the operator refuses it instead.",
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
}
MIGRATION_WORDS: Final = {
    Action.CANCEL: Wording(
        "Cancel",
        "The partition stays with its old leader, as long as the new one does not lead yet. "
        "A cancel cannot be taken back.",
    ),
}


class ActionRefusedError(Exception):
    """Raised when an action does not fit the object as it is now; the message says why."""


def possible_actions(task: RebalanceTask) -> tuple[Action, ...]:
    """Return what a person can ask of a task now."""
    state = task.status.state if task.status is not None else ""
    if state in TERMINAL_TASK_STATES:
        return ()
    plan = task.status.plan if task.status is not None else None
    waits = state == TaskState.PLANNED and plan is not None
    approve = waits and plan is not None and task.spec.approved_plan != plan.hash
    going = state != TaskState.CANCELLING and not task.spec.cancel
    offered = {
        Action.APPROVE: approve and going,
        Action.SUSPEND: going and not task.spec.suspend,
        Action.RESUME: going and task.spec.suspend,
        Action.CANCEL: going,
    }
    return tuple(action for action, possible in offered.items() if possible)


def migration_actions(migration: RegionMigration) -> tuple[Action, ...]:
    """Return what a person can ask of a leader transfer now."""
    state = migration.status.state if migration.status is not None else ""
    if state in TERMINAL_MIGRATION_STATES or migration.spec.cancel:
        return ()
    return (Action.CANCEL,)


def task_patch(task: RebalanceTask, action: Action, *, uid: str, plan: str) -> Manifest:
    """Return the patch that asks a task for an action.

    `uid` and `plan` are those that the person saw: the API server refuses the patch for another
    task of the same name, and the operator refuses another plan than the approved one. Raises
    ActionRefusedError when the action is not possible now, or the plan is another one by now.
    """
    if action not in possible_actions(task) or task.metadata.uid != uid:
        raise ActionRefusedError(f"The task cannot be asked to {action} any more.")
    if action is Action.APPROVE:
        found = task.status.plan.hash if task.status is not None and task.status.plan else ""
        if found != plan:
            raise ActionRefusedError(
                f"The plan has changed: you looked at {plan or 'none'}, it is {found} now."
            )
        return _patch(uid, {"approvedPlan": plan})
    changes = {
        Action.SUSPEND: {"suspend": True},
        Action.RESUME: {"suspend": False},
        Action.CANCEL: {"cancel": True},
    }
    return _patch(uid, changes[action])


def migration_patch(migration: RegionMigration, action: Action, *, uid: str) -> Manifest:
    """Return the patch that asks a leader transfer for an action.

    Raises ActionRefusedError when the action is not possible now.
    """
    if action not in migration_actions(migration) or migration.metadata.uid != uid:
        raise ActionRefusedError(f"The leader transfer cannot be asked to {action} any more.")
    return _patch(uid, {"cancel": True})


def _patch(uid: str, spec: Manifest) -> Manifest:
    return {"metadata": {"uid": uid}, "spec": spec}
