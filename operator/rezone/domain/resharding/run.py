"""One pass over a re-sharding while it is being decided: what its steps share."""

from datetime import datetime

from rezone.domain.machines.resharding_table import TABLE
from rezone.domain.machines.task_run import Run, paused_where
from rezone.domain.model.resharding_view import ReshardingView
from rezone.domain.observed.write_gaps import cut_overs
from rezone.domain.rebalance.clients_served import with_clients_served
from rezone.domain.rebalance.estimates import skew_percent
from rezone.domain.rebalance.progress import is_worth_writing, with_rate, without_falling
from rezone.domain.rebalance.run import Planner
from rezone.domain.resharding.overwrites import NOBODY_ASKS
from rezone.resources.conditions import Reason
from rezone.resources.task import RebalanceTaskSpec, RebalanceTaskStatus, TaskProgress, TaskState

_CUT_OVER = frozenset({TaskState.FINALIZING, TaskState.STOPPING_REDUNDANT, TaskState.SUCCEEDED})
"""In these all ranges are served, also those of which a leader says nothing just now."""


class ReshardingRun(Run):
    """One pass over a re-sharding."""

    def __init__(
        self,
        spec: RebalanceTaskSpec,
        status: RebalanceTaskStatus,
        view: ReshardingView,
        now: datetime,
        *,
        name: str,
        plan: Planner,
    ) -> None:
        paused_by = paused_where(rebalance=view.paused, zone=view.hands_off)
        super().__init__(TABLE, spec, status, now, paused_by=paused_by)
        self.view = view
        self.name = name
        self.plan = plan

    @property
    def cancelled(self) -> bool:
        """Whether a person wants it undone, or nobody asks for it, and it still can be."""
        unwanted = self.spec.cancel or (bool(self.view.filled_by) and self.view.abandoned)
        return unwanted and not self.view.cut_over and not self.view.done

    def undo(self) -> bool:
        """Go to the cancel, because it is not wanted."""
        why = "cancelled by spec.cancel" if self.spec.cancel else NOBODY_ASKS
        return self.give_up("cancel", Reason.CANCELLED, why)

    def settle_progress(self) -> None:
        """Write the progress in steps: ranges that are backfilled, sources that have cut over."""
        if not self.view.created or not self.view.sources:
            return
        ranges = [each for target in self.view.targets.values() for each in target.ranges]
        over = self.state in _CUT_OVER
        counted = TaskProgress(
            moves_total=len(ranges),
            moves_done=sum(over or each.backfilled or each.sealed for each in ranges),
            leader_moves_total=len(self.view.sources),
            leader_moves_done=len(self.view.sources if over else self.view.cut_over),
            bytes_total=sum(each.bytes_total for each in ranges),
            bytes_done=sum(each.bytes_done for each in ranges),
            rows_total=sum(each.rows_total for each in ranges),
            rows_done=sum(each.rows_done for each in ranges),
            skew_percent=skew_percent([each.bytes_total for each in ranges]),
        )
        old = self.status.progress
        counted = without_falling(counted, old)
        new = with_rate(counted, old, self.now)
        new = with_clients_served(new, old, self.view.served_percent)
        if self.status != self.before or is_worth_writing(old, new):
            self.update(progress=new)
            self._settle_gaps()

    def _settle_gaps(self) -> None:
        """Write what the cut-overs have cost those who write.

        Leaders that have begun since know nothing of it: what was known of more cut-overs stays.
        """
        old, new = self.status.write_unavailability, cut_overs(self.view)
        if new is not None and (old is None or old.transfers <= new.transfers):
            self.update(write_unavailability=new)
