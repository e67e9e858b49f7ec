"""A RebalanceTask in some state, in some world, and the ways to change them for a test."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from worlds import NEW, NOW, OLD, World, record, text

from rezone.domain.machines.statuses import Decision
from rezone.domain.model import world
from rezone.domain.rebalance import decide as rebalance
from rezone.domain.rebalance.run import NoPlan, Planned
from rezone.domain.routing.topology_text import Topology
from rezone.resources.conditions import ConditionType
from rezone.resources.machine_status import Transition
from rezone.resources.task import (
    PlanSummary,
    RebalanceTaskSpec,
    RebalanceTaskStatus,
)
from rezone.resources.task import TaskState as S

Result = Decision[RebalanceTaskStatus]
SUMMARY = PlanSummary(hash="good", moves=1, moves_lower_bound=1)
MOVING = record(replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3), hot_standby_replica=1)
MOVED = record(leader=1, leader_epoch=5, replicas=(0, 1, 2, 3), isr=(0, 1, 2, 3))


class Case:
    """The task "t", made by the operator, that moves partition 0 from OLD to NEW."""

    def __init__(self, state: str) -> None:
        self.world = World().pend()
        self.state = state
        self.spec: dict[str, Any] = {"revision": 2}
        self.status: dict[str, Any] = {}
        self.now = NOW
        self.plans = 0
        self.no_plan: NoPlan | None = None
        self.history = [S.AWAITING_REPLICAS, state]
        if state not in ("", S.PLANNED):
            self.status = {
                "source": text(OLD),
                "target": text(NEW),
                "plan": SUMMARY,
                "revision": 2,
            }
        if state not in ("", S.PLANNED, S.APPROVED, S.AWAITING_REPLICAS):
            self.world.routes[0] = MOVING
            self.world.verified = {(0, 3, 4)}
        if state in {S.FINALIZING, S.STOPPING_REDUNDANT}:
            self.world.routes[0] = MOVED

    def plan(self) -> Planned | NoPlan:
        """Make the plan; counted."""
        self.plans += 1
        return self.no_plan or Planned(NEW, SUMMARY)

    def by_person(self) -> None:
        """Let a person apply the task, with nothing pending."""
        self.spec["revision"] = 0
        self.world.settings |= {"pending": None, "pending_revision": 0, "change": 7}
        if "revision" in self.status:
            self.status["revision"] = 0

    def decide(self) -> Result:
        """Decide once."""
        status = RebalanceTaskStatus(
            state=self.state,
            history=tuple(Transition(state=h or "x", time=NOW) for h in self.history),
            deadline_time=NOW + timedelta(seconds=10),
            **self.status,
        )
        spec = RebalanceTaskSpec(**({"zone_name": "z"} | self.spec))
        decision = rebalance.decide(
            spec, status, self.world.view(), self.now, 3, name="t", plan=self.plan
        )
        waits = decision.status.waiting_reason is not None
        assert waits == bool(decision.status.waiting_for), "a wait has one word of a closed set"
        return decision


Tweak = Callable[[Case], object]


def nothing(case: Case) -> None:
    """Leave all as usual."""


def late(case: Case) -> None:
    """Let the deadline pass."""
    case.now = NOW + timedelta(seconds=11)


def cancelled(case: Case) -> None:
    """Let a person cancel."""
    case.spec["cancel"] = True


def superseded(case: Case) -> None:
    """Make something else pending."""
    case.world.settings["pending_revision"] = 9


def stable_is(topology: Topology) -> Tweak:
    """Make another assignment stable."""

    def tweak(case: Case) -> None:
        case.world.settings["stable"] = topology

    return tweak


def stored_plan(case: Case) -> None:
    """Keep the plan of an earlier pass."""
    case.status |= {"source": text(OLD), "target": text(NEW), "plan": SUMMARY, "revision": 2}


def stale_and_pending(case: Case) -> None:
    """Change the zone while the pending assignment is still this task's."""
    stored_plan(case)
    stable_is(((0, 1), (1, 2)))(case)


def needs_copy(case: Case) -> None:
    """Open node 3, in need of a snapshot."""
    case.world.routes[0] = record(replicas=(0, 1, 2, 3), hot_standby_replica=1)
    case.world.reports[0, 3] = {"needs_snapshot": True}


def spark_failed(case: Case) -> None:
    """Let five SparkApplications fail."""
    needs_copy(case)
    case.status |= {"attempt": 5, "spark_application": "t-copy-5"}
    case.world.spark = world.SparkView(name="t-copy-5", state="FAILED", error="oom")


def done(case: Case) -> None:
    """Let the rebalance be complete and written."""
    case.world.settings |= {"stable": NEW, "pending": None, "pending_revision": 0}


def opened(case: Case) -> None:
    """Open all new replicas."""
    case.world.routes[0] = record(replicas=(0, 1, 2, 3), hot_standby_replica=1)


def moved(case: Case) -> None:
    """Move the leader."""
    case.world.routes[0] = MOVED


def stopped(case: Case) -> None:
    """Take away what was redundant."""
    case.world.routes[0] = record(leader=1, replicas=(1, 2, 3), isr=(1, 2, 3))


def stops_late(case: Case) -> None:
    """Take the redundant replica from the route while its node never answers."""
    stopped(case)
    case.world.silent[0] = 99.0
    late(case)


def done_in_part(case: Case) -> None:
    """Let the rebalance be over without its one move, whose target failed."""
    case.status |= {"outcome": text(OLD)}
    case.world.routes[0] = record()
    case.world.settings |= {"stable": OLD, "pending": None, "pending_revision": 0}


def as_before(case: Case) -> None:
    """Put routes and keys as before the rebalance."""
    case.world.routes[0] = record()
    case.world.settings |= {"pending": None, "pending_revision": 0}


def left_behind(case: Case) -> None:
    """Leave all as before but for a replica on a node that never answers."""
    as_before(case)
    case.world.silent[3] = 99.0
    late(case)


def only(decision: Result, kind: type[Any]) -> Any:
    """Return the one action of a kind."""
    found = [a for a in decision.actions if isinstance(a, kind)]
    assert len(found) == 1, decision.actions
    return found[0]


def condition(decision: Result, kind: ConditionType) -> Any:
    """Return a condition, None when it does not stand."""
    return next((c for c in decision.status.conditions if c.type == kind), None)
