"""What a master sends to its slaves, and what it takes for acknowledged."""

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqtool.engine.replication.frames import Frame, FrameParser
from mqtool.engine.replication.master import Master, MasterSettings
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.live_log import LiveLog
from mqtool.formats.peer import Peer
from tests.recorded_replication import STREAMS, RecordedBytes, recorded

SEGMENT = 4096
REAL_MASTER_LOOKS_MS = 100


@contextlib.contextmanager
def a_log(folder: Path, size: int = 0, segment: int = SEGMENT) -> Iterator[LiveLog]:
    """Give a log with so many bytes, of which no two stretches are equal."""
    folder.mkdir(parents=True, exist_ok=True)
    log = LiveLog(Disk(), [folder], segment, CommitLog(()))
    grow(log, size)
    yield log
    log.close()


def grow(log: LiveLog, size: int) -> None:
    end = log.end_offset
    log.write_at(end, contents(end, end + size))


def contents(start: int, end: int) -> bytes:
    first = start // 8
    return b"".join((one * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(8, "big") for one in range(first, end // 8 + 1))[
        start - first * 8 : end - first * 8
    ]


@dataclasses.dataclass
class ConnectedSlave:
    """One end of a connection: what it was sent."""

    peer: Peer
    parser: FrameParser = dataclasses.field(default_factory=FrameParser)
    frames: list[Frame] = dataclasses.field(default_factory=list)

    @property
    def bodies(self) -> list[tuple[int, int]]:
        return [(one.physical_offset, len(one.body)) for one in self.frames if one.body]

    @property
    def heartbeats(self) -> list[int]:
        return [one.physical_offset for one in self.frames if not one.body]


class MasterWithSlaves:
    """A master and the slaves that are connected to it; ``now`` is in ms."""

    def __init__(self, log: LiveLog, **given: int | bool | None) -> None:
        self.log, self.now = log, 1000
        self.master = Master(log, MasterSettings(**given))  # type: ignore[arg-type]
        self.slaves: list[ConnectedSlave] = []
        self.ended: dict[Peer, str] = {}
        self.master.hang_up = self.ended.__setitem__
        self.ids = itertools.count(1)

    def connect(self, first: int | None = None, host: str = "10.0.0.1") -> ConnectedSlave:
        slave = ConnectedSlave(Peer(next(self.ids), host, 40_000))
        self.slaves.append(slave)
        self.master.opened(slave.peer, self.now)
        if first is not None:
            self.report(slave, first)
        return slave

    def report(self, slave: ConnectedSlave, offset: int) -> None:
        self.master.reported(slave.peer, offset, self.now)
        self.run()

    def run(self) -> None:
        """Do all that is due."""
        for _ in range(100):
            for peer, buffers in self.master.tick(self.now):
                [slave] = [one for one in self.slaves if one.peer is peer]
                slave.parser.receive(b"".join(buffers))
                slave.frames += [one for one in slave.parser.commands() if isinstance(one, Frame)]
            due = self.master.next_tick(self.now)
            if due is None or due > self.now:
                return
        raise AssertionError("it is never done")

    def wait(self, milliseconds: int) -> None:
        """Let time pass, as far as it has to be looked at."""
        end = self.now + milliseconds
        while (due := self.master.next_tick(self.now)) is not None and due <= end:
            assert due > self.now
            self.now = due
            self.run()
        self.now = end
        self.run()


def test_nothing_is_sent_before_the_first_report_and_then_the_last_segment(tmp_path: Path) -> None:
    with a_log(tmp_path, 2 * SEGMENT + 100) as log:
        line = MasterWithSlaves(log)
        slave = line.connect()
        line.wait(4000)
        assert slave.frames == []

        line.report(slave, 0)

        assert slave.frames == [Frame(2 * SEGMENT, contents(2 * SEGMENT, 2 * SEGMENT + 100))]


@pytest.mark.parametrize("first", [1, 7, SEGMENT - 1, SEGMENT, SEGMENT + 5])
def test_frames_begin_where_the_first_report_says_and_end_at_segments(tmp_path: Path, first: int) -> None:
    with a_log(tmp_path, 3 * SEGMENT + 10) as log:
        slave = MasterWithSlaves(log, batch_size=1500).connect(first)

        assert b"".join(one.body for one in slave.frames) == contents(first, 3 * SEGMENT + 10)
        for offset, size in slave.bodies:
            assert size <= 1500
            assert offset // SEGMENT == (offset + size - 1) // SEGMENT
        assert any(offset % SEGMENT + size == SEGMENT and size < 1500 for offset, size in slave.bodies)


@pytest.mark.parametrize("name", STREAMS)
def test_a_slave_is_sent_the_frames_that_a_real_master_has_sent(tmp_path: Path, name: str) -> None:
    stream = recorded(name)
    first = min(one.offset for one in stream if not one.is_report)
    groups: list[list[RecordedBytes]] = []  # a real master looks at its log every 100 ms
    for one in (one for one in stream if one.body):
        if not groups or one.time - groups[-1][-1].time > 60:
            groups.append([])
        groups[-1].append(one)
    with a_log(tmp_path, first, segment=1 << 16) as log:
        line, slave = MasterWithSlaves(log), None
        line.now = stream[0].time
        for one in stream:
            line.now = max(line.now, one.time)
            if slave is None:
                log.write_at(first, b"".join(one.body for one in groups[0]))
                slave = line.connect(one.offset)
            elif one.is_report:
                line.report(slave, one.offset)
            elif one in [group[0] for group in groups[1:]]:
                [group] = [group for group in groups if group[0] is one]
                log.write_at(log.end_offset, b"".join(one.body for one in group))
            line.run()

        assert slave is not None
        assert [one for one in slave.frames if one.body] == [Frame(one.offset, one.body) for one in stream if one.body]
        assert set(slave.heartbeats) <= {one.offset for one in stream if not one.is_report}


def test_new_bytes_leave_as_soon_as_they_are_written_if_sends_wait_for_them(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line, news = MasterWithSlaves(log, required_slaves=1), []
        line.master.on_news = lambda: news.append(log.end_offset)
        slave = line.connect(100)
        news.clear()

        for size in (10, 20, 30):
            grow(log, size)
            assert news == [log.end_offset]
            news.clear()
            line.run()

        assert slave.bodies == [(100, 10), (110, 20), (130, 30)]
        line.master.closed(slave.peer, line.now)
        grow(log, 1)  # the last word that was asked for
        news.clear()
        grow(log, 1)
        assert news == []


def test_new_bytes_that_no_send_waits_for_are_gathered_but_arrive_sooner_than_of_a_real_one(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log)
        slave = line.connect(100)
        grow(log, 10)
        line.run()
        assert slave.bodies == [(100, 10)]  # nothing was sent for a while: at once

        for size in (20, 30, 40):
            grow(log, size)
            line.run()
        assert slave.bodies == [(100, 10)]
        line.wait(REAL_MASTER_LOOKS_MS // 2)
        assert slave.bodies == [(100, 10), (110, 90)]

        grow(log, 50)
        line.run()
        grow(log, 60)
        line.master.configure(MasterSettings(required_slaves=1))
        line.run()
        grow(log, 70)
        line.run()
        assert slave.bodies[2:] == [(200, 50), (250, 60), (310, 70)]


def test_new_bytes_are_not_held_back_until_a_clock_that_was_set_back_is_there_again(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log)
        line.now = 1 << 40
        slave = line.connect(100)
        grow(log, 10)
        line.run()
        line.now -= 3_600_000
        grow(log, 20)
        line.run()
        assert slave.bodies == [(100, 10), (110, 20)]


def test_a_slave_that_is_behind_is_sent_all_without_a_pause(tmp_path: Path) -> None:
    size = 3 << 20
    with a_log(tmp_path, size, segment=1 << 23) as log:
        line = MasterWithSlaves(log)
        slave = line.connect(8)
        assert sum(size for _, size in slave.bodies) == size - 8


def test_who_is_silent_for_too_long_is_hung_up_on(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log, heartbeat_ms=2000, housekeeping_ms=6000)
        silent, once, good = line.connect(), line.connect(100), line.connect(100)
        for _ in range(5):
            line.wait(1000)
            line.report(good, 100)
        line.wait(999)
        assert line.ended == {}
        line.wait(1)

        assert set(line.ended) == {silent.peer, once.peer}
        assert line.ended[once.peer] == "no report for 6.0 s"
        assert (silent.heartbeats, once.heartbeats) == ([], [100, 100])
        line.wait(1000)
        assert len(good.heartbeats) == 3


def test_a_heartbeat_is_due_when_nothing_was_sent_since_the_connection_began(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log, heartbeat_ms=1000)
        slave = line.connect()
        line.wait(1500)
        line.report(slave, 100)
        assert slave.heartbeats == [100]
        line.wait(400)
        grow(log, 5)
        line.run()
        line.wait(999)
        assert slave.heartbeats == [100]
        line.wait(1)
        assert slave.heartbeats == [100, 105]


def test_a_slave_whose_log_is_longer_is_never_sent_bytes_that_do_not_belong_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log, required_slaves=1, heartbeat_ms=1000)
        with caplog.at_level(logging.WARNING):
            ahead = line.connect(150)
            grow(log, 500)
            line.wait(3000)
            line.report(ahead, 150)
        assert (ahead.bodies, ahead.heartbeats) == ([], [150, 150, 150])
        assert "its log ends at 150, but this one ended at 100 or before" in caplog.text

        # Nor when it comes back, now that this log is longer than its own.
        line.master.closed(ahead.peer, line.now)
        again = line.connect(150)
        line.wait(2000)
        assert (again.bodies, log.confirmed_offset, line.master.in_sync_count()) == ([], 0, 0)
        [status] = line.master.statuses(line.now)
        assert "nothing is sent to it" in status.fault
        elsewhere = line.connect(150, host="10.0.0.2")
        assert elsewhere.bodies == [(150, 450)]
        assert caplog.text.count("WARNING") == 1


def test_what_was_not_sent_is_not_acknowledged(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        for is_old in (False, True):
            line = MasterWithSlaves(log, required_slaves=1, counts_whatever_was_acknowledged=is_old)
            slave = line.connect(50)
            line.report(slave, log.end_offset + 1000)
            grow(log, 10)
            line.run()
            assert log.confirmed_offset == 50
            assert (slave.peer in line.ended) is is_old  # 4.9 hangs up


def test_a_slave_below_the_first_byte_gets_heartbeats_and_the_reason_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_log(tmp_path, 3 * SEGMENT) as log:
        line = MasterWithSlaves(log, heartbeat_ms=1000)
        late, reading = line.connect(), line.connect(2 * SEGMENT)
        log.remove_first()()
        with caplog.at_level(logging.WARNING):
            line.report(late, 100)
            line.wait(2000)
        assert (late.bodies, set(late.heartbeats)) == ([], {100})
        assert "it needs 100, but this log starts at 4,096" in caplog.text
        assert reading.bodies == [(2 * SEGMENT, SEGMENT)]


def test_it_is_said_when_retention_removes_what_a_slave_has_not_had(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with a_log(tmp_path, 3 * SEGMENT) as log:
        line = MasterWithSlaves(log, heartbeat_ms=1000)
        slave = line.connect()
        line.master.backed_up(slave.peer, True)
        line.report(slave, 1)
        assert slave.frames == []
        log.remove_first()()
        with caplog.at_level(logging.WARNING):
            line.wait(1000)
            line.report(slave, 1)
        assert "it needs 1, but this log starts at 4,096" in caplog.text


def test_retention_may_wait_for_what_a_slave_has_not_acknowledged(tmp_path: Path) -> None:
    with a_log(tmp_path, 2 * SEGMENT) as log:
        line = MasterWithSlaves(log)
        slave = line.connect(0)
        [reader] = log.readers
        assert (slave.bodies, reader.wanted_offset) == ([], 2 * SEGMENT)
        other = line.connect(10)

        def wanted() -> list[int]:
            return sorted(reader.wanted_offset for reader in log.readers)

        assert wanted() == [10, 2 * SEGMENT]
        line.report(other, SEGMENT)
        assert wanted() == [SEGMENT, 2 * SEGMENT]
        line.master.closed(other.peer, line.now)
        line.master.closed(slave.peer, line.now)
        assert wanted() == []


def test_a_slave_that_does_not_read_has_nothing_more_made_for_it(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log, heartbeat_ms=1000, housekeeping_ms=10_000)
        slave = line.connect(100)
        line.master.backed_up(slave.peer, True)
        grow(log, 50)
        line.wait(5000)
        assert slave.frames == []

        line.master.backed_up(slave.peer, False)
        line.run()
        assert slave.bodies == [(100, 50)]


def test_no_more_is_sent_in_a_second_than_is_allowed(tmp_path: Path) -> None:
    with a_log(tmp_path, 3000) as log:
        line = MasterWithSlaves(log, bytes_per_second=1000, batch_size=300, heartbeat_ms=400)
        slave = line.connect(1)
        sent = []
        for _ in range(4):
            sent.append(sum(size for _, size in slave.bodies))
            line.wait(999)
            assert sum(size for _, size in slave.bodies) == sent[-1]
            line.report(slave, 1 + sent[-1])
            line.wait(1)
        assert sent == [1000, 2000, 2999, 2999]
        assert len(slave.heartbeats) < 12  # a real master floods its slave with them


def test_as_many_connections_must_have_acknowledged_as_are_required(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line, told = MasterWithSlaves(log, required_slaves=2), []
        line.master.on_confirmed = lambda: told.append(log.confirmed_offset)
        assert log.confirmed_offset == 0
        first, second, third = line.connect(100), line.connect(), line.connect(60)
        assert log.confirmed_offset == 60
        line.report(third, 80)
        line.report(second, 70)
        assert log.confirmed_offset == 80
        line.report(first, 75)  # lower than before: taken
        assert log.confirmed_offset == 75
        line.master.closed(third.peer, line.now)
        assert log.confirmed_offset == 70
        line.master.closed(second.peer, line.now)
        assert log.confirmed_offset == 0
        assert told == [60, 80, 75, 70, 0]
        assert line.master.may_get(1 << 40)

        line.master.configure(MasterSettings(required_slaves=0))
        assert log.confirmed_offset is None


def test_by_4_9_whatever_was_ever_acknowledged_counts_and_a_slave_must_be_near(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log, required_slaves=1, counts_whatever_was_acknowledged=True, most_behind=50)
        assert not line.master.may_get(10)
        slave = line.connect()
        assert (line.master.may_get(49), line.master.may_get(50)) == (True, False)  # counted from its first moment
        line.report(slave, 100)
        line.report(slave, 40)
        assert log.confirmed_offset == 100
        line.master.closed(slave.peer, line.now)
        assert log.confirmed_offset == 100
        assert not line.master.may_get(101)


def test_lag_is_told_in_bytes_and_time(tmp_path: Path) -> None:
    with a_log(tmp_path, 100) as log:
        line = MasterWithSlaves(log, max_gap=100, heartbeat_ms=500)
        slave = line.connect(100)
        fresh = line.connect()
        line.wait(3000)
        told = line.master.statuses(line.now)
        assert [(one.lag, one.lag_ms, one.is_in_sync) for one in told] == [(0, 0, True), (100, None, False)]
        line.master.closed(fresh.peer, line.now)
        grow(log, 99)
        line.run()
        line.wait(4000)
        [one] = line.master.statuses(line.now)
        assert (one.lag, one.is_in_sync, one.acknowledged_offset, one.next_offset) == (99, True, 100, 199)
        assert one.lag_ms is not None
        assert 3000 <= one.lag_ms <= 4000
        grow(log, 1)
        assert line.master.in_sync_count() == 0
        line.report(slave, 199)
        assert line.master.in_sync_count() == 1


actions = st.lists(
    st.one_of(
        st.tuples(st.just("grow"), st.integers(1, 3000)),
        st.tuples(st.just("connect"), st.integers(0, 12_000)),
        st.tuples(st.just("silent"), st.just(0)),
        st.tuples(st.just("ack"), st.integers(0, 20)),
        st.tuples(st.just("nonsense"), st.integers(0, (1 << 56) - 1)),
        st.tuples(st.just("back up"), st.integers(0, 20)),
        st.tuples(st.just("drain"), st.integers(0, 20)),
        st.tuples(st.just("close"), st.integers(0, 20)),
        st.tuples(st.just("wait"), st.integers(1, 3000)),
        st.tuples(st.just("remove"), st.just(0)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps=actions, required=st.integers(0, 2), allowed=st.sampled_from([None, 500, 5000]))
def test_whatever_slaves_do_they_get_the_log_and_only_what_they_got_is_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], required: int, allowed: int | None
) -> None:
    with a_log(tmp_path_factory.mktemp("log"), 3000) as log:
        line = MasterWithSlaves(
            log, required_slaves=required, bytes_per_second=allowed, batch_size=700, heartbeat_ms=1000
        )
        for action, number in steps:
            slave = line.slaves[number % len(line.slaves)] if line.slaves else None
            if action == "grow":
                grow(log, number)
            elif action == "connect":
                line.connect(number)
            elif action == "silent":
                line.connect()
            elif action == "wait":
                line.wait(number)
            elif action == "remove":
                if log.first_segment():
                    log.remove_first()()
            elif slave is None:
                continue
            elif action == "ack" and slave.frames:
                line.report(slave, slave.frames[-1].physical_offset + len(slave.frames[-1].body))
            elif action == "nonsense":
                line.report(slave, number)
            elif action in ("back up", "drain"):
                line.master.backed_up(slave.peer, action == "back up")
            elif action == "close":
                line.master.closed(slave.peer, line.now)
            line.run()

            got = []
            for one in line.slaves:
                at = None
                for offset, body in one.frames:
                    assert len(body) <= 700
                    assert not body or offset // SEGMENT == (offset + len(body) - 1) // SEGMENT
                    if body:
                        assert at in (None, offset)  # no gap, no overlap
                        assert body == contents(offset, offset + len(body))
                        at = offset + len(body)
                got.append(at or 0)
            if required:
                assert log.confirmed_offset is not None
                assert log.confirmed_offset <= log.end_offset
            else:
                assert log.confirmed_offset is None
            for status in line.master.statuses(line.now):
                assert status.acknowledged_offset <= max(status.next_offset, -1)
        line.master.configure(MasterSettings())
        for slave in line.slaves:
            line.master.closed(slave.peer, line.now)
        assert not log.readers
        assert line.master.next_tick(line.now) is None
