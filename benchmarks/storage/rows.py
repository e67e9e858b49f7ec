"""How fast rows are encoded, hashed and decoded, in MB of encoded keys and values a second.

    PYTHONPATH=operator:benchmarks python benchmarks/storage/rows.py [--rows 8192] [--repeat 30]

One thread; medians. MB = 10^6 bytes. The same batch is taken again and again, so it is read from
the CPU's cache: rows of 1 KiB that come from memory were encoded at 8 instead of 26 GB/s.
`check`, `row_ids`, `keys_of` and `from_ipc` do not touch all bytes; their rates say only that
they cost little.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from rezone.wire.codec import bodies, rows
from rezone.wire.codec.rows import RowCodec
from rezone.wire.codec.schema import Column, ColumnType, TableSchema

ACCOUNTS = TableSchema(
    columns=(
        Column("id", ColumnType.INT64),
        Column("name", ColumnType.STRING),
        Column("amount", ColumnType.FLOAT64),
        Column("updated", ColumnType.TIMESTAMP_US),
        Column("payload", ColumnType.STRING),
    ),
    primary_key=("id",),
)
PLAIN = TableSchema()


def accounts(count: int) -> Any:
    """Return rows of about 200 bytes with five columns."""
    ids = np.arange(count, dtype=np.int64)
    payload = pa.array(["x" * 150] * count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array([f"name-{i:08d}" for i in range(count)]),
            pa.array(ids * 0.5),
            pa.array(ids, pa.timestamp("us")),
            payload,
        ],
        schema=rows.arrow_schema_of(ACCOUNTS),
    )


def plain(count: int, value_bytes: int) -> Any:
    """Return binary keys of 16 bytes and values of one length."""
    keys = pa.array([i.to_bytes(16, "big") for i in range(count)])
    values = pa.array([bytes(value_bytes)] * count)
    return pa.RecordBatch.from_arrays([keys, values], schema=rows.arrow_schema_of(PLAIN))


def rate(work: Callable[[], object], size: int, repeat: int) -> float:
    """Return the median rate of `work` in MB/s."""
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return size / statistics.median(seconds) / 1e6


def measure(label: str, table: TableSchema, batch: Any, repeat: int) -> None:
    """Print one line of rates for a batch."""
    codec = RowCodec(table)
    keys, values = codec.encode_keys(batch), codec.encode_values(batch)
    hashes = rows.hash_of(keys)
    ids = rows.row_ids(keys, hashes)
    body = bodies.to_ipc(batch)
    size = keys.nbytes + values.nbytes
    steps: dict[str, Callable[[], object]] = {
        "check": lambda: codec.check(batch, delete=False),
        "encode": lambda: (codec.encode_keys(batch), codec.encode_values(batch)),
        "hash": lambda: rows.hash_of(keys),
        "row_ids": lambda: rows.row_ids(keys, hashes),
        "keys_of": lambda: rows.keys_of(ids),
        "decode": lambda: codec.decode(keys, values),
        "to_ipc": lambda: bodies.to_ipc(batch),
        "from_ipc": lambda: bodies.from_ipc(body, codec.arrow_schema),
    }
    figures = "  ".join(f"{name} {rate(step, size, repeat):,.0f}" for name, step in steps.items())
    print(f"{label} ({size / batch.num_rows:.0f} bytes a row): {figures}")


def main() -> None:
    """Measure three kinds of rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--repeat", type=int, default=30)
    arguments = parser.parse_args()
    measure("accounts", ACCOUNTS, accounts(arguments.rows), arguments.repeat)
    measure("plain 100", PLAIN, plain(arguments.rows, 80), arguments.repeat)
    measure("plain 1024", PLAIN, plain(arguments.rows, 1008), arguments.repeat)


if __name__ == "__main__":
    main()
