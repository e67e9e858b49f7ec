"""A RegionMigration in some state, in some world, and the ways to change them for a test."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from worlds import NOW, World, record

from rezone.domain.machines.statuses import Decision
from rezone.domain.migration import decide as migration
from rezone.domain.model import world
from rezone.resources.conditions import Reason
from rezone.resources.machine_status import LastError, Transition
from rezone.resources.migration import (
    MigrationContext,
    RegionMigrationSpec,
    RegionMigrationStatus,
)
from rezone.resources.migration import MigrationState as S
from rezone.wire.messages import Role

LOST: dict[str, Any] = {"needs_snapshot": True, "role": Role.LEARNER, "log_end_offset": 0}

Result = Decision[RegionMigrationStatus]


class Case:
    """A migration of partition 0 from node 0 to node 1, in some state, in some world."""

    def __init__(self, state: str) -> None:
        self.world = World()
        self.state = state
        self.spec: dict[str, Any] = {"target": 1}
        self.context: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.now = NOW
        if state in {S.DOWNGRADE_LEADER, S.UPGRADE_CANDIDATE, S.UPDATE_METADATA_UP}:
            self.world.authorize()
            self.context = {"route_version": 9, "leader_epoch": 4, "next_epoch": 5}
        if state == S.UNCLEAN_ELECTION:
            self.context = {"to_node": 2, "leader_epoch": 4, "next_epoch": 5}
            lose_quorum(self)
        if state == S.UPDATE_METADATA_ROLLBACK:
            self.context = {"route_version": 9, "leader_epoch": 4, "next_epoch": 5}
            self.fail(Reason.FAILED)

    def fail(self, reason: Reason) -> None:
        """Keep an error as a rollback finds it."""
        self.status["last_error"] = LastError(reason=reason, message="why")

    def decide(self) -> Result:
        """Decide once."""
        context = None
        if self.state not in ("", S.SELECT_CANDIDATE):
            usual: dict[str, Any] = {"partition": 0, "from_node": 0, "to_node": 1}
            context = MigrationContext(**(usual | self.context))
        times: dict[str, Any] = {
            "history": (Transition(state=self.state or "x", time=NOW),),
            "deadline_time": NOW + timedelta(seconds=10),
        }
        status = RegionMigrationStatus(state=self.state, context=context, **(times | self.status))
        spec = RegionMigrationSpec(**({"zone_name": "z", "partition": 0} | self.spec))
        return migration.decide(spec, status, self.world.view(), self.now, 3, name="m")


def late(case: Case) -> None:
    """Let the deadline pass."""
    case.now = NOW + timedelta(seconds=11)


def cancelled(case: Case) -> None:
    """Let a person cancel."""
    case.spec["cancel"] = True


def lose_quorum(case: Case) -> None:
    """Let the in-sync nodes 0 and 1 lose their disks; node 2 has most rows, and a person asks."""
    case.spec = {"unclean_election": {"accept_data_loss": True}}
    case.world.routes[0] = record(isr=(0, 1))
    case.world.reports |= {(0, node): LOST for node in (0, 1)}
    case.world.reports[0, 2] = {"last_epoch": 3, "log_end_offset": 90, "committed_offset": 80}


def lags(case: Case) -> None:
    """Put the candidate far behind."""
    case.world.reports[0, 0] = {"log_end_offset": 9000, "kv_applied_offset": 9000}


def led_by(node: int, epoch: int = 5) -> Callable[[Case], None]:
    """Let the route name another leader."""

    def tweak(case: Case) -> None:
        case.world.routes[0] = record(leader=node, leader_epoch=epoch, partition_epoch=10)

    return tweak


def old_says(**changes: Any) -> Callable[[Case], None]:
    """Let the old leader report something."""

    def tweak(case: Case) -> None:
        case.world.reports[0, 0] = changes

    return tweak


def candidate_says(**changes: Any) -> Callable[[Case], None]:
    """Let the candidate report something."""

    def tweak(case: Case) -> None:
        case.world.reports[0, 1] = changes

    return tweak


def silent(node: int) -> Callable[[Case], None]:
    """Silence a node for longer than a lease."""

    def tweak(case: Case) -> None:
        case.world.silent[node] = 60.0

    return tweak


def with_world(change: Callable[[World], object]) -> Callable[[Case], None]:
    """Change the world."""

    def tweak(case: Case) -> None:
        change(case.world)

    return tweak


def nothing(case: Case) -> None:
    """Leave all as usual."""


def given_up(case: Case) -> None:
    """Leave no attempt."""
    case.status["attempt"] = 2


def never_authorized(case: Case) -> None:
    """Let the rollback follow an OpenCandidate that failed."""
    case.context = {}


def only(decision: Result, kind: type[Any]) -> Any:
    """Return the one action of a kind."""
    found = [a for a in decision.actions if isinstance(a, kind)]
    assert len(found) == 1, decision.actions
    return found[0]


def route_of(decision: Result) -> Any:
    """Return the route record that the decision asks for."""
    (change,) = only(decision, world.ChangeRoutes).changes
    assert change.state.partition_epoch == change.expected_epoch + 1
    return change.state
