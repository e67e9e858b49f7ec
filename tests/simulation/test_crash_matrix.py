"""The operator dies before and after every write and every call, alone and with a second fault.

A failing run tells its scenario, its crash point and its last moments.
"""

from __future__ import annotations

import pytest

from rezone.domain.machines import migration_table, rebalance_table
from rezone.domain.machines.machine import Table
from rezone.resources.migration import MigrationState as M
from rezone.resources.task import TaskState as T
from simulation.scenarios.edge_scenarios import EDGES
from simulation.scenarios.pod_scenarios import PODS
from simulation.scenarios.runs import (
    RUN_SECONDS_MAX,
    die_everywhere,
    pair,
    seeds,
    some_now,
)
from simulation.scenarios.scenarios import (
    CANCELS,
    MIGRATION_CANCELS,
    MIGRATION_FAULTS,
    MIGRATIONS,
    PARTED,
    REBALANCES,
    REFUSALS,
    ROTATE_CANCEL,
    Scenario,
)
from simulation.scenarios.target_scenarios import LOST_SOURCES, TARGETS
from simulation.test_lost_quorum_recovered import LOSSES

TABLES = (rebalance_table.TABLE, migration_table.TABLE)
BY_ITS_TASK_ALONE = "the assignment that is pending is completed or cancelled by its task alone"
TIME_ALONE = "whatever is waited for so long counts as lost, or is given up, before"
ASKED_BEFORE = "the same pass asks for it in DowngradeLeader, and the state is never stored"
RACE = "two passes of one operator race for it, and the other one is first; either end is right"
LATE_WRITE = "an older operator's write of the stable assignment must arrive after the cancel"
SPARK_FAILS = "five SparkApplications have to fail, which they do in none of these worlds"
NOT_LED_THROUGH: dict[tuple[str, str], str] = {
    **{
        (state, "superseded"): BY_ITS_TASK_ALONE
        for state in (
            T.PLANNED,
            T.APPROVED,
            T.AWAITING_REPLICAS,
            T.TRANSFERRING,
            T.SWITCHING,
            T.FINALIZING,
        )
    },
    (T.TRANSFERRING, "unrecoverable"): SPARK_FAILS,
    (T.AWAITING_REPLICAS, "deadline"): TIME_ALONE,
    (T.STOPPING_REDUNDANT, "deadline"): TIME_ALONE,
    (T.CANCELLING, "deadline"): TIME_ALONE,
    (T.CANCELLING, "already new"): LATE_WRITE,
    (M.OPEN_CANDIDATE, "deadline"): TIME_ALONE,
    (M.UPDATE_METADATA_DOWN, "deadline"): TIME_ALONE,
    (M.UPGRADE_CANDIDATE, "takeover failed"): RACE,
    (M.UPGRADE_CANDIDATE, "deadline"): ASKED_BEFORE,
    (M.UPGRADE_CANDIDATE, "cancel"): ASKED_BEFORE,
    (M.UPDATE_METADATA_UP, "route has changed"): RACE,
    (M.UPDATE_METADATA_ROLLBACK, "candidate leads"): RACE,
    (M.UNCLEAN_ELECTION, "route has changed"): RACE,
}
"""The edges that no scenario takes, and why; `tests/domain` has a case of each."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def name_of(scenario: Scenario) -> str:
    """Return a scenario's name for pytest."""
    return scenario.name.replace(" ", "-")


@pytest.mark.proves("OP-02", "ZR-01", "ZR-03", "ZR-11", "ZR-13", "ZR-14", "RM-02")
@pytest.mark.parametrize("scenario", some_now(REBALANCES, 2), ids=name_of)
def test_rebalances_survive_the_operators_death(scenario: Scenario) -> None:
    """A change of nodes or replicas would not end with exactly what was asked for.

    Something would be remembered outside of the API server, or an act could not be repeated.
    """
    die_everywhere(scenario)


@pytest.mark.long
@pytest.mark.proves("OP-02", "B-07", "ZR-11")
@pytest.mark.parametrize("scenario", PODS, ids=name_of)
def test_replaced_pods_survive_the_operators_death(scenario: Scenario) -> None:
    """A pod would stop while it leads, or while writes wait for it.

    A handover that an operator has begun would be left half-way by the next one.
    """
    die_everywhere(scenario)


@pytest.mark.proves("OP-02", "ZR-14", "ZR-18", "ZR-19", "ZR-20", "B-15")
@pytest.mark.parametrize("scenario", some_now([*CANCELS, ROTATE_CANCEL]), ids=name_of)
def test_cancels_survive_the_operators_death(scenario: Scenario) -> None:
    """A cancel would leave a partition between two assignments, or a copy that nobody stops."""
    die_everywhere(scenario)


@pytest.mark.proves("OP-02", "RM-02", "RM-07")
@pytest.mark.parametrize("scenario", MIGRATIONS, ids=name_of)
def test_migrations_survive_the_operators_death(scenario: Scenario) -> None:
    """A restarted operator would need more than the persistent context to go on."""
    die_everywhere(scenario)


@pytest.mark.long
@pytest.mark.proves("OP-02", "RM-02", "RM-08")
@pytest.mark.parametrize("scenario", MIGRATION_CANCELS, ids=name_of)
def test_rollbacks_survive_the_operators_death(scenario: Scenario) -> None:
    """A cancelled migration would leave two leaders, an authorization, or an opened candidate."""
    die_everywhere(scenario)


@pytest.mark.long
@pytest.mark.proves("OP-02", "RM-01", "RM-02")
@pytest.mark.parametrize("scenario", [*MIGRATION_FAULTS, *REFUSALS], ids=name_of)
def test_failed_migrations_survive_the_operators_death(scenario: Scenario) -> None:
    """A migration whose leader or candidate has died would be left between two leaders."""
    die_everywhere(scenario)


@pytest.mark.long
@pytest.mark.proves("OP-02", "RM-02")
@pytest.mark.parametrize("scenario", EDGES, ids=name_of)
def test_rare_edges_survive_the_operators_death(scenario: Scenario) -> None:
    """What a fault in the wrong moment leads to would be left half-way."""
    die_everywhere(scenario)


@pytest.mark.proves("ZR-18", "B-15")
@pytest.mark.parametrize("scenario", LOST_SOURCES, ids=name_of)
def test_a_lost_node_ends_the_task(scenario: Scenario) -> None:
    """A task would wait for ever for a node that is gone, and every trigger behind it."""
    with scenario.world() as world:
        world.run(RUN_SECONDS_MAX)
        scenario.check(world)


@pytest.mark.long
@pytest.mark.proves("OP-02", "ZR-10", "ZR-11", "ZR-18", "B-04", "B-14", "B-15")
@pytest.mark.parametrize("scenario", TARGETS, ids=name_of)
def test_failing_copies_survive_the_operators_death(scenario: Scenario) -> None:
    """One copy that fails would undo what has moved, or be made for ever, or be used.

    One that only waits for room would be given up.
    """
    die_everywhere(scenario)


@pytest.mark.long
@pytest.mark.proves("OP-02", "RM-01")
def test_the_scenarios_lead_through_every_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator would never die in a new state, or on a way that only faults lead to."""
    taken: dict[str, set[tuple[str, str]]] = {t.title: set() for t in TABLES}
    follow = Table.follow

    def noted(table: Table, source: str, event: str) -> str:
        taken[table.title].add((source, event))
        return follow(table, source, event)

    monkeypatch.setattr(Table, "follow", noted)
    rebalances, migrations = [*REBALANCES, *CANCELS], [*MIGRATIONS, *MIGRATION_CANCELS]
    rare = (*MIGRATION_FAULTS, PARTED, *REFUSALS, *LOSSES, *EDGES)
    for scenario in (*rebalances, *migrations, *rare):
        with scenario.world() as world:
            world.run(RUN_SECONDS_MAX)
            scenario.check(world)
    for table in TABLES:
        left = {(e.source, e.event) for e in table.edges} - taken[table.title]
        assert left == {e for e in NOT_LED_THROUGH if type(e[0]) is table.names}, table.title


@pytest.mark.proves("OP-02", "ZR-13", "ZR-14", "RM-02")
@pytest.mark.parametrize("seed", seeds())
def test_a_second_fault(seed: int) -> None:
    """The operator's death together with one more fault would be more than a move survives."""
    pair(seed)
