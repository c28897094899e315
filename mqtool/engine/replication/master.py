"""The rules of a master: what it sends to each slave and when, and how far the slaves are.

The owner of the sockets reports which connections open, close and are backed up, and passes on received reports;
``tick`` returns what to send. Bytes of the log are sent unchanged, flushed or not, as soon as they are written; if no
send waits for slaves, they are gathered for a moment.

RocketMQ accepts whatever a slave reports. Here a report acknowledges only bytes that were sent on its connection, and a
slave whose log is longer than the master's gets heartbeats and no data: the master's data would not continue where the
slave's log ends. (Rules: replication.md 2.2 to 2.4, 4. RocketMQ: ``DefaultHAService``, ``DefaultHAConnection``,
``GroupTransferService``.)

Cost: linear in the slaves for each tick; only the bytes that are sent are read from the log.
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.replication.frames import build_frame_head
from mqtool.engine.store.log_reader import LogReader
from mqtool.errors import MqtoolError
from mqtool.formats.peer import Buffer, Peer

if TYPE_CHECKING:
    from mqtool.engine.store.live_log import LiveLog

log = logging.getLogger(__name__)

_SENT_AT_ONCE = 1 << 18
"""Bytes for one slave in one tick: other slaves have their turn in between."""
_GATHER_MS = 20
"""How long a slave that has everything waits for more if no send waits for it: fewer, larger pieces cost both sides
less. RocketMQ's slaves wait up to 100 ms."""
_SECOND_MS = 1000
_MAX_SAMPLES = 3600
_READ_AGAIN_MS = 1000
"""How long to wait if the log could not be read."""
_WARNED_MS = 60_000
"""Time between two warnings: a slave that cannot be served reconnects every few seconds."""
_MAX_STRAYS = 1000


class MasterSettings(NamedTuple):
    """The settings of a master."""

    heartbeat_ms: int = 5000  # a heartbeat is sent after this time without data
    housekeeping_ms: int = 20_000  # the connection is closed after this time without a report
    batch_size: int = 32_768  # maximum size of a frame's body
    bytes_per_second: int | None = None  # to each slave; None: unlimited
    required_slaves: int = 0  # how many must have a message; 0: sends do not wait for slaves
    counts_whatever_was_acknowledged: bool = False  # as 4.9: also by disconnected slaves
    max_gap: int = 1 << 28  # a slave that lacks less is in sync
    most_behind: int = 1 << 28  # as 4.9: sends wait for a slave that lacks less


class SlaveStatus(NamedTuple):
    """The state of a slave."""

    address: str
    acknowledged_offset: int  # -1 before its first report
    next_offset: int  # of the next byte to send to it
    lag: int  # bytes
    lag_ms: int | None  # how long ago the log ended where the slave's does; None: unknown
    is_in_sync: bool
    bytes_per_second: int
    fault: str  # why nothing is sent to it


class _Slave:
    """One connection."""

    __slots__ = (
        "acknowledged",
        "bytes_in_second",
        "fault",
        "had_all",
        "is_backed_up",
        "last_report",
        "last_sent",
        "next_read",
        "peer",
        "position",
        "rate",
        "reader",
        "second",
    )

    def __init__(self, peer: Peer, now: int) -> None:
        self.peer = peer
        self.position = -1  # the next byte to be sent; -1 before the first report
        self.reader: LogReader | None = None
        self.acknowledged = -1
        self.last_report = self.last_sent = self.second = now
        self.bytes_in_second = self.rate = 0
        self.next_read = 0  # not before this time
        self.had_all = False  # when it was last sent something
        self.is_backed_up = False
        self.fault = ""


class Master:
    """All slaves of a master; times are in ms.

    ``on_news`` is called when ``tick`` has something to send, ``on_confirmed`` when slaves have acknowledged more,
    ``on_acknowledged`` before that, with the highest address that any slave has.
    ``hang_up`` ends a connection, given the reason.
    """

    def __init__(self, log_: "LiveLog", settings: MasterSettings) -> None:
        self.on_news: Callable[[], None] = lambda: None
        self.on_confirmed: Callable[[], None] = lambda: None
        self.on_acknowledged: Callable[[int], None] = lambda offset: None  # noqa: ARG005
        self.hang_up: Callable[[Peer, str], None] = lambda peer, reason: None  # noqa: ARG005
        self.gathers = True
        """Whether bytes are gathered at all: not when the master stops."""
        self._log = log_
        self._slaves: dict[Peer, _Slave] = {}
        self._highest = 0  # address that any slave has ever acknowledged
        self._strays: dict[tuple[str, int], None] = {}  # hosts, and ends of their logs that were longer than this one
        self._next_warning: dict[str, int] = {}  # by host
        self._sample_times: deque[int] = deque(maxlen=_MAX_SAMPLES)
        self._sample_ends: deque[int] = deque(maxlen=_MAX_SAMPLES)
        self.configure(settings)

    def configure(self, settings: MasterSettings) -> None:
        """Apply new settings."""
        self._settings = settings
        self._confirm()

    # Events of connections

    def opened(self, peer: Peer, now: int) -> None:
        """Note a connection; nothing is sent before its first report."""
        self._slaves[peer] = _Slave(peer, now)

    def closed(self, peer: Peer, now: int) -> Iterable[tuple[Peer, list[Buffer]]]:  # noqa: ARG002
        """Note that a connection has ended."""
        self._forget(peer)
        return ()

    def _forget(self, peer: Peer) -> None:
        slave = self._slaves.pop(peer, None)
        if slave is not None:
            self._stop_reading(slave)
            self._confirm()

    def _end(self, slave: _Slave, reason: str) -> None:
        self._forget(slave.peer)
        self.hang_up(slave.peer, reason)

    def backed_up(self, peer: Peer, is_backed_up: bool) -> None:
        """Note that sent data waits to be read, or has been read."""
        if slave := self._slaves.get(peer):
            slave.is_backed_up = is_backed_up
            if not is_backed_up:
                self.on_news()

    def reported(self, peer: Peer, offset: int, now: int) -> None:
        """Process a report: the first one says where to start, each acknowledges everything below it."""
        slave = self._slaves.get(peer)
        if slave is None:
            return
        slave.last_report = now
        if slave.position < 0:
            self._begin(slave, offset, now)
        elif slave.reader is None:  # its bytes are not known to be ours
            slave.position = offset
        elif offset > slave.position:
            reason = f"it reports {offset:,}, but was sent only up to {slave.position:,}"
            if self._settings.counts_whatever_was_acknowledged:
                self._end(slave, reason)
            else:
                self._note_fault(slave, f"{reason}: the report is ignored", now)
        else:
            slave.acknowledged = slave.reader.held_offset = offset
            slave.fault = ""
        self._confirm()

    def _begin(self, slave: _Slave, offset: int, now: int) -> None:
        """Start where the first report says: 0 is the beginning of the last segment."""
        log_ = self._log
        end, stray = log_.end_offset, (slave.peer.host, offset)
        slave.position = offset or max(end - end % log_.file_size, log_.min_offset)
        if offset > end or stray in self._strays:
            # Once this log is longer, nothing else shows that the slave has other bytes below that offset.
            self._strays[stray] = None
            if len(self._strays) > _MAX_STRAYS:
                del self._strays[next(iter(self._strays))]
            text = f"its log ends at {offset:,}, but this one ended at {end:,} or before: nothing is sent to it"
            self._note_fault(slave, f"{text}; restart it with an empty store or a copy of this one", now)
        elif slave.position < log_.min_offset:
            self._note_missing(slave, now)
        else:
            slave.reader = LogReader(log_, slave.position)
            slave.acknowledged, slave.reader.held_offset = offset, slave.position
        self.on_news()

    def _note_missing(self, slave: _Slave, now: int) -> None:
        text = f"it needs {slave.position:,}, but this log starts at {self._log.min_offset:,}: nothing is sent to it"
        self._note_fault(slave, f"{text}; restart it with an empty store or a copy of this one", now)

    def _note_fault(self, slave: _Slave, fault: str, now: int) -> None:
        host = slave.peer.host
        if fault != slave.fault and now >= self._next_warning.get(host, now):
            if len(self._next_warning) >= _MAX_STRAYS:
                self._next_warning.clear()
            self._next_warning[host] = now + _WARNED_MS
            log.warning("slave %s: %s", slave.peer.address, fault)
        slave.fault = fault

    def _stop_reading(self, slave: _Slave) -> None:
        if slave.reader is not None:
            slave.reader.close()
            slave.reader = None

    # Sending

    def tick(self, now: int) -> Iterator[tuple[Peer, list[Buffer]]]:
        """Yield what to send to which slave, and disconnect slaves that have been silent for too long."""
        settings = self._settings
        is_at_end = False
        for slave in [*self._slaves.values()]:
            if now - slave.last_report >= settings.housekeeping_ms:
                self._end(slave, f"no report for {(now - slave.last_report) / 1000:.1f} s")
                continue
            if slave.reader is not None and slave.position < self._log.min_offset:  # retention does not wait
                self._note_missing(slave, now)
                self._stop_reading(slave)
            if slave.position < 0 or slave.is_backed_up:
                continue
            if out := self._next_frames(slave, now):
                yield slave.peer, out
            elif now - slave.last_sent >= settings.heartbeat_ms:
                slave.last_sent = now
                yield slave.peer, [build_frame_head(slave.position, 0)]
            is_at_end |= slave.position == self._log.end_offset and slave.reader is not None
        if is_at_end:
            self._log.tell_of_growth(self.on_news)
        self._sample(now)

    def _next_frames(self, slave: _Slave, now: int) -> list[Buffer]:
        """Return the next frames of the log for a slave; none if there are no bytes, or no more are allowed."""
        if now - slave.second >= _SECOND_MS:
            slave.rate = slave.bytes_in_second * _SECOND_MS // (now - slave.second)
            slave.second, slave.bytes_in_second = now, 0
        if slave.reader is None or now < slave.next_read or self._gathers(slave, now):
            return []
        most = _SENT_AT_ONCE
        if (allowed := self._settings.bytes_per_second) is not None:
            most = min(most, allowed - slave.bytes_in_second)
        try:
            data = slave.reader.read(most)
        except MqtoolError as error:
            self._note_fault(slave, f"the log cannot be read: {error}; retrying", now)
            slave.next_read = now + _READ_AGAIN_MS
            return []
        if not data:
            return []
        at, size, frames = slave.position, self._settings.batch_size, list[Buffer]()
        for start in range(0, len(data), size):
            body = data[start : start + size]
            frames += build_frame_head(at + start, len(body)), body
        slave.position += len(data)
        slave.bytes_in_second += len(data)
        slave.last_sent = now
        slave.had_all = slave.position == self._log.end_offset
        return frames

    def _gathers(self, slave: _Slave, now: int) -> bool:
        """Return whether a slave waits for more; not if the clock was set back since it was sent something."""
        may_gather = self.gathers and slave.had_all and not self._settings.required_slaves
        return may_gather and 0 <= now - slave.last_sent < _GATHER_MS

    def next_tick(self, now: int) -> int | None:
        """Return when something is due: immediately if there are bytes to send."""
        settings, end = self._settings, self._log.end_offset
        soonest: int | None = None
        for slave in self._slaves.values():
            due = slave.last_report + settings.housekeeping_ms
            if slave.position >= 0 and not slave.is_backed_up:
                due = min(due, slave.last_sent + settings.heartbeat_ms)
                if slave.reader is not None and slave.position < end:
                    due = min(due, self._next_read(slave, now))
            soonest = due if soonest is None else min(soonest, due)
        return soonest

    def _next_read(self, slave: _Slave, now: int) -> int:
        allowed = self._settings.bytes_per_second
        is_over = allowed is not None and slave.bytes_in_second >= allowed
        gathered = slave.last_sent + _GATHER_MS if self._gathers(slave, now) else now
        return max(gathered, slave.next_read, slave.second + _SECOND_MS if is_over else 0)

    # Progress of the slaves

    def _confirm(self) -> None:
        """Report the address up to which enough slaves have the log."""
        offsets = sorted((slave.acknowledged for slave in self._slaves.values()), reverse=True)
        if offsets and offsets[0] > self._highest:
            self._highest = offsets[0]
            self.on_acknowledged(self._highest)
        settings, log_ = self._settings, self._log
        required, before = settings.required_slaves, log_.confirmed_offset
        if not required:
            log_.confirmed_offset = None
        elif settings.counts_whatever_was_acknowledged:
            log_.confirmed_offset = self._highest
        else:
            log_.confirmed_offset = max(offsets[required - 1], 0) if len(offsets) >= required else 0
        if log_.confirmed_offset != before:
            self.on_confirmed()

    def may_get(self, offset: int) -> bool:
        """Return whether to wait for slaves to get the log up to an address: 4.9 waits only if one is near."""
        settings = self._settings
        if not settings.counts_whatever_was_acknowledged:
            return True
        return bool(self._slaves) and offset - self._highest < settings.most_behind

    def in_sync_count(self) -> int:
        """Return how many slaves are in sync."""
        return sum(map(self._is_in_sync, self._slaves.values()))

    def _is_in_sync(self, slave: _Slave) -> bool:
        lag = self._log.end_offset - slave.acknowledged
        return slave.reader is not None and lag < self._settings.max_gap

    def statuses(self, now: int) -> list[SlaveStatus]:
        """Return the state of each slave."""
        end = self._log.end_offset
        return [
            SlaveStatus(
                slave.peer.address,
                slave.acknowledged,
                max(slave.position, 0),
                end - max(slave.acknowledged, 0),
                self._lag_ms(slave.acknowledged, now),
                self._is_in_sync(slave),
                slave.rate if now - slave.second < 2 * _SECOND_MS else 0,
                slave.fault,
            )
            for slave in self._slaves.values()
        ]

    def _sample(self, now: int) -> None:
        """Note the end of the log once a second, to compute how long ago it ended where a slave's log ends."""
        if not self._sample_times or now - self._sample_times[-1] >= _SECOND_MS:
            self._sample_times.append(now)
            self._sample_ends.append(self._log.end_offset)

    def _lag_ms(self, acknowledged: int, now: int) -> int | None:
        if acknowledged < 0:
            return None
        behind = bisect_right(self._sample_ends, acknowledged)
        if behind == len(self._sample_ends):
            return 0
        return now - self._sample_times[behind]
