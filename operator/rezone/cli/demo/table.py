"""The demo's table: its schema, what is loaded into it, and the rows that the writers add.

Without an input the rows are generated (transfer/load_job.py); with one, the table has the file's
columns and one more, `demo_write`, which is null in the file's rows. Either way one numeric column
of a writer's row holds the count of its writes.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from rezone.transfer.generated import GENERATED
from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import Column, ColumnType, TableSchema

WRITE_COLUMN = "demo_write"
WRITER_KEYS_START = 1 << 40
_PAYLOAD = "x" * 120

_CASTS: tuple[tuple[Any, ColumnType], ...] = (
    (pa.types.is_boolean, ColumnType.BOOL),
    (pa.types.is_int8, ColumnType.INT8),
    (pa.types.is_int16, ColumnType.INT16),
    (pa.types.is_int32, ColumnType.INT32),
    (pa.types.is_integer, ColumnType.INT64),
    (pa.types.is_float32, ColumnType.FLOAT32),
    (pa.types.is_floating, ColumnType.FLOAT64),
    (pa.types.is_decimal, ColumnType.FLOAT64),
    (pa.types.is_string, ColumnType.STRING),
    (pa.types.is_large_string, ColumnType.STRING),
    (pa.types.is_binary, ColumnType.BINARY),
    (pa.types.is_large_binary, ColumnType.BINARY),
    (pa.types.is_date, ColumnType.DATE32),
    (pa.types.is_timestamp, ColumnType.TIMESTAMP_US),
)


class UnusableInputError(ValueError):
    """Raised when a file cannot be the demo's table; says what to do."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DemoTable:
    """What the demo works on.

    `load` are the arguments of the load job that say what to load, `rows` how many rows that
    makes, `write_column` the column with the count of writes.
    """

    schema: TableSchema
    rows: int
    load: tuple[str, ...]
    write_column: str

    @property
    def key(self) -> Column:
        """The key column."""
        return next(c for c in self.schema.columns if c.name == self.schema.primary_key[0])

    def keys(self, numbers: Sequence[int]) -> Any:
        """Return the key column of the writers' rows with these numbers."""
        arrow = arrow_schema_of(self.schema).field(self.key.name)
        if self.key.type is ColumnType.STRING:
            return pa.array([f"rezone-demo-{n}" for n in numbers], arrow.type)
        return pa.array([WRITER_KEYS_START + n for n in numbers], arrow.type)

    def key_batch(self, numbers: Sequence[int]) -> Any:
        """Return a batch of keys, for reads."""
        field = arrow_schema_of(self.schema).field(self.key.name)
        return pa.RecordBatch.from_arrays([self.keys(numbers)], schema=pa.schema([field]))

    def batch(self, writes: dict[int, int]) -> Any:
        """Return the rows of a write: the count of its writes by the row's number."""
        schema = arrow_schema_of(self.schema)
        numbers = list(writes)
        counts = np.fromiter(writes.values(), dtype=np.int64, count=len(writes))
        known = {self.key.name: self.keys(numbers), self.write_column: pa.array(counts)}
        if self.schema == GENERATED:
            known["name"] = pa.array([f"demo-{n}" for n in numbers])
            known["payload"] = pa.array([_PAYLOAD] * len(numbers))
        columns = [
            pc.cast(known[field.name], field.type)
            if field.name in known
            else pa.nulls(len(numbers), field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def writes_of(self, table: Any) -> dict[int, int]:
        """Return the count of writes by number, from rows that were read."""
        keys = table.column(self.key.name).to_pylist()
        counts = table.column(self.write_column).to_pylist()
        prefix = len("rezone-demo-")
        strings = self.key.type is ColumnType.STRING
        numbers = (int(k[prefix:]) if strings else k - WRITER_KEYS_START for k in keys)
        return {n: int(c) for n, c in zip(numbers, counts, strict=True)}


def generated_table(rows: int) -> DemoTable:
    """Return the table of generated rows."""
    return DemoTable(
        schema=GENERATED,
        rows=rows,
        load=("--generate", str(rows)),
        write_column="amount",
    )


def table_of_file(path: Path, key: str | None, staging: Path) -> DemoTable:
    """Return the table of a Parquet or CSV file; its typed copy is written to `staging`.

    UnusableInputError when the file cannot be read or its key does not do.
    """
    table = _read(path)
    name = key or table.column_names[0]
    if name not in table.column_names:
        raise UnusableInputError(f"{path} has no column {name!r}, only {table.column_names}")
    columns = tuple(_column(field, name) for field in table.schema)
    kind = next(c.type for c in columns if c.name == name)
    if kind not in (ColumnType.INT64, ColumnType.STRING):
        raise UnusableInputError(
            f"column {name!r} is {kind.value}: choose a key of whole 64-bit numbers or texts (KEY=)"
        )
    if table.column(name).null_count:
        raise UnusableInputError(f"column {name!r} has nulls, so it cannot be the key (KEY=)")
    schema = TableSchema(
        columns=(*columns, Column(WRITE_COLUMN, ColumnType.INT64)),
        primary_key=(name,),
    )
    target = arrow_schema_of(schema)
    typed = table.append_column(WRITE_COLUMN, pa.nulls(table.num_rows, pa.int64()))
    pq.write_table(typed.cast(pa.schema([f.with_nullable(nullable=True) for f in target])), staging)
    return DemoTable(
        schema=schema,
        rows=pc.count_distinct(table.column(name)).as_py(),
        load=("--parquet", str(staging), "--state", str(staging.parent / "loads")),
        write_column=WRITE_COLUMN,
    )


def _read(path: Path) -> Any:
    try:
        if path.suffix == ".csv":
            return pyarrow.csv.read_csv(path)
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise UnusableInputError(f"{path} is no readable Parquet or CSV file: {error}") from error


def _column(field: Any, key: str) -> Column:
    kind = next((kind for check, kind in _CASTS if check(field.type)), None)
    if kind is None:
        raise UnusableInputError(
            f"column {field.name!r} has the type {field.type}, which a zone cannot hold: drop it"
        )
    return Column(field.name, kind, nullable=field.name != key)
