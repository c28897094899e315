"""Frames of a stream, however many are taken at once."""

import itertools

import pytest

pytest.importorskip("google.protobuf")
from mqtool.engine.pulsar.frames import Command, PulsarFrameDecoder, build_frame
from mqtool.engine.pulsar.wire import command


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
