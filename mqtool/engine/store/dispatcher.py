"""The dispatch of a message in the log: units of its queues, keys of the index, and notifications.

There is one step for that, ``take``, however a message came into the log: stored alone or in a batch, or found
there (``read_on``) when a store is opened that was not closed. Queues and index follow the order of the log.
(Rules: store.md 7.5, 8.3. RocketMQ: ``ReputMessageService``.)
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from mqtool.engine.store import live_dispatch
from mqtool.engine.store.live_checkpoint import Reached
from mqtool.engine.store.log_end import read_whole
from mqtool.errors import MqtoolError, RecoveryNeededError
from mqtool.formats import commit_log
from mqtool.formats.new_message import MAX_TOPIC
from mqtool.formats.properties import pairs_of
from mqtool.formats.property_names import INNER_MULTI_QUEUE_OFFSET, KEYS, TAGS, UNIQ_KEY

if TYPE_CHECKING:
    from mqtool.engine.store.health import Health
    from mqtool.engine.store.live_index import LiveIndex
    from mqtool.engine.store.live_log import LiveLog
    from mqtool.engine.store.live_queue import LiveQueue
    from mqtool.engine.store.queue_table import QueueTable

log = logging.getLogger(__name__)

OnArrival = Callable[[str, int, int, Sequence[int], int], None]
WITH_UNIT = (0, commit_log.TRANSACTION_COMMIT)
"""Kinds of messages, by their transaction, that are in queues."""
_UNIQ_KEY, _KEYS, _TAGS = UNIQ_KEY.encode(), KEYS.encode(), TAGS.encode()
_LIGHT_OFFSETS = INNER_MULTI_QUEUE_OFFSET.encode()
_LONGEST_NUMBER = 19
MANY_WAITING = 160
"""So many messages are written at once that no producer waits long for that."""
MAX_WAITING = 1024
"""Most messages that wait in memory; to write so many together takes the least time for each."""
_LONG_KEYS = 128
"""Bytes of keys that cost as much as another message."""
_NEW_AT_ONCE = 8
"""Most new queues that are written together, while others wait."""


class Dispatcher:
    """Updates queues and index of an open store according to its log."""

    def __init__(
        self,
        log: "LiveLog",
        queues: "QueueTable",
        index: "LiveIndex",
        health: "Health",
        *,
        delay_levels: Sequence[int],
        is_indexed: bool,
        reached: Reached,
        next_offset: int,
    ) -> None:
        """Continue from the last message that is in queues and index.

        Args:
            log: where messages are found.
            queues: of the store.
            index: of the store.
            health: of the disk.
            delay_levels: delay of each level in ms, for the units of delayed messages.
            is_indexed: whether keys go into the index.
            reached: that message.
            next_offset: where the next one starts.
        """
        self.queues = queues
        self.index = index
        self.on_arrival: OnArrival | None = None
        """Called for messages that can now be read: topic, queue id, the offset after them, tags codes, the time."""
        self.let_go: Callable[[str, int], object] | None = None
        """Releases the queues of a topic that was deleted on the broker that wrote the log."""
        self.on_restart: Callable[[str, int], None] | None = None
        """Called after that: topic, and the time."""
        self.is_indexed = is_indexed
        self.next_offset = next_offset
        """Address after the last message that was taken."""
        self.written = reached
        """Address up to which units and keys are in files."""
        self.many_waiting = MANY_WAITING
        """Number of waiting messages from which on their units should be written."""
        self._waiting = queues.waiting
        self._log = log
        self._health = health
        self._delay_levels = delay_levels
        self._timestamp, self._last_start = reached
        self._taken = 0  # messages since units were written; one with many keys counts as several

    # Messages

    def take(
        self,
        topic: str,
        sys_flag: int,
        pairs: "live_dispatch.Pairs",
        queue: "LiveQueue | None",
        light_queues: "Sequence[LiveQueue]",
        count: int,
        physical_offset: int,
        size: int,
        now: int,
    ) -> None:
        """Add units and keys of the next message of the log.

        Args:
            topic: of the message.
            sys_flag: its flags.
            pairs: its properties.
            queue: where it is the next; None if it is in no queue, like a half message of a transaction.
            light_queues: where it is the next, too.
            count: how many messages it holds.
            physical_offset: where it starts.
            size: of the record.
            now: when it was stored, in ms.
        """
        waiting, get = self._waiting, pairs.get
        if queue is not None:
            code = live_dispatch.tags_code(topic, pairs, now, self._delay_levels)
            queue.append(physical_offset, size, code, now, count)
            waiting[queue] = None
            for light_queue in light_queues:
                light_queue.append(physical_offset, size, code, now)
                waiting[light_queue] = None
        if self.is_indexed:
            keys = get(_KEYS)
            of_message = get(_UNIQ_KEY), keys, get(_TAGS)
            self.index.waiting.append((topic, sys_flag, of_message, physical_offset, now))
            if keys is not None and len(keys) >= _LONG_KEYS:
                self._taken += len(keys) // _LONG_KEYS
        self._timestamp, self._last_start = now, physical_offset
        self.next_offset = physical_offset + size
        self._taken += 1
        if self._taken >= MAX_WAITING:
            self.write_some_units()
        if queue is not None and self.on_arrival is not None:
            self.on_arrival(topic, queue.key[1], queue.next_offset, (code,), now)

    def take_each(
        self,
        queue: "LiveQueue",
        sys_flag: int,
        pairs_of_each: "Iterable[live_dispatch.Pairs]",
        physical_offsets: Sequence[int],
        sizes: Sequence[int],
        now: int,
    ) -> None:
        """Add units and keys of the next messages of the log, all of one queue, as ``take`` does for each."""
        topic, queue_id = queue.key
        append, wait = queue.append, self.index.waiting.append
        codes = []
        for pairs, at, size in zip(pairs_of_each, physical_offsets, sizes, strict=True):
            code = live_dispatch.tags_code(topic, pairs, now, self._delay_levels)
            append(at, size, code, now)
            codes.append(code)
            if self.is_indexed:
                keys = pairs.get(_KEYS)
                wait((topic, sys_flag, (pairs.get(_UNIQ_KEY), keys, pairs.get(_TAGS)), at, now))
                if keys is not None:
                    self._taken += len(keys) // _LONG_KEYS
        self._waiting[queue] = None
        self._timestamp, self._last_start = now, physical_offsets[-1]
        self.next_offset = physical_offsets[-1] + sizes[-1]
        self._taken += len(sizes)
        if self._taken >= MAX_WAITING:
            self.write_some_units()
        if self.on_arrival is not None:
            self.on_arrival(topic, queue_id, queue.next_offset, codes, now)

    def read_on(self) -> None:
        """Take the messages that are in the log after the last one, up to an incomplete one.

        Raises:
            RecoveryNeededError: something else is there, or a message is not the next of its queue.
        """
        self.next_offset = max(self.next_offset, self._log.min_offset)  # a log that has just begun in the middle
        take, queues = self.take, self.queues.by_key
        for message in read_whole(self._log, self.next_offset):
            topic, queue_id, sys_flag, properties, queue_offset, at, size, timestamp = message
            if not topic:  # a blank record
                self.next_offset = at + size
                continue
            pairs = pairs_of(properties)
            queue: LiveQueue | None = None
            light_queues: list[LiveQueue] = []
            count = 1
            if sys_flag & commit_log.TRANSACTION_MASK in WITH_UNIT:
                queue = queues.get((topic, queue_id))
                if queue is None or queue.next_offset != queue_offset:
                    queue = self._queue_at(topic, queue_id, queue_offset, at)
                if sys_flag & commit_log.INNER_BATCH:
                    count = live_dispatch.batch_count(pairs)
                    if queue.is_batch and count < 1:
                        raise RecoveryNeededError(f"the batch at {at:,} does not state how many messages it holds")
                if live_dispatch.LIGHT_QUEUES in pairs:
                    light_queues = self._light_queues_at(topic, pairs, at)
            take(topic, sys_flag, pairs, queue, light_queues, count, at, size, timestamp)

    @property
    def reached(self) -> Reached:
        """The last message that was taken."""
        return Reached(self._timestamp, self._last_start)

    def _light_queues_at(self, topic: str, pairs: "live_dispatch.Pairs", physical_offset: int) -> "list[LiveQueue]":
        names = live_dispatch.light_queues(topic, pairs)
        offsets = pairs.get(_LIGHT_OFFSETS, b"").decode("utf-8", "replace").split(",")
        return [
            self._queue_at(name, 0, int(offset), physical_offset)
            for name, offset in zip(names, offsets, strict=False)
            if name and _is_number(offset)
        ]

    def _queue_at(self, topic: str, queue_id: int, queue_offset: int, physical_offset: int) -> "LiveQueue":
        """Return a queue whose next message has an offset."""
        queue = self.queues.by_key.get((topic, queue_id))
        if queue is None:
            if not (live_dispatch.is_folder_name(topic, MAX_TOPIC) and 0 <= queue_id < 1 << 31 and queue_offset >= 0):
                raise RecoveryNeededError(f"the message at {physical_offset:,} is for a queue that cannot exist")
            queue = self.make_queue(topic, queue_id)
        if queue_offset == 0 < queue.next_offset and self.let_go is not None:
            log.warning(
                "the queues of %s restart at %s in the log: the topic was deleted there", topic, physical_offset
            )
            self.let_go(topic, self.reached.last_start)
            if self.on_restart is not None:
                self.on_restart(topic, self._timestamp)
            queue = self.make_queue(topic, queue_id)
        if not queue.next_offset and self._log.min_offset:  # those before it were before the log's beginning
            queue.begin_at(queue_offset)
        if queue.next_offset != queue_offset:
            raise RecoveryNeededError(
                f"the message at {physical_offset:,} has queue offset {queue_offset:,}, but its queue continues at "
                f"{queue.next_offset:,}"
            )
        return queue

    def make_queue(self, topic: str, queue_id: int) -> "LiveQueue":
        """Return a new queue; an old one of a topic that is being deleted is removed first."""
        if remove := self.queues.leaving.get(topic):
            self.write_units()
            remove()
        return self.queues.make(topic, queue_id, self.reached)

    # Files

    @property
    def has_much_to_write(self) -> bool:
        """Whether ``write_some_units`` should be called soon: the longer it waits, the longer it takes."""
        return self._taken >= self.many_waiting or self.queues.is_behind or self.queues.files.has_made

    def write_units(self) -> None:
        """Write the units and keys of all messages into their files; failures are retried at the next tick."""
        self._write_units(None)

    def write_some_units(self) -> None:
        """Write the units and keys, but only of a few new queues, and none whose files another thread creates."""
        self._write_units(_NEW_AT_ONCE)

    def _write_units(self, most_new: int | None) -> None:
        self._taken = 0
        self.queues.files.has_made = False
        self._health.is_held_up = False
        if self._health.failure is not None:
            return
        reached = self.reached
        try:
            is_all = self.queues.write(most_new)
            if self.is_indexed:
                is_all = self.index.write(at_once=most_new is None) and is_all
        except MqtoolError as error:
            self._health.hold_up(error)
        else:
            if is_all:
                self.written = self.queues.before_new or reached


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER
