"""One pass over a re-sharding while it is being decided: what its steps share."""

from datetime import datetime

from rezone.domain.rebalance_run import Planner, is_a_step, with_rate
from rezone.domain.resharding_table import TABLE
from rezone.domain.resharding_view import ReshardingView
from rezone.domain.task_run import Run
from rezone.resources.conditions import Reason
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus, TaskProgress


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

    def settle_progress(self) -> None:
        """Write the progress in steps: parts that are filled, sources that have cut over."""
        if not self.view.created or not self.view.sources:
            return
        parts = [part for heir in self.view.heirs.values() for part in heir.parts]
        counted = TaskProgress(
            moves_total=len(parts),
            moves_done=sum(part.filled or part.sealed for part in parts),
            leader_moves_total=len(self.view.sources),
            leader_moves_done=len(self.view.cut_over),
            bytes_total=sum(part.bytes_total for part in parts),
            bytes_done=sum(part.bytes_done for part in parts),
        )
        old = self.status.progress
        new = with_rate(counted, old, self.now)
        if self.status != self.before or is_a_step(old, new):
            self.update(progress=new)
