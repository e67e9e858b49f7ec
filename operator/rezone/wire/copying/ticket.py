"""What one read of a partition is asked for on behalf of all its receivers (SS-06). Pure."""

from collections.abc import Sequence

import pyarrow as pa

from rezone.wire.messages import CopyState, HeldFiles, PartitionId, SnapshotFile, SnapshotTicket

FILES_SCHEMA = pa.schema([pa.field("data", pa.binary(), nullable=False)])
"""The schema of a file snapshot's stream: a batch is one value, a part of a file."""


def ticket_for(
    partition: PartitionId, states: Sequence[CopyState], *, reader: str, batch_bytes: int
) -> SnapshotTicket:
    """Return the ticket of a read that serves receivers in these states; there is at least one.

    It begins where the one that has least stands; the others get some parts again. A form that
    one of them cannot take is not offered.
    """
    return SnapshotTicket(
        partition=partition,
        reader=reader,
        resume_after=min(state.resume_after for state in states),
        batch_bytes=batch_bytes,
        formats=tuple(f for f in states[0].formats if all(f in s.formats for s in states)),
        held=_held_by_all([state.held for state in states]),
    )


def _held_by_all(held: Sequence[HeldFiles | None]) -> HeldFiles | None:
    """Return what every receiver has, of one engine's files; None when that is nothing."""
    first = held[0]
    if first is None or any(h is None or h.engine_id != first.engine_id for h in held):
        return None
    sizes = [{file.name: file.bytes for file in h.files} for h in held if h is not None]
    common = set.intersection(*(set(s) for s in sizes))
    files = tuple(SnapshotFile(name, min(s[name] for s in sizes)) for name in sorted(common))
    return HeldFiles(engine_id=first.engine_id, snapshot_id=first.snapshot_id, files=files)
