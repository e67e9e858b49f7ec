"""One pass over a re-sharding while it is being decided: what its steps share."""

from datetime import datetime

from rezone.domain.rebalance_run import Planner
from rezone.domain.resharding_table import TABLE
from rezone.domain.resharding_view import ReshardingView
from rezone.domain.task_run import Run
from rezone.resources.conditions import Reason
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus


class ReshardingRun(Run):
    """One pass over a re-sharding."""

    def __init__(
        self,
        spec: RebalanceTaskSpec,
        status: RebalanceTaskStatus,
        view: ReshardingView,
        now: datetime,
        *,
        plan: Planner,
    ) -> None:
        super().__init__(TABLE, spec, status, now, zone_paused=view.paused)
        self.view = view
        self.plan = plan

    @property
    def cancelled(self) -> bool:
        """Whether a person wants it undone, and it still can be."""
        return self.spec.cancel and not self.view.cut_over and not self.view.done

    def undo(self) -> bool:
        """Go to the cancel, because a person wants it so."""
        return self.give_up("cancel", Reason.CANCELLED, "cancelled by spec.cancel")
