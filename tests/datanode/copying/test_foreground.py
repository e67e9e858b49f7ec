"""Copies are throttled by what clients take: how long a copy rests, and that it always gets on."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from foreground_kit import Time, busy
from replica_cluster import Client, cluster

from rezone.datanode.observing.copymetrics import CopyCollector
from rezone.datanode.scheduling.foreground import (
    BUSY_SHARE,
    LIGHT_SHARE,
    LIGHT_STEP_BYTES,
    LULL_SECONDS,
    OWED_SECONDS_MAX,
    REST_SECONDS_MAX,
    SHORT_STEP_BYTES,
    CopySteps,
    Foreground,
)
from rezone.datanode.scheduling.served import FOLLOWED_SECONDS, MEMORY_SECONDS, PAUSE_SECONDS
from rezone.storage.reshard.reshard_entries import Stand, begin_entry
from rezone.wire.messages import ReshardPosition, Role

P, Q = 0, 1


def rested(foreground: Foreground, time: Time, worked: float) -> float:
    """Return how long a copy rests after a step."""
    before = time.now
    foreground.throttle_by(worked)
    return time.now - before


def test_a_copy_takes_its_share_while_clients_are_served() -> None:
    """Copies would take half of each core and more from whoever is served."""
    time = Time()
    foreground = busy(time, 80)
    assert rested(foreground, time, 0.003) == pytest.approx(0.012)
    assert rested(foreground, time, 0.001) == pytest.approx(0.004)
    assert foreground.rested_seconds == pytest.approx(0.016)


def test_without_clients_a_copy_goes_on_at_once() -> None:
    """Each copy would take five times as long, though nobody gains by it."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    assert rested(foreground, time, 1.0) == 0.0
    foreground.begin()
    foreground.end()
    time.now += 2 * PAUSE_SECONDS
    assert rested(foreground, time, 1.0) == 0.0


def test_a_rest_ends_when_the_clients_have_gone() -> None:
    """A copy would rest on after the last client."""
    time = Time()
    foreground = busy(time, 80)
    time.events = [(time.now + 0.01, foreground.end)]
    assert 0.010 < rested(foreground, time, 1.0) < 0.9 * REST_SECONDS_MAX
    assert rested(foreground, time, 1.0) == 0.0


def test_a_pause_between_two_requests_ends_no_rest() -> None:
    """A busy client that is late by a moment would meet a step in each of its pauses."""
    time = Time()
    foreground = busy(time, 80)
    time.events = [(time.now + 0.001, foreground.end), (time.now + 0.006, foreground.begin)]
    assert rested(foreground, time, 0.003) == pytest.approx(0.012)


def test_one_client_that_asks_again_at_once_takes_all_of_the_time() -> None:
    """The moments between an answer and the next request would make it a light one."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    for _ in range(2_000):
        foreground.begin()
        time.now += PAUSE_SECONDS / 4
        foreground.end()
        time.now += PAUSE_SECONDS / 2
    assert foreground.served_share > 0.99


@pytest.mark.proves("B-16")
def test_a_copy_always_gets_on() -> None:
    """Under steady load a copy would never end, or be taken for dead after a long step."""
    time = Time()
    foreground = busy(time, 95)
    assert rested(foreground, time, 1000.0) == pytest.approx(REST_SECONDS_MAX)


@pytest.mark.parametrize(
    ("share", "rests"),
    [
        (0.0, 0.0),
        (LIGHT_SHARE - 0.02, 0.0),
        ((LIGHT_SHARE + BUSY_SHARE) / 2, 0.4),
        (BUSY_SHARE + 0.02, 0.8),
    ],
)
def test_copies_rest_by_the_time_that_clients_take(share: float, rests: float) -> None:
    """A copy beside clients that ask now and then would take as long as one beside busy ones."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    for _ in range(400):
        foreground.begin()
        time.now += 0.010 * share
        foreground.end()
        time.now += 0.010 * (1.0 - share)
    foreground.begin()
    worked = 0.001
    assert rested(foreground, time, worked) == pytest.approx(worked * rests / (1 - rests), abs=4e-4)
    assert foreground.served_share == pytest.approx(share, abs=0.02)


def test_how_much_clients_take_is_a_metric() -> None:
    """Nobody could tell why a copy is as slow as it is."""
    time = Time()
    node = SimpleNamespace(partitions=list, foreground=busy(time, 80))
    families = {found.name: found for found in CopyCollector(node).collect()}  # type: ignore[arg-type]
    (sample,) = families["rezone_data_node_foreground_utilization_ratio"].samples
    assert sample.value == pytest.approx(1.0, abs=0.05)


def beside_a_copy(request_seconds: float, period_seconds: float) -> tuple[float, float]:
    """Return how many requests a second one client makes beside a copy, and the copy's work.

    It asks once a period, or at once when it is late; beside a step it is served half as fast.
    """
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=lambda seconds: advance(seconds, 1.0))
    answered, left, due, worked = 0, 0.0, time.now, 0.0

    def advance(seconds: float, speed: float) -> bool:
        nonlocal answered, left, due
        until = time.now + seconds
        while time.now < until:
            time.now += 1e-4
            if not foreground.under_way and time.now >= due:
                foreground.begin()
                left, due = request_seconds, max(due + period_seconds, time.now)
            left -= 1e-4 * speed
            if foreground.under_way and left <= 0:
                foreground.end()
                answered += 1
        return False

    advance(1.0, 1.0)
    begun, before = time.now, answered
    while time.now < begun + 2.0:
        advance(0.001, 0.5)
        worked += 0.001
        foreground.throttle_by(0.001)
    return (answered - before) / (time.now - begun), worked / (time.now - begun)


def test_a_busy_client_keeps_its_share_and_a_light_one_leaves_the_copy_all() -> None:
    """What a copy takes would depend on whether clients are there, and not on what they need."""
    alone = 1 / 0.0021
    busy_rate, work_beside_busy = beside_a_copy(0.002, 0.0)
    assert busy_rate > 0.8 * alone
    assert work_beside_busy == pytest.approx(0.2, abs=0.03), "its share, and no less (B-16)"
    light_rate, work_beside_light = beside_a_copy(0.002, 0.010)
    assert light_rate == pytest.approx(100, abs=1)
    assert work_beside_light > 0.95


def test_between_light_and_busy_a_copy_keeps_even_and_the_client_its_rate() -> None:
    """What the copy makes requests longer would start and stop it in turn."""
    works = []
    for period_ms in (10, 9, 8, 7, 6, 5, 4):
        rate, work = beside_a_copy(0.003, period_ms / 1_000)
        works.append(work)
        assert rate > 0.8 * min(1_000 / period_ms, 1 / 0.0031)
    assert works == sorted(works, reverse=True)
    assert works[0] > 0.6
    assert works[-1] < 0.3


def test_copies_share_what_clients_leave() -> None:
    """Eight copies at once would take eight shares."""
    time = Time()
    foreground = busy(time, 50)
    begun = time.now
    time.events = [(begun + 0.004, lambda: foreground.throttle_by(0.010))]
    foreground.throttle_by(0.010)
    assert time.now - begun == pytest.approx(0.020)


def test_nought_turns_it_off() -> None:
    """The setting could not be compared with its absence."""
    time = Time()
    foreground = busy(time, 0)
    assert rested(foreground, time, 1.0) == 0.0


def test_a_node_that_stops_lets_copies_go() -> None:
    """A stopping node would wait for the rests of its copies."""
    time = Time()
    foreground = Foreground(time, lambda: 80)
    foreground.begin()
    time.now += 4 * MEMORY_SECONDS
    foreground.close()
    foreground.throttle_by(1.0)
    assert foreground.rested_seconds == 0.0


def test_a_stream_counts_as_a_request_while_an_item_is_made() -> None:
    """A scan that nobody reads on would slow copies for ever."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    rests: list[float] = []

    def items() -> Iterator[int]:
        time.now += 4 * MEMORY_SECONDS
        rests.append(rested(foreground, time, 0.001))
        yield 1

    served = foreground.serving(items())
    assert next(served) == 1
    time.now += 4 * MEMORY_SECONDS
    rests.append(rested(foreground, time, 0.001))
    assert list(served) == []
    assert rests == [pytest.approx(0.004), 0.0]


def test_rows_of_a_leader_elsewhere_count_until_they_are_durable() -> None:
    """A follower would do its copies and builds at full speed, and the leader's clients wait."""
    time = Time()
    foreground = Foreground(time, lambda: 80, wait=time.wait)
    while time.now < 101.0:
        foreground.followed()
        time.now += FOLLOWED_SECONDS
    assert rested(foreground, time, 0.0001) == pytest.approx(0.0004)
    share = foreground.served_share
    foreground.followed()
    foreground.begin()
    foreground.end()
    time.now += FOLLOWED_SECONDS
    assert foreground.served_share > share, "an answer to another client ends nothing"
    time.now += 4 * MEMORY_SECONDS
    assert rested(foreground, time, 1.0) == 0.0


def test_steps_are_told_apart_by_processor_time() -> None:
    """The rest would be slept off again after the next step."""
    time = Time()
    foreground = busy(time, 50)
    readings = iter([1.0, 1.010, 1.010, 1.013, 1.013])
    steps = CopySteps(foreground, 2.0, worked=lambda: next(readings))
    steps.throttle()
    assert foreground.rested_seconds == pytest.approx(0.020)
    steps.throttle()
    assert foreground.rested_seconds == pytest.approx(0.026)


def test_steps_are_short_while_clients_are_served_only() -> None:
    """A request that meets a step would wait for megabytes; or copies at night would be slow."""
    time, percent = Time(), 80
    foreground = Foreground(time, lambda: percent, wait=time.wait)
    steps = CopySteps(foreground)
    assert steps.step_bytes(2 << 20) == 2 << 20
    foreground.begin()
    assert steps.step_bytes(2 << 20) == LIGHT_STEP_BYTES, "none comes as fast as it can, as yet"
    time.now += 4 * MEMORY_SECONDS
    assert steps.step_bytes(2 << 20) == SHORT_STEP_BYTES
    assert steps.step_bytes(100) == 100
    foreground.end()
    assert steps.step_bytes(2 << 20) == SHORT_STEP_BYTES, "the next request is on its way"
    time.now += 0.9 * LULL_SECONDS
    assert steps.step_bytes(2 << 20) == LIGHT_STEP_BYTES, "clients that ask now and then"
    time.now += LULL_SECONDS
    assert steps.step_bytes(2 << 20) == 2 << 20
    foreground.begin()
    percent = 0
    assert steps.step_bytes(2 << 20) == 2 << 20


@pytest.mark.proves("B-16")
def test_what_cannot_rest_is_rested_for_by_others_within_limits() -> None:
    """A replica that is filled would cost clients all, or keep copies from ending."""
    time = Time()
    foreground = Foreground(time, lambda: 50, wait=time.wait)
    foreground.owe(0.5)
    assert foreground.owed_seconds == 0.0, "nobody is served"
    foreground.begin()
    time.now += 4 * MEMORY_SECONDS
    foreground.owe(0.1)
    assert foreground.owed_seconds == pytest.approx(0.1)
    assert rested(foreground, time, 0.01) == pytest.approx(0.11)
    foreground.owe(1_000.0)
    foreground.owe(1_000.0)
    assert foreground.owed_seconds == pytest.approx(OWED_SECONDS_MAX)
    foreground.end()
    time.now += MEMORY_SECONDS
    assert foreground.owed_seconds == 0.0
    assert rested(foreground, time, 0.01) == 0.0


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Foreground]:
    """Collect the nodes that take rows for those of waiting clients, one for each frame."""
    nodes: list[Foreground] = []

    def followed(foreground: Foreground) -> None:
        nodes.append(foreground)

    monkeypatch.setattr(Foreground, "followed", followed)
    return nodes


def test_rows_count_only_where_clients_of_their_leader_wait_for_them(
    tmp_path: Path, asked: list[Foreground]
) -> None:
    """Copies to a node would crawl for rows that nobody waits for, its own copy's among them."""
    with cluster(tmp_path, 3) as c:
        c.create(P, (0, 1, 2))
        k = Client(c)

        def nodes_of_a_write() -> set[int]:
            """Return where a write's rows counted, once all replicas have them."""
            asked.clear()
            end = k.put(P, {b"k": b"v"}).end_offset
            c.until_each("has it", (1, 2), lambda n: c.replica(n).store.durable_end == end)
            return {number for number in range(3) if c.node(number).foreground in asked}

        c.until("both stream", lambda: len(c.replica(0).leading.streams) == 2)
        assert nodes_of_a_write() == {1, 2}
        # Node 2 has not heard that it is not in sync any more; its leader tells with the stream.
        known = c.records[P]
        later = msgspec.structs.replace(
            known, isr=(0, 1), partition_epoch=known.partition_epoch + 1
        )
        c.send(P, later, 0, 1)
        c.node(2).links.unlink(P)
        c.until("no stream", lambda: 2 not in c.replica(0).leading.streams)
        c.node(2).restream(c.replica(2))
        c.until("streams again", lambda: 2 in c.replica(0).leading.streams)
        c.until("it is told", lambda: c.replica(2).following.left_out)
        assert c.replica(2).role is Role.FOLLOWER
        assert nodes_of_a_write() == {1}
        c.send(P, later)
        assert (c.replica(2).role, c.replica(2).following.left_out) == (Role.LEARNER, False)
        assert nodes_of_a_write() == {1}
        k.close()


def test_rows_that_are_resharded_count_nowhere(tmp_path: Path, asked: list[Foreground]) -> None:
    """The fill of a new partition would slow itself down at each replica."""
    with cluster(tmp_path, 2) as c:
        c.create(P, (0, 1))
        leader = c.replica(0)
        with leader.lock:
            time = max(leader.clock.micros(), leader.store.last_commit_time + 1)
            stand = Stand(leader.leader_epoch, leader.store.log_end, time)
            leader.append(begin_entry(ReshardPosition(Q, 0, 0, ""), (), (), stand))
        leader.wake()
        c.until("it has come", lambda: c.replica(1).store.durable_end == 1)
        assert asked == []
