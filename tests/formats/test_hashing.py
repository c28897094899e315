"""Hashes and checksums as Java computes them: known values, a twin by definition, and every golden message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats.hashing import body_crc, java_hash, key_hash, tags_code
from mqtool.formats.record_schemas import parse_message
from mqtool.formats.topics import SCHEDULE_TOPIC
from tests import builders
from tests.formats.golden_bytes import queue_units, records
from tests.golden import GOLDEN_NAMES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("*", 42),
        ("TagA", 2598919),
        ("TagA || TagB", 1359775119),
        ("TopicTest", -1902610879),
        ("polygenelubricants", -(1 << 31)),
        ("order-created", -392709271),
        ("中文", 646394),
        ("\U0001f600", 1772899),
        ("TopicA#T#TagA", 1924910951),
    ],
)
def test_texts_have_the_hashes_that_java_gives(text: str, value: int) -> None:
    assert java_hash(text) == value


@given(st.text())
def test_a_hash_is_31_fold_over_utf_16_units(text: str) -> None:
    assert java_hash(text) == builders.java_hash(text)


@given(st.text(), st.text())
def test_a_key_hash_is_the_absolute_value_of_the_hash_of_topic_and_key(topic: str, key: str) -> None:
    hashed = key_hash(topic, key)

    assert hashed == builders.key_hash(f"{topic}#{key}")
    assert 0 <= hashed < 1 << 31


def test_the_lowest_hash_has_no_absolute_value() -> None:
    key = builders.key_with_hash("TopicTest", -(1 << 31))

    assert java_hash(f"TopicTest#{key}") == -(1 << 31)
    assert key_hash("TopicTest", key) == 0


@pytest.mark.parametrize("tags", [None, ""])
def test_without_a_tag_the_code_is_zero(tags: str | None) -> None:
    assert tags_code(tags) == 0


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_every_golden_message_has_the_tags_code_and_crc_that_its_store_keeps(name: str) -> None:
    for told, raw in records(name):
        message = parse_message(raw)
        assert body_crc(message.body) == told["body_crc"] == message.body_crc
        if told["topic"] != SCHEDULE_TOPIC:
            assert tags_code(told["tags"]) == told["tags_code"]


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.startswith(("txn-", "retry-"))])
def test_in_place_of_a_tags_code_a_delayed_message_has_its_delivery_time(name: str) -> None:
    delayed = {told["phy"]: told for told, _ in records(name) if told["topic"] == SCHEDULE_TOPIC}
    units = [
        (level, unit)
        for (topic, level), queue in queue_units(name).items()
        for unit in queue
        if topic == SCHEDULE_TOPIC
    ]

    delays = {(level, unit[3] - delayed[unit[1]]["store_timestamp"]) for level, unit in units}

    # The brokers had shorter levels than the default's.
    assert delays
    assert delays <= {(0, 1000), (1, 2000), (2, 3000), (3, 4000), (17, 7_200_000)}


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"abc", 0x352441C2),
        (b"123456789", 1274296614),
        (b"hello rocketmq", 1932557065),
        (bytes(5), 0x4622F71D),
        (b"", 0),
    ],
)
def test_a_body_crc_is_a_crc_32_without_its_top_bit(data: bytes, crc: int) -> None:
    assert body_crc(data) == body_crc(memoryview(data)) == crc
