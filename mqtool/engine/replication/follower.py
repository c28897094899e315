"""A slave on one connection to its master: what it reports, what it appends, and when it disconnects.

The slave appends before it reports, and compares the offset of each frame with the end of its own log before the body
arrives. Frames are independent of records: a frame may end anywhere. (Rules: replication.md 2.5. RocketMQ:
``DefaultHAClient``.)

Cost: constant for each frame, except for what appending its bytes costs.
"""

from typing import Protocol

from mqtool.engine.replication.comparing import RecordPrefix
from mqtool.engine.replication.frames import FrameHead, FrameParser, build_report
from mqtool.errors import FormatError, MqtoolError

AT_FIRST_BYTE = 1
"""The first report of an empty slave that wants the log from byte 0 on: after 0, a master sends its last segment."""


class HangUpError(MqtoolError):
    """The connection is no longer usable: the slave closes it and connects again."""


class ReplicaLog(Protocol):
    """The log to which data is appended: a ``MessageStore``."""

    @property
    def end_offset(self) -> int:
        """Where it ends."""
        ...

    def append_bytes(self, at: int, data: bytes) -> None:
        """Append bytes at its end; an empty log may start with any segment."""
        ...


class Follower:
    """The rules of one connection; times are in ms.

    The owner of the socket sends what these calls return, and closes it when one of them raises.
    """

    def __init__(
        self, copy: ReplicaLog, now: int, *, report_interval_ms: int, silence_ms: int, first: RecordPrefix | None = None
    ) -> None:
        """Start on a new connection.

        Args:
            copy: the log to which the master's log is appended.
            now: the time.
            report_interval_ms: how often to report if nothing is received (``haSendHeartbeatInterval``).
            silence_ms: how long the master may be silent (``haHousekeepingInterval``).
            first: the address, known to the master, at which an empty log is to start; with the record there if it
                is 0, as byte 0 cannot be requested. None: wherever the master starts.
        """
        self.received_size = 0
        """Bytes of the log received over this connection."""
        self.has_frame = False
        """Whether a frame has come over it, if only a heartbeat."""
        self._copy = copy
        self._frames = FrameParser()
        self._report_interval_ms = report_interval_ms
        self._silence_ms = silence_ms
        self._first = first if not copy.end_offset else None
        self._begun_at = now
        self._reported = -1
        self._reported_at = now
        self._heard_at = now

    def begin(self, now: int) -> bytes:
        """Return the first report, which says where the transfer starts."""
        if self._first is None:
            return self._report(now)
        self._reported, self._reported_at = 0, now
        return build_report(self._first.physical_offset or AT_FIRST_BYTE)

    def receive(self, data: bytes | memoryview, now: int) -> bytes:
        """Process received bytes, append those of the log, and return the report of its new end.

        Raises:
            HangUpError: the bytes are not a frame, or not the next one.
            MqtoolError: data cannot be appended, see ``MessageStore.append_bytes``; earlier data has been.
        """
        self._heard_at = now
        self._frames.receive(data)
        bodies: list[bytes | memoryview] = []
        start = end = self._copy.end_offset
        try:
            for frame in self._frames.commands():
                self.has_frame = True
                if isinstance(frame, FrameHead):
                    if frame.physical_offset != end and (end or bodies):
                        raise HangUpError(
                            f"the master sent data for {frame.physical_offset:,}, but this log ends at {end:,}"
                        )
                elif frame.body:
                    if not end:
                        start = end = frame.physical_offset
                        if start == AT_FIRST_BYTE and self._first is not None:
                            start = 0
                            bodies.append(self._first.data[:1])
                    bodies.append(frame.body)
                    end += len(frame.body)
        except FormatError as error:
            raise HangUpError(f"the master sent something that is not a frame: {error.reason}") from error
        finally:
            if bodies:  # data before a wrong frame is valid
                self._append(start, b"".join(bodies))
        return self._report(now) if self._copy.end_offset > self._reported else b""

    def tick(self, now: int) -> bytes:
        """Return the report of a slave that has received nothing for a while, if it is due.

        Raises:
            HangUpError: the master has been silent for too long, or sent no data for an empty log.
        """
        if now - self._heard_at > self._silence_ms:
            raise HangUpError(f"the master has sent nothing for {now - self._heard_at:,} ms")
        if self._first is not None and not self._copy.end_offset and now - self._begun_at > self._silence_ms:
            raise HangUpError(f"the master sends no data from {self._first.physical_offset:,} on, where its log began")
        return self._report(now) if now - self._reported_at >= self._report_interval_ms else b""

    def next_tick(self) -> int:
        """Return when ``tick`` is due."""
        return min(self._reported_at + self._report_interval_ms, self._heard_at + self._silence_ms + 1)

    def _append(self, at: int, data: bytes) -> None:
        self._copy.append_bytes(at, data)
        self.received_size += len(data)

    def _report(self, now: int) -> bytes:
        self._reported, self._reported_at = self._copy.end_offset, now
        return build_report(self._reported)
