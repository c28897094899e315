"""Streams cut anywhere, and what is no stream of frames."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.remoting.connection import Connection
from mqtool.errors import FormatError
from mqtool.formats.remoting import MAX_FRAME, RemotingCommand, SerializeType, build_frame
from tests.traces import recorded

texts = st.text(st.characters(codec="utf-8"), max_size=10)
commands = st.builds(
    RemotingCommand,
    code=st.integers(0, 400),
    opaque=st.integers(0, 1 << 30),
    ext_fields=st.dictionaries(texts, texts, max_size=3),
    body=st.binary(max_size=40),
)


def read(pieces: list[bytes]) -> list[RemotingCommand]:
    connection = Connection()
    found: list[RemotingCommand] = []
    for piece in pieces:
        connection.receive(piece)
        found += connection.commands()
    return found


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(places) if start < end]


@given(st.lists(st.tuples(commands, st.sampled_from(SerializeType)), max_size=6), st.lists(st.integers(0), max_size=8))
def test_a_stream_cut_anywhere_gives_the_same_commands(
    sent: list[tuple[RemotingCommand, SerializeType]], cuts: list[int]
) -> None:
    stream = b"".join(build_frame(command, serialize_type) for command, serialize_type in sent)

    assert read(cut(stream, cuts)) == [command for command, _ in sent]


def test_recorded_traffic_gives_its_commands_byte_by_byte() -> None:
    frames = [*recorded("java-5.3.3-producer")]
    stream = b"".join(frame.frame for frame in frames)

    assert read([bytes([byte]) for byte in stream]) == [frame.command for frame in frames]


def test_a_command_comes_out_with_its_last_byte() -> None:
    frame = build_frame(RemotingCommand(105, body=b"body"))
    connection = Connection()

    connection.receive(frame[:-1])
    assert [*connection.commands()] == []
    connection.receive(frame[-1:])
    assert len([*connection.commands()]) == 1
    assert connection.pending_size == 0


@pytest.mark.parametrize(
    "head",
    [
        "7fffffff00000000",  # 2 GiB
        "ffffffff00000000",  # below zero, for Java
        f"{MAX_FRAME - 3:08x}00000000",  # one byte more than there may be
        "0000000300000000",  # not even a header size
        "0000000400000001",  # a header that does not fit
        "00000010ff000004",  # a header of a type that nobody knows
        "1603010200010001",  # TLS
        "474554202f204854",  # GET / HT
    ],
)
def test_what_begins_no_frame_is_refused_with_its_first_bytes(head: str) -> None:
    with pytest.raises(FormatError):
        read([bytes.fromhex(head) + bytes(12)])


def test_the_longest_frame_is_taken() -> None:
    command = RemotingCommand(10, body=bytes(MAX_FRAME - len(build_frame(RemotingCommand(10)))))

    frame = build_frame(command)

    assert len(frame) == MAX_FRAME
    assert read(cut(frame, [1 << 20, 3 << 20, 7 << 20])) == [command]


def test_a_length_that_is_only_announced_takes_no_memory() -> None:
    connection = Connection()

    connection.receive((MAX_FRAME - 4).to_bytes(4, "big") + bytes(4) + b"some")

    assert [*connection.commands()] == []
    assert connection.pending_size == 12


def test_commands_before_a_broken_frame_are_given() -> None:
    connection = Connection()
    connection.receive(build_frame(RemotingCommand(105, opaque=1)) + b"\xff" * 8)
    commands = connection.commands()

    assert next(commands).opaque == 1
    with pytest.raises(FormatError):
        next(commands)


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_no_stream_fails_otherwise_than_as_bad_format(pieces: list[bytes]) -> None:
    try:
        read(pieces)
    except FormatError:
        return
