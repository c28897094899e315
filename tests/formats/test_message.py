"""A message as a value: every field as the manifests tell it, ids and hosts there and back, the kinds of bodies."""

import itertools
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats import commit_log, record_schemas
from mqtool.formats.hosts import host_text, offset_message_id, parse_host, parse_message_id
from mqtool.formats.message import Message, message_of
from mqtool.formats.topics import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, is_system_topic
from tests import builders
from tests.damage import cut, flipped
from tests.formats.golden_bytes import records
from tests.golden import GOLDEN_NAMES

NUMBERS = {
    "position": "phy",
    "physical_offset": "phy",
    "size": "size",
    "magic_code": "magic",
    "queue_id": "queue_id",
    "queue_offset": "queue_offset",
    "flag": "flag",
    "sys_flag": "sys_flag",
    "born_timestamp": "born_timestamp",
    "store_timestamp": "store_timestamp",
    "reconsume_times": "reconsume_times",
    "prepared_transaction_offset": "prepared_transaction_offset",
    "body_crc": "body_crc",
    "body_size": "body_len",
    "topic": "topic",
    "tags": "tags",
    "keys": "keys",
    "unique_key": "uniq_key",
    "message_id": "msg_id",
    "properties": "properties",
}


def messages_of(name: str) -> list[tuple[dict[str, Any], Message]]:
    return [(told, message_of(raw, told["phy"])) for told, raw in records(name)]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_message_has_the_fields_that_java_reads(name: str) -> None:
    for told, message in messages_of(name):
        assert {ours: getattr(message, ours) for ours in NUMBERS} == {
            ours: told[theirs] for ours, theirs in NUMBERS.items()
        }
        # Java spells out what our addresses shorten.
        assert parse_host(message.born_host) == builders.host(told["born_host"])
        assert parse_host(message.store_host) == builders.host(told["store_host"])
        plain = message.plain_body()
        assert len(plain) == told.get("plain_body_len", told["body_len"])
        assert zlib.crc32(plain) & 0x7FFFFFFF == told.get("plain_body_crc32", told["body_crc"])
        assert message.topic == message.topic.encode("utf-8", "replace").decode()


@given(builders.message_fields, builders.i64)
def test_a_message_has_the_fields_of_its_record(fields: dict[str, Any], position: int) -> None:
    message = message_of(record_schemas.MESSAGE.build(fields), position)

    same = [name for name in fields if hasattr(message, name) and name not in ("topic", "properties")]
    assert {name: getattr(message, name) for name in same} == {name: fields[name] for name in same}
    assert message.position == position
    assert message.topic == fields["topic"].decode("utf-8", "replace")
    assert message.raw_properties == fields["properties"]
    assert parse_host(message.born_host) == (fields["born_address"], fields["born_port"])
    assert parse_host(message.store_host) == (fields["store_address"], fields["store_port"])
    assert parse_message_id(message.message_id) == position


@given(builders.messages, st.data())
def test_a_damaged_record_is_a_message_or_a_format_error(raw: bytes, data: st.DataObject) -> None:
    damaged = data.draw(flipped(raw) | cut(raw) | st.binary(max_size=120))

    try:
        message = message_of(damaged, 0)
    except FormatError:
        return

    assert message.size == len(damaged)
    assert record_schemas.MESSAGE.build(record_schemas.parse_message(damaged)) == damaged
    assert isinstance(message.properties, dict)


@pytest.mark.parametrize(
    ("host", "position", "message_id"),
    [
        ("10.0.0.1:10911", 1073741824, "0A00000100002A9F0000000040000000"),
        ("[2001:db8::2]:10911", 1073741824, "20010DB800000000000000000000000200002A9F0000000040000000"),
    ],
)
def test_offset_ids_are_those_of_the_description(host: str, position: int, message_id: str) -> None:
    assert offset_message_id(host, position) == message_id
    assert parse_message_id(message_id) == parse_message_id(message_id.lower()) == position


@given(builders.hosts, builders.i64)
def test_ids_and_hosts_come_back(host: tuple[bytes, int], position: int) -> None:
    text = host_text(*host)

    assert parse_host(text) == host
    assert text.startswith("[") == (len(host[0]) == 16)
    assert parse_message_id(offset_message_id(text, position)) == position


@pytest.mark.parametrize(
    "text", ["", "7F00", "Z" * 32, "0" * 31, "0" * 33, "0" * 54, "0A00000100002A9F00000000400000 0"]
)
def test_what_has_not_the_form_of_an_id_is_a_format_error(text: str) -> None:
    with pytest.raises(FormatError, match="not an offset message id"):
        parse_message_id(text)


# Messages that mean something to the broker.

TRANSACTIONS = [name for name in GOLDEN_NAMES if name.startswith("txn-")]


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_op_messages_name_half_messages_by_queue_offset(name: str) -> None:
    messages = [message for _, message in messages_of(name)]
    halves = {message.queue_offset for message in messages if message.topic == HALF_TOPIC}
    ops = [message for message in messages if message.topic == OP_TOPIC]

    assert ops or "kill" in name  # 5.x collects them for three seconds
    for op in ops:
        assert op.tags == "d"
        numbers = op.plain_body().decode().split(",")  # 5.1 on each number ends in a comma
        assert {int(number) for number in numbers if number} <= halves


@pytest.mark.parametrize("name", TRANSACTIONS)
def test_half_messages_keep_where_they_belong_and_committed_ones_name_their_half(name: str) -> None:
    messages = {message.position: message for _, message in messages_of(name)}
    halves = [message for message in messages.values() if message.topic == HALF_TOPIC]
    committed = [message for message in messages.values() if message.sys_flag & 0xC == commit_log.TRANSACTION_COMMIT]

    assert halves
    assert all(half.sys_flag & commit_log.TRANSACTION_MASK == 0 and half.queue_id == 0 for half in halves)
    assert all("REAL_TOPIC" in half.properties for half in halves)
    assert committed or "kill" in name
    for message in committed:
        half = messages[message.prepared_transaction_offset]
        assert half.topic == HALF_TOPIC
        assert half.properties["REAL_TOPIC"] == message.topic
        assert half.plain_body() == message.plain_body()


def test_golden_stores_have_messages_of_every_special_topic() -> None:
    topics = {told["topic"] for name in GOLDEN_NAMES for told, _ in records(name)}

    special = {HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC}
    assert special <= topics
    assert all(map(is_system_topic, special))
    assert not any(map(is_system_topic, ["TopicTest", "%RETRY%G", "%DLQ%G", "OrderEvents"]))


@given(st.lists(builders.properties_texts, min_size=1, max_size=4), st.binary(max_size=30))
def test_a_body_that_is_a_batch_holds_its_messages(texts: list[bytes], body: bytes) -> None:
    whole = b"".join(builders.batch_element(body, text, flag) for flag, text in enumerate(texts))
    record = builders.record(sys_flag=commit_log.INNER_BATCH | 0x301, body=zlib.compress(whole))

    elements = record_schemas.parse_client_batch(message_of(record, 0).plain_body())

    assert [(element.flag, element.body, element.properties) for element in elements] == list(
        zip(itertools.count(), itertools.repeat(body), texts, strict=False)
    )
