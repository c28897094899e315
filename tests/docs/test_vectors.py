"""The test vectors of ``docs/format/`` are what they are said to be: read by our parsers, and by plain struct."""

import re
import struct
import zlib

import pytest

from mqtool.formats.hashing import java_hash
from mqtool.formats.stored_message import parse_stored
from tests.docs.pages import FORMAT
from tests.frames import parse_frame

STORE = (FORMAT / "store.md").read_text()
REMOTING = (FORMAT / "remoting.md").read_text()

RECORDS = {
    "R1": (177, "TopicTest", 3, 5, 1073741824, b"hello rocketmq"),
    "R3": (131, "TopicTest", 3, 6, 4096, b"v6 body"),
    "R4": (133, "TopicTest", 0, 7, 0, b"abc"),
    "R5": (123, "TopicTest", 0, 8, 133, b"abc"),
}


def record(name: str) -> bytes:
    found = re.search(rf"^{name}, .*?```text\n(.*?)```", STORE, re.DOTALL | re.MULTILINE)
    assert found
    return bytes.fromhex(found[1])


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_of_the_page_is_what_it_is_said_to_be(name: str) -> None:
    data = record(name)
    stored = parse_stored(data)
    message = stored.message
    told = (stored.size, message.topic, message.queue_id, stored.queue_offset, stored.physical_offset, message.body)
    assert told == RECORDS[name]
    assert len(data) == stored.size
    assert struct.unpack_from(">i", data, 8)[0] == zlib.crc32(message.body) & 0x7FFFFFFF


@pytest.mark.parametrize("name", ["R4", "R5"])
def test_the_crc_property_of_a_record_covers_what_is_before_it(name: str) -> None:
    data = record(name)
    digits = str(zlib.crc32(data[:-20]) & 0x7FFFFFFF)[::-1].ljust(10, "0")
    assert data[-20:] == b"__CRC32#\x01" + digits.encode() + b"\x02"


@pytest.mark.parametrize(
    ("name", "code", "flag", "opaque", "fields", "body"),
    [
        ("A", 105, 0, 7, {"topic": "TopicTest"}, b""),
        ("B", 105, 0, 7, {"topic": "TopicTest"}, b""),
        ("C", 0, 1, 7, {"queueId": "1", "queueOffset": "5"}, b""),
        ("D", 17, 1, 8, {}, b""),
        ("E", 40, 2, 0, {"consumerGroup": "CG"}, b""),
        ("F", 0, 1, 9, {}, b'{"consumerIdList":["c1","c2"]}'),
        ("F'", 0, 1, 9, {}, b'{"consumerIdList":["c1","c2"]}'),
    ],
)
def test_a_frame_of_the_page_is_what_it_is_said_to_be(
    name: str, code: int, flag: int, opaque: int, fields: dict[str, str], body: bytes
) -> None:
    found = re.search(rf"^\* {name}\. .*?\n\s+`([0-9a-f]+)`", REMOTING, re.MULTILINE)
    assert found
    command = parse_frame(bytes.fromhex(found[1]))
    assert (command.code, command.flag, command.opaque, command.ext_fields) == (code, flag, opaque, fields)
    assert command.body == body


def test_hash_codes_of_the_page_are_those_of_java() -> None:
    table = STORE[STORE.index("Java hash codes:") : STORE.index("CRC: `abc`")]
    found = re.findall(r"`([\w-]+)` \| (-?\d+) ", table)
    assert len(found) > 4
    for text, value in found:
        assert java_hash(text) == int(value), text
