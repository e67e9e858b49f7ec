"""A zone's column types as Spark's."""

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from rezone.wire.codec.schema import ColumnType, TableSchema

_SPARK: dict[ColumnType, DataType] = {
    ColumnType.BOOL: BooleanType(),
    ColumnType.INT8: ByteType(),
    ColumnType.INT16: ShortType(),
    ColumnType.INT32: IntegerType(),
    ColumnType.INT64: LongType(),
    ColumnType.FLOAT32: FloatType(),
    ColumnType.FLOAT64: DoubleType(),
    ColumnType.STRING: StringType(),
    ColumnType.BINARY: BinaryType(),
    ColumnType.DATE32: DateType(),
    # Zone times are UTC without a zone; TimestampType would be shifted by the session's zone.
    ColumnType.TIMESTAMP_US: TimestampNTZType(),
}


def spark_schema(table: TableSchema) -> StructType:
    """Return the Spark schema of a zone's rows."""
    keys = set(table.primary_key)
    return StructType(
        [
            StructField(c.name, _SPARK[c.type], c.nullable and c.name not in keys)
            for c in table.columns
        ]
    )
