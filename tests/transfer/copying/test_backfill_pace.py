"""A backfill task whose zone allows few bytes a second: it says all the time that it goes on."""

from __future__ import annotations

import itertools
from typing import Any, cast

import pyarrow as pa
import pytest

from rezone.datanode.resharding import reshard_streams
from rezone.storage.snapshot.columns import VERSIONS_SCHEMA
from rezone.transfer.copying.backfill import RangeBackfill
from rezone.wire.copying.backfill_plan import BackfillRange
from rezone.wire.messages import (
    Ack,
    BackfillClaim,
    BackfillVersions,
    ClaimBackfill,
    CommitIngested,
    Message,
    ReshardBackfill,
)
from rezone.wire.messages.resharding import ReshardRange, StreamStart
from rezone.wire.transport.flight import NodeClient

BYTES_PER_SECOND = 100


class Nodes:
    """A data node that leads both partitions, and the task's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.claimed: list[float] = []
        self.committed = False

    def call(self, request: Message, _reply: type, *, timeout_seconds: float) -> Message:
        """Answer at once; there is one chunk."""
        assert timeout_seconds > 0
        hash_range = ReshardRange(target=1, source=0, first_hash=0, last_hash=1)
        match request:
            case ClaimBackfill():
                self.claimed.append(self.now)
                return BackfillClaim(
                    hash_range=hash_range,
                    begun=StreamStart(offset=0, partition_uuid="b"),
                    leader_epoch=1,
                    replicas=(0,),
                    bytes_per_second_max=BYTES_PER_SECOND,
                    backfilled=self.committed,
                )
            case ReshardBackfill():
                columns: list[list[Any]] = [[b"r"], [1], [0], [bytes(100 * BYTES_PER_SECOND)]]
                arrays = [
                    pa.array(c, f.type) for c, f in zip(columns, VERSIONS_SCHEMA, strict=True)
                ]
                batch = pa.record_batch(arrays, schema=VERSIONS_SCHEMA)
                return BackfillVersions(
                    versions=batch.serialize().to_pybytes(), reached=b"r", end=True
                )
            case CommitIngested():
                self.committed = True
        return Ack()

    def close(self) -> None:
        """Have nothing to close."""

    def sleep(self, seconds: float) -> None:
        """Let time go on, by a thousandth of a second at least, as a real sleep does."""
        self.now += max(0.001, seconds)


@pytest.mark.proves("SP-01")
def test_a_low_rate_does_not_let_a_claim_lapse() -> None:
    """Asserts that a task claims its range again while it waits for its rate.

    Without it the leader takes a task that waits for over ten seconds for dead, and brings the rows
    a second time.
    """
    nodes = Nodes()
    task = RangeBackfill(
        BackfillRange(1, 0),
        {0: "node"},
        connect=lambda _: cast("NodeClient", nodes),
        clock=lambda: nodes.now,
        sleep=nodes.sleep,
    )
    assert task.run().rows == 1
    assert nodes.now > 10 * reshard_streams.CLAIM_SECONDS
    waits = [later - earlier for earlier, later in itertools.pairwise(nodes.claimed)]
    assert max(waits) < reshard_streams.CLAIM_SECONDS / 2
