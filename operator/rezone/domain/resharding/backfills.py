"""Whether a SparkApplication backfills the targets of a re-sharding.

Above the zone's threshold one is made, and its name persisted before that. It brings rows past the
logs of the targets (docs/decisions/0486). Nothing waits for it: a target to which no job brings
rows goes on by itself within seconds. So one that fails, never starts or is deleted costs time and
no more; it is not made again in the same attempt, and says in the status why it has failed.
"""

from rezone.domain.machines.statuses import with_error
from rezone.domain.model.resharding_view import EnsureBackfill, RangeView
from rezone.domain.model.world import DeleteSparkApplication
from rezone.domain.observed.spark_states import ENDED, SparkState
from rezone.domain.rebalance.run import child_name
from rezone.domain.resharding.run import ReshardingRun
from rezone.resources.conditions import Reason


def backfill_by_spark(run: ReshardingRun) -> None:
    """Ask for the application where there is enough left to backfill; once in an attempt.

    Not of an overwrite: its driver has a job of its own.
    """
    if run.view.filled_by:
        return
    left = [
        each
        for target in run.view.targets.values()
        if target.open and target.nodes
        for each in target.ranges
        if not each.backfilled and not each.sealed
    ]
    name = child_name(run.name, f"backfill-{run.status.attempt + 1}")
    if run.status.spark_application == name:
        _watch(run, name, left)
    elif not run.paused and left and _is_bulk(run, left):
        run.update(spark_application=name)
        _ask(run, name, left)


def end_backfill(run: ReshardingRun) -> bool:
    """Have the application deleted that still runs; whether there was none."""
    state = run.view.spark_state
    if not state or state in ENDED:
        return True
    run.act(DeleteSparkApplication(name=run.view.spark_name))
    return False


def _is_bulk(run: ReshardingRun, left: list[RangeView]) -> bool:
    threshold = run.view.spark_threshold_bytes
    size = sum(max(0, each.bytes_total - each.bytes_done) for each in left)
    return threshold == 0 or size > threshold


def _watch(run: ReshardingRun, name: str, left: list[RangeView]) -> None:
    """Make the application that is decided on and not there; tell why it has failed."""
    view = run.view
    if view.spark_name != name or view.spark_taken:
        return
    if not view.spark_state and left and not run.paused:
        _ask(run, name, left)
    elif view.spark_state == SparkState.FAILED and left:
        text = f"{name}: {view.spark_error}; data nodes backfill by themselves"[:4096]
        known = run.status.last_error
        if known is None or known.message != text:
            run.status = with_error(run.status, Reason.SPARK_UNAVAILABLE, text)


def _ask(run: ReshardingRun, name: str, left: list[RangeView]) -> None:
    run.act(EnsureBackfill(name=name, ranges=tuple(each.overlap for each in left)))
