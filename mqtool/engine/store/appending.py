"""How messages are stored: one by one, or the messages of a batch together. They are in the log when a call returns.

(Rules: store.md 2, 8. RocketMQ: ``CommitLog``.)
"""

import itertools
import struct
from collections.abc import Sequence

from mqtool.engine.store import live_dispatch
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.engine.store.disk import DiskFullError
from mqtool.engine.store.dispatcher import WITH_UNIT, Dispatcher
from mqtool.engine.store.health import DISK_IS_FULL, Health
from mqtool.engine.store.live_log import LiveLog
from mqtool.engine.store.live_queue import LiveQueue
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.retention import Retention
from mqtool.errors import BadDataError, FormatError, MqtoolError, RecoveryNeededError, UsageError, WriteError
from mqtool.formats import commit_log
from mqtool.formats.new_message import (
    MAX_PROPERTIES,
    MAX_SHORT_TOPIC,
    MAX_TOPIC,
    BatchElement,
    NewMessage,
    build_batch,
    build_record,
    fill_crc,
    one_of,
    record_size,
    split_batch,
    with_crc_place,
)
from mqtool.formats.properties import (
    add_property,
    build_properties,
    pairs_of,
    parse_properties,
)
from mqtool.formats.property_names import CRC32, DELAY, INNER_BASE, INNER_MULTI_QUEUE_OFFSET, WAIT
from mqtool.formats.topics import RETRY_PREFIX, SCHEDULE_TOPIC

_WAIT, _CRC, _DELAY = WAIT.encode(), CRC32.encode(), DELAY.encode()
_INNER = commit_log.INNER_BATCH | commit_log.NEED_UNWRAP

_ILLEGAL = AppendResult(PutStatus.MESSAGE_ILLEGAL)
_TOO_MANY_PROPERTIES = AppendResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
_REFUSED = AppendResult(PutStatus.SERVICE_NOT_AVAILABLE)
_SYNC_FLUSH, _ASYNC_FLUSH = "SYNC_FLUSH", "ASYNC_FLUSH"
_PUT_OK = PutStatus.PUT_OK  # faster than an attribute of an enum
_new_tuple = tuple.__new__  # creates a named tuple in a third of the time
_UNUSUAL = commit_log.TRANSACTION_MASK | commit_log.INNER_BATCH
_WRITTEN_TOGETHER = 1 << 18
"""Bytes of messages that are written together: for longer ones it saves nothing."""
_NONE_OF_BATCH = frozenset((_DELAY, live_dispatch.BATCH_COUNT))
"""Properties that messages of a batch cannot have."""
_GROWTH_OF_BATCH = 4
"""How many times as long as a batch its records may be: each has the properties of the batch."""


class Appender:
    """Stores messages at the end of a log."""

    def __init__(
        self, log: LiveLog, dispatcher: Dispatcher, health: Health, retention: Retention, config: StoreConfig
    ) -> None:
        self._log = log
        self._dispatcher = dispatcher
        self._queues = dispatcher.queues.by_key
        self._health = health
        self._retention = retention
        self._with_crc = config.flag("enabledAppendPropCRC")
        self._with_light_queues = config.flag("enableLmq") and config.flag("enableMultiDispatch")
        self.configure(config)

    def configure(self, config: StoreConfig) -> None:
        """Apply new settings.

        Raises:
            UsageError: a setting makes no sense.
        """
        self._most_body = config.number("maxMessageSize", 4 << 20)
        self.most_of_batch = _GROWTH_OF_BATCH * self._most_body + (1 << 16)
        """Bytes of the records of a batch."""
        flush = config.settings.get("flushDiskType", _ASYNC_FLUSH)
        if flush.upper() not in (_SYNC_FLUSH, _ASYNC_FLUSH):  # a typo must not make messages less safe
            raise UsageError(f"flushDiskType={flush} is neither {_SYNC_FLUSH} nor {_ASYNC_FLUSH}")
        self.is_sync = flush.upper() == _SYNC_FLUSH
        """Whether producers get an answer only when the message is on the disk."""

    def append(self, message: NewMessage, now: int, *, is_again: bool = False) -> AppendResult:
        """Store a message.

        Args:
            message: the message.
            now: the time, in ms.
            is_again: it has been stored before, perhaps when longer ones were accepted.

        Returns:
            Where it is stored, or why it is not.
        """
        if self._is_refusing:
            return _REFUSED
        queue = self._queues.get((message.topic, message.queue_id)) or self._new_queue(message)
        if queue is None:
            return _REFUSED if self._dispatcher.queues.has_no_room_for(message.topic) else _ILLEGAL
        properties, pairs, count, sys_flag = message.properties, message.pairs, 1, message.sys_flag
        has_unit = not sys_flag & commit_log.TRANSACTION_MASK or sys_flag & commit_log.TRANSACTION_MASK in WITH_UNIT
        queue_offset = queue.next_offset if has_unit else 0
        light: list[LiveQueue] = []
        if sys_flag & commit_log.INNER_BATCH or live_dispatch.BATCH_COUNT in pairs:
            is_batch = bool(sys_flag & commit_log.INNER_BATCH)
            if is_batch != (live_dispatch.BATCH_COUNT in pairs) or (is_batch and not queue.is_batch):
                return _ILLEGAL
            if is_batch:
                count = live_dispatch.batch_count(pairs)
                if count <= 0:
                    return _ILLEGAL
                message.sys_flag |= _INNER
                properties = add_property(properties, INNER_BASE, str(queue_offset))
        if self._with_light_queues and live_dispatch.LIGHT_QUEUES in pairs:
            properties, light = self._for_light_queues(message.topic, properties, pairs)
        if self._with_crc:
            properties = _with_crc_place(properties, pairs)
        topic = queue.topic
        size = record_size(message, topic, len(properties))
        if len(properties) > MAX_PROPERTIES:
            return _TOO_MANY_PROPERTIES
        if not self._fits(len(message.body), size, is_again) or live_dispatch.ends_the_log(message.topic, pairs):
            return _ILLEGAL
        log = self._log
        try:
            at = log.place(size)
            record = build_record(message, topic, properties, size, queue_offset, at, now)
            if self._with_crc:
                record = fill_crc(record)
            log.write(record, at, now)
        except struct.error:  # a number is too large for its field
            return _ILLEGAL
        except MqtoolError as error:
            self._health.hold_up(error)
            return _REFUSED
        self._dispatcher.take(
            message.topic, message.sys_flag, pairs, queue if has_unit else None, light, count, at, size, now
        )
        end = at + size
        wait = end if (self.is_sync or log.confirmed_offset is not None) and pairs.get(_WAIT) != b"false" else 0
        return AppendResult(_PUT_OK, (at,), end, queue_offset, now, message.store_host, wait)

    def append_each(
        self,
        run: NewMessage,
        elements: Sequence[BatchElement],
        pairs_of_each: Sequence[live_dispatch.Pairs],
        now: int,
    ) -> list[AppendResult]:
        """Store messages one after the other, with the results of ``append``, if possible in one write.

        If that write fails, none is stored.

        Args:
            run: what they have in common: all but their elements.
            elements: of each, one or more.
            pairs_of_each: the properties of each; of names that no broker acts on, some or all may be missing.
            now: the time, in ms.
        """
        queue = self._queues.get((run.topic, run.queue_id))
        if queue is None or not (sizes := self._sizes_together(run, elements, pairs_of_each, queue)):
            return [self.append(one_of(run, element), now) for element in elements]
        log, first = self._log, queue.next_offset
        try:
            offsets = [*itertools.accumulate(sizes[:-1], initial=log.place(sum(sizes)))]
            log.write(b"".join(build_batch(run, elements, queue.topic, first, offsets[0], now)), offsets[-1], now)
        except struct.error:  # a number is too large for its field: only that message is refused
            return [self.append(one_of(run, element), now) for element in elements]
        except MqtoolError as error:
            self._health.hold_up(error)
            return [_REFUSED] * len(elements)
        self._dispatcher.take_each(queue, run.sys_flag, pairs_of_each, offsets, sizes, now)
        must_wait, store_host = self.is_sync or log.confirmed_offset is not None, run.store_host
        results = []
        for queue_offset, (pairs, at, size) in enumerate(zip(pairs_of_each, offsets, sizes, strict=True), first):
            end = at + size
            wait = end if must_wait and pairs.get(_WAIT) != b"false" else 0
            results.append(_new_tuple(AppendResult, (_PUT_OK, (at,), end, queue_offset, now, store_host, wait)))
        return results

    def _sizes_together(
        self,
        run: NewMessage,
        elements: Sequence[BatchElement],
        pairs_of_each: Sequence[live_dispatch.Pairs],
        queue: LiveQueue,
    ) -> list[int]:
        """Return the sizes of the records of messages that can be stored in one write; none if they cannot."""
        if self._is_refusing or self._with_crc or self._with_light_queues or run.topic == SCHEDULE_TOPIC:
            return []
        if run.sys_flag & _UNUSUAL or run.prepared_transaction_offset:
            return []
        if any(live_dispatch.BATCH_COUNT in pairs for pairs in pairs_of_each):
            return []
        body_sizes = [len(body) for _, body, _, _ in elements]
        properties_sizes = [len(properties) for _, _, properties, _ in elements]
        other_size = record_size(run, queue.topic, 0) - len(run.body)
        sizes = [other_size + sum(both) for both in zip(body_sizes, properties_sizes, strict=True)]
        if max(properties_sizes) > MAX_PROPERTIES or not self._fits(max(body_sizes), max(sizes), False):
            return []
        return sizes if sum(sizes) <= min(self._log.room, _WRITTEN_TOGETHER) else []

    def append_batch(self, batch: NewMessage, now: int) -> AppendResult:
        """Store the messages of a batch one after the other, all of them or none.

        Args:
            batch: whose body is a batch as clients send it. Its properties are added to those of each message, as
                brokers before 5.3.4 do.
            now: the time, in ms.

        Returns:
            Where they are stored, or why none is.
        """
        if self._is_refusing:
            return _REFUSED
        queue = self._queues.get((batch.topic, batch.queue_id)) or self._new_queue(batch)
        if queue is None and self._dispatcher.queues.has_no_room_for(batch.topic):
            return _REFUSED
        if queue is None or len(batch.body) > self._most_body or batch.sys_flag & commit_log.TRANSACTION_MASK:
            return _ILLEGAL
        try:
            elements = split_batch(batch, self.most_of_batch)
        except FormatError:
            return _ILLEGAL
        all_pairs = _pairs_of_each(batch, elements)
        if not elements or not all(map(_NONE_OF_BATCH.isdisjoint, all_pairs)):
            return _ILLEGAL
        if self._with_crc:
            elements = [
                element._replace(properties=_with_crc_place(element.properties, pairs))
                for element, pairs in zip(elements, all_pairs, strict=True)
            ]
        if max(len(element.properties) for element in elements) > MAX_PROPERTIES:
            return _TOO_MANY_PROPERTIES
        log, first = self._log, queue.next_offset
        overhead = record_size(batch, queue.topic, 0) - len(batch.body)
        sizes = [overhead + len(element.body) + len(element.properties) for element in elements]
        if sum(sizes) > min(self.most_of_batch, log.file_size - commit_log.BLANK_SIZE):
            return _ILLEGAL
        try:
            at = log.place(sum(sizes))
            *offsets, end = itertools.accumulate(sizes, initial=at)
            records = build_batch(batch, elements, queue.topic, first, at, now)
            if self._with_crc:
                records = [fill_crc(record) for record in records]
            log.write(b"".join(records), offsets[-1], now)
        except struct.error:  # a number is too large for its field
            return _ILLEGAL
        except MqtoolError as error:
            self._health.hold_up(error)
            return _REFUSED
        self._dispatcher.take_each(queue, batch.sys_flag, all_pairs, offsets, sizes, now)
        must_wait = self.is_sync or log.confirmed_offset is not None
        waits = must_wait and any(pairs.get(_WAIT) != b"false" for pairs in all_pairs)
        return AppendResult(_PUT_OK, tuple(offsets), end, first, now, batch.store_host, end if waits else 0)

    def append_bytes(self, at: int, data: bytes) -> None:
        """Append bytes of another broker's log, as a slave does, and dispatch the messages that are complete then.

        Args:
            at: their address there, which is the end of this log; an empty log starts with any segment.
            data: the bytes, cut anywhere; the next ones continue where they end.

        Raises:
            BadDataError: they do not continue the log, and nothing is appended; or they are not messages, or not
                the next of their queues: the log ends before the first such.
            WriteError: the disk is full (the end of the log shows where to continue), or fails.
        """
        if self._health.failure is not None:
            raise self._health.failure
        if self._health.is_held_up:  # units of queues would pile up in memory
            raise DiskFullError(DISK_IS_FULL)
        try:
            self._log.write_at(at, data)
        except WriteError as error:
            self._health.hold_up(error)
            raise
        try:
            self._dispatcher.read_on()
        except RecoveryNeededError as error:
            self._health.fatal(lambda: self._log.cut(self._dispatcher.next_offset))
            raise BadDataError(str(error)) from error
        except MqtoolError as error:
            self._health.hold_up(error)
            raise
        finally:
            self._log.last_timestamp, self._log.last_start = self._dispatcher.reached

    @property
    def _is_refusing(self) -> bool:
        health = self._health
        return health.is_held_up or self._retention.is_full or health.failure is not None

    def _fits(self, body_size: int, size: int, is_again: bool) -> bool:
        return (
            is_again or (body_size <= self._most_body and size <= self._most_body + (1 << 16))
        ) and size + commit_log.BLANK_SIZE <= self._log.file_size

    def _new_queue(self, message: NewMessage) -> LiveQueue | None:
        """Return a new queue, None if no message can have this topic or queue id, or not for now."""
        topic = message.topic
        most = MAX_TOPIC if topic.startswith(RETRY_PREFIX) else MAX_SHORT_TOPIC
        if not live_dispatch.is_folder_name(topic, most) or not 0 <= message.queue_id < 1 << 31:
            return None
        if self._dispatcher.queues.has_no_room_for(topic):
            return None
        return self._dispatcher.make_queue(topic, message.queue_id)

    def _for_light_queues(
        self, topic: str, properties: bytes, pairs: live_dispatch.Pairs
    ) -> tuple[bytes, list[LiveQueue]]:
        names = live_dispatch.light_queues(topic, pairs)
        if not names:
            return properties, []
        make_queue = self._dispatcher.make_queue
        queues = [self._queues.get((name, 0)) or make_queue(name, 0) if name else None for name in names]
        offsets = ",".join(str(queue.next_offset) if queue else "" for queue in queues)
        return add_property(properties, INNER_MULTI_QUEUE_OFFSET, offsets), [queue for queue in queues if queue]


def _pairs_of_each(batch: NewMessage, elements: Sequence[BatchElement]) -> list[dict[bytes, bytes]]:
    """Return the properties of each message of a batch; those of the batch, after its own, are read once."""
    all_pairs = [pairs_of(element.properties.removesuffix(batch.properties)) for element in elements]
    for pairs in all_pairs:
        pairs.update(batch.pairs)
    return all_pairs


def _with_crc_place(properties: bytes, pairs: live_dispatch.Pairs) -> bytes:
    if _CRC in pairs:  # a producer's own value is ignored
        texts = parse_properties(properties)
        del texts[CRC32]
        properties = build_properties(texts)
    return with_crc_place(properties)
