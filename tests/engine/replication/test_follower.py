"""A slave on one connection: the bytes of its log and its reports, whatever pieces the stream is cut into."""

import itertools
import struct

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mqtool.engine.replication.comparing import RecordPrefix
from mqtool.engine.replication.follower import Follower, HangUpError
from mqtool.errors import MqtoolError, WriteError
from tests.recorded_replication import STREAMS, recorded

NOW = 1_000_000
INTERVAL, SILENCE = 5000, 20_000


class Log:
    """A log in memory, with room for so many bytes."""

    def __init__(self, data: bytes = b"", start: int = 0, room: int = 1 << 40) -> None:
        self.start, self.data, self.room = start, bytearray(data), room

    @property
    def end_offset(self) -> int:
        return self.start + len(self.data)

    def append_bytes(self, at: int, data: bytes) -> None:
        if len(self.data) + len(data) > self.room:
            raise WriteError("there is no room")
        if not self.data:
            self.start = at
        assert at == self.end_offset
        self.data += data


def follower(log: Log, first: RecordPrefix | None = None) -> Follower:
    return Follower(log, NOW, report_interval_ms=INTERVAL, silence_ms=SILENCE, first=first)


def frame(at: int, body: bytes = b"") -> bytes:
    return struct.pack(">qi", at, len(body)) + body


def reports(data: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack(">q", data)]


@given(
    st.binary(max_size=20),
    st.lists(st.binary(max_size=40), min_size=1, max_size=20),  # an empty one is a heartbeat
    st.lists(st.integers(1, 60), min_size=1, max_size=20),
)
def test_a_slave_has_the_bytes_of_its_master_however_the_stream_is_cut_and_wherever_it_was_received(
    there: bytes, bodies: list[bytes], sizes: list[int]
) -> None:
    log, stream, masters = Log(there), b"", there
    for body in bodies:
        stream += frame(len(masters), body)
        masters += body
    cuts = itertools.cycle(sizes)
    slave = follower(log)
    buffer = bytearray(60)  # of a socket: the next piece overwrites it

    sent = [*reports(slave.begin(NOW))]
    while stream:
        size = next(cuts)
        piece, stream = stream[:size], stream[size:]
        buffer[: len(piece)] = piece
        sent += reports(slave.receive(memoryview(buffer)[: len(piece)], NOW))
        # What is reported has been appended.
        assert sent[-1] <= log.end_offset

    assert bytes(log.data) == masters
    assert sent[0] == len(there)
    assert sent == sorted({*sent})
    assert sent[-1] == len(masters)


@given(st.binary(min_size=1, max_size=50), st.integers(-60, 60).filter(bool), st.binary(max_size=30), st.booleans())
def test_a_gap_an_overlap_or_a_heartbeat_for_elsewhere_ends_the_connection_and_appends_nothing(
    there: bytes, distance: int, body: bytes, is_together: bool
) -> None:
    log = Log(there)
    slave = follower(log)
    slave.begin(NOW)
    good = frame(len(there), b"good")
    assume(len(there) + 4 + distance >= 0)
    head = frame(len(there) + 4 + distance, body)[:12]  # seen before a body has come
    if is_together:
        with pytest.raises(HangUpError, match="but this log ends at"):
            slave.receive(good + head, NOW)
    else:
        assert reports(slave.receive(good, NOW)) == [len(there) + 4]
        with pytest.raises(HangUpError, match="but this log ends at"):
            slave.receive(head, NOW)
    assert bytes(log.data) == there + b"good"


@pytest.mark.parametrize("head", [(10, -1), (10, -(1 << 31)), (-1, 5), (10, (1 << 31) - 1), (1 << 62, 1)])
def test_a_frame_of_a_size_that_cannot_be_ends_the_connection_and_appends_nothing(head: tuple[int, int]) -> None:
    log = Log(b"0123456789")
    slave = follower(log)
    slave.begin(NOW)
    with pytest.raises(HangUpError, match="not a frame"):
        slave.receive(struct.pack(">qi", *head) + bytes(100), NOW)
    assert bytes(log.data) == b"0123456789"


def test_part_of_a_frame_is_not_appended() -> None:
    log = Log(b"there")
    slave = follower(log)
    slave.begin(NOW)
    assert slave.receive(frame(5, b"a body")[:-1], NOW) == b""
    assert bytes(log.data) == b"there"


@given(st.integers(0, 1 << 40), st.binary(min_size=1, max_size=20))
def test_an_empty_slave_begins_wherever_its_master_does(start: int, body: bytes) -> None:
    log = Log()
    slave = follower(log)
    assert reports(slave.begin(NOW)) == [0]
    # Each heartbeat says where the next byte goes, whatever that is.
    assert slave.receive(frame(0) + frame(start), NOW) == b""
    assert reports(slave.receive(frame(start, body), NOW)) == [start + len(body)]
    assert (log.start, bytes(log.data)) == (start, body)


def test_an_empty_slave_that_wants_the_whole_log_reports_1_and_has_the_first_byte_from_elsewhere() -> None:
    log = Log()
    slave = follower(log, RecordPrefix(0, b"the first record"))
    assert reports(slave.begin(NOW)) == [1]
    assert slave.receive(frame(1), NOW) == b""
    assert reports(slave.receive(frame(1, b"he first"), NOW)) == [9]
    assert (log.start, bytes(log.data)) == (0, b"the first")


def test_an_empty_slave_that_wants_the_whole_log_begins_where_that_of_its_master_begins() -> None:
    log = Log()
    slave = follower(log, RecordPrefix(4096, b""))
    assert reports(slave.begin(NOW)) == [4096]
    assert reports(slave.receive(frame(4096, b"later"), NOW)) == [4101]
    assert log.start == 4096


@pytest.mark.parametrize("start", [0, 4096])
def test_an_empty_slave_asks_again_where_the_log_begins_if_nothing_comes_from_there(start: int) -> None:
    """Retention may have removed it meanwhile: masters send heartbeats then, and no data."""
    slave = follower(Log(), RecordPrefix(start, b"record"))
    slave.begin(NOW)
    for now in range(NOW, NOW + SILENCE + 1, INTERVAL):
        slave.receive(frame(start or 1), now)
        slave.tick(now)
    with pytest.raises(HangUpError, match=f"the master sends no data from {start:,} on"):
        slave.tick(NOW + SILENCE + 1)


def test_a_slave_that_has_something_goes_on_there_though_it_would_want_the_whole_log() -> None:
    slave = follower(Log(b"something"), RecordPrefix(0, b"x"))
    assert reports(slave.begin(NOW)) == [9]


def test_a_slave_reports_again_at_intervals_and_leaves_a_silent_master() -> None:
    log = Log(b"there")
    slave = follower(log)
    slave.begin(NOW)
    assert slave.next_tick() == NOW + INTERVAL
    assert slave.tick(NOW + INTERVAL - 1) == b""
    assert reports(slave.tick(NOW + INTERVAL)) == [5]
    assert slave.tick(NOW + INTERVAL + 1) == b""
    slave.receive(frame(5), NOW + INTERVAL + 1)  # heartbeats are heard, and not answered
    assert reports(slave.tick(NOW + INTERVAL + 1 + SILENCE)) == [5]
    with pytest.raises(HangUpError, match="the master has sent nothing for 20,001 ms"):
        slave.tick(NOW + INTERVAL + 2 + SILENCE)


def test_a_slave_without_room_reports_nothing_that_it_has_not() -> None:
    log = Log(b"there", room=8)
    slave = follower(log)
    slave.begin(NOW)
    with pytest.raises(WriteError):
        slave.receive(frame(5, b"a body"), NOW)
    assert bytes(log.data) == b"there"
    assert reports(slave.tick(NOW + INTERVAL)) == [5]


@given(st.binary(min_size=12, max_size=200), st.booleans())
def test_whatever_comes_either_follows_the_log_or_ends_the_connection(noise: bytes, is_empty: bool) -> None:
    log = Log(b"" if is_empty else b"there")
    before = bytes(log.data)
    slave = follower(log)
    slave.begin(NOW)
    try:
        slave.receive(noise, NOW)
    except MqtoolError:
        pass
    else:
        assert struct.unpack_from(">q", noise)[0] == 5 or is_empty
    assert bytes(log.data).startswith(before)


@pytest.mark.parametrize("name", STREAMS)
def test_the_reports_to_a_recorded_master_are_those_of_the_slave_that_was_recorded(name: str) -> None:
    stream = recorded(name)
    first = next(one for one in stream if one.is_report)
    frames = [one for one in stream if not one.is_report]
    log = Log(bytes(first.offset))  # what was there before was not recorded
    slave = follower(log)

    sent = reports(slave.begin(NOW)) + [report for one in frames for report in reports(slave.receive(one.wire, NOW))]

    theirs = {one.offset for one in stream if one.is_report}
    assert {*sent} <= theirs  # which reports the beginning of its first segment too, before that has a byte
    assert sent[-1] == max(theirs)
    assert bytes(log.data[first.offset :]) == b"".join(one.body for one in frames)
