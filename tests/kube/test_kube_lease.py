"""The election: never two leaders, a new epoch with each acquisition, loss told at once."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_helpers import FakeClock, FakeLeases, Line, settle

from rezone.kube.api.client import Kube
from rezone.kube.api.errors import (
    ConflictWriteError,
    ExistsError,
    UnavailableError,
    UnknownOutcomeError,
)
from rezone.kube.api.kinds import Lease
from rezone.kube.stored.lease import (
    LEASE_NAME,
    Answers,
    ElectionSettings,
    LeaderElection,
    new_identity,
)

SETTINGS = ElectionSettings(
    lease_duration_seconds=15,
    renew_deadline_seconds=10.0,
    renew_interval_seconds=2.0,
    retry_interval_seconds=3.0,
    suspect_after_seconds=5.0,
)


async def is_there(_address: str) -> bool:
    """Answer, as a holder that is there."""
    return True


class Process:
    """One operator process: an election, what it was told, and its task."""

    def __init__(
        self,
        kube: Any,
        clock: FakeClock,
        identity: str,
        namespace: str = "ns",
        pod: str = "",
        *,
        times: ElectionSettings = SETTINGS,
        address: str = "",
        answers: Answers = is_there,
    ) -> None:
        self.clock = clock
        self.line = Line(kube)
        self.epochs: list[int] = []
        self.lost = 0
        self.cancelled = False
        self.election = LeaderElection(
            self.line,  # type: ignore[arg-type]
            namespace=namespace,
            identity=identity,
            pod=pod,
            address=address,
            answers=answers,
            settings=times,
            clock=clock,
        )
        self.task = asyncio.ensure_future(self.election.run(self._work, self._on_lost))

    async def _work(self, epoch: int) -> None:
        self.epochs.append(epoch)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    def _on_lost(self) -> None:
        assert not self.election.leading
        assert not self.cancelled, "told only after the work was ended"
        self.lost += 1

    async def end(self) -> None:
        """Kill the process: nothing is released."""
        self.line.cut = True
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_one_leads_and_a_stopped_one_hands_over_at_once() -> None:
    """Without the release every rollout of the operator would cost a lease duration."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    two = Process(leases, clock, "two")
    await settle()
    assert (one.epochs, two.epochs) == ([1], [])
    one.election.stop()
    await settle()
    assert one.task.done()
    assert one.cancelled
    assert one.lost == 0
    clock.advance(3)
    await settle()
    assert two.epochs == [2]
    await two.end()


async def test_silent_leader_is_replaced_after_its_duration_not_before() -> None:
    """Too early: two leaders. Never: a crashed operator is the end of all moves."""
    leases, clock = FakeLeases(), FakeClock()
    frozen = FakeClock(start=7.0)
    one = Process(leases, frozen, "one")
    await settle()
    two = Process(leases, clock, "two")
    await settle()
    for _ in range(4):
        clock.advance(3)
        await settle()
        assert two.epochs == []
    clock.advance(3)
    await settle()
    assert two.epochs == [2]
    assert one.election.leading, "a frozen process cannot know: the epoch must fence it"
    frozen.advance(2)
    await settle()
    assert one.lost == 1
    assert not one.election.leading
    assert one.task.done()
    await two.end()


@pytest.mark.parametrize("first_look", [0.0, 0.25, 0.5, 0.75])
async def test_succession_takes_the_duration_and_a_look_at_most(first_look: float) -> None:
    """The documented bound of a write gap builds on it; a look that comes later breaks it."""
    times = ElectionSettings(retry_interval_seconds=1.5)
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one", times=times)
    await settle()
    clock.advance(first_look)
    two = Process(leases, clock, "two", times=times)
    await settle()
    clock.advance(times.renew_interval_seconds - first_look)
    await settle()
    renewed = clock.time
    await one.end()
    while not two.epochs and clock.time < renewed + 30:
        clock.advance(0.125)
        await settle()
    waited, duration = clock.time - renewed, times.lease_duration_seconds
    assert duration <= waited <= duration + times.retry_interval_seconds
    await two.end()


class Asked:
    """Whether holders answer; notes at which addresses they were asked."""

    def __init__(self, *, there: bool) -> None:
        self.there = there
        self.addresses: list[str] = []

    async def __call__(self, address: str) -> bool:
        """Answer, or not."""
        self.addresses.append(address)
        return self.there


async def test_a_leader_that_neither_renews_nor_answers_is_not_waited_for() -> None:
    """Writes of what was led on its machine would wait for a whole Lease."""
    leases, clock, asked = FakeLeases(), FakeClock(), Asked(there=False)
    one = Process(leases, clock, "one", address="one:1")
    await settle()
    await one.end()
    two = Process(leases, clock, "two", address="two:1", answers=asked)
    await settle()
    clock.advance(3)
    await settle()
    clock.advance(1.9)
    await settle()
    assert (two.epochs, asked.addresses) == ([], [])
    clock.advance(0.1)  # five seconds after it was first seen
    await settle()
    assert (two.epochs, asked.addresses) == ([2], ["one:1"])
    await two.end()


async def test_a_leader_that_answers_keeps_its_lease_for_its_duration() -> None:
    """One whose API server is slow would be replaced by one whose own is as slow."""
    leases, clock, asked = FakeLeases(), FakeClock(), Asked(there=True)
    one = Process(leases, clock, "one", address="one:1")
    await settle()
    await one.end()
    two = Process(leases, clock, "two", answers=asked)
    await settle()
    for _ in range(5):
        assert two.epochs == []
        clock.advance(3)
        await settle()
    assert two.epochs == [2]
    assert set(asked.addresses) == {"one:1"}
    await two.end()


async def test_a_leader_that_renews_is_not_asked() -> None:
    """Each look would cost both processes a connection."""
    leases, clock, asked = FakeLeases(), FakeClock(), Asked(there=False)
    one = Process(leases, clock, "one", address="one:1")
    await settle()
    two = Process(leases, clock, "two", answers=asked)
    await settle()
    for _ in range(40):
        clock.advance(1)
        await settle()
    assert (one.epochs, two.epochs, asked.addresses) == ([1], [], [])
    await one.end()
    await two.end()


async def test_the_address_of_a_holder_before_is_not_asked_for_the_next() -> None:
    """A holder that says no address would be taken for lost as soon as its Lease is late."""
    leases, clock, asked = FakeLeases(), FakeClock(), Asked(there=False)
    one = Process(leases, clock, "one", address="one:1")
    await settle()
    one.election.stop()
    await settle()
    two = Process(leases, clock, "two")
    await settle()
    await two.end()
    three = Process(leases, clock, "three", answers=asked)
    await settle()
    for _ in range(4):
        clock.advance(3)
        await settle()
    assert (two.epochs, three.epochs, asked.addresses) == ([2], [], [])
    await three.end()


async def test_one_that_renews_while_it_is_asked_keeps_its_lease() -> None:
    """It was only late: two would lead until the first one notices."""
    leases, clock = FakeLeases(), FakeClock()
    other = FakeClock()
    one = Process(leases, other, "one", address="one:1")

    async def answers(_address: str) -> bool:
        other.advance(2)  # it renews, and its answer is lost
        await settle()
        return False

    await settle()
    two = Process(leases, clock, "two", answers=answers)
    await settle()
    for _ in range(6):
        clock.advance(1)
        await settle()
    assert (one.epochs, two.epochs, one.lost) == ([1], [], 0)
    await one.end()
    await two.end()


async def test_renewals_keep_it() -> None:
    """A leader that loses its Lease in good weather would move nothing to its end."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    two = Process(leases, clock, "two")
    for _ in range(60):
        clock.advance(1)
        await settle()
        assert one.election.leading
    assert (one.epochs, two.epochs) == ([1], [])
    await one.end()
    await two.end()


async def test_loss_is_told_at_the_deadline_while_a_request_hangs() -> None:
    """A hanging API server must not keep a leader in the belief that it leads."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    leases.hang = asyncio.Event()
    clock.advance(2)
    await settle()
    clock.advance(7.9)
    await settle()
    assert one.lost == 0
    clock.advance(0.1)
    await settle()
    assert one.lost == 1
    assert one.cancelled
    assert one.task.done()


async def test_loss_is_told_at_the_deadline_while_renewals_fail() -> None:
    """Errors that come back at once must not stretch the deadline to the next turn."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    leases.errors_before = [UnavailableError("down")] * 50
    for _ in range(9):
        clock.advance(1)
        await settle()
    assert one.lost == 0
    clock.advance(1)
    await settle()
    assert one.lost == 1


async def test_lease_that_was_taken_or_deleted_is_lost_at_once() -> None:
    """Going on until the deadline would be acting on a Lease that is another's."""
    for meddle in ("take", "delete"):
        leases, clock = FakeLeases(), FakeClock()
        one = Process(leases, clock, "one")
        await settle()
        key = ("ns", LEASE_NAME)
        if meddle == "take":
            found = await leases.find(Lease, *key)
            assert found is not None
            found["spec"] |= {"holderIdentity": "two", "leaseTransitions": 2}
            await leases.replace(Lease, found)
        else:
            del leases.objects[key]
        clock.advance(2)
        await settle()
        assert one.lost == 1, meddle


async def test_foreign_label_on_the_lease_does_not_end_leading() -> None:
    """A person's `kubectl label` must not restart the operator."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    found = await leases.find(Lease, "ns", LEASE_NAME)
    assert found is not None
    found["metadata"]["labels"] = {"seen": "yes"}
    await leases.replace(Lease, found)
    clock.advance(2)
    await settle()
    assert one.election.leading
    stored = leases.objects["ns", LEASE_NAME]
    assert stored["metadata"]["labels"] == {"seen": "yes"}, "the renewal took the label off"
    await one.end()


async def test_unknown_outcomes_are_asked_for() -> None:
    """A write that landed without an answer must neither block the holder nor lose the Lease."""
    leases, clock = FakeLeases(), FakeClock()
    leases.errors_after = [UnknownOutcomeError("no answer")]
    one = Process(leases, clock, "one")
    await settle()
    assert one.epochs == []
    clock.advance(3)
    await settle()
    assert one.epochs == [1]
    leases.errors_after = [UnknownOutcomeError("no answer")]
    clock.advance(2)
    await settle()
    clock.advance(2)
    await settle()
    assert one.election.leading
    await one.end()


async def test_same_identity_gets_a_new_epoch_too() -> None:
    """After a crash the old life's calls may still be on the wire: they must be older."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "same")
    await settle()
    await one.end()
    again = Process(leases, clock, "same")
    await settle()
    assert again.epochs == [], "the holder may be alive"
    for _ in range(6):
        clock.advance(3)
        await settle()
    assert again.epochs == [2]
    await again.end()


async def test_restarted_container_does_not_wait_for_its_own_dead_process() -> None:
    """Every crash of the operator would stop all moves for a lease duration."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "operator-7_a1", pod="operator-7")
    await settle()
    await one.end()
    other = Process(leases, clock, "operator-71_b2", pod="operator-71")
    await settle()
    assert other.epochs == [], "another pod cannot know"
    again = Process(leases, clock, "operator-7_c3", pod="operator-7")
    await settle()
    assert again.epochs == [2]
    await again.end()
    await other.end()


async def test_deleted_lease_does_not_bring_back_epochs() -> None:
    """Data nodes refuse lower epochs: a coordinator beginning at 1 again could do nothing."""

    async def floor() -> int:
        return 41

    leases, clock = FakeLeases(), FakeClock()
    epochs: list[int] = []

    async def work(epoch: int) -> None:
        epochs.append(epoch)

    election = LeaderElection(
        leases,  # type: ignore[arg-type]
        namespace="ns",
        identity="one",
        clock=clock,
        epoch_floor=floor,
    )
    task = asyncio.ensure_future(election.run(work, lambda: None))
    await settle()
    assert epochs == [42]
    assert election.leading, "that the work returned ends nothing"
    election.stop()
    await task
    with pytest.raises(RuntimeError, match="leads once"):
        await election.run(work, lambda: None)


@pytest.mark.proves("NW-06")
async def test_an_epoch_that_data_nodes_know_from_another_is_not_used_again() -> None:
    """A Lease restored from a backup would give out the same epochs a second time."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    one.election.stop(above=7)
    await settle()
    assert one.task.done()
    two = Process(leases, clock, "two")
    await settle()
    assert (one.epochs, two.epochs) == ([1], [8])
    await two.end()


@pytest.mark.proves("NW-06")
@pytest.mark.parametrize("revisions", ["back", "on"])
async def test_a_leader_ends_when_its_lease_goes_back_in_time(revisions: str) -> None:
    """Its watches would tell it nothing any more, and what it remembers may not be so."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    backup, version = copy.deepcopy(leases.objects), leases.version
    for _ in range(3):
        clock.advance(2)
        await settle()
    assert one.election.leading
    leases.objects = backup
    if revisions == "back":
        leases.version = version
    else:
        # As `etcdutl snapshot restore --bump-revision` leaves it.
        leases.version += 1000
        backup["ns", LEASE_NAME]["metadata"]["resourceVersion"] = str(leases.version)
    clock.advance(2)
    await settle()
    assert one.lost == 1
    await one.end()


@pytest.mark.proves("NW-06")
async def test_one_who_waits_ends_when_the_lease_goes_back_in_time() -> None:
    """It would lead some day, with watches that wait for versions that are yet to come."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    two = Process(leases, clock, "two")
    await settle()
    backup = copy.deepcopy(leases.objects)
    for _ in range(3):
        clock.advance(3)
        await settle()
    assert two.lost == 0
    await one.end()
    leases.objects = backup
    clock.advance(3)
    await settle()
    assert (two.lost, two.epochs) == (1, [])
    assert two.task.done()


@pytest.mark.proves("NW-06")
async def test_one_who_waits_does_not_create_a_lease_that_is_gone() -> None:
    """After a restore from a backup without one, two would lead until the first one's renewal."""
    leases, clock = FakeLeases(), FakeClock()
    one = Process(leases, clock, "one")
    await settle()
    two = Process(leases, clock, "two")
    await settle()
    leases.objects.clear()
    one.line.cut = True
    clock.advance(3)
    await settle()
    assert one.election.leading, "it has not tried to renew since"
    assert (two.lost, two.epochs) == (1, [])
    assert two.task.done()
    await one.end()


async def test_error_of_the_work_releases_and_is_raised() -> None:
    """A coordinator that failed must let another try, and its error must be seen."""

    async def work(_: int) -> None:
        raise LookupError("broken")

    leases, clock = FakeLeases(), FakeClock()
    election = LeaderElection(
        leases,  # type: ignore[arg-type]
        namespace="ns",
        identity="one",
        clock=clock,
    )
    with pytest.raises(LookupError):
        await election.run(work, lambda: None)
    assert leases.objects["ns", LEASE_NAME]["spec"]["holderIdentity"] == ""


def test_settings_that_could_let_two_lead_are_refused() -> None:
    """The margin is all that stands between a slow leader and its successor."""
    with pytest.raises(ValueError, match="a fifth"):
        ElectionSettings(lease_duration_seconds=10, renew_deadline_seconds=9.5)
    with pytest.raises(ValueError, match="two renewals"):
        ElectionSettings(renew_interval_seconds=6)
    with pytest.raises(ValueError, match="must not be suspected"):
        ElectionSettings(renew_interval_seconds=2, suspect_after_seconds=2)
    assert new_identity() != new_identity()


@pytest.mark.slow
@pytest.mark.parametrize("asks", [False, True])
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_never_two_leaders_and_epochs_rise(asks: bool, seed: int) -> None:
    """The one property all fencing builds on, under errors, lost answers, pauses and restarts.

    Where holders are asked whether they are there, one that was frozen may believe in its Lease
    for as long as it has to renew it, though another leads by then; its epoch is the lower one.
    """
    asyncio.run(_simulate(random.Random(seed), asks=asks))


class Three:
    """Three processes, which are frozen now and then; with `asks` they ask for the holder."""

    def __init__(self, rng: random.Random, *, asks: bool) -> None:
        self._rng = rng
        self._asks = asks
        self.leases = FakeLeases()
        self._clocks = [FakeClock(start=rng.uniform(0, 500)) for _ in range(3)]
        self._missed = [0.0, 0.0, 0.0]
        self._thawed = [float("-inf")] * 3
        self.epochs: list[int] = []
        self.processes = [self._new(i) for i in range(3)]

    def _new(self, i: int) -> Process:
        answers = self._answers if self._asks else is_there
        return Process(self.leases, self._clocks[i], f"p{i}", address=str(i), answers=answers)

    async def _answers(self, address: str) -> bool:
        return not self._missed[int(address)]

    async def turn(self, i: int, seconds: float) -> None:
        """Let one see so much time pass, and what it missed; or freeze it, or leave it frozen."""
        # A frozen process cannot act, so it may believe what it likes until it is thawed.
        if self._rng.random() < (0.9 if self._missed[i] else 0.02):
            self._missed[i] += seconds
            return
        self._clocks[i].advance(self._missed[i] + seconds)
        if self._missed[i]:
            self._thawed[i] = self._clocks[i].time
        self._missed[i] = 0.0
        await settle()
        self._check()
        if self.processes[i].task.done() or self._rng.random() < 0.02:
            await self._restart(i)

    def _check(self) -> None:
        leading = {
            i: process.epochs[-1]
            for i, process in enumerate(self.processes)
            if process.election.leading and not self._missed[i]
        }
        last = max(leading.values(), default=0)
        for i, epoch in leading.items():
            awake = self._clocks[i].time - self._thawed[i]
            was_frozen = self._asks and awake <= SETTINGS.renew_deadline_seconds
            assert epoch == last or was_frozen, "two lead"

    async def _restart(self, i: int) -> None:
        self.epochs += self.processes[i].epochs
        if self._rng.random() < 0.5:
            self.processes[i].election.stop()
            await settle()
        await self.processes[i].end()
        self.processes[i] = self._new(i)
        await settle()


async def _simulate(rng: random.Random, *, asks: bool) -> None:
    three = Three(rng, asks=asks)
    await settle()
    for _ in range(100):
        _meddle(rng, three.leases, three.processes)
        seconds = rng.choice([0.5, 1.0, 2.0])
        for i in rng.sample(range(3), 3):
            await three.turn(i, seconds)
    epochs = three.epochs
    for process in three.processes:
        epochs += process.epochs
        await process.end()
    assert len(epochs) == len(set(epochs)), "an epoch was handed out twice"
    assert epochs, "nobody ever led"
    stored = three.leases.objects["ns", LEASE_NAME]["spec"]["leaseTransitions"]
    assert max(epochs) <= stored, "an epoch was used that is not in the Lease"


def _meddle(rng: random.Random, leases: FakeLeases, processes: list[Process]) -> None:
    if rng.random() < 0.1:
        leases.errors_before = [UnavailableError("down")] * rng.randint(1, 6)
    if rng.random() < 0.1:
        leases.errors_after = [UnknownOutcomeError("no answer")] * rng.randint(1, 3)
    for process in processes:
        if rng.random() < 0.1:
            process.line.cut = not process.line.cut


async def _contract(api: Any, namespace: str) -> None:
    assert await api.find(Lease, namespace, "x") is None
    body = {
        "metadata": {"name": "x", "namespace": namespace},
        "spec": {"holderIdentity": "a", "leaseTransitions": 1},
    }
    first = await api.create(Lease, body)
    assert first["metadata"]["uid"]
    with pytest.raises(ExistsError):
        await api.create(Lease, body)
    second = await api.replace(Lease, {**first, "spec": {**first["spec"], "leaseTransitions": 2}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    with pytest.raises(ConflictWriteError):
        await api.replace(Lease, first)
    assert (await api.find(Lease, namespace, "x"))["spec"]["leaseTransitions"] == 2
    gone = {**second, "metadata": {**second["metadata"], "name": "y"}}
    with pytest.raises(ConflictWriteError):
        await api.replace(Lease, gone)


async def test_contract_of_the_fake() -> None:
    """The simulation proves nothing if the fake is kinder than the API server."""
    await _contract(FakeLeases(), "ns")


@pytest.mark.apiserver
@pytest.mark.slow
async def test_contract_of_the_real_one(api: Kube, namespace: str) -> None:
    """What the API server does otherwise than the fake would go unseen in the simulation."""
    await _contract(api, namespace)


@pytest.mark.apiserver
@pytest.mark.slow
async def test_two_electors_on_the_real_api_server(api: Kube, namespace: str) -> None:
    """Times and formats that the real API server takes differ from any fake's."""
    one = Process(api, FakeClock(), "one", namespace)
    await one.clock.parked(2.0)
    two = Process(api, FakeClock(start=5.0), "two", namespace)
    await two.clock.parked(3.0)
    assert (one.epochs, two.epochs) == ([1], [])
    one.clock.advance(2)
    await one.clock.parked(2.0)
    assert one.election.leading
    two.clock.advance(3)
    await two.clock.parked(3.0)
    for _ in range(5):
        two.clock.advance(3)
        if two.clock.time < 23.0:
            await two.clock.parked(3.0)
    await two.clock.parked(2.0)
    assert two.epochs == [2]
    one.clock.advance(2)
    await asyncio.gather(one.task)
    assert one.lost == 1
    two.election.stop()
    await two.task
    stored = await api.get(Lease, namespace, LEASE_NAME)
    assert stored["spec"]["holderIdentity"] == ""
    assert stored["spec"]["leaseTransitions"] == 2
