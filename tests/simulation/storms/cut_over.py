"""A zone's data nodes in the middle of a re-sharding, without an operator: seals and who serves.

Old partitions with clients, new ones that pull their logs, and a coordinator that does nothing
but elect leaders, answer proposals, authorize seals and revoke them, and ask for them now and then,
late too. The nodes are the real ones of `node`; they die, lose what they had not synced, and lose
sight of each other. Each client writes rows of its own name, one after the other, and goes on with
each until it is answered; it learns from refusals alone who serves.

What must hold: a newest read sees what was acknowledged before it began, whoever answers; nobody
else would answer it at that moment; no read as of a time ever changes; a range that is served has
the rows that its source ended with, and no longer cut-over is measured than there was; each
acknowledged row is there, once, at the end; and a leader that has said that there is no seal was
right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import uuid
import weakref
from typing import Any

from rezone.datanode.reading.read import readable
from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.domain.routing import route_seals
from rezone.storage.log.entry import rows_batch
from rezone.wire import layouts
from rezone.wire.codec.producers import digest_of
from rezone.wire.errors import ReshardedError, RezoneError
from rezone.wire.layouts import Overlap
from rezone.wire.messages import (
    Message,
    NodeId,
    OriginalId,
    PartitionId,
    ReplicaReport,
    Seal,
    SealMark,
    SealState,
    WriteRequest,
    WriteResult,
    ZoneConfig,
)
from simulation.nodes.reshard_pulls import BACKFILL_CHANCE
from simulation.storms.data_plane import (
    FENCE,
    MINIMUM,
    REPLICAS,
    STORM_SECONDS,
    DataPlane,
    values_of,
)

CLIENTS = 3
PATIENCE_SECONDS = 1.0
ERROR_MICROS = 300_000
BACKFILL_CHANCES = (BACKFILL_CHANCE, 0.03)
"""Half of the runs backfill for so long that leaders change meanwhile."""


@dataclasses.dataclass
class Write:
    """A row that a client writes until it is answered; `names` are those it was sent under."""

    row: bytes
    value: bytes
    producer_id: str
    names: dict[PartitionId, OriginalId] = dataclasses.field(default_factory=dict)
    since: float = 0.0
    outcome: WriteResult | RezoneError | None = None
    asked: PartitionId = -1


class CutOver(DataPlane):
    """One run, from its seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"cut-over {seed}")
        old, new = rng.choice([(1, 2), (2, 1), (2, 3), (3, 2), (1, 3)])
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=old,
            next_partitions=new,
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
        )
        super().__init__(rng, self.zone_of(config), ERROR_MICROS)
        self.old = layouts.layout_of(config)
        following = layouts.next_layout_of(config)
        assert following is not None
        self.new = following
        self.sealed: set[PartitionId] = set()
        self.denied: dict[PartitionId, int] = {}
        self.told: set[PartitionId] = set()
        self.clients: list[Write | None] = [None] * CLIENTS
        self.values = 0
        self.sources = {
            target: list(layouts.sources_of(target, self.old, self.new)) for target in self.new.ids
        }
        self.compared: weakref.WeakKeyDictionary[Replica, set[PartitionId]] = (
            weakref.WeakKeyDictionary()
        )
        self.sealing_since: dict[tuple[PartitionId, SealMark], float] = {}
        self.backfill_chance = self.lateness.choice(BACKFILL_CHANCES)
        self.reshards_at = self.rng.uniform(0, STORM_SECONDS / 2)
        self.begin((*self.old.ids, *self.new.ids))

    def zone_of(self, config: ZoneConfig) -> ZoneConfig:
        """Return the zone's configuration."""
        return config

    # --- the run ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until all have cut over; everything must be there then."""
        self.wait_for(self._over, lambda: self.clients)
        self._check_end()

    def step(self) -> None:
        """Let a moment pass."""
        super().step()
        self._append()
        for number in range(CLIENTS):
            self._write_on(number)
        self.read_newest()
        self._served_by_one(self.rng.choice(self.rows))
        self._same_at_the_cut()
        self.read_past()

    def _over(self) -> bool:
        """Whether all is cut over, and no client waits."""
        if self.sealed != set(self.old.ids) or any(c is not None for c in self.clients):
            return False
        return all(any(map(self._serves, self.leaders(target))) for target in self.new.ids)

    def _serves(self, target: Replica) -> bool:
        """Whether a target serves its range, and has committed and applied what its log has."""
        store = target.store
        whole = target.serving.hashes(self.new.range_of(target.partition_id))()
        return whole and store.applied == target.positions.committed == store.log_end

    def disturb(self) -> None:
        """Perhaps break something, or end who leads a source while others are backfilled from it.

        With what the next one has yet to apply (`LATE_APPLIES`) is what a backfill must not leave
        out.
        """
        super().disturb()
        if self.lateness.random() < self.late_applies / 4:
            leading = [
                self.records[hash_range.source].leader
                for target in self.replicas()
                for hash_range in target.reshard_streams.streams()
                if hash_range.position is not None and hash_range.position.backfilling
            ]
            up = [node for node in leading if node in self.network.nodes]
            if up and len(self.network.nodes) > 1:
                self.counts["ended while backfilled from"] += 1
                self.end(self.lateness.choice(up))

    # --- the coordinator -------------------------------------------------------------------------

    def coordinate(self) -> None:
        """Do a pass, and bring seals about."""
        super().coordinate()
        for partition in self.old.ids:
            self._cut_over(partition)

    def hear(self, partition: PartitionId, report: ReplicaReport) -> None:
        """Take what a leader reports, of its seal too."""
        super().hear(partition, report)
        record = self.records[partition]
        if partition not in self.old.ids or report.leader_epoch != record.leader_epoch:
            return
        if report.partition_epoch != record.partition_epoch:
            return
        if report.seal is SealState.SEALED:
            assert partition not in self.denied, "a seal that nobody could have appeared"
            self.sealed.add(partition)
            self.set(partition, route_seals.note_sealed(record))
        elif report.seal is SealState.NONE and not record.sealing:
            assert partition not in self.sealed, "a seal that was told is gone"
            self.denied[partition] = record.leader_epoch
            self.counts["denied"] += 1

    def call(self, node: NodeId, request: Message) -> bool:
        """Call a node; note when a seal was appended."""
        done = super().call(node, request)
        up = self.network.nodes.get(node)
        if done and up is not None and isinstance(request, Seal):
            seal = up.replicas.find(request.partition).store.seal
            assert seal is not None
            self.sealing_since.setdefault((request.partition, seal), self.loop.monotonic())
        return done

    def _cut_over(self, partition: PartitionId) -> None:
        """Authorize a seal, ask for it, or take it back."""
        record, chance = self.records[partition], self.rng.random()
        if partition in self.sealed:
            return
        if record.sealing and chance < 0.15 and self.loop.time() < STORM_SECONDS:
            self.set(partition, route_seals.revoke_seal(record))
        elif record.sealing:
            epoch = record.leader_epoch
            request = Seal(fence=FENCE, partition=partition, leader_epoch=epoch)
            if self.rng.random() < 0.3:
                self.late.append((record.leader, request))
            else:
                self.call(record.leader, request)
        elif self.loop.time() > STORM_SECONDS / 3 and chance < 0.3:
            self.denied.pop(partition, None)
            self.set(partition, route_seals.authorize_seal(record))

    # --- reshard streams
    # ---------------------------------------------------------------------------------

    def _append(self) -> None:
        """Have each node import what it leads."""
        if self.loop.time() < self.reshards_at:
            return
        for node in list(self.network.nodes):
            if node in self.network.nodes:
                with self.mortals():
                    self.lines[node].step()

    # --- clients ---------------------------------------------------------------------------------

    def _partition_of(self, row: bytes) -> PartitionId:
        key_hash = int.from_bytes(row[:8], "big")
        old = self.old.partition_of(key_hash)
        return self.new.partition_of(key_hash) if old in self.told else old

    def _write_on(self, number: int) -> None:
        """Go on with a client's write, or begin one."""
        write, now = self.clients[number], self.loop.monotonic()
        if write is None:
            if self.loop.time() > STORM_SECONDS:
                return
            self.values += 1
            row = self.rng.choice(self.rows)
            producer_id = uuid.UUID(int=self.rng.getrandbits(128)).hex
            write = Write(row, b"value %d" % self.values, producer_id)
            self.clients[number] = write
        elif isinstance(write.outcome, WriteResult):
            self.counts["target" if write.asked in self.new.ids else "source"] += 1
            self.acknowledged[write.row].add(write.value)
            self.clients[number] = None
            return
        elif isinstance(write.outcome, ReshardedError):
            # By the partition that says it: it may be a late answer to an attempt before the last.
            self.told.add(int(write.outcome.details["partition"]))
            self.counts["resharded"] += 1
        elif write.outcome is None and now - write.since < PATIENCE_SECONDS:
            return
        self._send(write)

    def _send(self, write: Write) -> None:
        write.asked, write.outcome = self._partition_of(write.row), None
        write.since = self.loop.monotonic()
        before = tuple(name for p, name in write.names.items() if p != write.asked)
        digest = digest_of(write.row + write.value, delete=False)
        name = write.names.setdefault(write.asked, OriginalId(write.asked, 1, digest))
        leaders = self.leaders(write.asked)
        if not leaders:
            return
        request = WriteRequest(
            opaque=0,
            partition=write.asked,
            producer_id=write.producer_id,
            sequence=name.sequence,
            original_ids=before,
        )
        prepared = PreparedRows(rows_batch([write.row], [0], [write.value]), 100, digest=digest)

        def reply(outcome: Any) -> None:
            if self.rng.random() < 0.1:
                return  # the answer is lost
            if not isinstance(write.outcome, WriteResult):
                write.outcome = outcome

        try:
            with self.mortals():
                leaders[0].write(request, prepared, reply)
        except RezoneError as error:
            write.outcome = error

    # --- what must hold --------------------------------------------------------------------------

    def _served_by_one(self, row: bytes) -> None:
        """Assert that no two replicas would answer a newest read of a row at this moment."""
        answering = [p for p in self.replicas() if self._answers_now(p, row)]
        assert len(answering) < 2, f"{row!r} is served by {[_name(p) for p in answering]}"

    def _answers_now(self, partition: Replica, row: bytes) -> bool:
        start, end = partition.hash_range
        if start <= int.from_bytes(row[:8], "big") < end:
            with self.mortals(), contextlib.suppress(RezoneError):
                return readable(partition, None, partition.serving.rows([row]))()
        return False

    def _same_at_the_cut(self) -> None:
        """Assert that each range has, when it is served, what its source had at its end."""
        for target in self.replicas():
            if target.partition_id not in self.new.ids:
                continue
            done = self.compared.setdefault(target, set())
            for hash_range in self.sources[target.partition_id]:
                if hash_range.old not in done and target.serving.has_source(hash_range.old):
                    self._compare(target, hash_range)
                    done.add(hash_range.old)

    def _compare(self, target: Replica, hash_range: Overlap) -> None:
        ended = [p for p in self.replicas() if p.partition_id == hash_range.old and _has_ended(p)]
        for source in ended:
            self.counts["compared"] += 1
            seal = source.store.seal
            assert seal is not None
            digests = [
                each.store.reader.digest(
                    seal.commit_time, hash_range.start, hash_range.end, ranges=1
                )
                for each in (source, target)
            ]
            assert digests[0] == digests[1], f"{_name(target)} differs from {_name(source)}"
            self._measured(target, hash_range, seal)

    def _measured(self, target: Replica, hash_range: Overlap, seal: SealMark) -> None:
        """Assert that what a target has measured is no more than has passed since the seal."""
        told = {each.source: each for each in target.reshard_streams.progress()}
        found = told.get(hash_range.old)
        if found is None or found.write_gap_ms is None:
            return
        passed_ms = 1000 * (self.loop.monotonic() - self.sealing_since[hash_range.old, seal])
        assert 0 <= found.write_gap_ms <= passed_ms + 1, (found, passed_ms)
        self.counts["measured"] += 1
        self.counts["measured ms"] += found.write_gap_ms

    def leader_of(self, row: bytes) -> Replica:
        """Return who leads the row's partition of the next layout."""
        (leader,) = self.leaders(self.new.partition_of(int.from_bytes(row[:8], "big")))
        return leader

    def _check_end(self) -> None:
        """Assert that all that was acknowledged is where clients look for it, once."""
        for row in self.rows:
            missing = self.acknowledged[row] - values_of(self.leader_of(row), row).keys()
            assert not missing, f"{missing} of {row!r} are lost"
        for partition in self.old.ids:
            for leader in self.leaders(partition):
                assert leader.store.seal is not None


def _name(partition: Replica) -> str:
    return f"partition {partition.partition_id} at node {partition.node_id}"


def _has_ended(partition: Replica) -> bool:
    """Whether a source's replica has applied its seal, which is committed."""
    seal = partition.store.seal
    done = min(partition.store.applied, partition.positions.committed)
    return seal is not None and done >= seal.end_offset
