"""Each layout is written once: schemas and dtypes name the same bytes, and no bytes break a schema."""

import importlib
import pkgutil
from typing import Any

import numpy as np
import pytest
from construct import Construct, SizeofError, this
from hypothesis import given
from hypothesis import strategies as st

import mqtool.formats
from mqtool.errors import FormatError
from mqtool.formats import commit_log
from mqtool.formats.layout import I16, I32, I64, Layout, parse, raw
from tests import builders


def values() -> dict[str, Any]:
    """Return every layout and every schema of every module in formats, by module and name."""
    found = {}
    for module in pkgutil.iter_modules(mqtool.formats.__path__):
        if module.name in ("compiled", "clmul"):  # no schemas, and slow to load
            continue
        found.update(
            {
                f"{module.name}.{name}": value
                for name, value in vars(importlib.import_module(f"mqtool.formats.{module.name}")).items()
                if isinstance(value, Construct | Layout) and not name.startswith("_")
            }
        )
    found.update({f"commit_log.HEADS[{form}]": head for form, head in enumerate(commit_log.HEADS)})
    return found


LAYOUTS = {name: value for name, value in values().items() if isinstance(value, Layout)}
SCHEMAS = {name: getattr(value, "schema", value) for name, value in values().items()}


def fixed_size(schema: Any) -> int | None:
    try:
        return int(schema.sizeof())
    except SizeofError:
        return None


def test_every_schema_is_looked_at() -> None:
    assert {
        "record_schemas.MESSAGE",
        "commit_log.BLANK",
        "record_schemas.CLIENT_BATCH",
        "consume_queue.UNIT",
        "record_schemas.EXT_UNIT",
        "consume_queue_ext.HEAD",
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
    } <= set(SCHEMAS)
    assert len(LAYOUTS) >= 20


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_readers_have_the_same_fields_at_the_same_places(name: str) -> None:
    layout = LAYOUTS[name]
    schema, dtype = layout.schema, layout.dtype
    at = 0
    for field in schema.subcons:
        kind, offset = (dtype.fields or {})[field.name][:2]
        assert (offset, kind.itemsize) == (at, field.sizeof()), field.name
        assert (layout.offset_of(field.name), layout.size_of(field.name)) == (at, field.sizeof()), field.name
        at += field.sizeof()
    assert dtype.names == layout.names == tuple(field.name for field in schema.subcons)
    assert dtype.itemsize == layout.packer.size == layout.size == at


@pytest.mark.parametrize("name", LAYOUTS)
@given(data=st.data())
def test_all_readers_read_the_same_values(name: str, data: st.DataObject) -> None:
    layout = LAYOUTS[name]
    raw = data.draw(builders.filled(layout.size))

    parsed, row = layout.schema.parse(raw), np.frombuffer(raw, layout.dtype)[0]
    unpacked = layout.packer.unpack(raw)

    for field, number in zip(layout.names, unpacked, strict=True):
        value = row[field].tobytes() if row[field].ndim else int(row[field])
        assert value == parsed[field] == number, field
    assert layout.packer.pack(*unpacked) == raw


# Their texts are UTF-8: what is replaced in reading is not the same in writing.
OF_BYTES = {name: schema for name, schema in SCHEMAS.items() if not name.startswith("rocksdb.")}


@pytest.mark.parametrize("name", SCHEMAS)
@given(data=st.data())
def test_any_bytes_are_parsed_or_a_format_error(name: str, data: st.DataObject) -> None:
    schema = SCHEMAS[name]
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
    "record_schemas.MESSAGE": builders.messages,
    "record_schemas.CLIENT_BATCH": builders.batch_elements.map(b"".join),
    "consume_queue.UNIT": builders.units,
    "record_schemas.EXT_UNIT": builders.ext_units,
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

    assert SCHEMAS[name].build(parse(SCHEMAS[name], raw, name)) == raw


@pytest.mark.parametrize("name", ["record_schemas.MESSAGE", "record_schemas.CLIENT_BATCH", "record_schemas.EXT_UNIT"])
@given(data=st.data())
def test_hostile_lengths_are_format_errors(name: str, data: st.DataObject) -> None:
    raw = bytearray(data.draw(MADE_UP[name].filter(len)))
    at = data.draw(st.integers(0, len(raw) - 1))
    size = data.draw(builders.odd_sizes) * data.draw(st.sampled_from([1, -1]))
    raw[at : at + 4] = (size & 0xFFFFFFFF).to_bytes(4, "big")[: len(raw) - at]

    try:
        value = parse(SCHEMAS[name], bytes(raw), name)
    except FormatError:
        return

    assert bytes(raw).startswith(SCHEMAS[name].build(value))


def test_raw_bytes_keep_zeros_at_the_end() -> None:
    layout = Layout(address=raw(4), port=I32)
    data = bytes([10, 0, 0, 0, 0, 0, 0, 1])

    row = np.frombuffer(data, layout.dtype)[0]

    assert (row["address"].tobytes(), int(row["port"])) == (bytes([10, 0, 0, 0]), 1)
    assert layout.packer.unpack(data) == (bytes([10, 0, 0, 0]), 1)


def test_numbers_are_big_endian_and_signed() -> None:
    layout = Layout(a=I16, b=I32, c=I64)

    assert [layout.dtype[name].str for name in layout.names] == [">i2", ">i4", ">i8"]
    assert layout.schema.parse(b"\xff\xfe" + b"\0\0\0\7" + b"\xff" * 8) == {"a": -2, "b": 7, "c": -1}
    assert layout.packer.format == ">hiq"


@pytest.mark.parametrize("code", ["", "s", "-1s", "2i", "ii", "I", "<i", ">i", "f", "x", "p", "4S"])
def test_what_has_no_fixed_layout_of_its_own_is_refused(code: str) -> None:
    with pytest.raises(TypeError, match="has no fixed layout"):
        Layout(size=I32, field=code)


def test_a_field_that_a_record_has_not_is_nowhere() -> None:
    layout = Layout(size=I32)

    for ask in (layout.offset_of, layout.size_of):
        with pytest.raises(LookupError, match="tags_code"):
            ask("tags_code")


def test_a_length_that_another_field_tells_has_no_layout() -> None:
    with pytest.raises(TypeError):
        Layout(size=I32, data=this.size)
