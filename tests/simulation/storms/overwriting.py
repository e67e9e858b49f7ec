"""A zone that is overwritten in a storm: drivers, writers, readers as of times, and what must hold.

The zone is that of `cluster.world`, with its operator. Drivers are those of `clients.overwriting`.

The model. As of a time a partition has what its log makes of it, up to that time; a new partition
besides that the rows of its job, all at the time at which the driver has read. Its log has what the
log of the old partition has from where its reshard stream began, up to the seal, and what was
written later. So what others wrote before is replaced, and what they wrote since then is there.

What must hold, beside the checks of each world: as of one time only old partitions answer, or only
new ones, and each row is what it is for every replica that answers; the new ones answer as of
*T* and later, which is after the last row of the old ones; each reader has read what the model has;
each replica has the versions of the model at the end, and no others; a driver that was told that
all is done has told the truth; a change feed of before *T* is truncated.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import weakref
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from rezone.datanode.reading.read import Readable, readable
from rezone.datanode.replica.replica import Replica
from rezone.datanode.resharding import overwrites
from rezone.domain.assignment import assignments
from rezone.kube.api.kinds import Manifest
from rezone.resources.zone_status import Assignments, Overwrite
from rezone.storage.applier import pairs_of
from rezone.storage.engines.base import FLAG_VALUE, FLAGS, TIME_BYTES, time_of, time_suffix
from rezone.storage.log.entry import EntryKind, header_at, iter_entries
from rezone.storage.reshard.reshard_entries import begins_reshard, is_resharded, note_of
from rezone.transfer.copying import backfill, new_rows
from rezone.wire.errors import RezoneError
from rezone.wire.layouts import HashRange, Layout, generation_of, index_of, next_layout_of
from rezone.wire.messages import AskedRange, FollowChanges, NodeId, PartitionId
from simulation.clients.overwriting import Calls, Driver, Job, is_done
from simulation.cluster import process
from simulation.cluster.apiserver import Key
from simulation.cluster.checks import Checks, header_time, unfinished
from simulation.cluster.world import KEYS, World
from simulation.nodes.held import Held, History
from simulation.nodes.machine import Machine, Machines
from simulation.nodes.network import Network
from simulation.nodes.node import SimulatedNode
from simulation.nodes.received import Versions, versions_of
from simulation.nodes.reshard_pulls import Lines
from simulation.scenarios import faults
from simulation.scenarios.faults import Storm, storm_of
from simulation.scenarios.scenarios import Start, at_rest
from simulation.storms.data_plane import SETTINGS

START = Start(partitions=2, replicas=3, nodes=4)
RUN_SECONDS_MAX = 3000.0
GRACE_SECONDS = 8.0
"""How long old partitions stand beside new ones: every step with both costs twice."""

SILENT_SECONDS = 20.0
"""After how long an overwrite is cancelled that nobody asks for."""

CHUNK_BYTES = 40
UNIT_BYTES = 700
"""So that a range comes in several units, each of several chunks."""

READ_CHANCE = 0.3
COARSE_MICROS = 400_000
COARSE_AGES = 12
DELETE_CHANCE = 0.2
NEW_ROWS = 8
JOBS_VALUE = b"of "
READ_SECONDS_MAX = 5.0
ROW_CHANCE = 0.6
GIVE_UP_CHANCE = 0.05
KILL_CHANCE = 0.02
GONE_CHANCE = 0.4
CALLED_BACK_SECONDS = 120.0
SECOND_CHANCE = 0.4
DIES_IN_MAX = 60
"""A driver that is to die does so within so many calls."""

AWAY_SECONDS = (0.0, 5.0, 40.0)


class OpenRead(NamedTuple):
    """A read as of a time that waits at a replica."""

    as_of: int
    may_answer: Readable


class FilledHeld(Held):
    """What a replica holds some of whose rows have come past its log: those of jobs."""

    def from_log(self, here: Versions) -> Versions:
        """Return what has come by the log."""
        return {k: v for k, v in here.items() if not v[1:].startswith(JOBS_VALUE)}


class OverwrittenMachines(Machines):
    """Machines whose nodes pull from each other, and whose replicas have rows past their logs."""

    lines: dict[NodeId, Lines]
    new_lines: Callable[[], Lines]

    def start(self, machine: Machine, place: str, network: Network) -> SimulatedNode:
        """Start a machine's node, with lines to all others."""
        lines: Lines = self.new_lines()
        made = SimulatedNode(
            machine.node,
            machine.disk,
            place,
            network,
            clock=self._loop,
            rng=random.Random(self._rng.getrandbits(64)),
            settings=SETTINGS,
            connect=lines.connect,
        )
        lines.node, self.lines[machine.node] = made, lines
        return made

    def new_held(self, partition: PartitionId) -> Held:
        """Return what is known of a replica that nothing is known of."""
        return FilledHeld(self._histories(partition))


class OverwriteChecks(Checks):
    """The checks of a world whose partitions go when others have taken their place.

    Of new ones nothing is acknowledged, and nothing read, before the switch.
    """

    def _may_serve(self, replica: Replica) -> bool:
        return generation_of(replica.partition_id) <= _world_of(self).generation

    def _read(self, partition: Replica, node: NodeId) -> None:
        if self._may_serve(partition):
            super()._read(partition, node)

    def _read_past(self, partition: Replica, node: NodeId) -> None:
        if self._may_serve(partition):
            super()._read_past(partition, node)

    def forget(self, partition: PartitionId) -> None:
        """Expect nothing of a partition any more: its route is deleted."""
        self.routes.pop(partition, None)
        self._acknowledged.pop(partition, None)
        self._answered.pop(partition, None)

    def dropped(self, node: NodeId, partition: Replica) -> None:
        """Check a replica that was deleted, unless its partition is no more, or begins again.

        Only what serves nothing yet may begin again.
        """
        number = partition.partition_id
        if number in self.routes and self._may_serve(partition):
            super().dropped(node, partition)
            return
        _world_of(self).counts["begun again"] += number in self.routes
        machine = self._world.kubelet.machine_of(node)
        assert machine is not None
        machine.held.pop(partition.partition_id, None)


def _world_of(checks: Checks) -> OverwriteWorld:
    world = checks._world
    assert isinstance(world, OverwriteWorld)
    return world


class Content(NamedTuple):
    """What all partitions of a layout have; `time_from` is from when on they may be read."""

    versions: dict[PartitionId, Versions]
    time_from: int


class OverwriteWorld(World):
    """A zone with readers as of times, and with drivers one after the other."""

    checks_kind = OverwriteChecks
    machines_kind = OverwrittenMachines
    checks: OverwriteChecks
    machines: OverwrittenMachines

    def __init__(self, seed: int) -> None:
        super().__init__(seed, at_rest(START))
        self.plan = random.Random(f"overwrites {seed}")
        self.readers = random.Random(f"readers {seed}")
        self.machines.lines = {}
        self.machines.new_lines = self._new_lines
        self.server.listeners.append(self._forget_routes)
        self.delete_chance = DELETE_CHANCE
        self.calls = Calls(self.network, self.plan, self.meanwhile)
        self.drivers = Drivers(self)
        self.calm_at = 0.0
        self.jobs: dict[str, Job] = {}
        self.overwritten: list[Overwrite] = []
        self.contents: dict[int, Content] = {}
        self.histories: dict[PartitionId, History] = {}
        self.past: dict[tuple[bytes, int], bytes | None] = {}
        self.answered: dict[int, int] = {}
        self._reads: weakref.WeakKeyDictionary[Replica, OpenRead] = weakref.WeakKeyDictionary()

    def _new_lines(self) -> Lines:
        return Lines(self.network, self.plan, self.meanwhile, self.counts)

    def _forget_routes(self, key: Key, manifest: Manifest) -> None:
        if key.kind == "ConfigMap" and key not in self.server.objects:
            for partition in manifest.get("data") or {}:
                if partition.isdecimal():
                    self.checks.forget(int(partition))

    # --- the run ---------------------------------------------------------------------------------

    def meanwhile(self) -> None:
        """Let happen what happens between a call and its answer."""
        if self.loop.time() < self.calm_at and self.plan.random() < KILL_CHANCE:
            faults.kill_one(self)
        for node in list(self.network.nodes.values()):
            if self.network.nodes.get(node.node_id) is node:
                with self.mortals():
                    node.step(self.loop.monotonic())

    def _step(self) -> None:
        super()._step()
        self.calls.faults = self.loop.time() < self.calm_at
        self._pull()
        self._note_switch()
        self.drivers.step()
        for replica in self.replicas():
            with self.mortals():
                self._read_as_of(replica)

    def _pull(self) -> None:
        for number, node in list(self.network.nodes.items()):
            there = self.network.nodes.get(number) is node and node.zone.configured
            if there and next_layout_of(node.zone.state.config) is not None:
                with self.mortals():
                    self.machines.lines[number].step()

    # --- what can be seen of it ------------------------------------------------------------------

    @property
    def keys(self) -> Assignments:
        """What is assigned, and what shall be."""
        status = self.zone().status
        assert status is not None
        return status.assignments

    @property
    def generation(self) -> int:
        """The generation of the layout that the zone has."""
        assert self.keys.stable is not None
        return self.keys.stable.layout_version

    @property
    def stable(self) -> Layout:
        """The layout that the zone has."""
        assert self.keys.stable is not None
        return Layout(self.generation, len(assignments.parse(self.keys.stable.replicas)))

    @property
    def time_from(self) -> int:
        """From when on the newest partitions may be read."""
        return self.overwritten[-1].readable_from if self.overwritten else 0

    def rows_of(self, index: int) -> list[bytes]:
        """Return all rows that anybody writes of the partition at a place."""
        start = Layout(0, START.partitions).range_of(index).start.to_bytes(8)
        return [start + b"key %d" % number for number in range(KEYS)] + [
            start + b"new %d" % number for number in range(NEW_ROWS)
        ]

    def new_job(self, name: str) -> Job:
        """Return a job that brings other rows: some that are there, and some that are not."""
        rows = [row for index in range(START.partitions) for row in self.rows_of(index)]
        chosen = [row for row in rows if self.plan.random() < ROW_CHANCE]
        job = self.jobs[name] = Job(name, {row: JOBS_VALUE + name.encode() for row in chosen})
        return job

    # --- readers ---------------------------------------------------------------------------------

    def _times(self) -> Iterator[int]:
        now = self.loop.micros() // COARSE_MICROS
        yield (now - self.readers.randrange(COARSE_AGES)) * COARSE_MICROS
        if self.time_from:
            yield self.time_from + self.readers.choice((-COARSE_MICROS, -1, 0, 1))
            yield (self.time_from // COARSE_MICROS + self.readers.randrange(3)) * COARSE_MICROS

    def _read_as_of(self, replica: Replica) -> None:
        """Go on with the read that waits at a replica, or begin one."""
        read = self._reads.pop(replica, None)
        if read is None:
            if self.readers.random() > READ_CHANCE:
                return
            as_of = self.readers.choice(list(self._times()))
            self._follow(replica, as_of)
            hashes = HashRange(*replica.hash_range)
            try:
                may_answer = readable(replica, as_of, replica.serving.hashes(hashes))
            except RezoneError as error:
                self.counts[f"as of: {error.code}"] += 1
                return
            read = OpenRead(as_of, may_answer)
            replica.leading.ask_leases()
        try:
            if not read.may_answer():
                if self.readers.random() > GIVE_UP_CHANCE:
                    self._reads[replica] = read
                return
        except RezoneError as error:
            self.counts[f"as of: {error.code}"] += 1
            return
        self._answer(replica, read.as_of)

    def _answer(self, replica: Replica, as_of: int) -> None:
        """Take what a reader has: as of a time all see one layout, and every row is one value."""
        number = replica.partition_id
        generation = generation_of(number)
        where = f"p{number} at node {replica.node_id}, as of {as_of}"
        before = self.answered.setdefault(as_of, generation)
        assert before == generation, f"{where}: {before} answered before, now {generation} does"
        self.counts["as of, new" if generation else "as of, old"] += 1
        rows = self.rows_of(index_of(number))
        for row, value in zip(rows, replica.store.reader.newest(rows, as_of), strict=True):
            known = self.past.setdefault((row, as_of), value)
            assert known == value, f"{where}: {row!r} was {known!r}, now it is {value!r}"

    def _follow(self, replica: Replica, as_of: int) -> None:
        """Ask for the changes since a time: nobody may have any across a switch."""
        newest = bool(self.overwritten) and generation_of(replica.partition_id) == (
            self.overwritten[-1].layout_version
        )
        if not newest or as_of >= self.time_from:
            return
        start, end = replica.hash_range
        asked = AskedRange(
            partition=replica.partition_id, first_hash=start, last_hash=end - 1, time=as_of
        )
        node = self.network.node(replica.node_id)
        (answer,) = node.change_source.follow(FollowChanges(ranges=(asked,))).ranges
        assert answer.error is not None, f"changes since {as_of}, before {self.time_from}"
        self.counts[f"feed {answer.error.code}"] += 1

    # --- what must hold --------------------------------------------------------------------------

    def _note_switch(self) -> None:
        """Keep what the old partitions had when the zone has switched: they go soon."""
        status = self.zone().status
        found = status.assignments.overwrite if status is not None else None
        if found is None or found in self.overwritten[-1:]:
            return
        old = sorted(p for p in self.checks.routes if generation_of(p) < found.layout_version)
        before = generation_of(old[-1])
        versions, last = {}, 0
        for partition in Layout(before, START.partitions).ids:
            history = self.histories[partition] = self._sealed(partition)
            versions[partition] = self._model(partition, history)
            last = max(last, *map(header_time, filter(None, history)))
        assert last < found.readable_from, f"{found} is not after {last}"
        self.contents[before] = Content(versions, self.time_from)
        self.overwritten.append(found)
        self.strikes("overwritten", f"overwritten: {found}")

    def _sealed(self, partition: PartitionId) -> History:
        """Return the history of an old partition up to its seal."""
        record = self.checks.routes[partition]
        for node in (record.leader, *record.replicas):
            held = self.checks.held(partition, node)
            rows = held.rows if held is not None else []
            for offset, raw in enumerate(rows):
                header = header_at(raw, 0) if raw else None
                if header is not None and header.kind == EntryKind.SEAL:
                    return rows[: offset + header.rows]
        raise AssertionError(f"p{partition} is not sealed")

    def _model(self, partition: PartitionId, history: History) -> Versions:
        """Return all versions that a partition must have, by its history and that of its source."""
        own, begun = Versions(), {}
        for raw in filter(None, history):
            (entry,) = iter_entries(raw)
            if not is_resharded(entry):
                own |= pairs_of(entry)
            elif begins_reshard(entry):
                position = note_of(entry).position
                assert position.source not in begun, f"p{partition} has begun twice"
                begun[position.source] = position.offset
        overwrite = next(
            (e for e in self.overwritten if e.layout_version == generation_of(partition)), None
        )
        if overwrite is None:
            return own
        ((source, offset),) = begun.items()
        assert index_of(source) == index_of(partition)
        job = self.jobs[overwrite.name]
        streamed = self._streamed(source, offset)
        assert all(time_of(key) > job.read_time for key in streamed), "others wrote before the job"
        rows = self.rows_of(index_of(partition))
        brought = {
            row + time_suffix(job.read_time): FLAGS[FLAG_VALUE] + value
            for row, value in job.values.items()
            if row in rows
        }
        return brought | streamed | own

    def _streamed(self, source: PartitionId, offset: int) -> Versions:
        found = Versions()
        for raw in filter(None, self.histories[source][offset:]):
            (entry,) = iter_entries(raw)
            found |= pairs_of(entry)
        return found

    def check_end(self) -> None:
        """Assert that all have what they must, at rest, and that readers had it, too."""
        layout = self.stable
        assert set(self.checks.routes) == {*layout.ids}, f"{layout}: {set(self.checks.routes)}"
        rows: dict[PartitionId, History] = {}
        for partition in layout.ids:
            held = self.checks.held(partition, self.checks.routes[partition].leader)
            assert held is not None
            rows[partition] = held.rows
        versions = {partition: self._model(partition, rows[partition]) for partition in rows}
        self.contents[layout.generation] = Content(versions, self.time_from)
        for replica in self.replicas():
            number, applied = replica.partition_id, replica.store.applied
            assert number in rows, f"p{number} is left at node {replica.node_id}"
            where = f"p{number} at node {replica.node_id}"
            assert applied == len(rows[number]) or not replica.leads, f"{where}: {applied} applied"
            want, here = self._model(number, rows[number][:applied]), versions_of(replica.store)
            assert here == want, f"{where}: {_differ(here, want)}"
        for (row, as_of), value in self.past.items():
            self._check_read(row, as_of, value)
        self.drivers.check_end()

    def _check_read(self, row: bytes, as_of: int, value: bytes | None) -> None:
        """Assert that what was read as of a time is what the model has."""
        content = self.contents[self.answered[as_of]]
        assert as_of >= content.time_from, f"as of {as_of}, before {content.time_from}"
        index = Layout(0, START.partitions).partition_of(int.from_bytes(row[:8]))
        (versions,) = (v for p, v in content.versions.items() if index_of(p) == index)
        times = (time_of(key) for key in versions if key[:-TIME_BYTES] == row)
        newest = max((time for time in times if time <= as_of), default=None)
        stored = versions[row + time_suffix(newest)] if newest is not None else b""
        want = stored[1:] if stored[:1] == FLAGS[FLAG_VALUE] else None
        assert value == want, f"{row!r} as of {as_of} was {value!r}, not {want!r}"


def _differ(here: Versions, want: Versions) -> str:
    lacks = sorted(want.keys() - here.keys())
    more = sorted(here.keys() - want.keys())
    return (
        f"{len(lacks)} versions are missing, as {lacks[:1]}, and {len(more)} too many, {more[:1]}"
    )


class Drivers:
    """The drivers of a run, one life after the other."""

    def __init__(self, world: OverwriteWorld) -> None:
        self._world = world
        self._lives: collections.deque[Life] = collections.deque()
        self._driver: Driver | None = None
        self._again_at = 0.0
        self._reading: dict[PartitionId, list[Readable]] = {}
        self._read_time = 0
        self._read_until = 0.0
        self.told_done: set[str] = set()
        self.told_cancelled: set[str] = set()

    def begin(self) -> None:
        """Choose how many there are, of which names, and which of them die."""
        world, rng = self._world, self._world.plan
        first = world.new_job("first")
        deaths = rng.choice((0, 0, 1, 2))
        self._lives += [Life(first, dies=True) for _ in range(deaths)]
        if deaths and rng.random() < GONE_CHANCE:
            world.counts["driver gone"] += 1
        else:
            self._lives.append(Life(first))
        if rng.random() < SECOND_CHANCE:
            self._lives.append(Life(world.new_job("second")))

    @property
    def over(self) -> bool:
        """Whether none is to come any more."""
        return self._driver is None and not self._lives

    def step(self) -> None:
        """Go on with the driver of the day, or begin the next one."""
        world = self._world
        self._call_back()
        if self._driver is not None:
            self._driver.step()
            if self._driver.ended:
                self._end(self._driver)
        elif self._lives and world.loop.time() >= self._again_at:
            life = self._lives[0]
            if life.job.read_time or self._has_read(life.job):
                self._begin(life)

    def _call_back(self) -> None:
        """Have a driver come again whose overwrite cannot go on without it, nor be cancelled.

        So it is when rows are lost after the first seal.
        """
        world = self._world
        pending = world.keys.pending
        late = world.loop.time() > max(world.calm_at, self._again_at) + CALLED_BACK_SECONDS
        if self.over and late and pending is not None and pending.filled_by:
            world.strikes("driver called back")
            self._lives.append(Life(world.jobs[pending.filled_by]))

    def _begin(self, life: Life) -> None:
        world = self._world
        nodes = {number: node.place for number, node in world.network.nodes.items()}
        if len(nodes) < START.nodes:
            return  # who asks for all addresses does not get one of each
        world.calls.dies_in = world.plan.randint(1, DIES_IN_MAX) if life.dies else 0
        world.note(f"driver of {life.job.name} begins, {life}")
        self._driver = Driver(life.job, nodes, world.calls, world.loop.monotonic, world.counts)

    def _end(self, driver: Driver) -> None:
        world, job = self._world, driver.job
        world.note(f"driver of {job.name} ends, done {driver.done}, refused {driver.refused}")
        self._driver = None
        self._again_at = world.loop.time() + 1.0
        if driver.done:
            world._note_switch()
            assert world.overwritten, f"{job.name} is not done"
            assert world.overwritten[-1].name == job.name, f"{world.overwritten}, not {job.name}"
            self.told_done.add(job.name)
        elif driver.refused:
            self.told_cancelled.add(job.name)
        elif self._lives[0].dies:
            self._lives.popleft()
            self._again_at += world.plan.choice(AWAY_SECONDS)
            return
        else:
            return  # out of patience, or another one is not over yet
        while self._lives and self._lives[0].job is job:
            self._lives.popleft()

    def _has_read(self, job: Job) -> bool:
        """Whether a driver has read all rows as of one time; begins that."""
        world = self._world
        layout, now = world.stable, world.loop.time()
        if now >= self._read_until or self._reading.keys() != {*layout.ids}:
            self._read_until = now + READ_SECONDS_MAX
            self._read_time = world.loop.micros()
            self._reading = {partition: [] for partition in layout.ids}
            for replica in world.replicas():
                if replica.partition_id in layout.ids:
                    with contextlib.suppress(RezoneError), world.mortals():
                        replica.leading.ask_leases()
                        may_answer = readable(replica, self._read_time)
                        self._reading[replica.partition_id].append(may_answer)
            return False
        if not all(any(map(_answers, reads)) for reads in self._reading.values()):
            return False
        job.read_time = self._read_time
        return True

    def check_end(self) -> None:
        """Assert that what drivers were told was true."""
        world = self._world
        done = {each.name for each in world.overwritten}
        assert self.told_done <= done, f"{self.told_done} were told that they are done, {done} are"
        assert not self.told_cancelled & done, f"{self.told_cancelled} were cancelled, {done} done"
        world.counts["done without its driver"] += len(done - self.told_done)
        world.counts["overwrites cancelled"] += len(world.jobs.keys() - done)
        nodes = {number: node.place for number, node in world.network.nodes.items()}
        if world.overwritten:
            assert is_done(world.jobs[world.overwritten[-1].name], world.calls, nodes)


class Life(NamedTuple):
    """One life of the driver of a job."""

    job: Job
    dies: bool = False


def _answers(may_answer: Readable) -> bool:
    try:
        return may_answer()
    except RezoneError:
        return False


def _left(world: World) -> list[str]:
    """Return what is not over yet."""
    assert isinstance(world, OverwriteWorld)
    left = [] if world.drivers.over else ["drivers are left"]
    return left or unfinished(world)


def _weather(rng: random.Random) -> Storm:
    """Return a storm; without Spark, which copies nothing here."""
    return dataclasses.replace(storm_of(rng), spark=0.0)


def storm(seed: int) -> collections.Counter[str]:
    """Run a seed; returns what has happened."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(overwrites, "OVERWRITE_SILENT_SECONDS", SILENT_SECONDS)
        patched.setattr(new_rows, "CHUNK_BYTES", CHUNK_BYTES)
        patched.setattr(backfill, "UNIT_BYTES", UNIT_BYTES)
        settings = dataclasses.replace(process.SETTINGS, resharding_grace_seconds=GRACE_SECONDS)
        patched.setattr(process, "SETTINGS", settings)
        with OverwriteWorld(seed) as world:
            weather = _weather(random.Random(f"overwriting {seed}"))
            world.calm_at = world.loop.time() + weather.seconds
            weather.begin(world)
            world.drivers.begin()
            world.run(RUN_SECONDS_MAX, _left)
            world.pause_writes(RUN_SECONDS_MAX)  # so that all is applied what is written
            world.disturbed()
            world.run(RUN_SECONDS_MAX, _left)
            world.check_end()
            return world.counts
