"""The rows that the load job can generate; each depends on its id alone.

Whoever checks a zone later can therefore compute what must be in it. The Spark expressions of
`load_job.generated` make the same rows.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from rezone.wire.codec.rows import arrow_schema_of
from rezone.wire.codec.schema import Column, ColumnType, TableSchema

GENERATED = TableSchema(
    columns=(
        Column("id", ColumnType.INT64, nullable=False),
        Column("name", ColumnType.STRING),
        Column("amount", ColumnType.FLOAT64),
        Column("updated", ColumnType.TIMESTAMP_US),
        Column("payload", ColumnType.STRING),
    ),
    primary_key=("id",),
)
"""The schema of generated rows; a zone to be filled with them must have these columns."""

EPOCH_MICROSECONDS = 1_700_000_000_000_000
AMOUNT_FACTOR = 7919
AMOUNT_MODULUS = 1_000_003


def generated_batch(ids: Sequence[int]) -> Any:
    """Return the generated rows of these ids (0 to 2**40) as a record batch of `GENERATED`."""
    numbers = np.asarray(ids, dtype=np.int64)
    texts = [str(i).encode() for i in ids]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(numbers),
            pa.array([f"name-{i:010d}" for i in ids]),
            pa.array((numbers * AMOUNT_FACTOR % AMOUNT_MODULUS) / 100.0),
            pa.array(EPOCH_MICROSECONDS + numbers * 1000, pa.timestamp("us")),
            pa.array(
                [hashlib.sha512(t).hexdigest() + hashlib.sha224(t).hexdigest()[:32] for t in texts]
            ),
        ],
        schema=arrow_schema_of(GENERATED),
    )
