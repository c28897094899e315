"""Frames of a stream, however many are taken at once."""

import itertools
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("google.protobuf")
from mqtool.engine.pulsar.frames import (
    Command,
    Payload,
    PulsarFrameDecoder,
    build_batch_body,
    build_frame,
    parse_frame,
    split_batch_body,
    with_size,
    without_size,
)
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import BaseCommand, SingleMetadata
from mqtool.errors import FormatError
from tests.engine.pulsar.flows import Change, changed, read_by_protobuf


@pytest.mark.parametrize(("ack_type", "parts"), [(0, 4), (1, 1)])
def test_a_long_acknowledgement_comes_in_parts_of_which_none_is_left_out(ack_type: int, parts: int) -> None:
    base = command("ack", consumer_id=3, ack_type=ack_type, request_id=9)
    for number in range(350):
        base.ack.message_id.add(ledgerId=1, entryId=number, ack_set=[number])
    frames = PulsarFrameDecoder(1 << 20)
    frames.receive(build_frame(base) + build_frame(command("ping")))

    received: list[Command] = []
    while True:
        commands = frames.commands()
        received += itertools.islice(commands, 1)
        commands.close()
        if received[-1].name == "ping":
            break

    *acks, _ = (one.body for one in received)
    assert len(acks) == parts
    assert [(one.entryId, *one.ack_set) for ack in acks for one in ack.message_id] == [(n, n) for n in range(350)]
    assert {(ack.consumer_id, ack.ack_type) for ack in acks} == {(3, ack_type)}
    assert [ack.HasField("request_id") for ack in acks] == [False] * (parts - 1) + [True]


numbers = st.integers(0, 300) | st.integers(0, (1 << 64) - 1)


@given(
    fields=st.fixed_dictionaries(
        {"producer_id": numbers, "sequence_id": numbers},
        optional={"num_messages": st.integers(0, 9), "highest_sequence_id": numbers, "is_chunk": st.booleans()},
    ),
    payload=st.binary(max_size=5),
    change=st.none() | st.tuples(st.integers(0, 40), st.integers(0, 255)),
)
@settings(max_examples=500, deadline=None)
def test_a_send_that_is_not_parsed_says_what_protobuf_reads_in_it(
    fields: dict[str, Any], payload: bytes, change: Change
) -> None:
    base = changed(command("send", **fields).SerializeToString(), change)
    expected = read_by_protobuf(BaseCommand, base)
    frame = len(base).to_bytes(4, "big") + base + payload
    if expected is None:
        with pytest.raises(FormatError):
            parse_frame(frame)
        return
    if expected.type != 6 or not expected.HasField("send"):
        return

    name, body, rest = parse_frame(frame)

    used = ("producer_id", "sequence_id", "highest_sequence_id", "is_chunk")
    assert (name, rest or b"") == ("send", payload)
    assert [(getattr(body, field), body.HasField(field)) for field in used] == [
        (getattr(expected.send, field), expected.send.HasField(field)) for field in used
    ]


@given(
    st.binary(max_size=24)
    | st.lists(st.sampled_from([b"\x18\x03", b"\x18\x80\x08", b"\x28\x05", b"\x40", b"\xff", b"\0", b"\x12\x01k"])).map(
        b"".join
    )
)
@example(b"\x18\x03\x28" + b"\xff" * 9 + b"\x01")
@settings(max_examples=500, deadline=None)
def test_metadata_without_its_size_are_what_protobuf_makes_of_them(raw: bytes) -> None:
    rest = without_size(raw)
    if rest is None:
        return
    expected = SingleMetadata.FromString(raw)
    [split] = split_batch_body(build_batch_body([Payload(raw, bytes(expected.payload_size))]), 1)
    assert len(split.body) == expected.payload_size
    expected.payload_size = 0
    assert SingleMetadata.FromString(rest) == expected
    again = with_size(rest, len(split.body))
    assert again is not None
    assert SingleMetadata.FromString(again) == SingleMetadata.FromString(raw)


@given(st.integers(0, 1 << 16), st.none() | st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
@settings(max_examples=100, deadline=None)
def test_the_size_is_taken_out_of_what_clients_send_with_plain_messages(size: int, time: int, number: int) -> None:
    raw = SingleMetadata(payload_size=size, event_time=time).SerializeToString() + b"\x40" + varint(number)

    assert without_size(raw) is not None


def test_megabytes_of_numbers_in_the_metadata_of_one_message_take_no_memory_to_recognize() -> None:
    raw = b"\x18\x01" + b"\x28\0" * 1_000_000
    body = build_batch_body([Payload(raw, b"x")])
    tracemalloc.start()
    try:
        assert without_size(raw) is None
        [split] = split_batch_body(body, 1)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(body)
    finally:
        tracemalloc.stop()
    assert split == Payload(raw, b"x")


def varint(number: int) -> bytes:
    digits = [number >> 7 * place & 0x7F for place in range(max(1, -(-number.bit_length() // 7)))]
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])
