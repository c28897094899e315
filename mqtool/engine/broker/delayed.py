"""Delayed messages: each waits in the queue of its delay level.

A delayed message is stored in ``SCHEDULE_TOPIC_XXXX``, whose units contain the delivery time, and is stored again in
its real topic when it is due: on time, in the order of its level, and never early. The progress of each level is kept
in ``config/delayOffset.json``, never ahead of the log on disk. After a crash, messages delivered since then are found
in their queues; RocketMQ would deliver them again.
(Rules: remoting.md 4.7; store.md 10.5, 11.1. RocketMQ: ``ScheduleMessageService``, ``HookUtils``.)
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.copies import deliver_copy
from mqtool.engine.broker.delivered_before import DeliveredBefore
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.intervals import is_time
from mqtool.engine.store.append_result import AppendResult
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.bodies import version_members
from mqtool.formats.config_tables import DataVersion, Dialect, Table, build_table, data_version, delay_offsets
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import add_property, build_properties, parse_properties
from mqtool.formats.property_names import (
    DELAY,
    REAL_QID,
    REAL_TOPIC,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_PREFIX,
)
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import Unit
    from mqtool.engine.store.message_store import MessageStore


_DELAY, _REAL_TOPIC, _REAL_QUEUE_ID = DELAY.encode(), REAL_TOPIC.encode(), REAL_QID.encode()
_TIMER_PREFIX = TIMER_PREFIX.encode()
_TIMER_NAMES = (TIMER_DELIVER_MS, TIMER_DELAY_SEC, TIMER_DELAY_MS)
_AT_ONCE = 8
"""Maximum number of messages per tick, so that others get their turn."""
_READ_AT_ONCE = 256
_AGAIN_MS = 1000
"""How long to wait if the store refuses messages."""
_FOR_EVER = 1 << 63


def delay_level(message: NewMessage) -> int:
    """Return the delay level that a message asks for, 0 for none."""
    text = message.pairs.get(_DELAY)
    try:
        level = int(text) if text else 0
    except ValueError:
        return 0
    return level if 0 < level < 1 << 31 else 0


def with_real_place(message: NewMessage) -> bytes:
    """Return the properties of a message with its real topic and queue."""
    properties = message.properties
    if _REAL_TOPIC in message.pairs or _REAL_QUEUE_ID in message.pairs:  # it has waited before
        pairs = parse_properties(properties)
        return build_properties(pairs | {REAL_TOPIC: message.topic, REAL_QID: str(message.queue_id)})
    return add_property(add_property(properties, REAL_TOPIC, message.topic), REAL_QID, str(message.queue_id))


class DelayedMessages:
    """A put hook that stores messages in the queues of levels, and a ticker that delivers them; levels count from 1."""

    def __init__(self, store: "MessageStore", state: BrokerState, saves: Saves, folder: Path, now: int) -> None:
        """Load the progress of the levels from the folder ``config``.

        Raises:
            FormatError: the file cannot be read.
        """
        self._store = store
        self._state = state
        self._saves = saves
        self._path = folder / "delayOffset.json"
        self._levels = store.delay_levels
        table, self._offsets = load_table(self._path, delay_offsets)
        self._version = data_version(table) if table else DataVersion(0, 0, now)
        self._saved = dict(self._offsets)
        self._to_save: tuple[int, dict[int, int], int] | None = None
        """Offsets to write once the log is flushed up to an address: address, offsets, and their time (ms)."""
        self._delivered: set[tuple[int, int]] = set()
        """Level and queue offset of messages that were delivered before a crash."""
        self._next_save = now + state.settings.delay_offset_interval_ms
        self._due: dict[int, int] = {}  # when the first message is due, by level with messages
        left = {queue_id + 1 for _, queue_id in store.queues_of(SCHEDULE_TOPIC)}
        for level in sorted(left.union(range(1, len(self._levels) + 1))):  # the setting may have had more levels
            self._take_up(level, now)
        if store.was_recovered and (not table or "dataVersion" in table):  # not from 4.x: since when is not known
            self._find_delivered(self._version.timestamp if table else 0)

    @property
    def offsets(self) -> dict[int, int]:
        """The next queue offset by level; levels that never had a message are missing."""
        return self._offsets

    @property
    def version(self) -> DataVersion:
        """The version of the offsets that were saved last."""
        return self._version

    def replace(self, table: Table, text: bytes) -> None:
        """Take over the progress of a master's levels, and keep its text unchanged.

        Raises:
            FormatError: it is not a table of delay offsets.
        """
        offsets, version = delay_offsets(table), data_version(table)
        if (offsets, version) != (self._offsets, self._version):
            self._offsets, self._saved, self._version = offsets, dict(offsets), version
            self._saves.want(self._path, lambda: (text,))

    def put_hook(self, message: NewMessage, now: int) -> AppendResult | None:  # noqa: ARG002
        """Send a message that asks for a delay level into the queue of that level."""
        if message.topic == HALF_TOPIC:
            return None
        level = min(delay_level(message), len(self._levels))
        if level:
            if _TIMER_PREFIX in message.properties:  # a level takes precedence over a time
                pairs = parse_properties(message.properties)
                kept = {name: value for name, value in pairs.items() if name not in _TIMER_NAMES}
                message.properties = build_properties(kept)
            message.properties = with_real_place(message)
            message.topic, message.queue_id = SCHEDULE_TOPIC, level - 1
        return None

    def tick(self, now: int) -> None:
        """Deliver what is due."""
        left = _AT_ONCE
        for level, due in list(self._due.items()):
            if due <= now and left > 0:
                self._due[level] = self._due.pop(level)  # behind the others, next time
                left -= self._deliver(level, left, now)
        interval = self._state.settings.delay_offset_interval_ms
        if is_time(self._next_save, interval, now):
            self._next_save = now + interval
            self._to_save = self._store.log.end_offset, dict(self._offsets), now
        if self._to_save and self._to_save[0] <= self._store.flushed_offset:
            _, offsets, taken_at = self._to_save
            self._save(offsets, taken_at)
            self._to_save = None

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when the next message is due."""
        soonest = None if self._saved == self._offsets else self._next_save
        for due in self._due.values():
            if soonest is None or due < soonest:
                soonest = due
        return soonest

    def save(self, now: int) -> None:
        """Write the progress of the levels, if it has changed and is on the disk."""
        store = self._store
        if store.flushed_offset >= store.log.end_offset:
            self._save(dict(self._offsets), now)

    def _save(self, offsets: dict[int, int], now: int) -> None:
        if self._saved == offsets:
            return
        self._version = DataVersion(self._version.state_version, self._version.counter + 1, now)
        table = {"dataVersion": version_members(self._version), "offsetTable": offsets}
        data = build_table(table, Dialect.FASTJSON_1)  # as of now: later ones may be ahead of the log
        self._saves.want(self._path, lambda: (data,))
        self._saved = offsets

    def _take_up(self, level: int, now: int) -> None:
        queue = self._store.queue(SCHEDULE_TOPIC, level - 1)
        if queue is not None:
            first = queue.min_offset(self._store.log.min_offset)
            offset = min(max(self._offsets.get(level, first), first), queue.next_offset)
            self._offsets[level] = offset
            if offset < queue.next_offset:
                self._due[level] = now

    def _find_delivered(self, since: int) -> None:
        """Find messages that were delivered from a time (ms) on and are not included in the offsets."""
        store = self._store
        for level in self._due:
            queue, offset = store.queue(SCHEDULE_TOPIC, level - 1), self._offsets[level]
            assert queue is not None
            before = DeliveredBefore(store, DELAY, since, queue.units(offset, 1)[0].physical_offset)
            while units := queue.units(offset, _READ_AT_ONCE):
                for unit in units:
                    if unit.tags_code > store.log.last_timestamp:  # it was not due yet
                        break
                    with contextlib.suppress(FormatError, NotFoundError, ValueError):
                        if before.takes(parse_stored(store.log.record(unit.physical_offset))):
                            self._delivered.add((level, unit.queue_offset))
                else:
                    offset += len(units)
                    continue
                break

    def arrived(
        self,
        topic: str,  # noqa: ARG002
        queue_id: int,
        next_offset: int,
        tags_codes: Sequence[int],
        now: int,  # noqa: ARG002
    ) -> None:
        """Note messages that have arrived in a queue of the levels."""
        self._due.setdefault(queue_id + 1, tags_codes[0])
        self._offsets.setdefault(queue_id + 1, next_offset - len(tags_codes))

    def _deliver(self, level: int, most: int, now: int) -> int:
        """Deliver what is due of a level, and return how many messages that were."""
        store = self._store
        queue = store.queue(SCHEDULE_TOPIC, level - 1)
        assert queue is not None
        longest = self._levels[level - 1] if level <= len(self._levels) else _FOR_EVER
        done = 0
        while done < most:
            units = queue.units(self._offsets[level], most - done)
            if not units:
                break
            for unit in units:
                # A clock that was set back must not delay messages for longer than their level says.
                if now < unit.tags_code <= now + longest:
                    self._due[level] = unit.tags_code
                    return done
                if (level, unit.queue_offset) in self._delivered:
                    self._delivered.remove((level, unit.queue_offset))
                elif self._is_refused(unit, now):
                    self._due[level] = now + _AGAIN_MS
                    return done
                self._offsets[level] = unit.queue_offset + 1
                done += 1
        if self._offsets[level] < queue.next_offset:
            self._due[level] = now
        else:
            del self._due[level]
        return done

    def _is_refused(self, unit: "Unit", now: int) -> bool:
        """Store a message in its real topic; return whether to try again later."""
        try:
            message = parse_stored(self._store.log.read(unit.physical_offset, unit.size)).message
            message.topic = message.pairs.get(_REAL_TOPIC, b"").decode("utf-8", "replace")
            message.queue_id = int(message.pairs.get(_REAL_QUEUE_ID, b""))
        except (FormatError, ValueError):  # its segment is gone, or it was not a delayed message
            return False
        if message.topic == HALF_TOPIC:
            return False
        message.store_host = self._state.store_host
        return deliver_copy(self._store, message, now, unit.physical_offset)
