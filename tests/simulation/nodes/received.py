"""What the receiver of a copy must have: part by part, what the snapshots showed that it came from.

A copy that died goes on with another snapshot, behind what is durable: rows up to there are those
of the one before.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import NamedTuple

from rezone.storage.engines.base import TIME_BYTES
from rezone.storage.store import PartitionStore

Versions = dict[bytes, bytes]
"""Engine keys with their values."""


class Segment(NamedTuple):
    """What a receiver has of a snapshot: all rows behind one, to where the next segment begins."""

    after: bytes
    snapshot_id: str


@dataclasses.dataclass
class Received:
    """What a receiver's copy was made of: it stands at its first snapshot, `begun_with`.

    Of a snapshot in `tried` there may be rows that nobody knows to be there.
    """

    begun_with: str
    segments: list[Segment] = dataclasses.field(default_factory=list)
    tried: set[str] = dataclasses.field(default_factory=set)

    def go_on(self, after: bytes, snapshot_id: str) -> None:
        """Note that all rows behind one come from a snapshot from now on."""
        kept = [segment for segment in self.segments if segment.after < after]
        self.segments = [*kept, Segment(after, snapshot_id)]
        self.tried.add(snapshot_id)

    def versions(self, contents: dict[str, Versions]) -> Versions:
        """Return what must be there."""
        found: Versions = {}
        ends = [segment.after for segment in self.segments[1:]]
        for segment, end in zip(self.segments, [*ends, None], strict=True):
            for key, value in contents[segment.snapshot_id].items():
                row = key[:-TIME_BYTES]
                if row > segment.after and (end is None or row <= end):
                    found[key] = value
        return found

    def check(self, here: Versions, contents: dict[str, Versions]) -> None:
        """Check what a receiver ends with; `contents` is what each snapshot showed."""
        want = self.versions(contents)
        told = f"of {len(want)} versions, from {self}"
        missing = want.keys() - here.keys()
        assert not missing, f"{told}: {len(missing)} are missing, from {min(missing)!r} on"
        known = collections.ChainMap(want, *(contents[each] for each in self.tried))
        for key, value in here.items():
            assert known.get(key) == value, f"{told}: {key!r} is from nowhere"
        assert len(self.tried) > 1 or here == want, f"{told}: there are {len(here)}"


def versions_of(store: PartitionStore) -> Versions:
    """Return all versions that a store has applied."""
    chains = store.engine.scan_chains(b"", None, rows_max=1 << 62, bytes_max=1 << 62)
    return dict(zip(chains.keys, chains.values, strict=True))
