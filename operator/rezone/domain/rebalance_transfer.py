"""How the bulk of a rebalance travels: by one SparkApplication, or node to node.

Which of the two is decided once, by size, and persisted with the application's name before it is
created (rule: persist before act). A failed application is followed by another one for the copies
that are left; receivers go on where they stand (B-05).
"""

import collections

from rezone.domain.rebalance_run import TaskRun, child_name
from rezone.domain.rebalance_survey import Needed, copies
from rezone.domain.statuses import entered_time
from rezone.domain.world import Copy, EnsureSparkApplication, PullSnapshots, SparkView
from rezone.resources.conditions import Reason
from rezone.resources.machine_status import LastError
from rezone.wire.messages import NodeId

SPARK_ATTEMPTS_MAX = 5
SETTLE_SECONDS = 30.0
"""How long the first decision waits for new replicas that do not know yet what they need."""

_SPARK_FAILED = frozenset({"FAILED"})
_SPARK_DONE = frozenset({"COMPLETED"})


def transfer(run: TaskRun) -> bool:
    """Ask for the copies that are needed; True when it moved the task to its cancel (ZR-18)."""
    found = run.survey
    if run.status.attempt == 0 and not _choose(run):
        return False
    if not found.needed:
        return False
    if run.status.spark_application:
        return _by_spark(run)
    if not run.paused:
        run.act(PullSnapshots(copies=_within_limits(run, found.needed)))
    return False


def _choose(run: TaskRun) -> bool:
    """Decide how the copies travel; False while it is too early to know."""
    found = run.survey
    if run.paused or not (found.needed or found.undecided):
        return False
    waited = (run.now - entered_time(run.status, run.now)).total_seconds()
    if found.undecided and waited < SETTLE_SECONDS:
        return False
    name = child_name(run.name, "copy-1") if _is_bulk(run) else ""
    run.update(attempt=1, spark_application=name)
    return True


def _is_bulk(run: TaskRun) -> bool:
    threshold = run.view.spark_threshold_bytes
    size = sum(n.bytes_estimate for n in run.survey.needed)
    return bool(run.survey.needed) and (threshold == 0 or size > threshold)


def taken_name(run: TaskRun) -> SparkView | None:
    """Return whose object has the name of the application that is to be made, None without one."""
    spark = run.view.spark
    if spark is None or not spark.taken or spark.name != run.status.spark_application:
        return None
    return spark if run.survey.needed else None


def spark_of(run: TaskRun) -> SparkView | None:
    """Return the present application of the task, None when there is none."""
    spark = run.view.spark
    if spark is None or not spark.state or spark.name != run.status.spark_application:
        return None
    return spark


def _by_spark(run: TaskRun) -> bool:
    spark = spark_of(run)
    if spark is not None and spark.state in _SPARK_FAILED:
        if run.status.attempt >= SPARK_ATTEMPTS_MAX:
            why = f"{run.status.attempt} SparkApplications failed, the last: {spark.error}"
            return run.give_up("unrecoverable", Reason.FAILED, why)
        error = LastError(reason=Reason.FAILED, message=f"{spark.name}: {spark.error}"[:4096])
        run.update(last_error=error)
        _next_application(run)
    elif spark is not None and spark.state in _SPARK_DONE:
        if not _is_bulk(run):
            # Stragglers: a replica that came back later, or whose report is a moment old.
            if not run.paused:
                run.act(PullSnapshots(copies=_within_limits(run, run.survey.needed)))
            return False
        if run.status.attempt >= SPARK_ATTEMPTS_MAX:
            why = f"after {run.status.attempt} SparkApplications replicas still need a copy"
            return run.give_up("unrecoverable", Reason.FAILED, why)
        _next_application(run)
    elif spark is not None or taken_name(run) is not None:
        return False
    if not run.paused:
        name = run.status.spark_application
        run.act(EnsureSparkApplication(name=name, copies=copies(run.survey.needed)))
    return False


def _next_application(run: TaskRun) -> None:
    attempt = run.status.attempt + 1
    run.update(attempt=attempt, spark_application=child_name(run.name, f"copy-{attempt}"))


def _within_limits(run: TaskRun, needed: list[Needed]) -> tuple[Copy, ...]:
    """Return the copies that may run now, those under way first (B-03).

    Source and target both count. The choice is the same each pass until one of them is done, so
    that a repeat asks for what runs already.
    """
    used: collections.Counter[NodeId] = collections.Counter()
    chosen: list[Copy] = []
    for need in sorted(needed, key=lambda n: (not n.started, n.copy.partition)):
        if len(chosen) >= run.view.max_concurrent_migrations:
            break
        nodes = (need.copy.source, *need.copy.targets)
        if all(used[n] < run.view.max_migrations_per_node for n in nodes):
            used.update(nodes)
            chosen.append(need.copy)
    return tuple(chosen)
