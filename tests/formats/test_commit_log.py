"""The message record, against every record of the golden stores and the vectors of the format's description."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats import commit_log, record_schemas
from mqtool.formats.hosts import host_text
from mqtool.formats.record_schemas import MESSAGE, parse_client_batch, parse_message
from tests import builders
from tests.damage import cut, flipped
from tests.formats.golden_bytes import log, read_log, records
from tests.golden import GOLDEN_NAMES, manifest

KEYED = "UNIQ_KEY\x017F00000100002A9F1B6D000000000001\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
COMMON_V4 = "00000000 0000018bcfe56800 c0a8010a00009c40 0000018bcfe5687b 0a00000100002a9f"
BODY_R1 = "00000000 0000000000000000 0000000e 68656c6c6f20726f636b65746d71 09 546f70696354657374"
R1 = bytes.fromhex(
    f"000000b1 daa320a7 73307b09 00000003 00000000 0000000000000005 0000000040000000 {COMMON_V4} {BODY_R1} 003f"
    "554e49515f4b455901374630303030303130303030324139463142364430303030303030303030303102"
    "544147530154616741024b455953016b31206b3202"
)
R2 = bytes.fromhex(
    f"000000e8 daa320ab 706b9d0f 00000000 00000000 0000000000000000 00000000400000b1 {COMMON_V4}"
    f"00000001 0000000000000000 00000002 7632 0080 25524554525925 {'67' * 121} 000a 54414753015461674102"
)
R3 = bytes.fromhex(
    "00000083 daa320a7 7bda2575 00000003 00000000 0000000000000006 0000000000001000 00000030 0000018bcfe56800"
    "20010db8000000000000000000000001 00009c40 0000018bcfe5687b 20010db8000000000000000000000002 00002a9f"
    "00000000 0000000000000000 00000007 763620626f6479 09 546f70696354657374 0000"
)
R4 = bytes.fromhex(
    f"00000085 daa320a7 352441c2 00000000 00000000 0000000000000007 0000000000000000 {COMMON_V4}"
    "00000000 0000000000000000 00000003 616263 09 546f70696354657374 001e"
    "54414753015461674102 5f5f435243333223 01 38373136353434353230 02"
)
R5 = bytes.fromhex(
    f"0000007b daa320a7 352441c2 00000000 00000000 0000000000000008 0000000000000085 {COMMON_V4}"
    "00000000 0000000000000000 00000003 616263 09 546f70696354657374 0014 5f5f435243333223 01 32393734343331303331 02"
)
R6 = bytes.fromhex("000000e6 cbd43194")
R7 = bytes.fromhex("00000029 00000000 00000000 00000000 00000002 6231 0011 57414954017472756502 544147530174 02")


VECTORS: dict[str, tuple[bytes, bytes]] = {
    "R1": (
        R1,
        builders.record(1 << 30, queue_id=3, queue_offset=5, body=b"hello rocketmq", properties=KEYED.encode()),
    ),
    "R1 as 4.9.1 to 5.1.4 write it": (
        (len(R1) - 1).to_bytes(4, "big") + R1[4:].replace(b"\x00\x3fUNIQ", b"\x00\x3eUNIQ")[:-1],
        builders.record(1 << 30, queue_id=3, queue_offset=5, body=b"hello rocketmq", properties=KEYED[:-1].encode()),
    ),
    "R2": (
        R2,
        builders.record(
            (1 << 30) + 177,
            topic="%RETRY%" + "g" * 121,
            version=2,
            reconsume_times=1,
            body=b"v2",
            properties=b"TAGS\x01TagA\x02",
        ),
    ),
    "R3": (
        R3,
        builders.record(
            4096,
            queue_id=3,
            queue_offset=6,
            body=b"v6 body",
            born_host="[2001:db8::1]:40000",
            store_host="[2001:db8::2]:10911",
        ),
    ),
    "R4": (R4, builders.with_crc_property(0, queue_offset=7, body=b"abc", properties=b"TAGS\x01TagA\x02")),
    "R5": (R5, builders.with_crc_property(133, queue_offset=8, body=b"abc")),
}


@pytest.mark.parametrize("name", VECTORS)
def test_records_of_the_description_are_built_and_parsed(name: str) -> None:
    known, built = VECTORS[name]

    assert built == known
    assert MESSAGE.build(parse_message(known)) == known


def test_the_fields_of_a_record_have_the_values_of_the_description() -> None:
    message = parse_message(R1)

    assert (message.size, message.magic_code, message.body_crc) == (177, commit_log.MAGIC_V1, 1932557065)
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 5, 1073741824)
    assert (message.born_timestamp, message.store_timestamp) == (1700000000000, 1700000000123)
    assert host_text(message.born_address, message.born_port) == "192.168.1.10:40000"
    assert host_text(message.store_address, message.store_port) == "10.0.0.1:10911"
    assert (message.body, message.topic, message.properties.decode()) == (b"hello rocketmq", b"TopicTest", KEYED)


def test_the_codes_are_those_of_the_description() -> None:
    codes = (commit_log.MAGIC_V1, commit_log.MAGIC_V2, commit_log.MAGIC_BLANK)

    assert [struct.pack(">i", code).hex() for code in codes] == ["daa320a7", "daa320ab", "cbd43194"]
    assert commit_log.MIN_SIZE == len(builders.record(topic="")) == 91
    assert commit_log.BLANK_SIZE == 8


def test_a_blank_record_is_what_is_left_of_its_segment() -> None:
    blank = commit_log.BLANK.schema.parse(R6)

    assert (blank.size, blank.magic_code) == (230, commit_log.MAGIC_BLANK)
    assert commit_log.BLANK.schema.build(blank) == R6
    assert builders.blank(230) == R6 + bytes(222)


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_record_is_parsed_and_built_back(name: str) -> None:
    for told, raw in records(name):
        message = parse_message(raw)

        assert MESSAGE.build(message) == raw
        assert told_by(message) == {key: told[key] for key in told_by(message)}


def told_by(message: Any) -> dict[str, Any]:
    """Return what a manifest tells of a message, but for what needs more than its record to be known."""
    return {
        "phy": message.physical_offset,
        "size": message.size,
        "magic": message.magic_code,
        "topic": message.topic.decode(),
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "born_timestamp": message.born_timestamp,
        "store_timestamp": message.store_timestamp,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "body_len": message.body_size,
    }


def test_golden_stores_have_records_of_every_form() -> None:
    parsed = [parse_message(raw) for name in GOLDEN_NAMES for _, raw in records(name)]

    assert {commit_log.head_form(message.sys_flag) for message in parsed} == {0, 1, 2, 3}
    assert {message.magic_code for message in parsed} == {commit_log.MAGIC_V1, commit_log.MAGIC_V2}


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_blank_is_parsed_and_built_back(name: str) -> None:
    size = len(log(name)[1][0])
    for position, left in manifest(name)["blanks"]:
        raw = read_log(name, position, commit_log.BLANK_SIZE)

        blank = commit_log.BLANK.schema.parse(raw)

        assert (blank.size, blank.magic_code) == (left, commit_log.MAGIC_BLANK)
        assert left == size - position % size
        assert commit_log.BLANK.schema.build(blank) == raw


@given(builders.message_fields)
def test_what_a_record_is_built_from_is_what_it_says(fields: dict[str, Any]) -> None:
    raw = MESSAGE.build(fields)

    message = parse_message(raw)

    assert {name: message[name] for name in fields} == fields
    assert len(raw) == fields["size"]
    form = commit_log.head_form(fields["sys_flag"])
    assert commit_log.HEADS[form].size == raw.index(fields["body"], commit_log.HEADS[form].size)
    assert (len(fields["born_address"]), len(fields["store_address"])) == (
        16 if form & 1 else 4,
        16 if form & 2 else 4,
    )


@given(builders.messages, st.data())
def test_a_damaged_record_is_a_record_or_a_format_error(raw: bytes, data: st.DataObject) -> None:
    damaged = data.draw(flipped(raw) | cut(raw))

    try:
        message = parse_message(damaged)
    except FormatError:
        return

    assert damaged.startswith(MESSAGE.build(message))


@given(builders.messages, st.data())
def test_a_record_that_is_cut_anywhere_is_a_format_error(raw: bytes, data: st.DataObject) -> None:
    with pytest.raises(FormatError, match="a message record does not fit its layout"):
        parse_message(data.draw(cut(raw)))


def test_a_batch_element_lies_as_the_description_says() -> None:
    (element,) = parse_client_batch(R7)

    assert (element.size, element.flag, element.body) == (41, 0, b"b1")
    assert element.properties == b"WAIT\x01true\x02TAGS\x01t\x02"
    assert record_schemas.CLIENT_BATCH.build([element]) == R7
    assert builders.batch_element(b"b1", b"WAIT\x01true\x02TAGS\x01t\x02") == R7


@given(builders.batch_elements)
def test_a_batch_is_the_messages_it_was_built_from(elements: list[bytes]) -> None:
    parsed = parse_client_batch(b"".join(elements))

    assert [record_schemas.CLIENT_BATCH_ELEMENT.build(element) for element in parsed] == elements


@given(builders.batch_elements.filter(len), st.data())
def test_a_batch_that_is_cut_inside_a_message_is_a_format_error(elements: list[bytes], data: st.DataObject) -> None:
    batch = b"".join(elements)
    ends = {sum(map(len, elements[:count])) for count in range(len(elements))}
    size = data.draw(st.integers(0, len(batch) - 1).filter(lambda size: size not in ends))

    with pytest.raises(FormatError, match="the body of a batch does not fit"):
        parse_client_batch(batch[:size])


@given(st.binary(max_size=100))
def test_any_body_is_a_batch_or_a_format_error(body: bytes) -> None:
    try:
        elements = parse_client_batch(body)
    except FormatError:
        return

    assert record_schemas.CLIENT_BATCH.build(elements) == body


def test_a_batch_of_many_messages_is_read_in_one_pass() -> None:
    # Once quadratic: 200,000 empty messages, which fit into 4 MiB, took half an hour.
    batch = builders.batch_element(b"") * 10_000

    assert len(parse_client_batch(batch)) == 10_000


INNER_BATCHES = [name for name in GOLDEN_NAMES if name.startswith("batchcq")]


@pytest.mark.parametrize("name", INNER_BATCHES)
def test_every_golden_inner_batch_holds_as_many_messages_as_it_says(name: str) -> None:
    batches = [(told, raw) for told, raw in records(name) if told["sys_flag"] & commit_log.INNER_BATCH]
    assert len(batches) > 10
    for told, raw in batches:
        body = parse_message(raw).body

        elements = parse_client_batch(body)

        assert len(elements) == int(told["properties"]["INNER_NUM"])
        assert record_schemas.CLIENT_BATCH.build(elements) == body
        assert [element.size for element in elements] == [
            22 + element.body_size + element.properties_size for element in elements
        ]
