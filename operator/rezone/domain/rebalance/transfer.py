"""How the bulk of a rebalance travels (`bulk_copies`), and when that is decided."""

import collections
import dataclasses

from rezone.domain.machines.statuses import entered_time
from rezone.domain.model.world import SparkView
from rezone.domain.rebalance.bulk_copies import BulkCopies
from rezone.domain.rebalance.run import TaskRun, child_name
from rezone.domain.rebalance.survey import Needed
from rezone.resources.conditions import Reason
from rezone.resources.machine_status import SparkCopies
from rezone.wire.messages import NodeId

SETTLE_SECONDS = 30.0
"""How long the first decision waits for new replicas that do not know yet what they need."""


def transfer(run: TaskRun) -> bool:
    """Ask for the copies that are needed; True when it moved the task to its cancel (ZR-18)."""
    found = run.survey
    bulk = dataclasses.replace(_bulk(run), needed=_by_room(run))
    if run.status.attempt == 0:
        if _is_too_early(run):
            return False
        bulk.choose()
    if found.needed:
        bulk.run()
    state = bulk.state
    run.update(attempt=state.attempt, spark_application=state.application, spark_watch=state.watch)
    if bulk.error is not None:
        run.update(last_error=bulk.error)
    run.act(*bulk.actions)
    return bool(bulk.failed) and run.give_up("unrecoverable", Reason.FAILED, bulk.failed)


def _by_room(run: TaskRun) -> list[Needed]:
    """Return the copies with the order in which they free room (ZR-11).

    Those to nodes that give the fewest replicas away come first: a copy to a node that gives some
    away may have to wait for the room. The order follows from the plan alone, so it stays.
    """
    given: collections.Counter[NodeId] = collections.Counter()
    for old, new in zip(run.source, run.goal, strict=True):
        if old != new:
            given.update(set(old) - set(new))
    return [
        dataclasses.replace(need, after=max(given[node] for node in need.copy.targets))
        for need in run.survey.needed
    ]


def _bulk(run: TaskRun) -> BulkCopies:
    status = run.status
    return BulkCopies(
        view=run.view,
        state=SparkCopies(
            attempt=status.attempt,
            application=status.spark_application,
            watch=status.spark_watch,
        ),
        needed=run.survey.needed,
        bytes_done=run.survey.bytes_done,
        paused=run.paused,
        now=run.now,
        name_of=lambda attempt: child_name(run.name, f"copy-{attempt}"),
    )


def _is_too_early(run: TaskRun) -> bool:
    """Return whether it is not known yet what is needed."""
    found = run.survey
    if run.paused or not (found.needed or found.undecided):
        return True
    waited = (run.now - entered_time(run.status, run.now)).total_seconds()
    return bool(found.undecided) and waited < SETTLE_SECONDS


def taken_name(run: TaskRun) -> SparkView | None:
    """Return whose object has the name of the application that is to be made, None without one."""
    return _bulk(run).taken


def spark_unavailable(run: TaskRun) -> str:
    """Return why no copy advances by Spark and what a person can do, "" while there is time."""
    return _bulk(run).unavailable
