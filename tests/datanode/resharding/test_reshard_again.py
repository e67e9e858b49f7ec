"""A new partition that begins again on real nodes is backfilled again, with nothing of before."""

from __future__ import annotations

from pathlib import Path

import pytest
from replica_cluster import Coordinator, cluster
from resharding_kit import (
    SMALL,
    backfill_old,
    create_old,
    overlaps_of,
    progress,
    require_equal,
    reshard,
    resharded,
    writing,
    zone,
)

from rezone.domain.routing import routes
from rezone.wire.messages import LeaderAndIsr


def begins(c: Coordinator, node: int, partition: int, record: LeaderAndIsr) -> bool:
    """Return whether a node's replica is of the record's leader epoch."""
    return c.report(node, partition).leader_epoch == record.leader_epoch


@pytest.mark.proves("B-08")
def test_a_target_that_begins_again_is_backfilled_again(tmp_path: Path) -> None:
    """Rows of before would stay in it, or its reshard stream never begin again."""
    with cluster(tmp_path, 3, config=zone(1), settings=SMALL) as c:
        create_old(c)
        backfill_old(c)
        with writing(c) as writer:
            new = reshard(c, 2)
            c.until_each("backfilled", overlaps_of(c), lambda overlap: resharded(c, overlap))
            target, before = new.ids[0], c.records[new.ids[0]]
            rows = progress(c, overlaps_of(c)[0]).rows
            again = routes.begin_again(before, before.replicas, before.coordinator_epoch)
            assert isinstance(again, LeaderAndIsr)
            c.records[target] = again
            c.send(target, again)
            c.until("all begin", lambda: all(begins(c, node, target, again) for node in c.nodes))
            assert not progress(c, overlaps_of(c)[0]).backfilled
            c.change(target, isr=before.isr)  # the second epoch: it takes entries again
            c.until_each("backfilled again", overlaps_of(c), lambda overlap: resharded(c, overlap))
            assert progress(c, overlaps_of(c)[0]).rows >= rows
        assert require_equal(c, writer.last_times) == writer.count + 400
