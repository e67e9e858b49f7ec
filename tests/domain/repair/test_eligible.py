"""Who has left an in-sync set that is too small, and may lead when that has lost its data."""

from __future__ import annotations

import random
from typing import Any

import pytest
from worlds import NOW, World, record

from rezone.domain.observed.rollout import counted_nodes
from rezone.domain.repair.repairs import repairs
from rezone.domain.routing import routes
from rezone.domain.routing.route_checks import violations
from rezone.domain.routing.routes import RefusalReason
from rezone.wire.messages import IsrProposal, LeaderAndIsr, NodeId, Role

LOST = {"needs_snapshot": True, "role": Role.LEARNER}
ALONE = record(isr=(0,), eligible=(1, 2))


def shrunk(before: LeaderAndIsr, isr: tuple[NodeId, ...], minimum: int = 2) -> LeaderAndIsr:
    """Return the record after its leader's proposal."""
    proposal = IsrProposal(
        new_isr=isr,
        leader_epoch=before.leader_epoch,
        partition_epoch=before.partition_epoch,
        coordinator_epoch=before.coordinator_epoch,
    )
    after = routes.adjust_isr(before, proposal, before.coordinator_epoch, minimum=minimum)
    assert isinstance(after, LeaderAndIsr)
    assert violations(after) == ()
    return after


def mended(world: World) -> LeaderAndIsr | None:
    """Return partition 0's new record."""
    changes = {c.partition: c.state for c in repairs(world.view(), NOW)}
    return changes.get(0)


@pytest.mark.proves("B-06")
def test_who_leaves_a_set_that_is_too_small_stays_eligible_until_it_is_not() -> None:
    """Nobody would remember who holds the acknowledged rows besides a leader that is alone."""
    assert shrunk(record(), (0, 1)).eligible == (), "rows are committed without node 2"
    alone = shrunk(shrunk(record(), (0, 1)), (0,))
    assert alone.eligible == (1,)
    assert shrunk(record(), (0,)).eligible == (1, 2)
    assert shrunk(record(), (0, 1), minimum=3).eligible == (2,)
    assert shrunk(shrunk(record(), (0, 1), minimum=3), (0,), minimum=3).eligible == (2, 1)
    assert shrunk(alone, (0, 2)).eligible == (), "from now on rows are committed without node 1"


def test_a_lower_minimum_ends_eligibility() -> None:
    """The leader would commit nothing for ever; or a replica without its rows could lead."""
    world = World(settings={"min_in_sync": 1})
    world.routes[0] = ALONE
    after = mended(world)
    assert after is not None
    assert (after.isr, after.eligible) == ((0,), ())
    world.settings["min_in_sync"] = 2
    assert mended(world) is None


@pytest.mark.proves("B-06")
@pytest.mark.parametrize(("third", "candidate"), [({}, 1), (LOST, 1), (None, 1)])
def test_an_eligible_replica_leads_when_the_set_has_lost_its_data(
    third: dict[str, Any] | None, candidate: NodeId
) -> None:
    """The acknowledged rows are there, and nobody could ever read them again."""
    world = World()
    world.routes[0] = ALONE
    world.reports |= {(0, 0): LOST, (0, 2): third}
    after = mended(world)
    assert after is not None
    assert (after.leader, after.isr) == (candidate, (candidate,))
    assert after.leader_epoch > ALONE.leader_epoch
    assert after.eligible == (() if third == LOST else (2,))


def test_a_member_of_the_set_comes_before_who_is_eligible() -> None:
    """A leader alone answers reads for as long as it runs: another one would not know of it."""
    world = World(settings={"min_in_sync": 3})
    world.routes[0] = record(isr=(0, 1), eligible=(2,))
    world.reports[0, 0] = LOST
    after = mended(world)
    assert after is not None
    assert (after.leader, after.isr, after.eligible) == (1, (1,), (2,))
    world.silent[1] = 1000
    after = mended(world)
    assert after is None or after.leader == 0, "node 1 may come back, or still lead"


def test_an_unreachable_leader_is_not_replaced_from_who_is_eligible() -> None:
    """It may run on where nobody sees it, and answer reads that miss what is written since."""
    world = World()
    world.routes[0] = ALONE
    world.silent[0] = 1000
    world.lost.add(0)
    assert mended(world) is None


@pytest.mark.proves("B-06")
def test_who_lost_its_data_is_not_eligible_any_more() -> None:
    """It would be elected, and serve an empty partition."""
    world = World()
    world.routes[0] = ALONE
    world.reports[0, 1] = LOST
    after = mended(world)
    assert after is not None
    assert (after.leader, after.isr, after.eligible) == (0, (0,), (2,))
    world.reports |= {(0, 0): LOST, (0, 2): LOST}
    after = mended(world)
    assert after is not None
    assert (after.leader, after.isr, after.eligible) == (0, (0,), ()), "the leader in name"


def test_a_removed_replica_is_not_eligible() -> None:
    """The record would name a node that has deleted the partition."""
    after = routes.remove_replicas(ALONE, (2,))
    assert isinstance(after, LeaderAndIsr)
    assert (after.replicas, after.eligible) == ((0, 1), (1,))


def test_a_disk_that_may_have_to_lead_is_not_thrown_away() -> None:
    """An update would delete a pod that does not serve, with the rows on its own disk."""
    world = World()
    world.routes = [ALONE]
    assert counted_nodes(world.view()) == {0, 1, 2}


def test_nobody_joins_while_a_takeover_is_authorized() -> None:
    """A candidate that leads already does not wait for who joins, and that one could lead next."""
    before = record(isr=(0, 1), next_leader=1, next_epoch=5)
    proposal = IsrProposal(
        new_isr=(0, 1, 2), leader_epoch=4, partition_epoch=9, coordinator_epoch=1
    )
    answer = routes.adjust_isr(before, proposal, 2, minimum=2)
    assert isinstance(answer, routes.Refusal)
    assert answer.reason is RefusalReason.TAKEOVER_AUTHORIZED


# --- as a property ------------------------------------------------------------------------------

NODES = range(4)
STEPS = 300
Log = list[int]


def shared(one: Log, other: Log) -> int:
    """Return how many entries two logs begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


class Group:
    """Logs, a coordinator, a leader that hears of it late; less is lost than a group must survive.

    One disk at a time, and not the last one that counts; `minimum` is 2 or 3, and changes.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.minimum = self.told_minimum = self.rng.choice((2, 3))
        self.record = self.known = routes.initial(tuple(NODES), 1)
        self.waited_for = set(NODES)
        self.asked: list[IsrProposal] = []
        self.logs: dict[NodeId, Log] = {n: [] for n in NODES}
        self.empty: set[NodeId] = set()
        self.committed: Log = []
        self.entries = 0
        self.barrier = 0
        self.elected = 0

    # --- the leader --------------------------------------------------------------------------

    @property
    def _led(self) -> Log | None:
        """The leader's log; None while it has lost it."""
        return None if self.known.leader in self.empty else self.logs[self.known.leader]

    def _enough(self) -> bool:
        return len(self.known.isr) >= self.told_minimum and not self.known.eligible

    def write(self) -> None:
        """Append a row at the leader."""
        if self._led is not None and self._enough():
            self.entries += 1
            self._led.append(self.entries)

    def follow(self) -> None:
        """Have a replica roll back to what it shares with the leader, and read on."""
        node, led = self.rng.choice(NODES), self._led
        log = self.logs[node]
        if led is not None and log is not led and node not in self.empty:
            del log[shared(log, led) :]
            log += led[len(log) : len(log) + self.rng.randrange(6)]

    def commit(self) -> None:
        """Commit what all that the leader waits for have."""
        led = self._led
        if led is not None and self._enough():
            held = min(shared(self.logs[n], led) for n in self.waited_for)
            self.committed = led[:held] if held > len(self.committed) else self.committed

    def propose(self) -> None:
        """Have the leader ask for a set; who joins has all it began with and has committed."""
        led, known = self._led, self.known
        if led is None:
            return
        floor = max(self.barrier, len(self.committed))
        wished = {n for n in NODES if self.rng.random() < 0.5}
        able = {n for n in known.replicas if shared(self.logs[n], led) >= floor} - self.empty
        members = {known.leader} | (wished & (able | set(known.isr)))
        self.waited_for |= members
        self.asked.append(
            IsrProposal(
                new_isr=tuple(sorted(members)),
                leader_epoch=known.leader_epoch,
                partition_epoch=known.partition_epoch,
                coordinator_epoch=1,
            )
        )

    def hear(self) -> None:
        """Have the leader hear of the record."""
        if self.record.partition_epoch > self.known.partition_epoch:
            self.known, self.waited_for = self.record, set(self.record.isr)

    def hear_minimum(self) -> None:
        """Have the leader's node hear of the zone's minimum."""
        self.told_minimum = self.minimum

    # --- the coordinator ---------------------------------------------------------------------

    def _take(self, answer: routes.Answer | None) -> None:
        if not isinstance(answer, LeaderAndIsr):
            return
        assert violations(answer) == ()
        led = answer.leader_epoch > self.record.leader_epoch
        self.elected += led and answer.leader in self.record.eligible
        self.record = answer
        if led:
            self.known, self.waited_for, self.asked = answer, set(answer.isr), []
            self.barrier = len(self.logs[answer.leader])

    def answer(self) -> None:
        """Take a proposal, perhaps one that has been withdrawn."""
        if self.asked:
            proposal = self.rng.choice(self.asked)
            epoch = self.record.coordinator_epoch
            self._take(routes.adjust_isr(self.record, proposal, epoch, minimum=self.minimum))

    def change_minimum(self) -> None:
        """Have a person change the zone; the coordinator sees it at once."""
        self.minimum = self.rng.choice((2, 3))

    def mend(self) -> None:
        """Do what `repairs` does."""
        world = World(nodes=len(NODES), settings={"min_in_sync": self.minimum})
        world.routes = [self.record]
        world.silent = {n: 1000.0 for n in NODES if self.rng.random() < 0.2}
        world.reports = {(0, n): LOST for n in self.empty}
        self._take(mended(world))

    def give_up(self) -> None:
        """Wait for a node no longer, as a migration does."""
        node = self.rng.choice(NODES)
        self._take(routes.drop_from_isr(self.record, (node,), minimum=self.minimum))

    # --- disks -------------------------------------------------------------------------------

    def lose_disk(self) -> None:
        """Lose a disk, while another one has what was acknowledged."""
        node = self.rng.choice(NODES)
        others = {*self.record.isr, *self.record.eligible} - {node}
        if others and not self.empty:
            self.empty.add(node)
            self.logs[node] = []

    def copy(self) -> None:
        """Copy a replica again when nobody counts on it."""
        counted = {*self.record.isr, *self.record.eligible}
        if self._led is not None:
            for node in self.empty - counted:
                self.empty.discard(node)
                self.logs[node] = list(self._led)

    def check(self) -> None:
        """Assert that somebody may lead, and that whoever may has all that is committed."""
        whole = {*self.record.isr, *self.record.eligible} - self.empty
        assert whole, "nobody has it any more"
        for node in whole:
            assert self.logs[node][: len(self.committed)] == self.committed, f"node {node}"


@pytest.mark.proves("B-06")
def test_whoever_may_lead_has_what_was_acknowledged() -> None:
    """Acknowledged rows would be lost by some order of shrinking sets, news and lost disks."""
    committed = elected = 0
    for seed in range(300):
        group = Group(seed)
        steps = [
            *(group.write, group.follow, group.follow, group.follow, group.commit, group.hear) * 3,
            *(group.propose, group.answer, group.mend) * 2,
            *(group.change_minimum, group.hear_minimum, group.give_up),
            *(group.lose_disk, group.copy),
        ]
        try:
            for _ in range(STEPS):
                group.rng.choice(steps)()
                group.check()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        committed += len(group.committed)
        elected += group.elected
    assert committed > 1000, "hardly anything was acknowledged"
    assert elected > 50, "hardly any eligible replica has led"
