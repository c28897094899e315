"""Which schemas go with each other: by Avro's own examples of resolution, and by what official clients bring."""

import json
from typing import Any

import pytest

from mqtool.engine.pulsar.avro import can_read, parse_schema
from mqtool.engine.pulsar.refusal import PulsarRefusedError
from mqtool.engine.pulsar.schemas import Schema, check_new, check_reader, find
from mqtool.errors import FormatError

STRING, JSON, PROTOBUF, AVRO, INT64 = 1, 2, 3, 4, 9


def record(*fields: Any, name: str = "R", **more: Any) -> Any:
    return {"type": "record", "name": name, "fields": [*fields], **more}


def field(name: str, kind: Any, **more: Any) -> Any:
    return {"name": name, "type": kind, **more}


NUMBER, TEXT = field("n", "int"), field("s", ["null", "string"], default=None)
LIST = record(field("next", ["null", "LinkedList"], default=None), name="LinkedList", namespace="a.b")
ENUM, WIDER_ENUM = ({"type": "enum", "name": "E", "symbols": symbols} for symbols in (["A"], ["A", "B"]))
FIXED = {"type": "fixed", "name": "a.F", "size": 4}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("long", "int", True),
        ("int", "long", False),
        ("double", "float", True),
        ("bytes", "string", True),
        ("string", "bytes", True),
        ("string", "int", False),
        (["null", "int"], "int", True),
        (["null", "long"], "int", True),
        (["null", "string"], "int", False),
        ("int", ["int", "null"], False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, False),
        (record(NUMBER, TEXT), record(NUMBER), True),
        (record(NUMBER), record(NUMBER, TEXT), True),
        (record(NUMBER, field("m", "int")), record(NUMBER), False),
        (record(field("m", "int", aliases=["n"])), record(NUMBER), True),
        (record(NUMBER, name="R"), record(NUMBER, name="Other"), True),
        (record(field("n", "string")), record(NUMBER), False),
        (WIDER_ENUM, ENUM, True),
        (ENUM, WIDER_ENUM, False),
        ({**ENUM, "default": "A"}, WIDER_ENUM, True),
        (FIXED, FIXED, True),
        ({**FIXED, "size": 5}, FIXED, False),
        (LIST, LIST, True),
        (LIST, record(field("next", "int"), name="LinkedList"), False),
        ({"type": "string", "avro.java.string": "String"}, "string", True),
        ({"type": "long", "logicalType": "timestamp-millis"}, "int", True),
    ],
)
def test_what_is_written_with_one_schema_is_read_with_another(reader: Any, writer: Any, expected: bool) -> None:
    parsed = [parse_schema(json.dumps(one).encode()) for one in (reader, writer)]

    assert can_read(*parsed) is expected


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"7",
        b'"unknown"',
        b"[" * 5000,
        b'{"type": "record", "name": "R"}',
        b'{"type": "record", "fields": []}',
        b'{"type": "record", "name": "R", "fields": [7]}',
        json.dumps({"type": "array", "items": {"type": "array", "items": None}}).encode(),
    ],
)
def test_what_is_no_schema_is_told(text: bytes) -> None:
    with pytest.raises(FormatError, match="Avro"):
        parse_schema(text)


def test_schemas_that_would_take_for_ever_are_refused() -> None:
    unlike = [record(field("f", "int"), name=f"R{number}") for number in range(400)]
    written = [record(name=f"W{number}") for number in range(400)]
    reader, writer = (parse_schema(json.dumps(one).encode()) for one in ([*unlike, record(name="Last")], written))

    with pytest.raises(FormatError, match="too large"):
        can_read(reader, writer)


def schema(kind: int, text: Any) -> Schema:
    return Schema(kind, b"" if text is None else json.dumps(text).encode())


@pytest.mark.parametrize(
    ("new", "is_refused", "is_refused_to_consumers"),
    [
        (schema(AVRO, record(NUMBER, TEXT)), False, False),
        (schema(AVRO, record()), True, False),  # those before it find no number in what it writes
        (schema(AVRO, record(field("m", "int"))), True, True),
        (schema(JSON, record(NUMBER)), True, True),
        (schema(STRING, None), True, True),
        (schema(AVRO, "nonsense"), True, True),
    ],
)
def test_a_schema_has_to_go_with_the_latest_one(new: Schema, is_refused: bool, is_refused_to_consumers: bool) -> None:
    known = [schema(AVRO, record(NUMBER))]

    for check, refused in ((check_new, is_refused), (check_reader, is_refused_to_consumers)):
        try:
            check(known, new)
        except PulsarRefusedError as error:
            assert refused, error
            assert error.error == 18
        else:
            assert not refused


def test_the_same_schema_has_the_version_that_it_had() -> None:
    known = [schema(INT64, None), schema(AVRO, record(NUMBER)), schema(PROTOBUF, None)]

    assert find(known, Schema(AVRO, json.dumps(record(NUMBER), indent=2).encode())) == 1
    assert find(known, schema(JSON, record(NUMBER))) is None
    check_new(known, Schema(PROTOBUF, b"\x0a\x03descriptor"))
