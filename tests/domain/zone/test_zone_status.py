"""A zone's conditions as kstatus, `kubectl wait` and people read them."""

import dataclasses
from typing import Any

import pytest
from worlds import NOW, World, record

from rezone.domain.observed.indexing import indexing
from rezone.domain.observed.rollout import NOTHING, RolloutDecision
from rezone.domain.observed.volumes import Growth
from rezone.domain.zone.status import Obstacle, ZoneHealth, health_of, zone_conditions
from rezone.resources.conditions import Condition, Reason
from rezone.resources.zone_status import RolloutStatus
from rezone.wire.messages import FIRST_PARTITION_EPOCH, DiskTrouble, IndexBuild, IndexPosition, Role

WELL = ZoneHealth(partitions=4, led=4, in_sync=4, ready_nodes=3, wanted_nodes=3)
STALL = (Reason.NOT_ENOUGH_DATA_NODES, "add data nodes")


def conditions(health: ZoneHealth, old: tuple[Condition, ...] = (), **more: Any) -> dict[str, Any]:
    """Return the conditions by type."""
    return {c.type: c for c in listed(health, old, **more)}


def listed(
    health: ZoneHealth, old: tuple[Condition, ...] = (), **more: Any
) -> tuple[Condition, ...]:
    """Return the conditions."""
    usual: dict[str, Any] = {
        "stalled": None,
        "obstacle": None,
        "rebalancing": "",
        "paused": False,
        "rollout": NOTHING,
        "volumes": None,
        "generation": 3,
        "now": NOW,
    }
    return zone_conditions(old, health, **(usual | more))


def test_a_paused_zone_says_so() -> None:
    """A zone without failover would look like any other."""
    told = conditions(WELL, hands_off=True)["Paused"]
    assert told.reason == Reason.PAUSED
    assert "spec.paused" in told.message
    assert "Paused" not in conditions(WELL)


EMPTY = dataclasses.replace(WELL, partitions=0, led=0, in_sync=0)


def test_a_lasting_obstacle_stalls_and_a_passing_one_explains_the_wait() -> None:
    """A refused pod would look like one that starts slowly; nobody would mend the template."""
    refused = Obstacle(reason=Reason.FAILED_CREATE, message="pods are refused: quota")
    for health in (EMPTY, WELL):
        found = conditions(health, obstacle=refused)
        assert (found["Stalled"].reason, found["Stalled"].message) == (
            Reason.FAILED_CREATE,
            refused.message,
        )
        assert "Reconciling" not in found
    assert conditions(EMPTY, obstacle=refused)["Ready"].reason == Reason.FAILED_CREATE
    assert conditions(WELL, obstacle=refused)["Ready"].status == "True"
    passing = Obstacle(reason=Reason.AWAITING_DELETION, message="claim c goes", lasting=False)
    found = conditions(EMPTY, obstacle=passing)
    assert "Stalled" not in found
    assert found["Ready"].reason == Reason.AWAITING_DELETION
    assert found["Reconciling"].message.endswith("claim c goes")


def test_a_zone_tells_which_indexes_are_built_and_how_far() -> None:
    """Nobody would know why lookups are refused, or each report would write to the API server."""
    world = World(routes=[record()], settings={"indexes": {b"x": "by_name", b"y": "by_age"}})
    half = {"index": IndexPosition(5, "u", (b"y",)), "index_builds": (IndexBuild(b"x", 57),)}
    whole = {"index": IndexPosition(5, "u", (b"x", b"y"))}
    world.reports = {(0, 0): whole, (0, 1): half, (0, 2): half}
    text = indexing(world.view())
    assert text == "by_name: 1 of 3 replicas have it, 70 % is done"
    assert health_of(world.view(), replicas=3, wanted_nodes=3).indexing == text
    found = conditions(dataclasses.replace(WELL, indexing=text))
    assert (found["Indexing"].status, found["Indexing"].message) == ("True", text)
    assert found["Ready"].status == "True", "rows are read and written meanwhile"
    world.reports = {(0, node): whole for node in range(3)}
    assert not indexing(world.view())
    world.reports[0, 1] = None
    assert not indexing(world.view()), "it learns of the index when it comes back"
    world.reports[0, 0] = None
    assert indexing(world.view()).startswith("by_name: 1 of 2"), "a leader has to say so"


def test_a_well_zone_is_ready_and_nothing_else() -> None:
    """Kstatus takes a Reconciling or Stalled that lingers, even if false, for news."""
    found = conditions(WELL)
    assert set(found) == {"Ready"}
    assert found["Ready"].status == "True"
    assert found["Ready"].observed_generation == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partitions": 0, "led": 0, "in_sync": 0, "ready_nodes": 1}, Reason.PODS_NOT_READY),
        ({"led": 3}, Reason.NO_LEADER),
        ({"in_sync": 3}, Reason.UNDER_REPLICATED),
        ({"led": 3, "in_sync": 3}, Reason.NO_LEADER),
    ],
)
def test_what_is_not_ready_reconciles(changes: dict[str, Any], reason: Reason) -> None:
    """`kubectl wait` would go on before the zone can be used, or never."""
    found = conditions(dataclasses.replace(WELL, **changes))
    assert found["Ready"].status == "False"
    assert found["Ready"].reason == reason
    assert found["Reconciling"].status == "True"
    assert "Stalled" not in found
    assert found["Ready"].message


def test_stalled_says_why_and_does_not_reconcile() -> None:
    """A person would wait for something that only a person can do."""
    empty = ZoneHealth(partitions=0, led=0, in_sync=0, ready_nodes=2, wanted_nodes=2)
    found = conditions(empty, stalled=STALL)
    assert (found["Stalled"].status, found["Stalled"].reason) == ("True", STALL[0])
    assert found["Stalled"].message == STALL[1]
    assert found["Ready"].reason == STALL[0]
    assert "Reconciling" not in found


def test_a_stalled_zone_that_serves_stays_ready() -> None:
    """Clients would be sent away because a drain has nowhere to go."""
    found = conditions(WELL, stalled=STALL)
    assert found["Ready"].status == "True"
    assert found["Stalled"].status == "True"


def test_true_conditions_go_when_they_no_longer_hold() -> None:
    """Ready would come with an old Stalled beside it."""
    empty = ZoneHealth(partitions=0, led=0, in_sync=0, ready_nodes=2, wanted_nodes=2)
    bad = listed(empty, stalled=STALL)
    worse = listed(dataclasses.replace(WELL, in_sync=1), bad, rebalancing="t")
    assert {c.type for c in worse} == {"Ready", "Reconciling", "Rebalancing", "Degraded"}
    assert {c.type for c in listed(WELL, worse)} == {"Ready"}


def test_rebalancing_names_its_task_and_a_pause() -> None:
    """Nobody would find the task that moves partitions, or know why it does not."""
    running = conditions(WELL, rebalancing="orders-7")["Rebalancing"]
    assert running.reason == Reason.REBALANCING
    assert "orders-7" in running.message
    paused = conditions(WELL, rebalancing="orders-7", paused=True)["Rebalancing"]
    assert paused.reason == Reason.PAUSED
    assert "spec.rebalance.paused" in paused.message
    assert "Rebalancing" not in conditions(WELL, paused=True)


def test_degraded_counts_what_is_short() -> None:
    """The pod disruption budget would let a node go that holds the last copy."""
    found = conditions(dataclasses.replace(WELL, in_sync=1))["Degraded"]
    assert found.reason == Reason.UNDER_REPLICATED
    assert found.message.startswith("3 of 4")


def test_transition_time_stays_while_the_status_does() -> None:
    """Every pass would be a write, which wakes the next pass."""
    first = listed(WELL)
    later = listed(WELL, first, now=NOW.replace(year=NOW.year + 1))
    assert later == first


def test_a_leader_counts_when_its_own_report_says_so() -> None:
    """A zone would be Ready before its leaders have heard that they lead."""
    world = World(routes=[record(), record(leader=1, isr=(1, 2))])
    full = health_of(world.view(), replicas=3, wanted_nodes=5)
    assert (full.partitions, full.led, full.in_sync, full.ready_nodes) == (2, 2, 1, 5)
    world.reports[0, 0] = {"role": Role.FOLLOWER}
    world.silent[1] = 1.0
    found = health_of(world.view(), replicas=3, wanted_nodes=5)
    assert (found.led, found.ready_nodes) == (0, 4)


def test_a_new_partition_is_not_ready_before_it_takes_writes() -> None:
    """`kubectl wait` would end, and the first write then wait for the operator."""
    first = record(partition_epoch=FIRST_PARTITION_EPOCH)
    assert health_of(World(routes=[first]).view(), replicas=3, wanted_nodes=5).led == 0


UPDATE = RolloutStatus(started_time=NOW, updated=1, outdated=2, waiting_for="node 0 catches up")


@pytest.mark.parametrize(
    ("rollout", "reason", "others"),
    [
        (RolloutDecision(status=UPDATE), Reason.UPDATING, {"Reconciling"}),
        (RolloutDecision(status=UPDATE, held=True), Reason.PAUSED, set()),
        (
            RolloutDecision(status=UPDATE, stuck="look"),
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            {"Stalled"},
        ),
    ],
)
def test_an_update_is_told_while_it_lasts(
    rollout: RolloutDecision, reason: Reason, others: set[str]
) -> None:
    """Argo CD would call a zone healthy in the middle, or one that is held for ever progressing."""
    found = conditions(WELL, rollout=rollout)
    assert set(found) == {"Ready", "Updating"} | others
    assert found["Ready"].status == "True"
    assert found["Updating"].reason == reason
    assert found["Updating"].message == "1 of 3 data nodes run the current template; " + (
        UPDATE.waiting_for
    )
    assert set(conditions(WELL, tuple(found.values()))) == {"Ready"}


def test_growing_volumes_are_told_while_they_grow() -> None:
    """Nobody would know whether more room is on its way, or an alert would call it an outage."""
    growing = Growth(size="20Gi", grown=1, total=3, waits="data node 2: waits")
    found = conditions(WELL, volumes=growing)
    assert found["Ready"].status == "True"
    assert found["VolumeExpanding"].message == "1 of 3 volumes have 20Gi; data node 2: waits"
    assert found["Reconciling"].reason == Reason.VOLUME_EXPANDING
    assert "Stalled" not in found
    refused = dataclasses.replace(growing, refused=True)
    found = conditions(WELL, volumes=refused)
    assert (found["Stalled"].reason, found["VolumeExpanding"].reason) == (
        Reason.VOLUME_EXPANSION_FAILED,
    ) * 2
    assert "Reconciling" not in found
    assert conditions(WELL, tuple(found.values())).keys() == {"Ready"}


def test_damage_is_told_with_its_place_and_reason() -> None:
    """A disk that rots would show as a replica that lags, or not at all."""
    world = World(routes=[record(), record()])
    world.reports[1, 2] = {"damage": "000012.sst: block checksum mismatch"}
    health = health_of(world.view(), replicas=3, wanted_nodes=3)
    found = conditions(dataclasses.replace(health, partitions=2, led=2, in_sync=2))
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.DATA_CORRUPTION)
    assert "data node 2, partition 1: 000012.sst: block" in found["Degraded"].message
    lost = conditions(dataclasses.replace(health, partitions=2, led=1, in_sync=2))
    assert "1 replicas are damaged: data node 2" in lost["Ready"].message


@pytest.mark.proves("B-04", "B-14")
def test_a_copy_that_differs_is_told_with_its_place() -> None:
    """It never leads, and nobody would know why; one of another leadership is not meant."""
    world = World(routes=[record(), record()])
    world.mismatched = {(1, 2, 4), (0, 2, 3)}
    health = health_of(world.view(), replicas=3, wanted_nodes=3)
    found = conditions(dataclasses.replace(health, partitions=2, led=2, in_sync=2))
    assert (found["Degraded"].status, found["Degraded"].reason) == ("True", Reason.COPY_DIFFERS)
    assert "1 copies" in found["Degraded"].message
    assert "data node 2, partition 1" in found["Degraded"].message


@pytest.mark.proves("NW-05")
def test_a_zone_names_the_nodes_whose_clocks_are_wrong() -> None:
    """Nobody would know which machine's NTP to mend, or why a node leads nothing."""
    world = World(routes=[record()])
    view = world.view()
    text = "its clock is 60.0 s ahead of those of others; it gives no times"
    nodes = {**view.nodes, 1: dataclasses.replace(view.nodes[1], clock_text=text)}
    health = health_of(dataclasses.replace(view, nodes=nodes), replicas=3, wanted_nodes=3)
    degraded = conditions(health)["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", Reason.CLOCK_OFF)
    assert degraded.message == f"data node 1: {text}"
    lost = conditions(dataclasses.replace(health, led=0))
    assert text in lost["Ready"].message
    assert not health_of(view, replicas=3, wanted_nodes=3).clocks


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (DiskTrouble.FULL, Reason.DISK_FULL),
        (DiskTrouble.FAILED, Reason.DISK_FAILED),
        (DiskTrouble.SLOW, Reason.DISK_SLOW),
    ],
)
@pytest.mark.proves("NW-04")
def test_a_zone_names_the_node_whose_disk_fails_and_why(
    trouble: DiskTrouble, reason: Reason
) -> None:
    """It said that reads and writes go on, and nobody knew of which disk to look at."""
    world = World(routes=[record()])
    world.reports[0, 1] = {"failed": True, "disk": trouble, "error": "[Errno 28] no space"}
    health = health_of(world.view(), replicas=3, wanted_nodes=3)
    degraded = conditions(health)["Degraded"]
    assert (degraded.status, degraded.reason) == ("True", reason)
    assert "data node 1: [Errno 28] no space" in degraded.message
    short = conditions(dataclasses.replace(health, in_sync=0))
    assert "data node 1" in short["Ready"].message
    world.reports[0, 1] = {}
    assert health_of(world.view(), replicas=3, wanted_nodes=3).disk is None
