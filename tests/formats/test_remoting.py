"""Frames and headers: recorded traffic, hand-made vectors, and whatever hypothesis thinks of."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats.codes import LANGUAGES
from mqtool.formats.remoting import (
    MAX_FRAME,
    ONEWAY,
    RESPONSE,
    RemotingCommand,
    SerializeType,
    build_frame,
    frame_buffers,
    parse_command,
)
from tests.frames import parse_frame
from tests.traces import TRACES, recorded

texts = st.text(st.characters(codec="utf-8"), max_size=30)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
commands = st.builds(
    RemotingCommand,
    code=int32s,
    flag=st.integers(0, 3),
    opaque=int32s,
    ext_fields=st.dictionaries(texts, texts, max_size=8),
    body=st.binary(max_size=200),
    remark=st.none() | texts,
    version=int32s,
    language=st.sampled_from([None, *LANGUAGES]),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)

# Written by hand from the layouts; the first one is what Java writes, byte for byte.
REQUEST_IN_JSON = (
    "00000087000000837b22636f6465223a3130352c226578744669656c6473223a7b22746f706963223a22546f70696354657374227d2c22666c61"
    "67223a302c226c616e6775616765223a224a415641222c226f7061717565223a372c2273657269616c697a655479706543757272656e7452504322"
    "3a224a534f4e222c2276657273696f6e223a3430397d"
)
REQUEST_IN_BINARY = "0000002d010000290069000199000000070000000000000000000000140005746f70696300000009546f70696354657374"
ANSWER_IN_BINARY = "000000210100001d00110301990000000800000001000000086e6f20726f75746500000000"

ASKS_FOR_ROUTE = RemotingCommand(105, 0, 7, {"topic": "TopicTest"}, version=409, language="JAVA")
VECTORS = {
    (REQUEST_IN_JSON, SerializeType.JSON): ASKS_FOR_ROUTE,
    (REQUEST_IN_BINARY, SerializeType.BINARY): ASKS_FOR_ROUTE,
    (ANSWER_IN_BINARY, SerializeType.BINARY): RemotingCommand(17, RESPONSE, 8, remark="no route"),
}


@pytest.mark.parametrize(("vector", "command"), VECTORS.items())
def test_frames_are_read_and_written_byte_for_byte(vector: tuple[str, SerializeType], command: RemotingCommand) -> None:
    frame, serialize_type = bytes.fromhex(vector[0]), vector[1]

    assert parse_frame(frame) == command
    assert build_frame(command, serialize_type) == frame


@pytest.mark.parametrize("name", TRACES)
def test_every_recorded_frame_says_what_its_recorder_read(name: str) -> None:
    frames = [*recorded(name)]
    assert frames
    for frame in frames:
        command, fields = frame.command, frame.fields

        assert command.code == fields["code"]
        assert command.flag == fields["flag"]
        assert command.opaque == fields["opaque"]
        assert command.version == fields["version"]
        assert command.language == fields["language"]
        assert command.remark == fields.get("remark")
        assert command.ext_fields == (fields.get("extFields") or {})
        assert command.body == frame.body


@pytest.mark.parametrize("name", TRACES)
def test_every_recorded_frame_is_the_same_command_when_built_again(name: str) -> None:
    for frame in recorded(name):
        assert parse_frame(build_frame(frame.command)) == frame.command


@given(commands)
def test_a_command_comes_back_from_json(command: RemotingCommand) -> None:
    again = parse_frame(build_frame(command))

    # Who says no language speaks Java.
    assert again == RemotingCommand(
        command.code,
        command.flag,
        command.opaque,
        command.ext_fields,
        command.body,
        command.remark,
        command.version,
        command.language or "JAVA",
    )


@given(
    st.builds(
        RemotingCommand,
        code=st.integers(-(1 << 15), (1 << 15) - 1),
        flag=st.integers(0, 3),
        opaque=int32s,
        ext_fields=st.dictionaries(texts, texts, max_size=8),
        body=st.binary(max_size=200),
        remark=st.none() | texts.filter(bool),
        version=st.integers(-(1 << 15), (1 << 15) - 1),
        language=st.sampled_from(LANGUAGES),
    )
)
def test_a_command_comes_back_from_binary(command: RemotingCommand) -> None:
    assert parse_frame(build_frame(command, SerializeType.BINARY)) == command


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_a_body_in_parts_makes_the_same_frame_as_one_in_a_piece(parts: list[bytes]) -> None:
    whole = RemotingCommand(0, RESPONSE, 3, body=b"".join(parts))
    in_parts = RemotingCommand(0, RESPONSE, 3, parts=[memoryview(part) for part in parts])

    buffers = frame_buffers(in_parts)

    assert b"".join(buffers) == build_frame(whole)
    assert [bytes(buffer) for buffer in buffers[1:]] == parts  # not joined


def header(**fields: object) -> RemotingCommand:
    return parse_command(SerializeType.JSON, orjson.dumps(fields), b"")


def test_ext_fields_of_other_kinds_become_the_text_that_java_makes_of_them() -> None:
    command = header(code=310, extFields={"queueId": 1, "unitMode": False, "batch": True, "rate": 1.5, "gone": None})

    assert command.ext_fields == {"queueId": "1", "unitMode": "false", "batch": "true", "rate": "1.5"}


@pytest.mark.parametrize(
    ("language", "read"), [("GO", "GO"), (9, "GO"), ("KLINGON", None), (99, None), (None, None), ([], None)]
)
def test_a_language_is_a_name_or_a_number_or_unknown(language: object, read: str | None) -> None:
    assert header(code=34, language=language).language == read


def test_what_a_header_lacks_is_zero() -> None:
    assert parse_command(SerializeType.JSON, b"{}", b"x") == RemotingCommand(
        0, 0, 0, {}, b"x", None, version=0, language="JAVA"
    )


def test_a_header_in_the_dialect_of_fastjson_is_read() -> None:
    command = parse_command(
        SerializeType.JSON, b"{code:105,'extFields':{topic:'T',},opaque:\"12\",version:1,flag:0}", b""
    )

    assert (command.code, command.opaque, command.ext_fields) == (105, 12, {"topic": "T"})


def test_an_answer_carries_the_number_of_its_request() -> None:
    request = RemotingCommand(105, 0, 77)

    answer = request.answer(17, remark="no route")

    assert (answer.opaque, answer.code, answer.is_response) == (77, 17, True)


@pytest.mark.parametrize(
    ("flag", "is_response", "is_oneway"), [(0, False, False), (1, True, False), (2, False, True), (3, True, False)]
)
def test_flags_as_clients_send_them(flag: int, is_response: bool, is_oneway: bool) -> None:
    command = RemotingCommand(0, flag)

    assert (command.is_response, command.is_oneway) == (is_response, is_oneway)
    assert ONEWAY == 2


def test_half_a_character_in_a_remark_does_not_keep_an_answer_back() -> None:
    command = RemotingCommand(1, RESPONSE, 5, {"file": "\udc80"}, remark="no file \udc80")

    assert parse_frame(build_frame(command)).remark == "no file ?"


def test_an_absurdly_deep_header_is_refused() -> None:
    with pytest.raises(FormatError):
        parse_command(SerializeType.JSON, b'{"extFields":{"a":' + b"[" * 500 + b"]" * 500 + b"}}", b"")


def test_a_large_header_that_is_no_json_is_refused_at_once() -> None:
    with pytest.raises(FormatError, match="not valid JSON"):
        parse_command(SerializeType.JSON, b"{" + b"a:1," * (MAX_FRAME // 4) + b"}", b"")


@given(st.integers(0, 255), st.binary(max_size=300))
def test_no_bytes_make_a_header_fail_otherwise_than_as_bad_format(serialize_type: int, data: bytes) -> None:
    for kind in {serialize_type, 0, 1}:
        try:
            parse_command(kind, data, b"")
        except FormatError:
            continue


@given(
    st.dictionaries(
        st.sampled_from(["code", "flag", "opaque", "version", "language", "remark", "extFields"]), json_values
    )
)
def test_no_json_makes_a_header_fail_otherwise_than_as_bad_format(fields: dict[str, object]) -> None:
    try:
        command = parse_command(SerializeType.JSON, orjson.dumps(fields), b"")
    except FormatError:
        return
    assert all(isinstance(value, str) for value in command.ext_fields.values())
    assert parse_frame(build_frame(command)).ext_fields == command.ext_fields


@given(commands, st.data())
def test_a_changed_byte_in_a_frame_makes_another_command_or_a_bad_format(
    command: RemotingCommand, data: st.DataObject
) -> None:
    command.version &= 0x7FFF
    frame = bytearray(build_frame(command, data.draw(st.sampled_from(SerializeType))))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    try:
        parse_frame(bytes(frame))
    except FormatError:
        return
