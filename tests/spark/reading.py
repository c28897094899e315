"""Read a table as Spark's workers do, without a JVM: plan in one object, read its parts with a copy of it."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from mqtool.spark.schemas import arrow_schema
from mqtool.spark.source import RocketMQStore


def reader(store: Path | str, filters: list[Any] | None = None, **options: Any) -> DataSourceReader:
    """Return what reads a table, all columns of messages; of an option's name ``_`` stands for a dot."""
    given = {name.replace("_", "."): str(value) for name, value in options.items()}
    if not {"table", "columns"} & {name.lower() for name in given}:
        given["columns"] = "all"
    source = RocketMQStore(CaseInsensitiveDict({"path": str(store), **given}))
    one = source.reader(source.schema())
    if filters is not None:
        one.narrow(filters)
    return one


def batches(one: DataSourceReader) -> Iterator[list[pa.RecordBatch]]:
    """Yield the record batches of each part."""
    for part in one.partitions():
        copy, part = pickle.loads(pickle.dumps((one, part)))
        found = list(copy.read(part))
        for batch in found:
            batch.validate(full=True)
            assert batch.schema.equals(arrow_schema(one.schema))  # type: ignore[attr-defined]
        yield found


def read(store: Path | str, filters: list[Any] | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a table."""
    return [row for part in batches(reader(store, filters, **options)) for batch in part for row in batch.to_pylist()]
