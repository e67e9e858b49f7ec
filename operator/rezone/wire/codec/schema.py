"""The schema of a zone's rows as it travels and is stored: columns, types, primary key, limits."""

import enum

import msgspec

from rezone.wire.ranges import Count


class ColumnType(enum.StrEnum):
    """The column types a zone may have, by their Arrow names."""

    BOOL = "bool"
    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT32 = "float32"
    FLOAT64 = "float64"
    STRING = "string"
    BINARY = "binary"
    DATE32 = "date32"
    TIMESTAMP_US = "timestamp[us]"


KEY_TYPES = frozenset(ColumnType) - {ColumnType.FLOAT32, ColumnType.FLOAT64}
"""Types a primary key or an index may have; floats compare unlike their bytes (-0.0, NaN)."""

INDEXES_MAX = 16
"""How many secondary indexes a zone may have: each row has an entry in every one of them."""


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """One column; a primary-key column is never nullable, whatever it says."""

    name: str
    type: ColumnType
    nullable: bool = True


IndexId = bytes
"""What an index's entries begin with (`wire.codec.indexes`)."""


class Index(msgspec.Struct, frozen=True):
    """A secondary index: rows can be looked up by these columns, in their order."""

    name: str
    columns: tuple[str, ...]


class TableSchema(msgspec.Struct, frozen=True, omit_defaults=True):
    """The columns of a zone in order, its primary key's columns, its secondary indexes."""

    columns: tuple[Column, ...] = (
        Column("key", ColumnType.BINARY, nullable=False),
        Column("value", ColumnType.BINARY, nullable=True),
    )
    primary_key: tuple[str, ...] = ("key",)
    indexes: tuple[Index, ...] = ()


class RowLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one row and one write batch may weigh; both are settings of the zone."""

    key_bytes_max: Count = 4096
    value_bytes_max: Count = 1 << 20
    batch_bytes_max: Count = 16 << 20
    batch_rows_max: Count = 65_536
