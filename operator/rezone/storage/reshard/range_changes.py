"""What a partition's log means for a range of its hashes: the source's side of a re-sharding.

Of each committed entry the rows in the range, with the commit time their versions have. Intents
stay behind: a commit brings the rows again (docs/decisions/0085), and no open transaction outlives
the cut-over. How transactions have ended goes to every range, with rows in it or without, and so
does the seal that ends the partition. So do the epochs of producers: who is fenced here is fenced
at every range.
"""

from collections.abc import Iterator

from rezone.storage.log.entry import Entry, EntryKind
from rezone.storage.reshard.reshard_entries import KINDS, RangeEntry, rows_of, version_time
from rezone.storage.snapshot.digest import in_range
from rezone.storage.state.history import branch_at
from rezone.wire.errors import ConflictError
from rezone.wire.layouts import HashRange
from rezone.wire.messages import FailoverEntry

_SOURCE_KINDS = {resharded: kind for kind, resharded in KINDS.items()}
_WITHOUT_ROWS = frozenset({EntryKind.ABORT, EntryKind.SEAL, EntryKind.PRODUCER_OPEN})


def range_entries(
    entries: Iterator[Entry], hashes: HashRange, failover_log: tuple[FailoverEntry, ...]
) -> Iterator[RangeEntry]:
    """Yield what the entries mean for a range; those that mean nothing are left out.

    The caller gives committed entries alone: what is pulled is never taken back. ConflictError
    for a backfill: a partition is a source when it has all of its own rows.
    """
    for entry in entries:
        header = entry.header
        if header.kind == EntryKind.RESHARD_BACKFILL:
            raise ConflictError(f"rows are still being backfilled at {header.base_offset}")
        # An entry that was pulled itself, when the re-sharding before is not long ago.
        kind = _SOURCE_KINDS.get(EntryKind(header.kind), EntryKind(header.kind))
        if kind is EntryKind.INTENTS or header.kind == EntryKind.RESHARDED_SEAL:
            continue  # that seal is another partition's, of the layout before this one's
        rows = rows_of(entry)
        if kind in _WITHOUT_ROWS:
            inside = rows.slice(0, 0)
        else:
            inside = rows.filter(in_range(rows.column(0), hashes))
        if kind is EntryKind.PRODUCER_OPEN:
            kind = EntryKind.PLAIN
        if kind is EntryKind.PLAIN and not inside.num_rows and not header.opens:
            continue
        yield RangeEntry(
            rows=inside,
            kind=kind,
            batch=header.batch,
            base_offset=header.base_offset,
            end_offset=header.end_offset,
            commit_time=version_time(entry),
            branch=branch_at(failover_log, header.end_offset),
            leader_epoch=header.leader_epoch,
        )
