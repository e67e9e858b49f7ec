"""A network that forgets: links drop all there is, for a while, and tell neither end of it.

One partition is written while links between its replicas fall silent for a moment or for long, so
that both ends find out or none; and leaders' ends are closed of which the others never hear.

What must hold: once the network is whole, every replica is in sync, has what was written and takes
what is written next, in bounded time and without an end of a process.
"""

from __future__ import annotations

import contextlib
import random
import uuid
from typing import cast

from rezone.datanode.replica.replica import Replica
from rezone.datanode.writing.change import PreparedRows
from rezone.storage.log.entry import rows_batch
from rezone.wire.errors import RezoneError
from rezone.wire.messages import WriteRequest, WriteResult, ZoneConfig
from simulation.nodes.streams import SimulatedStream
from simulation.storms.data_plane import MINIMUM, NODES, REPLICAS, SETTINGS, DataPlane

P = 0
SILENCE_CHANCE = 0.02
SILENCE_SECONDS_MAX = 12.0
HEALED_SECONDS_MAX = 6.0
"""The deadline of an end, the set's change and what is missed."""

WRITE_CHANCE = 0.2
ROW = b"\x00" * 8 + b"k"


class HalfOpen(DataPlane):
    """One run, from its seed; nothing ends but links."""

    def __init__(self, seed: int) -> None:
        config = ZoneConfig(
            zone="z",
            zone_uid="u",
            partitions=1,
            replicas=REPLICAS,
            min_in_sync_replicas=MINIMUM,
        )
        super().__init__(random.Random(f"half-open {seed}"), config, 1_000)
        self.rows = [ROW]
        self.written = 0
        self.until: dict[frozenset[int], float] = {}
        self.begin([P])

    def disturb(self) -> None:
        """Perhaps have a link fall silent, or speak again."""
        now = self.loop.monotonic()
        self.until = {link: at for link, at in self.until.items() if at > now}
        if self.rng.random() < SILENCE_CHANCE:
            link = frozenset(self.rng.sample(NODES, 2))
            self.until[link] = now + self.rng.uniform(0.1, SILENCE_SECONDS_MAX)
            self.counts["silences"] += 1
        self.network.silent = {*self.until}
        for leader in self.leaders(P) if self.rng.random() < SILENCE_CHANCE else ():
            for stream in list(leader.leading.streams.values())[:1]:
                cast("SimulatedStream", stream).give_up()
                self.counts["half-open"] += 1

    def ask(self) -> None:
        """Perhaps write."""
        if self.rng.random() < WRITE_CHANCE:
            self._write()

    def calm(self) -> None:
        """Make the network whole, and say no more than that."""
        super().calm()
        self.network.silent.clear()

    def settle(self) -> None:
        """All replicas must be in sync, with all that was written and more."""
        whole_at = self.loop.time()
        self._write()
        self.wait_for(self._whole, lambda: [p.following.error for p in self._partitions()])
        seconds = self.loop.time() - whole_at
        assert seconds < HEALED_SECONDS_MAX, f"{seconds:.1f} s"
        self.counts["healed"] += 1

    def _whole(self) -> bool:
        record, replicas = self.records[P], self._partitions()
        ends = {each.store.durable_end for each in replicas}
        streaming = sum(len(each.leading.streams) for each in replicas if each.leads)
        everyone = len(replicas) == REPLICAS and streaming == REPLICAS - 1
        return everyone and {*record.isr} == {*record.replicas} and len(ends) == 1

    def _partitions(self) -> list[Replica]:
        return [each for each in self.replicas() if each.node_id in self.records[P].replicas]

    def _write(self) -> None:
        """Write the row to all who believe to lead."""

        def reply(outcome: object) -> None:
            self.counts["written"] += isinstance(outcome, WriteResult)

        for leader in self.leaders(P):
            self.written += 1
            writer = uuid.UUID(int=self.written).hex
            request = WriteRequest(opaque=0, partition=P, producer_id=writer, sequence=1)
            value = b"value %d" % self.written
            prepared = PreparedRows(rows_batch([ROW], [0], [value]), 100)
            with contextlib.suppress(RezoneError), self.mortals():
                leader.write(request, prepared, reply)


assert SETTINGS.channel_silent_ms_max / 1000 < SILENCE_SECONDS_MAX, "or no end ever gives up"
