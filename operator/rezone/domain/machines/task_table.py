"""The table of a RebalanceTask, whether it is a rebalance or a re-sharding: what both share.

The edges that both have stand here. Which commands a state takes follows from its edges.
"""

from collections.abc import Mapping

from rezone.domain.machines.machine import DEADLINE, Command, Edge, State, Table
from rezone.resources.task import TERMINAL_TASK_STATES
from rezone.resources.task import TaskState as S

CANCEL = Command.CANCEL.value
AWAITING_SECONDS_MAX = 1800.0
STOPPING_SECONDS_MAX = 600.0

_EDGES = (
    Edge(S.PLANNED, "approved", S.APPROVED),
    Edge(S.PLANNED, "stale", S.FAILED),
    Edge(S.PLANNED, CANCEL, S.CANCELLING),
    Edge(S.APPROVED, CANCEL, S.CANCELLING),
    Edge(S.AWAITING_REPLICAS, "all open", S.TRANSFERRING),
    Edge(S.AWAITING_REPLICAS, DEADLINE, S.CANCELLING),
    Edge(S.AWAITING_REPLICAS, CANCEL, S.CANCELLING),
    Edge(S.TRANSFERRING, "unrecoverable", S.CANCELLING),
    Edge(S.TRANSFERRING, CANCEL, S.CANCELLING),
    Edge(S.SWITCHING, "copy lost", S.TRANSFERRING),
    Edge(S.SWITCHING, CANCEL, S.CANCELLING),
    Edge(S.FINALIZING, "stable is written", S.STOPPING_REDUNDANT),
    Edge(S.STOPPING_REDUNDANT, "all stopped", S.SUCCEEDED),
    Edge(S.STOPPING_REDUNDANT, DEADLINE, S.SUCCEEDED),
    Edge(S.CANCELLING, "all is as before", S.CANCELLED),
)


def task_table(
    title: str, *own: Edge, does: Mapping[S, str], deadlines: Mapping[S, float]
) -> Table:
    """Return a task's table: the shared edges and its `own`, the states of `does` in that order."""
    order = list(does)
    edges = tuple(sorted((*_EDGES, *own), key=lambda edge: order.index(S(edge.source))))
    cancels = {edge.source for edge in edges if edge.event == CANCEL}
    states = tuple(
        State(
            name=name,
            does=text,
            deadline_seconds=deadlines.get(name),
            commands=_commands(name, cancels=name in cancels),
            terminal=name in TERMINAL_TASK_STATES,
        )
        for name, text in does.items()
    )
    return Table(title=title, names=S, states=states, edges=edges)


def _commands(state: S, *, cancels: bool) -> tuple[Command, ...]:
    """Return what a person may ask; what ends, or is being cancelled, is not suspended."""
    if state in TERMINAL_TASK_STATES or state is S.CANCELLING:
        return ()
    approve = (Command.APPROVE,) if state is S.PLANNED else ()
    return (*approve, *((Command.CANCEL,) if cancels else ()), Command.SUSPEND)
