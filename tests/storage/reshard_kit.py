"""What the tests of new partitions' stores share: layouts, reshard streams by hand, and checks."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from storage_kit import Version, Writer, config, stored_versions

from rezone.storage.log.entry import iter_entries
from rezone.storage.reshard.range_changes import range_entries
from rezone.storage.reshard.reshard_entries import RangeEntry, Stand, reshard_entry
from rezone.storage.store import PartitionStore
from rezone.wire.layouts import HashRange, Layout, Overlap
from rezone.wire.messages import EngineKind, FailoverEntry

OLD, NEW = Layout(0, 2), Layout(1, 3)
BRANCH = (FailoverEntry("u0", 0),)
T1, T2, T3 = b"1" * 16, b"2" * 16, b"3" * 16
W1, W2 = b"w" * 16, b"v" * 16


@contextlib.contextmanager
def stores(path: Path, kind: EngineKind, *names: str) -> Iterator[list[PartitionStore]]:
    """Yield some stores, and close them after use."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(contextlib.closing(PartitionStore.open(path / name, config(kind))))
            for name in names
        ]


def ranged(store: PartitionStore, hashes: HashRange, since: int = 0) -> list[RangeEntry]:
    """Return what a store's log from an offset on means for a range."""
    found: list[RangeEntry] = []
    while data := store.read(since, 1 << 20):
        found += range_entries(iter_entries(data), hashes, BRANCH)
        *_, last = iter_entries(data)
        since = last.header.end_offset
    return found


def resharded(
    source: PartitionStore,
    target: PartitionStore,
    part: Overlap,
    *,
    since: int = 0,
    most: int = 999,
    ahead: int = 1000,
) -> int:
    """Pull a part as the target's leader does, as if the source sent it from an offset on.

    The target's clock is `ahead` of its last entry. Return how many entries were not pulled
    before.
    """
    count = 0
    for entry in ranged(source, HashRange(part.start, part.end), since)[:most]:
        raw = reshard_entry(
            part.old,
            entry,
            target.reshard_position(part.old),
            Stand(1, target.log_end, target.last_commit_time + ahead),
        )
        if raw is not None:
            target.append(raw)
            count += 1
    return count


def inside(versions: list[Version], part: Overlap) -> list[Version]:
    """Return the versions of rows in a part."""
    return [v for v in versions if part.start <= int.from_bytes(v[0][:8], "big") < part.end]


WHOLE = Overlap(0, 1 << 64, 0, NEW.ids[0])


class TargetUnderTest:
    """A new partition's store that applies, is undone and restarts at any time."""

    def __init__(self, path: Path, kind: EngineKind, rng: random.Random) -> None:
        self._path, self._kind, self._rng = path, kind, rng
        self._ends = [0]
        self.store = PartitionStore.open(path, config(kind))

    def note_end(self) -> None:
        """Remember where an entry ends: there it may be applied to, or cut."""
        self._ends = sorted({*self._ends, self.store.log_end})

    def suffer(self, what: int) -> None:
        """Apply some (0), undo some (1), or restart (2), which only an engine on disk survives."""
        if what == 0:
            self.store.apply_to(self._rng.choice(self._ends))
        elif what == 1:
            cut = self._rng.choice(self._ends)
            self.store.truncate(cut)
            self._ends = [end for end in self._ends if end <= cut]
        elif self._kind is EngineKind.ROCKSDB:
            self.store.sync()
            self.store.close()
            self.store = PartitionStore.open(self._path, config(self._kind))


def check_versions(
    target: PartitionStore, writers: Sequence[Writer], parts: Sequence[Overlap]
) -> None:
    """Check that a new partition has every version of its parts, and no other."""
    wanted = [v for part in parts for v in inside(writers[part.old].versions(1 << 60), part)]
    assert stored_versions(target) == sorted(wanted)
