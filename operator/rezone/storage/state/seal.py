"""The seal of a partition: the last entry that its log ever takes (docs/decisions/0120).

From where it is committed the partitions of the next layout serve the range. It is one row, which
is a note and makes no version, so that it has an offset as every entry has: failover, rollback and
copies treat it as any other. Its time is above all that was read at.

It is known in two layers, as producers are (`storage.state.producers`): what the log holds, and
what is applied, which stands in the engine and travels in copies. For a copy that ends with the
seal leaves an empty log behind, and that one must not take anything either.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from rezone.storage.log.entry import EntryHeader, EntryKind
from rezone.storage.state.records import decoded
from rezone.wire.messages import SealMark

_NAME: Final = b"seal"


class LogSeal:
    """Whether a partition's log is sealed: as applied, and as the log stands. Caller locks."""

    def __init__(self) -> None:
        self._applied: SealMark | None = None
        self.mark: SealMark | None = None

    def load(self, state: Mapping[bytes, bytes]) -> None:
        """Take everything from an engine's named state."""
        content = state.get(_NAME)
        self._applied = None if content is None else decoded(content, SealMark)
        self.mark = self._applied

    def note(self, headers: Iterable[EntryHeader]) -> None:
        """Take appended entries into account."""
        for header in headers:
            self.mark = _mark_of(header) or self.mark

    def advance(self, headers: Iterable[EntryHeader]) -> dict[bytes, bytes | None]:
        """Return the engine state that must change when these entries are applied."""
        for header in headers:
            if (mark := _mark_of(header)) is not None:
                self._applied = self.mark = mark
                return engine_state(mark)
        return {}

    def set_back(self, offset: int) -> dict[bytes, bytes | None]:
        """Forget a seal from `offset` on; return the engine state that must change with it."""
        if self._applied is None or self._applied.end_offset <= offset:
            return {}
        self._applied = None
        return {_NAME: None}

    def forget_appended(self) -> None:
        """Forget what was only appended: the log was cut, and its rest will be noted again."""
        self.mark = self._applied

    def export(self) -> SealMark | None:
        """Return the applied seal, as a snapshot's header carries it."""
        return self._applied


def engine_state(mark: SealMark | None) -> dict[bytes, bytes | None]:
    """Return the named state that stands for a seal, for an engine that has none yet."""
    return {} if mark is None else {_NAME: msgspec.msgpack.encode(mark)}


def _mark_of(header: EntryHeader) -> SealMark | None:
    if header.kind != EntryKind.SEAL:
        return None
    return SealMark(header.end_offset, header.commit_time)
