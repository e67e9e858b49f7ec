"""The copy that a migration's candidate needs: by Spark when it is large (`bulk_copies`)."""

from rezone.domain.migration.run import Run
from rezone.domain.model.world import Copy, DeleteSparkApplication
from rezone.domain.observed.spark_states import ENDED
from rezone.domain.rebalance.bulk_copies import BulkCopies
from rezone.domain.rebalance.progress import with_rate, without_falling
from rezone.domain.rebalance.run import child_name
from rezone.domain.rebalance.survey import Needed, size_of
from rezone.resources.conditions import Reason
from rezone.resources.copy_progress import CopiesProgress
from rezone.resources.machine_status import SparkCopies
from rezone.wire.messages import ReplicaReport


def copy_candidate(run: Run, report: ReplicaReport, wants: str) -> bool:
    """Ask for the copy and wait for `wants`; True when the migration rolls back."""
    leader = run.view.report(run.partition, run.record.leader)
    if leader is None:
        return run.wait(wants)  # It is asked for when it is known how large it is.
    bulk = _bulk(run, report, leader.bytes_estimate)
    if bulk.state.attempt == 0 and not bulk.needed[0].started:
        bulk.choose()
    bulk.run()
    if run.status.copies is not None or bulk.state.application:
        # That a small copy streams is seen in its progress: it costs no write.
        run.update(copies=bulk.state)
    if bulk.error is not None:
        run.update(last_error=bulk.error)
    if bulk.failed:
        return run.give_up("candidate failed", Reason.FAILED, bulk.failed)
    run.act(*bulk.actions)
    if bulk.unavailable:
        why = f"SparkUnavailable: {bulk.unavailable}"
        return run.wait(why, reason=Reason.SPARK_UNAVAILABLE, stalled=True)
    if bulk.taken is not None:
        why = f"NameConflict: {bulk.taken.taken}"
        return run.wait(why, reason=Reason.NAME_CONFLICT, stalled=True)
    return run.wait(wants)


def _bulk(run: Run, report: ReplicaReport, size: int) -> BulkCopies:
    """Return the one copy; the migration has its place within the zone's limits already."""
    progress = report.copy
    under_way = progress is not None and not progress.done and not progress.error
    node = run.context.to_node
    copy = Copy(partition=run.partition, source=run.record.leader, targets=(node,))
    return BulkCopies(
        view=run.view,
        state=run.status.copies or SparkCopies(),
        needed=[Needed(copy, size, under_way)],
        bytes_done=progress.bytes if progress is not None else 0,
        paused=False,
        now=run.now,
        name_of=lambda attempt: child_name(run.name, f"move-{attempt}"),
    )


def note_progress(run: Run) -> None:
    """Note how far the candidate's copy is; nothing for one that has needed none (SP-10)."""
    old = run.status.copy_progress
    report = run.view.report(run.partition, run.context.to_node)
    if old is None and (report is None or not report.needs_snapshot):
        return
    before = old or CopiesProgress()
    rows, size = size_of(run.view, run.partition, run.record)
    counted = CopiesProgress(bytes_total=size, rows_total=rows)
    if report is not None and not report.needs_snapshot:
        size, rows = max(size, before.bytes_total), max(rows, before.rows_total)
        counted = CopiesProgress(bytes_total=size, bytes_done=size, rows_total=rows, rows_done=rows)
    elif report is not None and report.copy is not None:
        arrived, arrived_rows = min(report.copy.bytes, size), min(report.copy.rows, rows)
        counted = counted.model_copy(update={"bytes_done": arrived, "rows_done": arrived_rows})
    run.copy_progress = with_rate(without_falling(counted, before), before, run.now)


def is_copying(run: Run) -> bool:
    """Return whether the migration's application may still copy; it is asked to be deleted."""
    spark, own = run.view.spark, run.status.copies
    if spark is None or own is None or spark.name != own.application:
        return False
    if not spark.state or spark.state in ENDED:
        return False
    run.act(DeleteSparkApplication(name=spark.name))
    return True
