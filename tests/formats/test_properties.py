"""The properties text: what Java's reader keeps of every golden message, and what releases write differently."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.formats.properties import (
    CRC_SIZE,
    add_property,
    build_properties,
    crc_digits,
    find_property,
    pairs_of,
    parse_properties,
    probe_of,
    split_keys,
)
from mqtool.formats.property_names import CRC32
from mqtool.formats.record_schemas import parse_message
from tests import builders
from tests.formats.golden_bytes import records
from tests.golden import GOLDEN_NAMES

KNOWN = {"UNIQ_KEY": "7F00000100002A9F1B6D000000000001", "TAGS": "TagA", "KEYS": "k1 k2"}
PROPERTY_CRC = [name for name in GOLDEN_NAMES if name.startswith("propcrc")]


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_of_every_golden_message_the_properties_are_those_that_java_keeps(name: str) -> None:
    for told, raw in records(name):
        assert parse_properties(parse_message(raw).properties) == told["properties"]


@pytest.mark.parametrize("name", [name for name in GOLDEN_NAMES if name.startswith(("mixed", "many"))])
def test_releases_differ_in_the_separator_at_the_end(name: str) -> None:
    texts = [parse_message(raw).properties for told, raw in records(name) if told["properties"]]

    ended = [text.endswith(b"\x02") for text in texts]

    assert ended == ["-497-" not in name] * len(texts)


@given(builders.pairs, st.booleans())
def test_pairs_come_back_with_and_without_the_separator_at_the_end(pairs: dict[str, str], trailing: bool) -> None:
    text = builders.properties(pairs, trailing)

    assert parse_properties(text) == pairs
    if trailing:
        assert build_properties(pairs) == text


def test_the_text_of_the_description_is_built() -> None:
    expected = "UNIQ_KEY\x017F00000100002A9F1B6D000000000001\x02TAGS\x01TagA\x02KEYS\x01k1 k2\x02"

    assert build_properties(KNOWN) == expected.encode()
    assert list(parse_properties(expected.encode()).items()) == list(KNOWN.items())


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", {}),
        ("\x01", {}),
        ("\x02\x02\x02", {}),
        ("A\x01\x02B\x011\x02", {"B": "1"}),  # no value
        ("\x011\x02B\x011\x02", {"B": "1"}),  # no name
        ("A\x02B\x011", {"B": "1"}),  # no separator
        ("A\x011\x02A\x012\x02", {"A": "2"}),  # twice
        ("A\x011\x012\x02", {"A": "1\x012"}),  # a separator in the value
        ("\x01\x01\x01\x02", {}),
        ("a b\x01 \x02", {"a b": " "}),
        ("名\x01值\x02", {"名": "值"}),
    ],
)
def test_pairs_that_java_drops_are_dropped(text: str, kept: dict[str, str]) -> None:
    assert parse_properties(text.encode()) == kept


@given(builders.odd_properties)
def test_any_bytes_are_properties(raw: bytes) -> None:
    for name, value in parse_properties(raw).items():
        assert name
        assert value
        assert "\x02" not in name + value
        assert "\x01" not in name


@pytest.mark.parametrize(
    ("keys", "single"),
    [("k1 k2", ["k1", "k2"]), ("k1  k2", ["k1", "k2"]), (" k1 ", ["k1"]), ("", []), ("  ", []), ("a\tb", ["a\tb"])],
)
def test_keys_are_separated_by_single_spaces(keys: str, single: list[str]) -> None:
    assert split_keys(keys) == single


@pytest.mark.parametrize(("crc", "digits"), [(254456178, b"8716544520"), (1301344792, b"2974431031"), (0, b"0" * 10)])
def test_digits_of_a_crc_property_stand_in_reverse(crc: int, digits: bytes) -> None:
    assert crc_digits(crc) == digits
    assert len(CRC32) + 12 == CRC_SIZE == 20


@pytest.mark.parametrize("name", PROPERTY_CRC)
def test_every_golden_crc_property_is_the_crc_of_its_record(name: str) -> None:
    for _, raw in records(name):
        crc = zlib.crc32(raw[:-CRC_SIZE]) & 0x7FFFFFFF

        assert raw.endswith(f"{CRC32}\x01".encode() + crc_digits(crc) + b"\x02")


@given(builders.properties_texts, st.binary(max_size=40))
def test_a_made_up_crc_property_is_the_crc_of_its_record(text: bytes, body: bytes) -> None:
    whole = builders.with_crc_property(7, properties=text, body=body)

    message = parse_message(whole)

    assert message.size == len(whole)
    kept = parse_properties(message.properties)
    assert kept.pop(CRC32) == crc_digits(zlib.crc32(whole[:-CRC_SIZE]) & 0x7FFFFFFF).decode()
    assert kept == parse_properties(text)


@given(text=builders.odd_properties | builders.properties_texts, name=st.sampled_from(["TAGS", "KEYS", "a"]))
def test_one_property_is_found_as_among_all(text: bytes, name: str) -> None:
    found = find_property(text, probe_of(name))

    assert found.decode("utf-8", "replace") == parse_properties(text).get(name, "")


@given(builders.odd_properties | builders.properties_texts)
def test_properties_as_bytes_are_those_as_texts(text: bytes) -> None:
    texts = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, value in pairs_of(text).items()
    }

    assert texts == parse_properties(text)


@given(builders.pairs.filter(lambda pairs: "~" not in pairs), st.booleans())
def test_a_property_that_is_added_stands_behind_the_others(pairs: dict[str, str], trailing: bool) -> None:
    text = builders.properties(pairs, trailing)

    assert add_property(text, "~", "7") == builders.properties(pairs | {"~": "7"}, trailing or not pairs)
