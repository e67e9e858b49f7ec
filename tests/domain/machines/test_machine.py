"""The tables themselves: total, and the only source of the documentation."""

import dataclasses

import pytest

from rezone.domain.machines import machine, migration_table, rebalance_table, resharding_table
from rezone.domain.machines.machine import Edge, Table, UndeclaredEdgeError
from rezone.domain.migration import decide as migration
from rezone.domain.rebalance import decide as rebalance
from rezone.domain.resharding import decide as resharding

TABLES = (migration_table.TABLE, rebalance_table.TABLE, resharding_table.TABLE)


@pytest.mark.proves("RM-01", "OP-02")
@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.title)
def test_tables_are_total(table: Table) -> None:
    """A state could be entered that has no row, no way out, or a deadline that leads nowhere."""
    assert machine.check(table) == ()


@pytest.mark.parametrize(
    ("table", "steps"),
    [
        (migration_table.TABLE, migration.STEPS),
        (rebalance_table.TABLE, rebalance.STEPS),
        (resharding_table.TABLE, resharding.STEPS),
    ],
    ids=["migration", "rebalance", "resharding"],
)
def test_each_running_state_has_its_step(table: Table, steps: object) -> None:
    """A persisted state would be read that the code does not know: the object hangs for ever."""
    assert {s.name for s in table.states if not s.terminal} == set(steps)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("edges", "problem"),
    [
        (lambda e: (*e, Edge("Nowhere", "x", "Succeeded")), "names no state"),
        (lambda e: (*e, e[0]), "two edges for"),
        (lambda e: (*e, Edge("Succeeded", "x", "Failed")), "is an end but has edges"),
        (lambda e: tuple(x for x in e if x.target != "OpenCandidate"), "never reached"),
        (lambda e: tuple(x for x in e if x.source != "CloseOldLeader"), "never ends"),
        (lambda e: tuple(x for x in e if x.event != "deadline"), "go together"),
        (lambda e: tuple(x for x in e if x.event != "cancel"), "allows cancel"),
    ],
)
def test_check_finds_what_is_missing(edges: object, problem: str) -> None:
    """The totality check would pass tables that are not total."""
    changed = edges(migration_table.TABLE.edges)  # type: ignore[operator]
    table = dataclasses.replace(migration_table.TABLE, edges=changed)
    assert any(problem in found for found in machine.check(table))


def test_a_way_that_no_table_has_is_refused() -> None:
    """Code could leave the diagram without anybody noticing."""
    with pytest.raises(UndeclaredEdgeError, match="no edge for 'written'"):
        migration_table.TABLE.follow("SelectCandidate", "written")


@pytest.mark.parametrize("table", TABLES, ids=lambda t: t.title)
def test_pages_show_all_edges(table: Table) -> None:
    """The documentation would show another machine than the one that runs."""
    text = machine.page(table, "What it is.")
    for edge in table.edges:
        assert f"{edge.source} --> {edge.target}: {edge.event}" in text
