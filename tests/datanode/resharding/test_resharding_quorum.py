"""A re-sharding on real processes, whose partitions lose their quorum and get it back."""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec
import pytest
from replica_cluster import Client, Coordinator, ProcessNode, cluster, keys_in
from resharding_kit import (
    Writing,
    ask_to_seal,
    backfill_old,
    overlaps_of,
    progress,
    require_equal,
    resharded,
    scan,
    writing,
    zone,
)

from rezone.wire.errors import NotEnoughReplicasError, NotReadyError, RezoneError
from rezone.wire.layouts import next_layout_of
from rezone.wire.messages import SealState, ZoneConfig

SOURCE = 0
SOURCE_NODES = (0, 1)
HEIR_NODES = (2, 3)
"""Of each the first leads; the second is the one that is killed."""

EARLY_ROWS = 3_000


def begin(c: Coordinator) -> tuple[int, ...]:
    """Make the partitions of the next layout, on nodes of their own."""
    c.config = msgspec.structs.replace(c.config, next_partitions=2)
    c.configure()
    new = next_layout_of(c.config)
    assert new is not None
    for target in new.ids:
        c.create(target, HEIR_NODES)
    return tuple(new.ids)


def kill(c: Coordinator, node: int, partitions: tuple[int, ...]) -> None:
    """Kill a node, and wait until its leaders are alone in their sets."""
    victim = c.nodes[node]
    assert isinstance(victim, ProcessNode)
    victim.kill()
    c.until_settled("the set is too small", lambda: all(len(c.isr(p)) == 1 for p in partitions))


def start(c: Coordinator, node: int, partitions: tuple[int, ...]) -> None:
    """Start a node again, and wait until it is back in all sets."""
    c.nodes[node].start()
    c.wait_up(node)
    c.configure()
    c.until_settled("the set is whole", lambda: all(len(c.isr(p)) == 2 for p in partitions))


def require_refused(c: Coordinator, partition: int) -> None:
    """Write once: it must be refused, and the refusal say why."""
    client = Client(c)
    with pytest.raises(
        NotEnoughReplicasError, match="1 replicas are in sync, 2 are needed"
    ) as said:
        client.put(partition, {keys_in(0, 1, 1)[0]: b"refused"}, retry=False)
    assert said.value.retryable
    client.close()


def lose_the_source_s(c: Coordinator, writer: Writing) -> None:
    """Take the source's quorum away, and give it back: writes are refused, and go on."""
    kill(c, SOURCE_NODES[1], (SOURCE,))
    require_refused(c, SOURCE)
    start(c, SOURCE_NODES[1], (SOURCE,))
    written = writer.written
    c.until_settled("writes go on", lambda: writer.written > written + 5)


def lose_the_targets(c: Coordinator, writer: Writing, targets: tuple[int, ...]) -> None:
    """Take the targets' quorum away, and give it back: no writer of the source notices."""
    kill(c, HEIR_NODES[1], targets)
    before = [progress(c, overlap).time for overlap in overlaps_of(c)]
    written = writer.written
    c.until("writes go on meanwhile", lambda: writer.written > written + 20)
    after = [progress(c, overlap).time for overlap in overlaps_of(c)]
    assert after == before, "rows count as pulled that one disk has"
    start(c, HEIR_NODES[1], targets)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.proves("B-08")
def test_a_re_sharding_outlives_the_loss_of_every_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand still for ever, acknowledge what one disk has, or lose a row."""
    for name, value in (("CHUNK_BYTES", "2000"), ("POLL_MS", "100"), ("MARK_ROWS", "200")):
        monkeypatch.setenv(f"REZONE_NODE_RESHARD_{name}", value)
    config: ZoneConfig = zone(1, replicas=2, min_in_sync_replicas=2)
    arguments = ("--replica-lag-ms-max=400",)
    with cluster(tmp_path, 4, config=config, processes=True, arguments=arguments) as c:
        c.create(SOURCE, SOURCE_NODES)
        backfill_old(c, EARLY_ROWS)
        with writing(c) as writer:
            targets = begin(c)
            first = overlaps_of(c)[0]
            c.until_settled("the backfill has begun", lambda: progress(c, first).rows > 0)
            assert not progress(c, first).backfilled
            lose_the_targets(c, writer, targets)
            lose_the_source_s(c, writer)
            # Both follow the source's log by now, or will without anybody's help.
            for overlap in overlaps_of(c):
                c.until_settled(
                    f"{overlap} is backfilled", functools.partial(resharded, c, overlap)
                )
            lose_the_targets(c, writer, targets)
            lose_the_source_s(c, writer)
        assert require_equal(c, writer.last_times) == writer.count + EARLY_ROWS
        cut_over(c, targets)
        rows = sum(len(scan(c, HEIR_NODES[0], target)) for target in targets)
        assert rows == writer.count + EARLY_ROWS
        expected = writer.rows[SOURCE]
        found: dict[bytes, bytes] = {}
        new = next_layout_of(c.config)
        assert new is not None
        for index, target in enumerate(new.ids):
            found |= Client(c).get(target, [key for key in expected if key in keys_of(index)])
        assert found == expected


def keys_of(index: int) -> set[bytes]:
    """Return which of the writer's keys are a target's."""
    return set(keys_in(index, 2, 300)) & set(keys_in(0, 1, 300))


def cut_over(c: Coordinator, targets: tuple[int, ...]) -> None:
    """Seal the source, which must not while it is alone, to targets that are alone at first."""
    c.change(SOURCE, sealing=True)
    kill(c, SOURCE_NODES[1], (SOURCE,))
    with pytest.raises((NotReadyError, NotEnoughReplicasError)):
        ask_to_seal(c, SOURCE)
    start(c, SOURCE_NODES[1], (SOURCE,))
    kill(c, HEIR_NODES[1], targets)

    def asked() -> bool:
        try:
            ask_to_seal(c, SOURCE)
        except RezoneError:
            return False
        return True

    c.until_settled("it begins to seal", asked)
    c.until_settled("it is sealed", lambda: c.report(0, SOURCE).seal is SealState.SEALED)
    assert not any(progress(c, overlap).sealed for overlap in overlaps_of(c)), "served by one disk"
    start(c, HEIR_NODES[1], targets)
    c.until_each("served", overlaps_of(c), lambda overlap: progress(c, overlap).sealed)
