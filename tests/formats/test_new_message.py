"""Records built for a running broker, held against the schema and against records that brokers wrote."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.errors import FormatError
from mqtool.formats import record_schemas
from mqtool.formats.new_message import (
    BatchElement,
    NewMessage,
    build_batch,
    build_record,
    fill_crc,
    host_bits,
    record_size,
    split_batch,
    topic_field,
    with_crc_place,
)
from mqtool.formats.properties import CRC_SIZE, pairs_of
from tests import builders
from tests.builders import i32, i64
from tests.formats.golden_bytes import records

HOSTS = st.tuples(st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), i32)
new_messages = st.builds(
    NewMessage,
    topic=builders.topics,
    queue_id=i32,
    body=st.binary(max_size=60),
    properties=builders.properties_texts,
    flag=i32,
    sys_flag=i32,
    born_timestamp=i64,
    born_host=HOSTS,
    store_host=HOSTS,
    reconsume_times=i32,
    prepared_transaction_offset=i64,
)


def built(message: NewMessage, queue_offset: int, physical_offset: int, store_timestamp: int) -> bytes:
    topic = topic_field(message.topic)
    size = record_size(message, topic, len(message.properties))
    return build_record(message, topic, message.properties, size, queue_offset, physical_offset, store_timestamp)


@given(message=new_messages, queue_offset=i64, physical_offset=i64, store_timestamp=i64)
def test_a_record_is_the_one_that_the_schema_builds(
    message: NewMessage, queue_offset: int, physical_offset: int, store_timestamp: int
) -> None:
    record = built(message, queue_offset, physical_offset, store_timestamp)

    assert record == builders.record(
        physical_offset,
        topic=message.topic,
        version=1 if len(message.topic.encode()) < 128 else 2,
        body=message.body,
        properties=message.properties,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=queue_offset,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=message.born_host,
        store_timestamp=store_timestamp,
        store_host=message.store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )


@pytest.mark.parametrize("name", ["special-533-clean", "special-497-clean", "propcrc-533-clean", "mixed-550-clean"])
def test_records_of_brokers_are_built_again_byte_for_byte(name: str) -> None:
    count = 0
    for _, record in records(name):
        head = record_schemas.parse_message(record)
        properties = head.properties[: -CRC_SIZE if name.startswith("propcrc") else None]
        message = NewMessage(
            topic=head.topic.decode(),
            queue_id=head.queue_id,
            body=head.body,
            properties=properties,
            flag=head.flag,
            sys_flag=head.sys_flag,
            born_timestamp=head.born_timestamp,
            born_host=(head.born_address, head.born_port),
            store_host=(head.store_address, head.store_port),
            reconsume_times=head.reconsume_times,
            prepared_transaction_offset=head.prepared_transaction_offset,
        )
        if name.startswith("propcrc"):
            message.properties = with_crc_place(properties)
        again = built(message, head.queue_offset, head.physical_offset, head.store_timestamp)
        if name.startswith("propcrc"):
            again = fill_crc(again)
        assert again == record
        assert host_bits(message.born_host, message.store_host) == head.sys_flag & 0x30
        count += 1
    assert count


@given(text=builders.properties_texts, body=st.binary(max_size=30))
def test_a_crc_property_covers_all_that_stands_before_it(text: bytes, body: bytes) -> None:
    message = NewMessage("TopicTest", 0, body, with_crc_place(text), born_host=(bytes(4), 0), store_host=(bytes(4), 0))

    record = fill_crc(built(message, 5, 100, 7))

    hosts = {"born_host": (bytes(4), 0), "store_host": (bytes(4), 0)}
    assert record == builders.with_crc_property(
        100, body=body, properties=text, queue_offset=5, store_timestamp=7, born_timestamp=0, **hosts
    )


@given(parts=st.lists(st.tuples(st.binary(max_size=40), builders.properties_texts, i32), max_size=5))
def test_a_batch_is_split_as_the_schema_splits_it(parts: list[tuple[bytes, bytes, int]]) -> None:
    body = b"".join(builders.batch_element(*part) for part in parts)

    elements = split_batch(NewMessage("TopicTest", 3, body, born_timestamp=5))

    elements_by_schema = record_schemas.parse_client_batch(body)
    assert elements == [(one.flag, one.body, one.properties, 5) for one in elements_by_schema]


@given(new_messages, st.lists(st.tuples(i32, st.binary(max_size=40), builders.properties_texts, i64), max_size=5))
def test_the_records_of_a_batch_are_those_of_its_messages(
    batch: NewMessage, parts: list[tuple[int, bytes, bytes, int]]
) -> None:
    found = build_batch(batch, [BatchElement(*part) for part in parts], topic_field(batch.topic), 100, 1000, 9)

    alone, at = dataclasses.replace(batch, prepared_transaction_offset=0), 1000
    for place, (record, (flag, body, properties, born)) in enumerate(zip(found, parts, strict=True)):
        one = dataclasses.replace(alone, flag=flag, body=body, properties=properties, born_timestamp=born)
        assert record == built(one, 100 + place, at, 9)
        at += len(record)


@pytest.mark.parametrize(
    ("own", "common", "stored"),
    [
        (b"a\x01b", b"c\x01d", b"a\x01b\x02c\x01d"),
        (b"a\x01b\x02", b"c\x01d\x02", b"a\x01b\x02c\x01d\x02"),
        (b"", b"c\x01d", b"c\x01d"),
        (b"a\x01b", b"", b"a\x01b"),
    ],
)
def test_properties_of_a_batch_follow_those_of_its_messages(own: bytes, common: bytes, stored: bytes) -> None:
    (one,) = split_batch(NewMessage("TopicTest", 0, builders.batch_element(b"x", own), common))

    assert one.properties == stored


@given(builders.batch_elements.map(b"".join).filter(bool), st.data())
def test_a_batch_that_is_cut_or_longer_is_refused(body: bytes, data: st.DataObject) -> None:
    starts, at = [0], 0
    while at < len(body):
        at += int.from_bytes(body[at : at + 4], "big")
        starts.append(at)
    cut = data.draw(st.integers(0, len(body)).filter(lambda one: one not in starts))

    with pytest.raises(FormatError, match="no message of a batch starts here"):
        split_batch(NewMessage("TopicTest", 0, body[:cut]))


@given(first=builders.properties_texts, second=builders.odd_properties | builders.properties_texts)
def test_the_pairs_of_a_message_are_those_of_the_properties_that_it_has_now(first: bytes, second: bytes) -> None:
    message = NewMessage("T", 0, b"", first)
    assert message.pairs == pairs_of(first)

    message.properties = second
    assert message.pairs == pairs_of(second)

    text = with_separator(second) + b"TAGS\x01added\x02"
    message.add_pairs(text, {b"TAGS": b"added"})
    assert (message.properties, message.pairs) == (text, pairs_of(text))


def with_separator(text: bytes) -> bytes:
    return text if not text or text.endswith(b"\x02") else text + b"\x02"
