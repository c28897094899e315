"""Transactions: messages that are delivered when their producer commits them, and checks if it is silent.

A transactional message is kept in ``HALF_TOPIC`` as a half message until its producer commits it, which stores it again
in its real topic, or rolls it back; either way an op message in ``OP_TOPIC`` marks the half message of that queue
offset as closed. A half message without that mark is moved to the end of the queue at intervals, with a counter, and
one of its producers is asked; after the maximum number of checks it is put aside. A round of checks takes many ticks,
each of bounded cost.

Unlike RocketMQ, a mark is stored at once and separately (as 4.x does, and 5.x reads), a moved half message is marked
too, and the end of a transaction is accepted only once: no message is delivered twice because of a check. The progress
of half messages and marks is kept as consumer offsets, as in RocketMQ.
(Rules: remoting.md 4.6; store.md 11.4. RocketMQ: ``TransactionalMessageServiceImpl``, ``TransactionalMessageBridge``.)
"""

import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from mqtool.engine.broker.acl import AccessControl, Need
from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.copies import BROKER_MARKS, CopyKey, copy_key
from mqtool.engine.broker.delayed import delay_level, with_real_place
from mqtool.engine.broker.delivered_before import DeliveredBefore
from mqtool.engine.broker.intake import Intake
from mqtool.engine.broker.limits import MAX_OPEN
from mqtool.engine.broker.sessions import TransactionCheck
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.topics import Topics
from mqtool.engine.intervals import is_time
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import commit_log
from mqtool.formats.new_message import NewMessage
from mqtool.formats.plain_acl import PUB
from mqtool.formats.properties import add_property, build_properties, find_property, parse_properties, probe_of
from mqtool.formats.property_names import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    DELAY,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    TRAN_MSG,
    TRAN_PREPARED_QUEUE_OFFSET,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_ID,
    UNIQ_KEY,
    WAIT,
)
from mqtool.formats.stored_message import StoredMessage, parse_stored
from mqtool.formats.topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP

_TRANSACTION, _KEY, _TRANSACTION_ID = TRAN_MSG.encode(), UNIQ_KEY.encode(), TRANSACTION_ID.encode()
_UNIQ_KEY = probe_of(UNIQ_KEY)
_REAL_TOPIC, _REAL_QUEUE_ID = probe_of(REAL_TOPIC), probe_of(REAL_QID)
_CHECK_TIMES, _IMMUNITY, _FIRST_HALF_OFFSET = map(
    probe_of, (TRANSACTION_CHECK_TIMES, CHECK_IMMUNITY_TIME_IN_SECONDS, TRAN_PREPARED_QUEUE_OFFSET)
)
_OF_A_COPY = (TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET, WAIT, *BROKER_MARKS)
"""Properties in which a copy may differ from its original."""
_WAITS_AGAIN = tuple(probe_of(name) for name in (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS))
_MARK_TAG = build_properties({TAGS: "d"})
_AT_ONCE = 4
"""Maximum number of half messages that one tick checks, so that others get their turn."""
_LOOKED_AT_ONCE = 1024
"""Maximum number of half messages, most of them closed since, and of marks that one tick looks at."""
_READ_AT_ONCE = 256
_TOO_MANY = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE)


class Transactions:
    """The open half messages of a broker, and the ticker that checks them with producers."""

    def __init__(
        self,
        intake: Intake,
        state: BrokerState,
        topics: Topics,
        offsets: ConsumerOffsets,
        clients: Clients,
        access: AccessControl | None,
        now: int,
    ) -> None:
        """Find the open half messages of the store, by the offsets and marks of the broker that wrote it."""
        self._intake = intake
        self._store = store = intake.store
        self._state = state
        self._topics = topics
        self._offsets = offsets
        self._clients = clients
        self._access = access
        self._open: dict[int, list[int]] = {}
        """The queue offsets of all copies of a half message, of which the last counts, by each of these offsets."""
        self._marks: deque[tuple[int, int]] = deque()
        """The queue offsets of marks and of their half messages, in order of the marks."""
        self._next_mark = 0
        self._next_check = now + state.settings.transaction_check_interval_ms
        self._checked: deque[int] = deque()
        """The queue offsets of half messages that a check has left as they are, in order, and closed ones."""
        self._new: deque[int] = deque()
        """Those that no check has reached yet, in order: all after the others."""
        self._unchecked = 0  # so many of both are left for this round, the checked ones of the last round first
        self._checked_again: deque[int] = deque()  # in this round
        self._low = self._first_open = 0  # no half message before it is open: as found so far, and by the last round
        self._is_noting = False  # marks of half messages before it
        self._rotation = itertools.count()
        self._kept_ms = store.config.number("fileReservedTime", 72) * 3_600_000
        self._progress: tuple[int, int, int] | None = None
        """The progress of half messages and marks, and up to which address the log must be on disk for it."""
        closed = self._take_up()
        if store.was_repaired:
            self._open_again(closed, now)
        if store.was_recovered:
            self._mark_last(now)
        self._new.extend(sorted(filter(self._is_last, self._open)))

    def _take_up(self) -> set[int]:
        """Return the queue offsets of the half messages that have marks."""
        closed: set[int] = set()
        start, end = self._range(HALF_TOPIC)
        self._open = {offset: [offset] for offset in range(start, end)}
        self._next_mark, _ = self._range(OP_TOPIC)
        for message in self._read(OP_TOPIC, self._next_mark):
            # One number in 4.x, several separated by commas in 5.x.
            halves = [int(number) for number in message.message.body.split(b",") if number.isdigit()]
            if halves:
                self._marks.append((message.queue_offset, max(halves)))
            closed.update(half for half in halves if self._open.pop(half, None))
        return closed

    def _open_again(self, closed: set[int], now: int) -> None:
        """Reopen half messages that have a mark but were not delivered, so that producers are asked again.

        After a power loss, the disk may have a mark but not the message that was stored before it. A message that was
        rolled back looks the same; its producer rolls it back once more. Undecidable cases stay closed: messages
        without a unique key, and those that also wait for a delivery time.
        """
        if not closed:
            return
        halves = [*self._read(HALF_TOPIC, self._range(HALF_TOPIC)[0])]
        copied = _copied(halves)
        delivered = DeliveredBefore(self._store, TRAN_MSG, 0, halves[0].physical_offset)
        for half in halves:
            offset, properties = half.queue_offset, half.message.properties
            if (
                offset in closed - copied
                and find_property(properties, _UNIQ_KEY)
                and not any(find_property(properties, probe) for probe in _WAITS_AGAIN)
                and not delivered.takes(half)
            ):
                copy = dataclasses.replace(half.message, store_host=self._state.store_host)
                result = self._store.append(copy, now, is_again=True)  # the copy has no mark
                if result.status is PutStatus.PUT_OK:
                    self._open[offset] = self._open[result.queue_offset] = [offset, result.queue_offset]

    def _mark_last(self, now: int) -> None:
        """Store the mark for the last message of the log, if the broker was killed between the two."""
        store = self._store
        with contextlib.suppress(NotFoundError, FormatError):
            last = parse_stored(store.log.record(store.log.last_start))
            if last.message.sys_flag & commit_log.TRANSACTION_MASK == commit_log.TRANSACTION_COMMIT:
                half = self.half_at(last.message.prepared_transaction_offset)
                if half is not None and half.queue_offset in self._open:
                    self._done(half.queue_offset, now)
            elif last.message.topic in (HALF_TOPIC, GIVEN_UP_TOPIC) and find_property(
                last.message.properties, _CHECK_TIMES
            ):
                self._mark_copied(last, now)

    def _mark_copied(self, copy: StoredMessage, now: int) -> None:
        """Close the half message of which a copy was stored for a check, or because it is given up."""
        message = copy.message
        sent = copy_key(message, _OF_A_COPY)
        for half in self._read(HALF_TOPIC, min(self._open, default=0)):
            offset, half_message = half.queue_offset, half.message
            is_older = half.physical_offset < copy.physical_offset and offset in self._open
            if is_older and copy_key(half_message, _OF_A_COPY) == sent:
                self._mark(offset, now)
                copies = self._open.pop(offset)
                if message.topic == HALF_TOPIC:
                    self._open[copy.queue_offset] = self._open[offset] = [*copies, copy.queue_offset]
                return

    def _range(self, topic: str) -> tuple[int, int]:
        """Return the queue offset of the first open item, and the end of the queue."""
        store = self._store
        queue = store.queue(topic, 0)
        if queue is None:
            return 0, 0
        done = self._offsets.get(TRANSACTION_GROUP, topic, 0)
        return min(max(done, queue.min_offset(store.log.min_offset)), queue.next_offset), queue.next_offset

    def _read(self, topic: str, start: int) -> Iterator[StoredMessage]:
        queue = self._store.queue(topic, 0)
        while queue is not None and (units := queue.units(start, _READ_AT_ONCE)):
            for unit in units:
                yield parse_stored(self._store.log.record(unit.physical_offset))
            start += len(units)

    def put_hook(self, message: NewMessage, now: int) -> AppendResult | None:  # noqa: ARG002
        """Turn a transactional message into a half message."""
        if message.pairs.get(_TRANSACTION) != b"true":
            return None
        transaction = message.sys_flag & commit_log.TRANSACTION_MASK
        if transaction == commit_log.TRANSACTION_COMMIT or (
            message.reconsume_times > 0 and delay_level(message) > 0  # a message to be consumed again
        ):
            return None
        if len(self._open) >= MAX_OPEN:
            return _TOO_MANY
        message.properties = with_real_place(message)
        key = message.pairs.get(_KEY)
        if key and _TRANSACTION_ID not in message.pairs:
            message.properties = add_property(message.properties, TRANSACTION_ID, key.decode("utf-8", "replace"))
        message.topic, message.queue_id = HALF_TOPIC, 0
        message.sys_flag &= ~commit_log.TRANSACTION_MASK
        return None

    def arrived(
        self,
        topic: str,  # noqa: ARG002
        queue_id: int,  # noqa: ARG002
        next_offset: int,
        tags_codes: Sequence[int],
        now: int,  # noqa: ARG002
    ) -> None:
        """Note half messages."""
        for offset in range(next_offset - len(tags_codes), next_offset):
            self._open[offset] = [offset]
            self._new.append(offset)

    # The end of a transaction

    def half_at(self, physical_offset: int) -> StoredMessage | None:
        """Return the half message at an address, None if there is none."""
        try:
            half = parse_stored(self._store.log.record(physical_offset))
        except (NotFoundError, FormatError):
            return None
        return half if half.message.topic == HALF_TOPIC else None

    def is_late(self, half: StoredMessage, now: int) -> bool:
        """Return whether the immunity time of a half message has passed: then only an answer to a check counts."""
        seconds = _number(find_property(half.message.properties, _IMMUNITY))
        return seconds > 0 and now - half.message.born_timestamp > seconds * 1000

    def commit(self, half: StoredMessage, now: int) -> PutStatus:
        """Deliver the message of a half message and close it; do nothing if it is closed already."""
        if half.queue_offset not in self._open:
            return PutStatus.PUT_OK
        properties = half.message.properties
        message = dataclasses.replace(
            half.message,
            topic=find_property(properties, _REAL_TOPIC).decode("utf-8", "replace"),
            queue_id=_number(find_property(properties, _REAL_QUEUE_ID)),
            sys_flag=half.message.sys_flag & ~commit_log.TRANSACTION_MASK | commit_log.TRANSACTION_COMMIT,
            store_host=self._state.store_host,
            prepared_transaction_offset=half.physical_offset,
        )
        status = self._intake.put(message, now, is_again=True).status
        return self._done(half.queue_offset, now) if status is PutStatus.PUT_OK else status

    def roll_back(self, half: StoredMessage, now: int) -> PutStatus:
        """Close a half message."""
        return self._done(half.queue_offset, now) if half.queue_offset in self._open else PutStatus.PUT_OK

    def resume(self, physical_offset: int, now: int) -> PutStatus:
        """Turn a message that was put aside into a half message again, to be checked as often as a new one.

        Raises:
            NotFoundError: there is no such message.
            FormatError: it was never a half message.
        """
        message = parse_stored(self._store.log.record(physical_offset)).message
        if message.topic not in (HALF_TOPIC, GIVEN_UP_TOPIC):  # elsewhere its producer may have named any real topic
            raise FormatError("the message was not a half message", physical_offset)
        pairs = parse_properties(message.properties) | {TRANSACTION_CHECK_TIMES: "0"}
        message = dataclasses.replace(
            message,
            topic=HALF_TOPIC,
            queue_id=0,
            properties=build_properties(pairs),
            store_host=self._state.store_host,
        )
        return self._store.append(message, now, is_again=True).status

    def _done(self, queue_offset: int, now: int) -> PutStatus:
        copies = self._open[queue_offset]
        status = self._mark(copies[-1], now)
        for offset in copies:
            self._open.pop(offset, None)
        return status

    def _mark(self, queue_offset: int, now: int) -> PutStatus:
        host = self._state.store_host
        mark = NewMessage(
            OP_TOPIC,
            0,
            b"%d" % queue_offset,
            _MARK_TAG,
            born_timestamp=now,
            born_host=host,
            store_host=host,
        )
        result = self._store.append(mark, now)
        if result.status is PutStatus.PUT_OK:
            self._marks.append((result.queue_offset, queue_offset))
        return result.status

    # Checks

    def tick(self, now: int) -> None:
        """Check half messages that have waited too long, and note the progress; a limited number at once."""
        self._commit_progress()
        if self._is_noting:
            self._note_some()
            return
        if not self._unchecked:
            interval = self._state.settings.transaction_check_interval_ms
            if not is_time(self._next_check, interval, now):
                return
            self._next_check = now + interval
            self._checked, self._checked_again = self._checked_again, self._checked
            self._unchecked = len(self._checked) + len(self._new)
            self._low = self._end()
        self._check_some(now)
        if not self._unchecked:
            self._first_open = self._low
            self._note_some()

    def next_tick(self, now: int) -> int | None:
        """Return when the next check is due, None while there is nothing to check."""
        if self._unchecked or self._is_noting:
            return now
        return self._next_check if self._open or self._marks else None

    def _check_some(self, now: int) -> None:
        checked = 0
        for _ in range(min(self._unchecked, _LOOKED_AT_ONCE)):
            self._unchecked -= 1
            offset = (self._checked or self._new).popleft()
            if not self._is_last(offset):
                continue
            try:
                self._check(offset, now)
            finally:
                if self._is_last(offset):
                    self._checked_again.append(offset)
                    self._low = min(self._low, offset)
            checked += 1
            if checked == _AT_ONCE:
                return

    def _is_last(self, queue_offset: int) -> bool:
        """Return whether a half message is open, and not copied."""
        copies = self._open.get(queue_offset)
        return copies is not None and copies[-1] == queue_offset

    def _end(self) -> int:
        queue = self._store.queue(HALF_TOPIC, 0)
        return queue.next_offset if queue else 0

    def _check(self, queue_offset: int, now: int) -> None:
        settings = self._state.settings
        queue = self._store.queue(HALF_TOPIC, 0)
        units = queue.units(queue_offset, 1) if queue else []
        half = self.half_at(units[0].physical_offset) if units else None
        if half is None:  # deleted since
            self._open.pop(queue_offset, None)
            return
        properties = half.message.properties
        age = now - min(half.message.born_timestamp, half.store_timestamp)
        if age <= (_number(find_property(properties, _IMMUNITY)) * 1000 or settings.transaction_timeout_ms):
            return
        times = _number(find_property(properties, _CHECK_TIMES))
        if times >= settings.transaction_check_max or age > self._kept_ms:
            self._topics.of_group(GIVEN_UP_TOPIC, 1, False, now)
            self._move(half, GIVEN_UP_TOPIC, properties, now)
            return
        pairs = parse_properties(properties) | {TRANSACTION_CHECK_TIMES: str(times + 1)}
        if CHECK_IMMUNITY_TIME_IN_SECONDS in pairs:
            pairs.setdefault(TRAN_PREPARED_QUEUE_OFFSET, str(queue_offset))
        moved = self._move(half, HALF_TOPIC, build_properties(pairs), now)
        if moved.status is PutStatus.PROPERTIES_SIZE_EXCEEDED:
            pairs = {name: value for name, value in pairs.items() if name not in BROKER_MARKS}
            moved = self._move(half, HALF_TOPIC, build_properties(pairs), now)
        if moved.status is PutStatus.PUT_OK:
            self._ask(half, pairs, moved)

    def _move(self, half: StoredMessage, topic: str, properties: bytes, now: int) -> AppendResult:
        """Store a half message again and close the previous copy."""
        message = dataclasses.replace(
            half.message, topic=topic, queue_id=0, properties=properties, store_host=self._state.store_host
        )
        copies = self._open[half.queue_offset]
        result = self._store.append(message, now, is_again=True)
        if result.status is not PutStatus.PUT_OK:
            return result
        self._mark(half.queue_offset, now)
        if topic == HALF_TOPIC:  # an end that arrives for an older copy applies to this one
            copies.append(result.queue_offset)
            self._open[result.queue_offset] = copies
        else:
            for offset in copies:
                self._open.pop(offset, None)
        return result

    def _ask(self, half: StoredMessage, pairs: dict[str, str], moved: AppendResult) -> None:
        producers = self._clients.producers(pairs.get(PGROUP, ""))
        if access := self._access:  # any client may claim to be a producer of a group
            need = Need(pairs.get(REAL_TOPIC, ""), PUB)
            producers = [
                producer
                for producer in producers
                if access.allows(producer.session.identity, producer.session.host, need)
            ]
        if not producers:
            return
        producer = producers[next(self._rotation) % len(producers)]
        # The message as the producer knows it: for its own topic, with the store time of the previous copy.
        pairs[WAIT] = "false"
        [physical_offset] = moved.physical_offsets
        message = dataclasses.replace(
            half.message,
            topic=pairs.get(REAL_TOPIC, ""),
            queue_id=_number(pairs.get(REAL_QID, "").encode()),
            properties=build_properties(pairs),
            store_host=self._state.store_host,
        )
        asked = StoredMessage(message, half.size, moved.queue_offset, physical_offset, half.store_timestamp)
        unique_key = pairs.get(UNIQ_KEY)
        producer.session.notify(
            TransactionCheck(asked, moved.message_id, unique_key, pairs.get(TRANSACTION_ID, unique_key))
        )

    def note_progress(self) -> None:
        """Note the offsets before which all half messages and all marks are closed: of all at once, for the end."""
        self._first_open = min((copies[-1] for copies in self._open.values()), default=self._end())
        self._note_some()
        while self._is_noting:
            self._note_some()
        self._commit_progress()

    def _note_some(self) -> None:
        """Pass some of the marks of half messages before the first open one; note the progress after the last."""
        for _ in range(_LOOKED_AT_ONCE):
            if not self._marks or self._marks[0][1] >= self._first_open:
                break
            mark, _half = self._marks.popleft()
            self._next_mark = mark + 1
        else:
            self._is_noting = True
            return
        self._is_noting = False
        if self._store.queue(HALF_TOPIC, 0) is not None:
            self._progress = self._store.log.end_offset, self._first_open, self._next_mark
            self._commit_progress()

    def _commit_progress(self) -> None:
        """Commit these offsets, once their messages and marks are on disk."""
        offsets = self._offsets
        if self._progress is None or self._progress[0] > self._store.flushed_offset:
            return
        _, first_open, next_mark = self._progress
        self._progress = None
        for topic, offset in ((HALF_TOPIC, first_open), (OP_TOPIC, next_mark)):
            if offsets.get(TRANSACTION_GROUP, topic, 0) != offset:
                offsets.commit(TRANSACTION_GROUP, topic, 0, offset)


def _copied(halves: Iterable[StoredMessage]) -> set[int]:
    """Return the queue offsets of the half messages that are followed by a copy made for a check."""
    copied: set[int] = set()
    last: dict[CopyKey, deque[int]] = {}  # the last copy of each half message
    for half in halves:
        properties = half.message.properties
        same = last.setdefault(copy_key(half.message, _OF_A_COPY), deque())
        if same and (_number(find_property(properties, _CHECK_TIMES)) or find_property(properties, _FIRST_HALF_OFFSET)):
            copied.add(same.popleft())
        same.append(half.queue_offset)
    return copied


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 10 else 0
