"""What a transaction sees of a range: the rows as of its read time, with its own writes on top.

Only its leader answers, as for its reads by key. Its intents are read once: no more of them than
one transaction may have, and its client writes none while it reads. After each slice it must still
be open, for the intents of one that is over are collected.

What it has not written is as of its read time whatever others write: rows that come into its range
meanwhile are not seen, and nothing keeps others from writing them (decision 0188).

Concurrency: belongs to the thread that reads.
"""

import bisect
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rezone.datanode.state.replica_state import ReplicaState
from rezone.datanode.writing.transacting import require_open
from rezone.storage.log.entry import OP_UPSERT
from rezone.storage.snapshot.digest import in_range
from rezone.wire.codec.indexes import IndexCodec, KeyRange
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.layouts import HashRange
from rezone.wire.messages import OwnWrites


class OwnRows:
    """The rows that one open transaction has written; TransactionEndedError when it is over."""

    def __init__(self, replica: ReplicaState, own: OwnWrites) -> None:
        self._replica = replica
        self._own = own
        found = require_open(replica, own)
        self._row_ids = found.row_ids if found is not None else []
        self._intents = (
            replica.store.reader.intents(found, self._row_ids) if found is not None else {}
        )
        self.require_open()

    def require_open(self) -> None:
        """Raise TransactionEndedError when what was read may be of a transaction that is over."""
        require_open(self._replica, self._own)

    def over(self, row_ids: Any, values: Any, start: bytes, end: bytes | None) -> tuple[Any, Any]:
        """Return the rows of [start, end) with its own ones in place, in the order of row ids."""
        self.require_open()
        low = bisect.bisect_left(self._row_ids, start)
        high = len(self._row_ids) if end is None else bisect.bisect_left(self._row_ids, end)
        mine = self._row_ids[low:high]
        if not mine:
            return row_ids, values
        own_ids, own_values = self._upserts(mine)
        others = self._of_others(row_ids)
        ids = pa.concat_arrays([row_ids.filter(others), own_ids])
        order = pc.array_sort_indices(ids)
        return ids.take(order), pa.concat_arrays([values.filter(others), own_values]).take(order)

    def others(self, row_ids: Any, values: Any) -> tuple[Any, Any]:
        """Return those rows that it has not written."""
        self.require_open()
        mask = self._of_others(row_ids)
        return row_ids.filter(mask), values.filter(mask)

    def matching(
        self, index: IndexCodec, keys: KeyRange, after: bytes, hashes: HashRange, codec: RowCodec
    ) -> Any:
        """Return its rows in a range of an index, behind a place, as a typed batch in its order."""
        row_ids, values = self._upserts(self._row_ids)
        inside = in_range(row_ids, hashes)
        row_ids, values = row_ids.filter(inside), values.filter(inside)
        batch = codec.decode(keys_of(row_ids), values)
        columns = {name: batch.column(name) for name in index.columns}
        index_keys = index.encode(columns, batch.num_rows)
        places = pc.binary_join_element_wise(index_keys, row_ids, pa.scalar(b"", pa.binary()))
        wanted = pc.and_(
            pc.and_(pc.greater_equal(index_keys, keys.start), pc.less(index_keys, keys.end)),
            pc.greater(places, after),
        )
        return batch.filter(wanted).take(pc.array_sort_indices(places.filter(wanted)))

    def _upserts(self, row_ids: list[bytes]) -> tuple[Any, Any]:
        found = [(one, self._intents[one]) for one in row_ids if one in self._intents]
        kept = [(one, intent.value) for one, intent in found if intent.op == OP_UPSERT]
        ids, values = ([pair[part] for pair in kept] for part in (0, 1))
        return pa.array(ids, pa.binary()), pa.array(values, pa.binary())

    def _of_others(self, row_ids: Any) -> Any:
        return pc.invert(pc.is_in(row_ids, value_set=pa.array(self._row_ids, pa.binary())))
