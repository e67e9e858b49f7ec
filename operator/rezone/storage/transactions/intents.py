"""Write intents: rows of an open transaction, which nobody else sees until it commits.

In the log an intent is a row of `OP_INTENT` whose value is

    read time u64 | begun u64 | op u8 | the row's value

(little-endian; `op` is what the commit will do to the row). In the engine it is a version with
`FLAG_INTENT` at the time of its entry, with the transaction's 16 bytes in front of that value:
so it can be told from its chain alone whose it is (SS-02).

A commit writes the rows again, as plain versions at its own time, and an abort nothing at all:
intents stay where they are until they are collected. So an intent is open or over by what
`storage.transactions.transactions` knows of its transaction, never by its own bytes; and like all
versions intents are blind writes, which can be repeated, and undone by deleting exactly their keys.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from rezone.storage.engines.base import FLAG_INTENT, TIME_BYTES, Chains
from rezone.storage.log.entry import OP_INTENT, OP_UPSERT, ROWS_SCHEMA, rows_batch
from rezone.storage.state.records import unpacked

ID_BYTES: Final = 16
_HEAD: Final = struct.Struct("<QQB")
_OWNER_END: Final = 1 + ID_BYTES


class Intent(NamedTuple):
    """What a transaction will do to one row when it commits: `op` and `value` of a log row."""

    op: int
    value: bytes


def intent_rows(rows: pa.RecordBatch, read_time: int, begun: int) -> pa.RecordBatch:
    """Return upserts and deletes as the rows of an intent entry."""
    ids, ops, values = rows.columns
    marked = [
        _HEAD.pack(read_time, begun, op) + value
        for op, value in zip(ops.to_pylist(), values.to_pylist(), strict=True)
    ]
    kinds = pa.array([OP_INTENT] * len(marked), pa.uint8())
    return pa.RecordBatch.from_arrays(
        [ids, kinds, pa.array(marked, pa.binary())], schema=ROWS_SCHEMA
    )


def times_of(value: bytes) -> tuple[int, int]:
    """Return the read time and the beginning of the transaction of an intent in the log."""
    read_time, begun, _ = unpacked(_HEAD, value)
    return read_time, begun


def owner_of(stored: bytes) -> bytes:
    """Return the transaction of an intent's engine value, its flag included."""
    return stored[1:_OWNER_END]


def newest_intents(chains: Chains, transaction: bytes) -> dict[bytes, Intent]:
    """Return the newest intent of a transaction on each row of the chains that has one."""
    found: dict[bytes, Intent] = {}
    for key, stored in zip(chains.keys, chains.values, strict=True):
        if stored[0] != FLAG_INTENT or owner_of(stored) != transaction:
            continue
        if (row_id := key[:-TIME_BYTES]) not in found:  # the newest version comes first
            *_, op = unpacked(_HEAD, stored[_OWNER_END:])
            found[row_id] = Intent(op, stored[_OWNER_END + _HEAD.size :])
    return found


def commit_rows(intents: dict[bytes, Intent]) -> pa.RecordBatch:
    """Return the rows of a commit's entry, in row order."""
    row_ids = sorted(intents)
    chosen = [intents[row_id] for row_id in row_ids]
    return rows_batch(row_ids, [i.op for i in chosen], [i.value for i in chosen])


def overlaid(
    row_ids: Sequence[bytes], values: Sequence[bytes | None], intents: dict[bytes, Intent]
) -> list[bytes | None]:
    """Return the rows' values as the transaction of the intents itself reads them."""
    result = list(values)
    for index, row_id in enumerate(row_ids):
        if (own := intents.get(row_id)) is not None:
            result[index] = own.value if own.op == OP_UPSERT else None
    return result
