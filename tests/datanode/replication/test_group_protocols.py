"""The contract of replication protocols (ZR-07), run on the in-sync protocol and on another one.

A model of a group: logs as numbers, a coordinator that answers by `routes.adjust_isr`, late or
never, a leader that restarts. What a protocol promises is looked at after every step.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from primary_backup import PrimaryBackup
from replica_cluster import Client, cluster

from rezone.datanode.commit import protocol
from rezone.datanode.commit.lease import NEVER, Lease
from rezone.datanode.commit.protocol import Lead, Leadership
from rezone.datanode.settings import NodeSettings
from rezone.domain.routing import routes
from rezone.wire.errors import NotEnoughReplicasError, NotReadyError
from rezone.wire.messages import FIRST_PARTITION_EPOCH, IsrProposal, LeaderAndIsr, Role

ALL: dict[str, Lead] = {**protocol.PROTOCOLS, "PrimaryBackup": PrimaryBackup}
P, LEADER, NODES = 0, 0, 4
MINIMUM = 2
SETTINGS = NodeSettings(replica_lag_ms_max=1_000)

pytestmark = pytest.mark.proves("ZR-07")
every_protocol = pytest.mark.parametrize("lead", ALL.values(), ids=ALL.keys())


class Group:
    """A group of four, of which three are members at first."""

    def __init__(self, lead: Lead, seed: int) -> None:
        self.rng = random.Random(seed)
        self.record = LeaderAndIsr(
            leader=LEADER,
            leader_epoch=1,
            isr=(0, 1, 2),
            replicas=tuple(range(NODES)),
            coordinator_epoch=1,
            partition_epoch=FIRST_PARTITION_EPOCH + 1,
        )
        self.now = 0.0
        self.log_end = 0
        self.durable = dict.fromkeys(range(NODES), 0)
        self.streaming = {1, 2, 3}
        self.persisted: tuple[int, ...] = ()
        self.asked: list[IsrProposal] = []
        self._lead = lead
        self.leadership = self._begin(committed=0)

    def _begin(self, committed: int) -> Leadership:
        for node in self.streaming:
            self.durable[node] = min(self.durable[node], self.log_end)
        return self._lead(
            node=LEADER,
            state=self.record if not hasattr(self, "leadership") else self.leadership.state,
            barrier=self.log_end,
            committed=committed,
            settings=SETTINGS,
            hold_until=self.now + self.rng.random(),
            proposed=self.persisted,
        )

    # --- steps -----------------------------------------------------------------------------------

    def write(self) -> None:
        """Append rows at the leader."""
        self.log_end += self.rng.randrange(1, 20)

    def sync(self) -> None:
        """Bring the leader's log to its disk."""
        self.durable[LEADER] = self.log_end

    def ack(self) -> None:
        """Have a follower receive some rows and ack them, or only ack again."""
        node = self.rng.randrange(1, NODES)
        self.streaming.add(node)
        self.durable[node] = self.rng.randint(self.durable[node], self.log_end)
        self._tell(node)

    def _tell(self, node: int) -> None:
        at = self.durable[node]
        self.leadership.follower(node).streaming = True
        self.leadership.granted(node, Lease(NEVER, NEVER, 1))
        self.leadership.acked(node, at, at, self.now, self.log_end)

    def break_stream(self) -> None:
        """Break a follower's stream."""
        node = self.rng.randrange(1, NODES)
        self.streaming.discard(node)
        self.leadership.follower(node).streaming = False

    def wait(self) -> None:
        """Let time pass."""
        self.now += self.rng.random() * 2

    def answer(self) -> None:
        """Have the coordinator answer something that it was ever asked, and tell the leader."""
        if self.asked:
            after = routes.adjust_isr(self.record, self.rng.choice(self.asked), 1, minimum=MINIMUM)
            if isinstance(after, LeaderAndIsr):
                self.record = after
        if self.rng.random() < 0.6:
            self.leadership.confirm(self.record)

    def restart(self) -> None:
        """Start the leader's process again; what was not synced and not committed is gone."""
        known = self.rng.randint(0, min(self.leadership.committed, self.durable[LEADER]))
        self.log_end = self.durable[LEADER]
        for node in range(1, NODES):
            self.durable[node] = min(self.durable[node], self.log_end)
        self.leadership = self._begin(known)
        self.streaming = set()

    def run(self) -> None:
        """Do what a leader does after each event, and look at what it must keep."""
        committed = self.leadership.committed
        held = self.now < self.leadership.hold_until
        moved = self.leadership.advance(self.durable[LEADER], self.now, MINIMUM)
        assert not (held and moved), "an earlier leader may still answer reads"
        known = self.leadership.state
        assert not moved or (len(known.isr) >= MINIMUM and not known.eligible), "too few have it"
        assert self.leadership.committed >= committed, "a commit offset never falls"
        members = set(self.leadership.maximal)
        if self.leadership.propose(self.now, self.log_end):
            assert not held or self.leadership.maximal <= members, "a joiner may have promised"
            self.persisted = tuple(sorted(self.leadership.maximal))
        proposal = self.leadership.proposal
        if proposal is not None and proposal not in self.asked:
            self.asked.append(proposal)
        self.check()

    def check(self) -> None:
        """Look whether any node that may be made the leader lacks what is committed."""
        sets = [(*self.record.isr, *self.record.eligible)]
        for proposal in self.asked:
            after = routes.adjust_isr(self.record, proposal, 1, minimum=MINIMUM)
            if isinstance(after, LeaderAndIsr):
                sets.append((*after.isr, *after.eligible))
        for members in sets:
            short = [n for n in members if self.durable[n] < self.leadership.committed]
            assert not short, f"{short} of {members} lack rows below {self.leadership.committed}"

    def settle(self) -> None:
        """Have everybody stream and ack everything, and every wish answered."""
        self.now += 2.0
        for _ in range(4):
            self.sync()
            for node in range(1, NODES):
                self.streaming.add(node)
                self.durable[node] = self.log_end
                self._tell(node)
            self.run()
            if self.leadership.proposal is not None:
                after = routes.adjust_isr(self.record, self.leadership.proposal, 1, minimum=MINIMUM)
                if after is self.record:
                    after = routes.confirm(self.record, 1)
                if isinstance(after, LeaderAndIsr):
                    self.record = after
            self.leadership.confirm(self.record)
            self.run()


@every_protocol
@pytest.mark.parametrize("seed", range(40))
def test_whoever_may_lead_has_all_that_is_committed(lead: Lead, seed: int) -> None:
    """An acknowledged row would be lost with the next change of the leader."""
    group = Group(lead, seed)
    steps = [group.write, group.sync, group.ack, group.ack, group.ack]
    steps += [group.break_stream, group.wait, group.answer, group.restart]
    for _ in range(150):
        group.rng.choice(steps)()
        group.run()
    group.settle()
    assert group.leadership.committed == group.log_end, "in the end everything is committed"
    assert set(group.record.isr) == set(range(NODES)), "and everybody is a member"
    assert group.leadership.serving
    assert group.leadership.proposal is None


@every_protocol
def test_a_wish_stands_until_a_newer_record_answers_it(lead: Lead) -> None:
    """A wish whose answer was lost would never be made again (ZR-09)."""
    group = Group(lead, 1)
    group.now += 2.0
    group.leadership.confirm(group.record)
    for node in range(1, NODES):
        group._tell(node)
    group.run()
    wish = group.leadership.proposal
    assert wish is not None
    assert wish.new_isr == (0, 1, 2, 3)
    group.leadership.confirm(group.record)
    group.run()
    assert group.leadership.proposal == wish
    group.restart()
    assert group.leadership.maximal == {0, 1, 2, 3}, "an answer may still come"
    assert group.leadership.proposal is not None


@every_protocol
def test_new_and_small_groups_refuse_writes(lead: Lead) -> None:
    """A row would be acknowledged on fewer disks than the zone asks for."""
    group = Group(lead, 1)
    group.leadership.require_open()
    group.leadership.require_enough(3)
    with pytest.raises(NotEnoughReplicasError):
        group.leadership.require_enough(4)
    new = lead(
        node=LEADER,
        state=routes.initial((0, 1), 1),
        barrier=0,
        committed=0,
        settings=SETTINGS,
        hold_until=0.0,
        proposed=(),
    )
    with pytest.raises(NotReadyError):
        new.require_open()


@pytest.mark.parametrize("name", ALL)
def test_data_nodes_replicate_by_the_protocol_of_their_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The interface would be one in name only: nodes would need the in-sync protocol."""
    registry: Any = protocol.PROTOCOLS
    monkeypatch.setitem(registry, name, ALL[name])
    settings = NodeSettings(protocol=name, replica_lag_ms_max=400, reconnect_ms_max=100)
    with cluster(tmp_path, 3, settings=settings) as c:
        c.create(P, (0, 1, 2))
        assert isinstance(c.replica(0).leadership, ALL[name])  # type: ignore[arg-type]
        k = Client(c)
        k.put(P, {b"a": b"1"})
        c.move(P, 1)
        k.put(P, {b"b": b"2"})
        # A node that the coordinator puts out is taken in again once it has all rows.
        c.nodes[2].stop()
        c.change(P, isr=(0, 1))
        k.put(P, {b"c": b"3"})
        c.nodes[2].start()
        c.wait_up(2)
        c.until_settled("it is back", lambda: c.isr(P) == {0, 1, 2})
        c.nodes[1].stop()
        c.change(P, leader=2, leader_epoch=c.records[P].leader_epoch + 1, isr=(0, 2))
        c.until("it leads", lambda: c.report(2, P).role is Role.LEADER)
        assert k.get(P, [b"a", b"b", b"c"]) == {b"a": b"1", b"b": b"2", b"c": b"3"}
        k.close()
