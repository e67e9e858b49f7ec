"""A job reserves the ranges that it has not come to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Coordinator, cluster
from resharding_kit import (
    SMALL,
    backfill_old,
    begin_by_hand,
    create_old,
    overlaps_of,
    reshard,
    stream_to_backfill,
    zone,
)

from rezone.datanode.resharding import ingesting, reshard_streams
from rezone.datanode.resharding.reshard_streams import ReshardStream
from rezone.transfer.copying import reserving
from rezone.transfer.copying.reserving import Reservations
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.errors import LimitExceededError, NotReadyError
from rezone.wire.messages import (
    BackfillClaim,
    BackfillsReserved,
    BeginReshard,
    ClaimBackfill,
    ReserveBackfills,
    ReshardBackfill,
)

BY_HAND = msgspec.structs.replace(SMALL, reshard_threads=0)


def reserve(c: Coordinator) -> None:
    """Reserve all ranges at all nodes, as a driver does."""
    ranges = tuple((overlap.new, overlap.old) for overlap in overlaps_of(c))
    for node in c.nodes:
        c.call(node, ReserveBackfills(ranges), BackfillsReserved)


@pytest.mark.proves("SP-01")
def test_a_range_that_is_reserved_waits_for_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data nodes would backfill all that a job has not come to, and it would save nothing.

    Where a task has claimed rows the driver says nothing of it: a leader would wait for a task that
    has died for as long as the driver lives.
    """
    with cluster(tmp_path, 2, config=zone(1), settings=BY_HAND) as c:
        create_old(c)
        backfill_old(c, 50)
        reshard(c, 1)
        c.watch()
        (overlap,) = overlaps_of(c)
        leader = c.replica(c.records[overlap.new].leader, overlap.new)
        stream = stream_to_backfill(c, leader)
        reserve(c)
        assert isinstance(stream.next_backfill(1_000), BeginReshard), "a job needs a stream"
        begin_by_hand(c, leader)
        monkeypatch.setattr(reshard_streams, "CLAIM_SECONDS", 0.0)
        reserve(c)
        c.until("the driver is gone", lambda: asks_for_rows(stream))
        monkeypatch.setattr(reshard_streams, "CLAIM_SECONDS", 600.0)
        reserve(c)
        assert stream.next_backfill(1_000) is None
        monkeypatch.setattr(reshard_streams, "CLAIM_SECONDS", 0.0)
        reserve(c)
        claim = ClaimBackfill(target=overlap.new, source=overlap.old)
        c.until("it is claimed", lambda: claimed(c, claim))
        monkeypatch.setattr(reshard_streams, "CLAIM_SECONDS", 600.0)
        reserve(c)
        assert asks_for_rows(stream), "its task is gone"


def asks_for_rows(stream: ReshardStream) -> bool:
    """Whether the leader backfills by itself."""
    return isinstance(stream.next_backfill(1_000), ReshardBackfill)


def claimed(c: Coordinator, claim: ClaimBackfill) -> bool:
    """Claim a range at its leader; whether that can be."""
    try:
        c.call(c.records[claim.target].leader, claim, BackfillClaim)
    except NotReadyError:
        return False
    return True


@pytest.mark.proves("SP-01")
def test_more_ranges_than_there_can_be_are_refused(tmp_path: Path) -> None:
    """A node would be busy with what anybody makes up."""
    with cluster(tmp_path, 1, config=zone(1), settings=BY_HAND) as c:
        create_old(c)
        c.call(0, ReserveBackfills(((99, 0), (0, 99))), BackfillsReserved)
        with pytest.raises(LimitExceededError):
            c.call(0, ReserveBackfills(((0, 0),) * (ingesting.RESERVED_RANGES_MAX + 1)))


class Nodes:
    """Data nodes that note what they are asked; one of them is away."""

    def __init__(self) -> None:
        self.ingested = 0
        self.asked: list[int] = []

    def connect(self, address: str) -> Nodes:
        """Be each of them."""
        if address == "away":
            raise NotReadyError("it is away")
        return self

    def call(self, request: ReserveBackfills, *_: object, **__: object) -> BackfillsReserved:
        """Note how many ranges are reserved."""
        self.asked.append(len(request.ranges))
        return BackfillsReserved(self.ingested)

    def close(self) -> None:
        """Be closed."""


@pytest.mark.proves("SP-01")
def test_a_driver_whose_tasks_bring_nothing_reserves_nothing() -> None:
    """A re-sharding would wait for executors that never come."""
    now, nodes = 0.0, Nodes()
    connect: Callable[[str], object] = nodes.connect
    reservations = Reservations(
        [BackfillRange(9, 0), BackfillRange(9, 1)],
        {0: "here", 1: "away"},
        connect=connect,  # type: ignore[arg-type]
        clock=lambda: now,
    )
    assert reservations.renew()
    now = reserving.IDLE_SECONDS
    assert not reservations.renew()
    nodes.ingested = 5
    assert not reservations.renew()
    now += reserving.IDLE_SECONDS - 1
    assert reservations.renew()
    now += 1
    assert not reservations.renew()
    assert nodes.asked == [2, 0, 0, 2, 0]


def test_a_driver_reserves_until_its_work_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left would wait for a job that has ended."""
    came = threading.Event()
    monkeypatch.setattr(Reservations, "renew", lambda _: came.set())
    with Reservations([BackfillRange(9, 0)], {0: "here"}):
        assert came.wait(20)
    assert "reserve" not in [thread.name for thread in threading.enumerate()]
