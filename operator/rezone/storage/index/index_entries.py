"""What index entries are made of: versions of rows in, engine keys and values out, by batches.

An entry's engine key is `INDEX_PREFIX`, index key, row id and inverted commit time, so that it is
stored and scanned as a version is; its value is a version's flag and the length of the index key.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rezone.storage.engines.base import FLAG_VALUE, INDEX_PREFIX
from rezone.storage.log.entry import OP_UPSERT, Entry
from rezone.storage.reshard.reshard_entries import rows_of, version_times
from rezone.storage.snapshot.columns import Columns, columns_of, engine_keys, fixed_array
from rezone.wire.codec.indexes import IndexCodec, index_codecs
from rezone.wire.codec.pieces import ByteStrings, gather, refuse_corrupt
from rezone.wire.codec.rows import RowCodec, keys_of
from rezone.wire.codec.schema import IndexId, TableSchema

_ROWS_PER_STEP = 2000
_LENGTH = np.dtype("<u4")


class Versions(NamedTuple):
    """Versions of rows, those with a value alone; one array per part."""

    row_ids: Any
    times: npt.NDArray[np.uint64]
    values: Any


class Entries(NamedTuple):
    """Index entries as Arrow arrays of engine keys and values."""

    keys: Any
    values: Any

    @property
    def size(self) -> int:
        """Their bytes."""
        return int(pc.sum(pc.binary_length(self.keys)).as_py() or 0) + int(
            pc.sum(pc.binary_length(self.values)).as_py() or 0
        )

    def slices(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield keys and values as the engine loads them, some at a time."""
        for start in range(0, len(self.keys), _ROWS_PER_STEP):
            keys = self.keys.slice(start, _ROWS_PER_STEP).to_pylist()
            yield keys, self.values.slice(start, _ROWS_PER_STEP).to_pylist()

    def sorted(self) -> "Entries":
        """Return them in the engine's order."""
        order = pc.array_sort_indices(self.keys)
        return Entries(self.keys.take(order), self.values.take(order))


class EntryMaker:
    """Makes the entries of a table's versions in some of its indexes; has no state that changes."""

    def __init__(self, rows: RowCodec, codecs: tuple[IndexCodec, ...]) -> None:
        self._rows = rows
        self._codecs = codecs
        self._names = frozenset(name for codec in codecs for name in codec.columns)
        self.ids = tuple(codec.id for codec in codecs)

    @classmethod
    def of(cls, table: TableSchema) -> "EntryMaker":
        """Return what makes the entries of all indexes of a table."""
        return cls(RowCodec(table), index_codecs(table))

    def only(self, ids: Collection[IndexId]) -> "EntryMaker":
        """Return what makes the entries of these indexes alone."""
        return EntryMaker(self._rows, tuple(codec for codec in self._codecs if codec.id in ids))

    def index_keys(self, codec: IndexCodec, row_ids: Any, values: Any) -> Any:
        """Return the index keys of rows."""
        columns = self._rows.decode_columns(keys_of(row_ids), values, frozenset(codec.columns))
        return codec.encode(columns, len(row_ids))

    def entries_of(self, keys: Sequence[bytes], values: Sequence[bytes]) -> Entries:
        """Return the entries of versions as the engine has them."""
        if not keys:
            return self.entries(joined([]))
        return self.entries(_with_values(columns_of(keys, values)))

    def entries(self, versions: Versions) -> Entries:
        """Return the entries of versions, index after index."""
        rows = len(versions.row_ids)
        columns = self._rows.decode_columns(keys_of(versions.row_ids), versions.values, self._names)
        keys: list[Any] = []
        values: list[Any] = []
        for codec in self._codecs if rows else ():
            index_keys = codec.encode(columns, rows)
            prefixed = pc.binary_join_element_wise(
                pa.scalar(INDEX_PREFIX), index_keys, versions.row_ids, pa.scalar(b"")
            )
            keys.append(engine_keys(prefixed, versions.times))
            values.append(_lengths(index_keys))
        return Entries(_concatenated(keys), _concatenated(values))


class Arriving:
    """The entries of rows that a copy brings, kept until they go to the engine, sorted."""

    def __init__(self, maker: EntryMaker) -> None:
        self._maker = maker
        self._taken: list[Entries] = []

    @property
    def ids(self) -> tuple[IndexId, ...]:
        """The indexes that get their entries."""
        return self._maker.ids

    def take(self, batch: pa.RecordBatch) -> int:
        """Take the versions of a snapshot batch; return the bytes of their entries."""
        if not self._maker.ids:
            return 0
        row_ids, times, flags, values = batch.columns
        columns = Columns(
            ByteStrings.of(row_ids), times.to_numpy(), flags.to_numpy(), ByteStrings.of(values)
        )
        return self._keep(self._maker.entries(_with_values(columns)))

    def take_stored(self, keys: Sequence[bytes], values: Sequence[bytes]) -> int:
        """Take versions as the engine has them; return the bytes of their entries."""
        return self._keep(self._maker.entries_of(keys, values)) if self._maker.ids else 0

    def _keep(self, entries: Entries) -> int:
        self._taken.append(entries)
        return entries.size

    def in_order(self) -> Entries:
        """Return what was taken since it was forgotten, in the engine's order."""
        keys = [entries.keys for entries in self._taken]
        values = [entries.values for entries in self._taken]
        return Entries(_concatenated(keys), _concatenated(values)).sorted()

    def forget(self) -> None:
        """Forget what was taken: the engine has it."""
        self._taken = []


def upserts_of(entry: Entry) -> Versions:
    """Return the versions with a value that a log entry makes; intents are none until committed."""
    row_ids, ops, values = rows_of(entry).columns
    mask = pc.equal(ops, pa.scalar(OP_UPSERT, pa.uint8()))
    times = version_times(entry)[mask.to_numpy(zero_copy_only=False)]
    return Versions(row_ids.filter(mask), times, values.filter(mask))


def _with_values(columns: Columns) -> Versions:
    chosen = np.flatnonzero(columns.flags == FLAG_VALUE)
    row_ids, values = columns.row_ids.chosen(chosen), columns.values.chosen(chosen)
    return Versions(row_ids.array(), columns.times[chosen], values.array())


def joined(parts: list[Versions]) -> Versions:
    """Return versions one after the other."""
    if not parts:
        nothing = pa.array([], pa.binary())
        return Versions(nothing, np.zeros(0, np.uint64), nothing)
    return Versions(
        pa.concat_arrays([part.row_ids for part in parts]),
        np.concatenate([part.times for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
    )


def _concatenated(parts: list[Any]) -> Any:
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def _lengths(index_keys: Any) -> Any:
    """Return the entries' values: a version's flag, and how long the index key is."""
    lengths = pc.binary_length(index_keys).to_numpy().astype(_LENGTH)
    raw = np.zeros((len(lengths), 1 + _LENGTH.itemsize), np.uint8)
    raw[:, 0] = FLAG_VALUE
    raw[:, 1:] = lengths.view(np.uint8).reshape(-1, _LENGTH.itemsize)
    return fixed_array(raw.tobytes(), raw.shape[1])


def split_places(places: ByteStrings, lengths: ByteStrings) -> tuple[Any, Any]:
    """Return (index keys, row ids) of entries' places in the engine, by the lengths they carry."""
    begin = places.starts + len(INDEX_PREFIX)
    found = gather(lengths.data, lengths.starts, lengths.ends, _LENGTH.itemsize)
    middle = begin + found.view(_LENGTH).ravel().astype(np.int64)
    refuse_corrupt(begin, middle, places.ends, "index entry")
    index_keys, row_ids = (
        ByteStrings(places.data, begin, middle),
        ByteStrings(places.data, middle, places.ends),
    )
    return index_keys.array(), row_ids.array()
