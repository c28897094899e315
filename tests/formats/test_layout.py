"""Each layout is written once: schemas and dtypes name the same bytes, and no bytes break a schema."""

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest
from construct import Array, Bytes, Construct, Int16ub, Int32sb, Int32sl, Int64sb, SizeofError, Struct, VarInt, this
from hypothesis import given
from hypothesis import strategies as st

import mqtool.formats
from mqtool.errors import FormatError
from mqtool.formats import commit_log
from mqtool.formats.layout import dtype_of, parse
from tests import builders


def schemas() -> dict[str, Any]:
    """Return every schema of every module in formats, by module and name."""
    found = {}
    for module in pkgutil.iter_modules(mqtool.formats.__path__):
        if module.name in ("compiled", "clmul"):  # no schemas, and slow to load
            continue
        values = vars(importlib.import_module(f"mqtool.formats.{module.name}"))
        found.update(
            {
                f"{module.name}.{name}": value
                for name, value in values.items()
                if isinstance(value, Construct) and not name.startswith("_")
            }
        )
    found.update({f"commit_log.HEADS[{form}]": head for form, head in enumerate(commit_log.HEADS)})
    return found


def dtypes() -> list[Any]:
    """Return each schema that has a dtype, with it."""
    pairs = []
    for name in schemas():
        module_name, attribute = name.split(".")
        values = vars(importlib.import_module(f"mqtool.formats.{module_name}"))
        if f"{attribute}_DTYPE" in values:
            pairs.append(pytest.param(values[attribute], values[f"{attribute}_DTYPE"], id=name))
    heads = zip(commit_log.HEADS, commit_log.HEAD_DTYPES, strict=True)
    return pairs + [pytest.param(head, dtype, id=f"head {form}") for form, (head, dtype) in enumerate(heads)]


def fixed_size(schema: Any) -> int | None:
    try:
        return int(schema.sizeof())
    except SizeofError:
        return None


def test_every_schema_is_looked_at() -> None:
    assert {
        "commit_log.MESSAGE",
        "commit_log.BLANK",
        "commit_log.CLIENT_BATCH",
        "consume_queue.UNIT",
        "consume_queue_ext.UNIT",
        "batch_consume_queue.UNIT",
        "index_file.HEADER",
        "index_file.SLOT",
        "index_file.ENTRY",
        "checkpoint.CHECKPOINT",
        "timer.SLOT",
        "timer.LOG_UNIT",
        "timer.LOG_END",
        "timer.TIMER_CHECK",
        "dledger.ENTRY_HEAD",
        "dledger.INDEX_UNIT",
    } <= set(schemas())
    assert len(dtypes()) >= 13


@pytest.mark.parametrize(("schema", "dtype"), dtypes())
def test_schema_and_dtype_have_the_same_fields_at_the_same_places(schema: Any, dtype: np.dtype[np.void]) -> None:
    at = 0
    for field in schema.subcons:
        kind, offset = (dtype.fields or {})[field.name][:2]
        assert (offset, kind.itemsize) == (at, field.sizeof()), field.name
        at += field.sizeof()
    assert list(dtype.names or ()) == [field.name for field in schema.subcons]
    assert dtype.itemsize == at


@pytest.mark.parametrize(("schema", "dtype"), dtypes())
@given(data=st.data())
def test_schema_and_dtype_read_the_same_values(schema: Any, dtype: np.dtype[np.void], data: st.DataObject) -> None:
    raw = data.draw(builders.filled(dtype.itemsize))

    parsed, row = schema.parse(raw), np.frombuffer(raw, dtype)[0]

    for name in dtype.names or ():
        value = row[name].tobytes() if row[name].ndim else int(row[name])
        assert value == parsed[name], name


# Their texts are UTF-8: what is replaced in reading is not the same in writing.
OF_BYTES = {name: schema for name, schema in schemas().items() if not name.startswith("rocksdb.")}


@pytest.mark.parametrize("name", schemas())
@given(data=st.data())
def test_any_bytes_are_parsed_or_a_format_error(name: str, data: st.DataObject) -> None:
    schema = schemas()[name]
    size = fixed_size(schema)
    raw = data.draw(st.binary(max_size=200) | builders.filled(size or 100))

    try:
        value = parse(schema, raw, "something")
    except FormatError as error:
        assert "something" in str(error)
        return

    if name in OF_BYTES:
        assert raw.startswith(schema.build(value))


MADE_UP: dict[str, st.SearchStrategy[bytes]] = {
    "commit_log.MESSAGE": builders.messages,
    "commit_log.CLIENT_BATCH": builders.batch_elements.map(b"".join),
    "consume_queue.UNIT": builders.units,
    "consume_queue_ext.UNIT": builders.ext_units,
    "batch_consume_queue.UNIT": builders.batch_units,
    "index_file.HEADER": builders.index_headers,
    "index_file.ENTRY": builders.index_entries,
    "checkpoint.CHECKPOINT": builders.checkpoints,
    "timer.SLOT": builders.wheel_slots,
    "timer.LOG_UNIT": builders.timer_units,
    "timer.TIMER_CHECK": builders.timer_checks,
    "dledger.ENTRY_HEAD": builders.dledger_heads,
    "dledger.INDEX_UNIT": builders.dledger_units,
}


@pytest.mark.parametrize("name", MADE_UP)
@given(data=st.data())
def test_what_is_built_comes_back(name: str, data: st.DataObject) -> None:
    raw = data.draw(MADE_UP[name])

    assert schemas()[name].build(parse(schemas()[name], raw, name)) == raw


@pytest.mark.parametrize("name", ["commit_log.MESSAGE", "commit_log.CLIENT_BATCH", "consume_queue_ext.UNIT"])
@given(data=st.data())
def test_hostile_lengths_are_format_errors(name: str, data: st.DataObject) -> None:
    raw = bytearray(data.draw(MADE_UP[name].filter(len)))
    at = data.draw(st.integers(0, len(raw) - 1))
    size = data.draw(builders.odd_sizes) * data.draw(st.sampled_from([1, -1]))
    raw[at : at + 4] = (size & 0xFFFFFFFF).to_bytes(4, "big")[: len(raw) - at]

    try:
        value = parse(schemas()[name], bytes(raw), name)
    except FormatError:
        return

    assert bytes(raw).startswith(schemas()[name].build(value))


def test_a_dtype_keeps_zeros_at_the_end_of_raw_bytes() -> None:
    dtype = dtype_of(Struct("address" / Bytes(4), "port" / Int32sb))

    row = np.frombuffer(bytes([10, 0, 0, 0, 0, 0, 0, 1]), dtype)[0]

    assert (row["address"].tobytes(), int(row["port"])) == (bytes([10, 0, 0, 0]), 1)


def test_a_dtype_takes_order_width_and_sign_from_the_schema() -> None:
    dtype = dtype_of(Struct("a" / Int32sb, "b" / Int16ub, "c" / Int32sl, "d" / Int64sb))

    assert [dtype.fields[name][0].str for name in "abcd"] == [">i4", ">u2", "<i4", ">i8"]  # type: ignore[index]


@pytest.mark.parametrize("field", [VarInt, Array(2, Int32sb), Struct("a" / Int32sb)])
def test_what_has_no_fixed_layout_has_no_dtype(field: Any) -> None:
    with pytest.raises(TypeError, match="no fixed layout"):
        dtype_of(Struct("field" / field))


def test_a_length_that_another_field_tells_has_no_dtype() -> None:
    with pytest.raises(SizeofError):
        dtype_of(Struct("size" / Int32sb, "data" / Bytes(this.size)))
