"""When old versions are collected: when there is something to collect, and not before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rezone.storage.applier import Collected
from rezone.storage.log.entry import OP_UPSERT, build_entry, rows_batch
from rezone.storage.store import PartitionStore
from rezone.storage.store_config import StoreConfig
from rezone.storage.upkeep.collector import Collector
from rezone.wire.codec.keyspace import hash_key, row_id

PAUSE_SECONDS = 60.0


class Bench:
    """A store with a collector whose slices are counted and whose clock stands still."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 0.0
        self.open()

    def open(self) -> None:
        """Open the store as after a restart."""
        self.store = PartitionStore.open(self.directory, StoreConfig())
        self.collector = Collector(
            self.store, pause_seconds=lambda: PAUSE_SECONDS, clock=lambda: self.now, slice_bytes=1
        )

    def write(self, key: bytes, time: int) -> None:
        """Apply one row."""
        entry = build_entry(
            rows_batch([row_id(hash_key(key), key)], [OP_UPSERT], [b"v"]),
            leader_epoch=1,
            base_offset=self.store.log_end,
            commit_time=time,
        )
        self.store.append(entry)
        self.store.sync()
        self.store.apply_to(self.store.log_end)
        self.store.note_committed(self.store.log_end)

    def removed(self, before: int) -> int | None:
        """Return how many versions a pass removes; None when none is made."""
        self.now += PAUSE_SECONDS
        slices: list[Collected] = []
        collect = self.store.collect

        def counted(before_time: int, cursor: bytes, bytes_max: int) -> Collected:
            slices.append(collect(before_time, cursor, bytes_max))
            return slices[-1]

        self.store.collect = counted  # type: ignore[method-assign]
        while self.collector.step(before):
            pass
        self.store.collect = collect  # type: ignore[method-assign]
        return sum(s.removed for s in slices) if slices else None


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Open an empty store that has been looked at once."""
    made = Bench(tmp_path / "p")
    assert made.removed(0) == 0
    yield made
    made.store.close()


def test_a_pass_is_made_when_a_version_has_become_old_enough(bench: Bench) -> None:
    """Garbage would stay, or every partition be read whole every few seconds for nothing."""
    bench.write(b"a", 10)
    bench.write(b"b", 20)
    bench.write(b"a", 30)
    assert bench.removed(9) is None
    assert bench.removed(10) == 0, "nobody knows yet that the first write covered nothing"
    assert bench.removed(29) is None
    assert bench.removed(30) == 1
    assert bench.removed(1 << 40) is None


def test_what_is_written_during_a_pass_is_not_forgotten(bench: Bench) -> None:
    """A version that came behind the pass would be garbage until somebody writes again."""
    for i in range(3):
        bench.write(b"%d" % i, 10 + i)
    bench.now += PAUSE_SECONDS
    assert bench.collector.step(12)
    first = bench.store.reader.scan(b"", None, None, 1)[0].tolist()[0][10:]
    bench.write(first, 20)
    assert bench.removed(12) is not None
    assert bench.removed(20) == 1


def test_a_restart_costs_one_pass(bench: Bench) -> None:
    """Garbage of before the restart would stay for ever."""
    bench.write(b"a", 10)
    bench.write(b"a", 20)
    bench.store.close()
    bench.open()
    assert bench.removed(15) == 0
    assert bench.removed(19) is None
    assert bench.removed(20) == 1


def test_passes_keep_their_distance_and_wait_for_snapshots(bench: Bench) -> None:
    """A partition that is always written to would always be scanned; a snapshot would block."""
    bench.write(b"a", 10)
    bench.write(b"a", 20)
    with bench.store.outgoing.open_rows("reader"):
        assert bench.removed(20) == 0, "one try, then it waits"
    assert bench.removed(20) == 1
    bench.write(b"a", 30)
    assert not bench.collector.step(30)
    assert bench.store.changed_from == 30, "no pass has begun"
    assert bench.removed(30) == 1
