"""What storms seldom come to by themselves, brought about step by step in a zone with indexes.

A plot waits for its moment by yielding, once a step, while everything else goes on and may spoil
it. Who runs it closes it when that takes too long.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from rezone.datanode.replica.replica import Replica
from rezone.domain.routing import route_leaders, routes
from rezone.wire.messages import NodeId
from simulation.storms.data_plane import MINIMUM

if TYPE_CHECKING:
    from simulation.storms.indexed import Indexed

Plot = Generator[None, None, None]

LAG_ROWS = 20
"""By so many rows, which make more than one file of a log, a leader gets ahead of a follower."""


def standby_ahead(run: Indexed) -> Plot:
    """Have a hot standby apply and index rows that the next leader never gets: they are undone.

    The standby is down then, or the coordinator believes so.
    """
    record = run.record
    others = [node for node in record.isr if node != record.leader]
    if len(others) < MINIMUM:
        return
    standby, target = run.rng.sample(others, 2)
    run.change(routes.set_hot_standby(record, standby))
    while standby not in run.record.iss:
        yield
    cut = frozenset((run.record.leader, target))
    run.network.cut.add(cut)
    while not _is_ahead(run.replica(standby), run.replica(target)):
        yield
    run.network.cut.discard(cut)
    if run.rng.random() < 0.5:
        run.stop(standby)
    run.kill(run.record.leader)
    answer = route_leaders.fail_over(run.record, [target], minimum=MINIMUM)
    run.counts["left ahead"] += run.change(answer)


def _is_ahead(standby: Replica | None, target: Replica | None) -> bool:
    """Whether a standby has indexed more than a target has in its log."""
    if standby is None or target is None:
        return False
    return min(standby.store.applied, standby.store.indexer.position.offset) > target.store.log_end


def follower_lags(run: Indexed) -> Plot:
    """Have a follower stand still while its leader's log would be trimmed behind it."""
    record = run.record
    lazy = run.rng.choice([node for node in record.replicas if node != record.leader])
    run.asleep.add(lazy)
    try:
        while not _lags(run, lazy):
            yield
        run.counts["lagged"] += 1
    finally:
        run.asleep.discard(lazy)


def _lags(run: Indexed, lazy: NodeId) -> bool:
    leader, follower = run.replica(run.record.leader), run.replica(lazy)
    if leader is None or follower is None:
        return False
    return leader.store.log_end - follower.store.log_end >= LAG_ROWS


def candidate_builds(run: Indexed) -> Plot:
    """Have a leader hand over that has built an index to a replica that is still at it (DCP-08)."""
    run.change_table(indexes_min=1)
    while True:
        leader = run.replica(run.record.leader)
        built = leader is not None and leader.leads and not leader.store.indexer.unbuilt
        for node in run.record.isr if built else ():
            candidate = run.replica(node)
            if candidate is not None and candidate.store.indexer.unbuilt:
                answer = route_leaders.authorize_takeover(run.record, node)
                run.counts["early takeovers"] += run.change(answer)
                return
        yield


PLOTS = (standby_ahead, follower_lags, candidate_builds)
