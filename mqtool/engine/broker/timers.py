"""Messages that are delivered at a given time, to the second (5.x); each waits in ``TIMER_TOPIC`` until then.

All waiting messages are kept in memory, and found at startup in the queue of that topic: those due up to the time in
``config/timercheck`` have been delivered. Timer wheel and timer log are written at the stop, and emptied with the
first delivery: after a kill, a RocketMQ broker that takes over reads the queue again from the first waiting message,
and redelivers messages after it that had been delivered before.

Unique keys are not unique: a producer that resends a message repeats its key, and each message is delivered. Only two
things prevent that: a recall, which removes all messages with its key that are due in the same second, sent before or
after it, and a copy with which RocketMQ replaced the message because it is far ahead.
(Rules: remoting.md 4.8; store.md 11.3. RocketMQ: ``TimerMessageStore``, ``HookUtils``.)
"""

import dataclasses
import heapq
import re
import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mqtool.engine.broker.config_files import sync_folder
from mqtool.engine.broker.copies import copy_key, deliver_copy
from mqtool.engine.broker.delayed import with_real_place
from mqtool.engine.broker.delivered_before import DeliveredBefore
from mqtool.engine.broker.limits import MAX_OF_POPS, MAX_TIMERS
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.timer_files import PRECISION_MS, Timed, replace_file, write_timer_files
from mqtool.engine.intervals import is_time
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.disk import writing
from mqtool.engine.store.file_kinds import TIMER_CHECK
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import timer
from mqtool.formats.new_message import NewMessage
from mqtool.formats.properties import add_property, build_properties, parse_properties
from mqtool.formats.property_names import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ENQUEUE_MS,
    TIMER_OUT_MS,
    TIMER_ROLL_TIMES,
    UNIQ_KEY,
    WAIT,
)
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import HALF_TOPIC, REVIVE_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

_OUT, _DELETE, _UNIQ_KEY = TIMER_OUT_MS.encode(), TIMER_DEL_UNIQKEY.encode(), UNIQ_KEY.encode()
_ROLLS = TIMER_ROLL_TIMES.encode()
"""How often RocketMQ put a message again, each time as a copy, because it is too far ahead for the wheel."""
_REAL_TOPIC, _REAL_QUEUE_ID = REAL_TOPIC.encode(), REAL_QID.encode()
_TIMES = ((TIMER_DELAY_SEC.encode(), 1000), (TIMER_DELAY_MS.encode(), 1))
_DELIVER = TIMER_DELIVER_MS.encode()
NAMES = frozenset((_DELETE, _DELIVER, *(name for name, _ in _TIMES)))
"""Each message that has to wait has one of these properties."""
_LONG = re.compile(rb"[+-]?[0-9]{1,18}")
_CHECK = timer.TIMER_CHECK.packer
_REST = bytes(timer.TIMER_CHECK.size_of("rest"))
_ILLEGAL = AppendResult(PutStatus.MESSAGE_ILLEGAL)
_TOO_MANY = AppendResult(PutStatus.WHEEL_TIMER_FLOW_CONTROL)
_MAX_OF_RECALL = 1 << 10
"""Bytes of a recall's key, which is kept in memory."""
_REVIVE = REVIVE_PREFIX.encode()
_OF_A_COPY = {TIMER_ROLL_TIMES, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, WAIT}
"""Properties in which a copy may differ from its original."""
_AT_ONCE = 8
"""Maximum number of messages per tick, so that others get their turn."""
_READ_AT_ONCE = 256
_AGAIN_MS = 1000
"""How long to wait if the store refuses messages."""
_BLOCK = 1024


class _OffsetSet:
    """Queue offsets, mostly added in their order; adding, removing and asking for the first take constant time."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}  # by block; a bit for each offset of the block
        self._blocks: list[int] = []  # a heap; of some blocks nothing is left

    def add(self, offset: int) -> None:
        block, bit = divmod(offset, _BLOCK)
        if block not in self._masks:
            self._masks[block] = 0
            heapq.heappush(self._blocks, block)
        self._masks[block] |= 1 << bit

    def remove(self, offset: int) -> None:
        block, bit = divmod(offset, _BLOCK)
        if left := self._masks.pop(block, 0) & ~(1 << bit):
            self._masks[block] = left

    def first(self) -> int | None:
        """Return the smallest offset, None if there is none."""
        while self._blocks and self._blocks[0] not in self._masks:
            heapq.heappop(self._blocks)
        if not self._blocks:
            return None
        mask = self._masks[self._blocks[0]]
        return self._blocks[0] * _BLOCK + (mask & -mask).bit_length() - 1


class Timers:
    """A put hook that stores messages in ``TIMER_TOPIC``, and the ticker that delivers them."""

    def __init__(self, store: "MessageStore", state: BrokerState, saves: Saves, folder: Path, now: int) -> None:
        """Find the waiting messages; ``folder`` is the folder ``config``."""
        self._store = store
        self._state = state
        self._saves = saves
        self._path = folder / TIMER_CHECK.name
        self._log_file_size = store.config.size("mappedFileSizeTimerLog")
        self._not_before = now
        self._waiting: list[tuple[int, int]] = []  # a heap of due times and queue offsets
        self._offsets = _OffsetSet()  # of these
        self._count_of_pops = 0  # among the waiting messages
        self._recalled: dict[int, set[bytes]] = {}  # keys of recalls by due time; recalls are entries of the heap too
        self._dropped: set[tuple[int, int]] = set()  # entries that have a copy, or had been delivered before a crash
        self._done, _, _, _, *self._version = self._load()
        """The due time (ms) up to which everything is delivered; RocketMQ's next slot is named by its start."""
        self._saved = self._done
        self._copied = b""
        self._has_empty_wheel = False
        self._to_save: tuple[int, int, bytes] | None = None
        """What to write once the log is on disk up to an address: the address, the time, and the file."""
        self._take_up()
        self._drop_delivered()

    def _load(self) -> tuple[int, ...]:
        """Return the numbers in ``timercheck``."""
        try:
            *numbers, _ = _CHECK.unpack_from(self._path.read_bytes())
        except (FileNotFoundError, struct.error):
            return (0,) * 7
        return tuple(numbers)

    def _take_up(self) -> None:
        queue = self._store.queue(TIMER_TOPIC, 0)
        start = queue.min_offset(self._store.log.min_offset) if queue else 0
        copies: list[StoredMessage] = []
        while queue is not None and (units := queue.units(start, _READ_AT_ONCE)):
            for unit in units:
                stored = self._take(unit.queue_offset)
                if stored is not None and stored.message.pairs.get(_ROLLS, b""):
                    copies.append(stored)
            start += len(units)
        if copies:
            self._drop_copied(copies)

    def _drop_copied(self, copies: Iterable[StoredMessage]) -> None:
        """For each copy drop one of its originals, the oldest first."""
        older = Counter((copy_key(copy.message, _OF_A_COPY), _rolls(copy.message) - 1) for copy in copies)
        for entry in sorted(self._waiting, key=lambda entry: entry[1]):
            stored = self._message(entry[1])
            if stored is not None:
                kind = copy_key(stored.message, _OF_A_COPY), _rolls(stored.message)
                if older[kind] > 0:
                    older[kind] -= 1
                    self._dropped.add(entry)

    def _drop_delivered(self) -> None:
        """Drop delivered messages of a second that was not over at a crash, or when a RocketMQ broker stopped."""
        store = self._store
        due = sorted(entry for entry in self._waiting if entry[0] <= store.log.last_timestamp)
        messages = [(entry, stored) for entry in due if (stored := self._message(entry[1])) is not None]
        after = min((stored.physical_offset for _, stored in messages), default=0)
        before = DeliveredBefore(store, TIMER_OUT_MS, self._done, after)
        for entry, stored in messages:
            if entry not in self._dropped and before.takes(stored):
                self._dropped.add(entry)

    # Waiting

    @property
    def first_due(self) -> int | None:
        """When the first waiting message must be delivered (ms), None if there is none."""
        return self._waiting[0][0] if self._waiting else None

    def put_hook(self, message: NewMessage, now: int) -> AppendResult | None:
        """Store a message with a delivery time in the timer topic."""
        pairs = message.pairs
        if message.topic in (HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC):
            return None
        if _OUT in pairs:
            return None
        try:
            deliver = _deliver_time(pairs, now)
        except ValueError:
            return _ILLEGAL
        if deliver is None:
            return None
        if deliver <= now:
            return _ILLEGAL if _DELETE in pairs else None
        settings = self._state.settings
        if deliver - now > settings.timer_max_delay_seconds * 1000 or not settings.timer_enabled:
            return _ILLEGAL
        if len(pairs.get(_DELETE, b"")) > _MAX_OF_RECALL:
            return _ILLEGAL
        present, most = len(self._waiting) - self._count_of_pops, MAX_TIMERS
        if message.topic.startswith(REVIVE_PREFIX):
            present, most = self._count_of_pops, MAX_OF_POPS
        if present >= most:
            return _TOO_MANY
        out = (deliver - 1) // PRECISION_MS * PRECISION_MS  # a time exactly on the second is one second earlier, too
        out = max(out, self._done)  # if the clock was set back
        if _ROLLS in pairs:  # from a message that a consumer forwards: this one is not a copy
            texts = parse_properties(message.properties)
            del texts[TIMER_ROLL_TIMES]
            message.properties = build_properties(texts)
        message.properties = add_property(with_real_place(message), TIMER_OUT_MS, str(out))
        message.topic, message.queue_id = TIMER_TOPIC, 0
        return None

    def arrived(
        self,
        topic: str,  # noqa: ARG002
        queue_id: int,  # noqa: ARG002
        next_offset: int,
        tags_codes: Sequence[int],
        now: int,  # noqa: ARG002
    ) -> None:
        """Add messages that have arrived in the queue of timer messages."""
        for offset in range(next_offset - len(tags_codes), next_offset):
            self._take(offset)

    def _take(self, queue_offset: int) -> StoredMessage | None:
        """Add the message at a queue offset and return it; None if there is none that has to wait."""
        stored = self._message(queue_offset)
        if stored is None:
            return None
        out = _number(stored.message.pairs.get(_OUT, b""))
        if out is None or (due := out + PRECISION_MS) <= self._done:
            return None
        recalled = stored.message.pairs.get(_DELETE, b"")
        if recalled:
            self._recalled.setdefault(due, set()).add(recalled)
        heapq.heappush(self._waiting, (due, queue_offset))
        self._offsets.add(queue_offset)
        self._count_of_pops += _is_of_pops(stored)
        return stored

    def _is_recalled(self, due: int, pairs: dict[bytes, bytes]) -> bool:
        """Return whether a message is a recall or is recalled: by its key as in 5.5, by topic and key as in 5.3."""
        recalled = self._recalled.get(due)
        if recalled is None:
            return False
        if _DELETE in pairs:
            return True
        key, topic = pairs.get(_UNIQ_KEY, b""), pairs.get(_REAL_TOPIC, b"")
        if not key or topic.startswith(_REVIVE):  # producers cannot recall the records of pops
            return False
        return key in recalled or topic + b"+" + key in recalled

    def _message(self, queue_offset: int) -> StoredMessage | None:
        store = self._store
        queue = store.queue(TIMER_TOPIC, 0)
        units = queue.units(queue_offset, 1) if queue else []
        try:
            return parse_stored(store.log.record(units[0].physical_offset)) if units else None
        except (NotFoundError, FormatError):  # deleted since
            return None

    # Delivery

    def tick(self, now: int) -> None:
        """Deliver what is due, and save the progress."""
        self._keep()
        if not is_time(self._not_before, _AGAIN_MS, now) or not self._waiting or self._waiting[0][0] > now:
            return
        due = 0
        for _ in range(_AT_ONCE):
            if not self._waiting or self._waiting[0][0] > now:
                break
            entry = self._waiting[0]
            stored = self._message(entry[1])
            if entry in self._dropped:
                self._dropped.remove(entry)
            elif stored is not None and self._is_refused(entry[0], stored, now):
                self._not_before = now + _AGAIN_MS
                break
            heapq.heappop(self._waiting)
            self._offsets.remove(entry[1])
            self._count_of_pops -= stored is not None and _is_of_pops(stored)
            due = entry[0]
            if not self._waiting or self._waiting[0][0] > due:
                self._recalled.pop(due, None)
        if self._waiting and self._waiting[0][0] <= due:  # that second has more messages
            due -= PRECISION_MS
        if due > self._done:
            self._done = due
            self._keep()

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when the next message is due."""
        return max(self._waiting[0][0], self._not_before) if self._waiting else None

    def _is_refused(self, due: int, stored: StoredMessage, now: int) -> bool:
        """Store a message in its real topic, unless it is recalled; return whether to try again later."""
        if self._is_recalled(due, stored.message.pairs):
            return False
        properties, pairs = stored.message.properties, stored.message.pairs
        enqueued = stored.store_timestamp // PRECISION_MS * PRECISION_MS
        marked = add_property(properties, TIMER_ENQUEUE_MS, str(enqueued))
        marked = add_property(marked, TIMER_DEQUEUE_MS, str(now))
        message = dataclasses.replace(
            stored.message,
            topic=pairs.get(_REAL_TOPIC, b"").decode("utf-8", "replace"),
            queue_id=_number(pairs.get(_REAL_QUEUE_ID, b"")) or 0,
            properties=marked,
            store_host=self._state.store_host,
        )
        return deliver_copy(self._store, message, now, stored.physical_offset, properties)

    def _keep(self) -> None:
        """Queue the progress of delivery to be written as soon as the delivered messages are on disk."""
        store = self._store
        if self._to_save is None and self._done > self._saved:
            self._to_save = store.log.end_offset, self._done, self._page()
        if self._to_save is not None and self._to_save[0] <= store.flushed_offset:
            _, done, page = self._to_save
            self._saves.want(self._path, lambda: (page,), self._write_kept)
            self._saved, self._to_save = done, None

    def _write_kept(self, path: Path, page: bytes) -> None:  # noqa: ARG002
        self._write(page)
        if not self._has_empty_wheel:
            write_timer_files(self._store.root, self._log_file_size, (), 0)
            self._has_empty_wheel = True

    def finish(self, now: int) -> None:
        """Deliver everything that is due: no file records which messages of an unfinished second are delivered."""
        while self._waiting and self._waiting[0][0] <= now and is_time(self._not_before, _AGAIN_MS, now):
            self.tick(now)

    def stop(self, now: int) -> None:
        """Write the waiting messages and the progress of delivery, if all of it is on disk."""
        store = self._store
        queue = store.queue(TIMER_TOPIC, 0)
        if queue is None or store.flushed_offset < store.log.end_offset:
            return
        end = write_timer_files(store.root, self._log_file_size, self._left(queue.next_offset - 1), now)
        self._write(_CHECK.pack(self._done, end, queue.next_offset, queue.next_offset, *self._version, _REST))
        with writing(self._path):
            sync_folder(self._path.parent)  # a closed store is not searched for delivered messages

    def _left(self, last: int) -> Iterator[Timed]:
        """Yield waiting messages in queue order, and the last message: RocketMQ continues after the last unit."""
        waiting = {offset for _, offset in self._waiting} - {offset for _, offset in self._dropped}
        for offset in sorted({*waiting, last}):
            stored = self._message(offset)
            if stored is None:
                continue
            pairs = stored.message.pairs
            out = _number(pairs.get(_OUT, b""))
            if out is not None and (offset == last or not self._is_recalled(out + PRECISION_MS, pairs)):
                topic = pairs.get(_REAL_TOPIC, b"").decode("utf-8", "replace")
                is_recall = _DELETE in pairs
                yield Timed(out, stored.physical_offset, stored.size, topic, is_recall)

    def check_point(self) -> bytes:
        """Return the progress of delivery in the form for slaves: the first numbers of its file."""
        return self._page()[: -len(_REST)]

    def take_check_point(self, body: bytes) -> None:
        """Save the progress of a master's delivery from its answer; a slave delivers nothing itself.

        Raises:
            FormatError: it is not a check point.
        """
        size = _CHECK.size - len(_REST)
        if len(body) < size:
            raise FormatError("these bytes are not a checkpoint of timer messages", len(body))
        page = body[:size] + _REST
        if page != self._copied:
            self._copied = page
            self._saves.want(self._path, lambda: (page,), lambda _path, data: self._write(data))

    def _page(self) -> bytes:
        queue = self._store.queue(TIMER_TOPIC, 0)
        first = self._offsets.first()
        if first is None:
            first = queue.next_offset if queue else 0
        return _CHECK.pack(self._done, 0, first, first, *self._version, _REST)

    def _write(self, page: bytes) -> None:
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, self._path.with_name(f"{self._path.name}.tmp"), len(page), {0: page})


def _deliver_time(pairs: dict[bytes, bytes], now: int) -> int | None:
    """Return the requested delivery time of a message (ms), None if it has none.

    Raises:
        ValueError: it is not a number, or one that is too large.
    """
    for name, unit in _TIMES:
        if text := pairs.get(name):
            return now + _long(text) * unit
    return _long(pairs[_DELIVER]) if _DELIVER in pairs else None


def _long(text: bytes) -> int:
    if _LONG.fullmatch(text) is None:
        raise ValueError(text)
    return int(text)


def _is_of_pops(stored: StoredMessage) -> bool:
    return stored.message.pairs.get(_REAL_TOPIC, b"").startswith(_REVIVE)


def _rolls(message: NewMessage) -> int:
    return _number(message.pairs.get(_ROLLS, b"")) or 0


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) < 19 else None
