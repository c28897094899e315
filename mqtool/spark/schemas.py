"""Schemas of DataFrames and of task results, limited to what every supported PySpark has."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from mqtool.spark.messages import CORRUPT

_TYPES: dict[str, DataType] = {
    spark_type.simpleString(): spark_type
    for spark_type in (
        BinaryType(),
        IntegerType(),
        LongType(),
        StringType(),
        TimestampType(),
        MapType(StringType(), StringType()),
        ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
        StructType(
            [
                StructField("file", StringType()),
                StructField("position", LongType()),
                StructField("code", StringType()),
                StructField("hex", StringType()),
            ]
        ),
    )
}


def spark_schema(columns: Mapping[str, str]) -> StructType:
    """Return the schema of columns by name and type."""
    return StructType([StructField(name, _TYPES[kind]) for name, kind in columns.items()])


def arrow_schema(schema: StructType) -> Any:
    """Return the schema that Spark expects of record batches."""
    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before 4.2 moments are always of UTC
        return to_arrow_schema(schema)


def metrics() -> list[Any]:
    """Return what ``frame.observe(name, *metrics())`` counts: ``messages``, their ``bytes``, and ``damaged`` places.

    The frame has the columns ``size`` and ``_corrupt_record``.
    """
    from pyspark.sql import functions

    is_sound = functions.col(CORRUPT).isNull()
    size = functions.sum(functions.when(is_sound, functions.col("size")))
    return [
        functions.count_if(is_sound).alias("messages"),
        functions.coalesce(size, functions.lit(0)).alias("bytes"),
        functions.count_if(~is_sound).alias("damaged"),
    ]
