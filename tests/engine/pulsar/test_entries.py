"""Entries as they are stored, and as consumers get them back."""

import zlib
from typing import Any

import crc32c
import lz4.block
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqtool.engine.pulsar import compression
from mqtool.engine.pulsar.entries import RAW, Record, ToStore, entry_of, sender_of, to_store
from mqtool.engine.pulsar.entries import metadata_of as metadata_of_payload
from mqtool.engine.pulsar.frames import ChecksumError, Payload, build_batch_body, build_payload
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.errors import FormatError
from mqtool.formats.compression import Compression, compress
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import pairs_of
from mqtool.formats.stored_message import StoredMessage
from tests.engine.pulsar.flows import Change, changed, contents, read_by_protobuf

MOST = 1 << 17
texts = st.one_of(
    st.binary(max_size=12), st.text(max_size=6).map(str.encode), st.sampled_from([b"TAGS", b"KEYS", b"DELAY"])
)
properties = st.lists(st.tuples(texts, texts), max_size=3)
COMPRESS: dict[int, Any] = {
    compression.NONE: bytes,
    compression.LZ4: lambda body: lz4.block.compress(body, store_size=False),
    compression.ZLIB: zlib.compress,
    compression.ZSTD: zstandard.ZstdCompressor().compress,
}


def metadata_of(pairs: list[tuple[bytes, bytes]], **fields: Any) -> Any:
    made = MessageMetadata(producer_name="p", sequence_id=7, publish_time=1_700_000_000_000, **fields)
    for name, value in pairs:
        made.properties.add(key=name, value=value)
    return made


def stored(entry: ToStore, first: int = 40) -> list[StoredMessage]:
    return [
        StoredMessage(NewMessage("T", 0, body, text), 0, first + place, 0, 0)
        for place, (body, text) in enumerate(entry.records)
    ]


@given(properties, texts, st.binary(max_size=40), st.sampled_from(sorted(COMPRESS)))
@settings(max_examples=80, deadline=None)
def test_a_single_message_comes_back_as_it_was_sent(pairs: Any, key: bytes, body: bytes, kind: int) -> None:
    metadata = metadata_of(pairs, partition_key=key, event_time=5, ordering_key=b"\xff\0")
    metadata.compression, metadata.uncompressed_size = kind, len(body)
    payload = build_payload(metadata.SerializeToString(), COMPRESS[kind](body))

    entry = entry_of(stored(to_store(payload, MOST)), MOST)

    assert to_store(payload, MOST).records[0].body == body, "consumers of RocketMQ read it"
    assert contents(entry.payload) == contents(payload)
    assert (entry.offset, entry.size, entry.messages, entry.key) == (40, 1, 1, b"\xff\0")


@given(
    name=st.one_of(st.text(max_size=8), st.text(max_size=200), st.just("n" * 127), st.just("n" * 130 + "\x10")),
    sequence_id=st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1)),
    time=st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1)),
    more=st.one_of(
        st.just({}),
        st.sampled_from([{"uncompressed_size": 4}, {"event_time": 9}, {"ordering_key": b"k"}, {"chunk_id": 0}]),
    ),
    change=st.one_of(st.none(), st.tuples(st.integers(0, 160), st.integers(0, 255))),
)
@example("", 128, 128, {"uncompressed_size": 4}, (148, 64))  # a compression of which the body is none
@settings(max_examples=400, deadline=None)
def test_metadata_that_are_not_parsed_mean_what_protobuf_reads_in_them(
    name: str, sequence_id: int, time: int, more: dict[str, Any], change: Change
) -> None:
    metadata = MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=time, **more)
    raw = changed(metadata.SerializeToString(), change)
    judge = read_by_protobuf(MessageMetadata, raw)
    payload = build_payload(raw, b"body")

    if judge is None:
        with pytest.raises(FormatError):
            to_store(payload, MOST)
        return
    to_be_stored = to_store(payload, MOST)

    assert to_be_stored.publish_time == (judge.publish_time if judge.publish_time < 1 << 63 else 0)
    [record] = to_be_stored.records
    is_opaque = judge.HasField("chunk_id") or judge.HasField("marker_type") or judge.encryption_keys
    is_raw = RAW in pairs_of(record.properties)
    assert is_raw == (is_opaque or record.body != b"body")
    given_out = entry_of(stored(to_be_stored), MOST).payload
    assert given_out == payload if is_raw else contents(given_out) == contents(payload)


@given(st.lists(st.tuples(properties, texts, st.binary(max_size=40)), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_a_batch_is_stored_as_its_messages_and_comes_back_whole(messages: Any) -> None:
    parts = []
    for pairs, key, body in messages:
        single = SingleMetadata(partition_key=key, payload_size=len(body))
        for name, value in pairs:
            single.properties.add(key=name, value=value)
        parts.append(Payload(single.SerializeToString(), body))
    plain = build_batch_body(parts)
    metadata = metadata_of([], num_messages_in_batch=len(parts), compression=compression.ZLIB)
    metadata.uncompressed_size = len(plain)
    payload = build_payload(metadata.SerializeToString(), zlib.compress(plain))

    to_be_stored = to_store(payload, MOST)
    entry = entry_of(stored(to_be_stored), MOST)

    assert [one.body for one in to_be_stored.records] == [body for _, _, body in messages]
    assert contents(entry.payload) == contents(payload)
    assert (entry.offset, entry.size, entry.messages, entry.is_batch) == (40, len(parts), len(parts), True)


def test_consumers_of_rocketmq_see_keys_tags_and_properties() -> None:
    metadata = metadata_of([(b"color", b"red"), (b"TAGS", b"TagA"), (b"DELAY", b"3")], partition_key=b"order 7")
    payload = build_payload(metadata.SerializeToString(), b"body")

    [record] = to_store(payload, MOST).records

    pairs = pairs_of(record.properties)
    assert (pairs[b"color"], pairs[b"TAGS"], pairs[b"KEYS"]) == (b"red", b"TagA", b"order 7")
    assert b"DELAY" not in pairs, "what RocketMQ goes by is nothing that others can set"
    assert contents(entry_of(stored(to_store(payload, MOST)), MOST).payload) == contents(payload)


def test_a_copy_of_one_message_of_a_batch_keeps_all_that_is_its_own() -> None:
    removal = SingleMetadata(
        partition_key=b"/wA=",
        partition_key_b64_encoded=True,
        ordering_key=b"\xff",
        event_time=5,
        null_value=True,
        payload_size=0,
    )
    removal.properties.add(key=b"empty", value=b"")
    first = Payload(SingleMetadata(payload_size=5).SerializeToString(), b"first")
    body = build_batch_body([first, Payload(removal.SerializeToString(), b"")])
    payload = build_payload(metadata_of([], num_messages_in_batch=2).SerializeToString(), body)

    entry = entry_of(stored(to_store(payload, MOST))[1:], MOST)

    metadata = metadata_of_payload(entry.payload)
    assert (metadata.null_value, metadata.event_time, metadata.ordering_key) == (True, 5, b"\xff")
    assert (metadata.partition_key, metadata.partition_key_b64_encoded) == (b"/wA=", True)
    assert [(pair.key, pair.value) for pair in metadata.properties] == [(b"empty", b"")]
    assert (entry.offset, entry.size, entry.messages, entry.is_batch, entry.key) == (41, 1, 1, False, b"\xff")
    assert sender_of(entry) is None, "its producer is not known"


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"encryption_keys": [b"k"]}, b"secret"),
        ({"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2}, b"half"),
        ({"compression": compression.ZLIB, "uncompressed_size": 5}, b"no zlib"),
        ({"compression": compression.ZLIB, "uncompressed_size": 4}, zlib.compress(b"other size")),
        ({"compression": compression.ZLIB, "uncompressed_size": MOST + 1}, zlib.compress(bytes(MOST + 1))),
        (
            {"compression": compression.ZSTD, "uncompressed_size": 9},
            zstandard.ZstdCompressor().compress(bytes(1 << 24)),
        ),
        ({"compression": 17, "uncompressed_size": 5}, b"bytes"),
        ({"num_messages_in_batch": 3}, b"\0\0\0\2\x18\1a"),
        ({"num_messages_in_batch": -1}, b""),
        ({"partition_key": b"k" * 40_000}, b"body"),
    ],
)
def test_what_cannot_be_taken_apart_is_stored_as_it_came(fields: dict[str, Any], body: bytes) -> None:
    payload = build_payload(metadata_of([(b"a", b"b")], **fields).SerializeToString(), body)

    entry = to_store(payload, MOST)

    assert [one.body for one in entry.records] == [payload]
    assert RAW in pairs_of(entry.records[0].properties)
    assert entry_of(stored(entry), MOST).payload == payload


def test_a_copy_of_a_chunk_that_a_rocketmq_client_has_compressed_is_read() -> None:
    metadata = metadata_of([], uuid="u", chunk_id=0, num_chunks_from_msg=2)
    payload = build_payload(metadata.SerializeToString(), b"half" * 100)
    [record] = to_store(payload, MOST).records
    body, sys_flag = compress(record.body, Compression.ZLIB, 5)

    copied = NewMessage("T", 0, body, record.properties, sys_flag=sys_flag)

    assert entry_of([StoredMessage(copied, 0, 40, 0, 0)], MOST).payload == payload


def test_an_entry_of_more_messages_than_are_counted_is_refused_and_never_given_out() -> None:
    metadata = metadata_of([], encryption_keys=[b"k"], num_messages_in_batch=(1 << 31) - 1)
    payload = build_payload(metadata.SerializeToString(), b"secret")

    with pytest.raises(FormatError, match="2,147,483,647 messages"):
        to_store(payload, MOST)
    by_others = stored(ToStore([Record(payload, b"PULSAR_RAW\x011\x02")], False, 0, True))

    assert entry_of(by_others, MOST).is_marker


def test_a_wrong_checksum_is_told() -> None:
    payload = bytearray(build_payload(metadata_of([]).SerializeToString(), b"body"))
    assert crc32c.crc32c(bytes(payload[6:])) == int.from_bytes(payload[2:6], "big")
    payload[-1] ^= 1

    with pytest.raises(ChecksumError):
        to_store(bytes(payload), MOST)
