"""What a state machine is here: one table of states and edges, and nothing beside it.

A machine's code moves only along the edges of its table (`Table.follow`), its tests walk the same
rows, and the diagram of its documentation page is printed from them. So none of the three can
tell another story than the others.
"""

import dataclasses
import enum
from collections.abc import Iterable


class Command(enum.StrEnum):
    """What a person can ask of a machine; each is a field of the object's spec."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    APPROVE = "approve"


DEADLINE = "deadline"
"""The event of a state whose time has run out; every state with a deadline has such an edge."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """One row: a state and what holds while a machine is in it.

    `persists` is RM-02's red: status is written when the state has succeeded; with `behind`, not
    before the next state without it has succeeded, in the same write. `deadline_seconds`
    is how long a machine may stay, None without end.
    """

    name: str
    does: str
    persists: bool = True
    behind: bool = False
    deadline_seconds: float | None = None
    commands: tuple[Command, ...] = ()
    terminal: bool = False


@dataclasses.dataclass(frozen=True)
class Edge:
    """One row: `event` takes a machine from `source` to `target`."""

    source: str
    event: str
    target: str


class UndeclaredEdgeError(AssertionError):
    """Raised when a machine would go a way that its table does not have: a bug of the machine."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """A whole machine; the first state is the initial one, `names` are all that a status holds."""

    title: str
    names: type[enum.StrEnum]
    states: tuple[State, ...]
    edges: tuple[Edge, ...]

    def state(self, name: str) -> State:
        """Return the row of a state; ValueError when the table has none of that name."""
        for state in self.states:
            if state.name == name:
                return state
        raise ValueError(f"{name!r} is no state of {self.title}")

    def follow(self, source: str, event: str) -> str:
        """Return where an event leads; UndeclaredEdgeError when the table has no such edge."""
        for edge in self.edges:
            if edge.source == source and edge.event == event:
                return edge.target
        raise UndeclaredEdgeError(f"{self.title}: {source} has no edge for {event!r}")

    def events(self, source: str) -> tuple[str, ...]:
        """Return the events that lead out of a state."""
        return tuple(e.event for e in self.edges if e.source == source)


def check(table: Table) -> tuple[str, ...]:
    """Return what is wrong with a table, nothing for a total one.

    Total: every name has one row, every edge joins two rows, no state has two edges for one
    event, every state is reached from the first and reaches an end, and cancels and deadlines
    that a row promises have their edge.
    """
    rows = [s.name for s in table.states]
    problems = [f"{n} has {rows.count(n)} rows" for n in table.names if rows.count(n) != 1]
    problems += [f"{n} is not in {table.names.__name__}" for n in rows if n not in set(table.names)]
    for edge in table.edges:
        problems += [
            f"{edge} names no state: {end}" for end in (edge.source, edge.target) if end not in rows
        ]
    pairs = [(e.source, e.event) for e in table.edges]
    problems += [f"{s} has two edges for {e!r}" for s, e in set(pairs) if pairs.count((s, e)) > 1]
    if not problems:
        problems += _ways(table)
        problems += [p for state in table.states for p in _promises(table, state)]
    return tuple(problems)


def _ways(table: Table) -> list[str]:
    forward = _closure([table.states[0].name], [(e.source, e.target) for e in table.edges])
    ends = [s.name for s in table.states if s.terminal]
    backward = _closure(ends, [(e.target, e.source) for e in table.edges])
    problems = [f"{s.name} is never reached" for s in table.states if s.name not in forward]
    problems += [f"{s.name} never ends" for s in table.states if s.name not in backward]
    return problems


def _closure(start: Iterable[str], steps: list[tuple[str, str]]) -> set[str]:
    seen = set(start)
    work = list(seen)
    while work:
        here = work.pop()
        for source, target in steps:
            if source == here and target not in seen:
                seen.add(target)
                work.append(target)
    return seen


def _promises(table: Table, state: State) -> list[str]:
    events = table.events(state.name)
    if state.terminal:
        return [f"{state.name} is an end but has edges"] if events else []
    problems = []
    if Command.CANCEL in state.commands and Command.CANCEL not in events:
        problems.append(f"{state.name} allows cancel but has no edge for it")
    if (state.deadline_seconds is None) != (DEADLINE not in events):
        problems.append(f"{state.name}: a deadline and an edge for it go together")
    return problems


def diagram(table: Table) -> str:
    """Return the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {table.states[0].name}"]
    lines += [f"    {e.source} --> {e.target}: {e.event}" for e in table.edges]
    lines += [f"    {s.name} --> [*]" for s in table.states if s.terminal]
    return "\n".join(lines)


def markdown(table: Table) -> str:
    """Return the states and the edges as two markdown tables."""
    lines = [
        "| State | What it does | Persists | Deadline | Commands |",
        "| --- | --- | --- | --- | --- |",
    ]
    for state in table.states:
        deadline = "-" if state.deadline_seconds is None else f"{state.deadline_seconds:g} s"
        persists = "end" if state.terminal else _persists(state)
        commands = ", ".join(state.commands) or "-"
        lines.append(f"| {state.name} | {state.does} | {persists} | {deadline} | {commands} |")
    lines += ["", "| From | Event | To |", "| --- | --- | --- |"]
    lines += [f"| {e.source} | {e.event} | {e.target} |" for e in table.edges]
    return "\n".join(lines)


def _persists(state: State) -> str:
    if state.behind:
        return "behind"
    return "yes" if state.persists else "no"


def page(table: Table, introduction: str) -> str:
    """Return the whole documentation page of a machine."""
    return (
        f"# {table.title}\n\n{introduction.strip()}\n\n"
        f"```mermaid\n{diagram(table)}\n```\n\n{markdown(table)}\n"
    )
