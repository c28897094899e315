"""What a broker answers to a pull, and what its client makes of it, told from a store.

A pull asks for the messages of one queue from a queue offset on. The rules are those of RocketMQ's ``getMessage``,
``PullMessageProcessor`` and the Java client together, except for its limits of bytes and of units examined in one go,
and for messages of an inner batch in front of the offset: a client gets those too.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import NamedTuple

from mqtool.engine.store.queue_view import FileQueueView, QueueView, UnitTable
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats import consume_queue
from mqtool.formats import kernels as plain
from mqtool.formats.codes import PullStatus
from mqtool.formats.filters import Sql92Filter, TagFilter
from mqtool.formats.inner_batch import inner_messages, is_inner_batch
from mqtool.formats.message import Message, message_at
from mqtool.formats.property_names import INNER_MULTI_DISPATCH
from mqtool.formats.scan import MessageTable
from mqtool.late import np, npt

UNITS = 4096
"""How many units are examined together."""
RECORDS = 256
"""How many messages are looked up together."""


class StoreStatus(enum.StrEnum):
    """What the broker's store says."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


_STATUSES = {
    StoreStatus.FOUND: PullStatus.FOUND,
    StoreStatus.NO_MATCHED_MESSAGE: PullStatus.NO_MATCHED_MSG,
    StoreStatus.MESSAGE_WAS_REMOVING: PullStatus.NO_MATCHED_MSG,
    StoreStatus.OFFSET_FOUND_NULL: PullStatus.NO_NEW_MSG,
    StoreStatus.OFFSET_OVERFLOW_ONE: PullStatus.NO_NEW_MSG,
    StoreStatus.OFFSET_OVERFLOW_BADLY: PullStatus.OFFSET_ILLEGAL,
    StoreStatus.OFFSET_TOO_SMALL: PullStatus.OFFSET_ILLEGAL,
}
_EMPTY = (StoreStatus.NO_MATCHED_LOGIC_QUEUE, StoreStatus.NO_MESSAGE_IN_QUEUE)


class UnreadableUnit(NamedTuple):
    """A unit from which no message, or not the right one, could be read."""

    queue_offset: int
    physical_offset: int
    reason: str
    lost: bool = True
    shown: bool = False  # another message, as a consumer gets it


@dataclasses.dataclass(frozen=True)
class StorePullResult:
    """The answer to one pull."""

    store_status: StoreStatus
    offset: int
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[Message] = dataclasses.field(default_factory=list)
    faults: list[UnreadableUnit] = dataclasses.field(default_factory=list)

    @property
    def status(self) -> PullStatus:
        """What the client tells its user."""
        if self.store_status in _EMPTY:
            # A new queue may be asked for its beginning; whoever asks for more has an offset of another life.
            return PullStatus.OFFSET_ILLEGAL if self.offset else PullStatus.NO_NEW_MSG
        return _STATUSES[self.store_status]


class MessageFilter(NamedTuple):
    """What a consumer wants: tags, or messages whose properties an SQL92 filter takes."""

    tags: TagFilter | None = None
    sql92: Sql92Filter | None = None

    def matches_codes(self, units: UnitTable) -> npt.NDArray[np.bool_]:
        """Return which units a broker looks up: those it cannot tell from their tags code included."""
        if self.tags is None or self.tags.expression == "*":
            return np.ones(len(units), np.bool_)
        codes = np.array(sorted(self.tags.codes), np.int32)
        return np.isin(units.tags_code.astype(np.int32), codes) | ~units.has_code

    def matches_record(self, message: Message) -> bool:
        """Return whether a broker sends a record, once it has looked it up."""
        return self.sql92 is None or self.sql92(message.properties)

    def matches_message(self, message: Message) -> bool:
        """Return whether a client keeps a message: equal codes are not yet equal tags."""
        return self.tags is None or self.tags.matches_tag(message.tags)


EVERYTHING = MessageFilter()


def pull(
    queue: QueueView | None,
    store: StoreReader,
    offset: int,
    max_count: int,
    subscription: MessageFilter = EVERYTHING,
) -> StorePullResult:
    """Return the messages of a queue from an offset on, and where to continue.

    Args:
        queue: None if the store has no such queue.
        store: whose log has the messages.
        offset: queue offset to start with.
        max_count: return no more messages than this.
        subscription: what is wanted.
    """
    if queue is None:
        return StorePullResult(StoreStatus.NO_MATCHED_LOGIC_QUEUE, offset, 0, 0, 0)
    low, high = queue.min_offset, queue.max_offset
    if high == 0:
        return StorePullResult(StoreStatus.NO_MESSAGE_IN_QUEUE, offset, 0, low, high)
    if offset < low:
        return StorePullResult(StoreStatus.OFFSET_TOO_SMALL, offset, low, low, high)
    if offset == high:
        return StorePullResult(StoreStatus.OFFSET_OVERFLOW_ONE, offset, offset, low, high)
    if offset > high:
        return StorePullResult(StoreStatus.OFFSET_OVERFLOW_BADLY, offset, high, low, high)
    walk = _PullWalk(queue, store, offset, max_count, subscription)
    walk.run()
    return StorePullResult(walk.status, offset, walk.next_offset, low, high, walk.messages, walk.faults)


class _PullWalk:
    """One pull from an offset that the queue holds."""

    def __init__(
        self,
        queue: QueueView,
        store: StoreReader,
        offset: int,
        max_count: int,
        subscription: MessageFilter,
    ) -> None:
        self.queue = queue
        self.store = store
        self.offset = offset
        self.max_count = max_count
        self.subscription = subscription
        self.next_offset = offset
        self.status = StoreStatus.NO_MATCHED_MESSAGE
        self.messages: list[Message] = []
        self.faults: list[UnreadableUnit] = []

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= self.max_count

    def run(self) -> None:
        while self.next_offset < self.queue.max_offset and not self.is_full:
            units = self.queue.units(self.next_offset, UNITS)
            if not len(units):
                if not self.messages:
                    self.status = StoreStatus.OFFSET_FOUND_NULL
                self.next_offset = self.queue.max_offset
                return
            self._take(units)

    def _take(self, units: UnitTable) -> None:
        missing = int(units.queue_offset[0]) - self.next_offset
        if missing > 0 and isinstance(self.queue, FileQueueView):
            text = f"no file holds the {missing:,} units from here on"
            self.faults.append(UnreadableUnit(self.next_offset, -1, text))
        wanted = self.subscription.matches_codes(units) & (units.size != consume_queue.PRE_BLANK_SIZE)
        rows = np.flatnonzero(wanted | (units.size <= 0))
        next_offsets = units.next_offset
        at = 0
        while at < len(rows) and not self.is_full:
            batch = rows[at : at + min(RECORDS, max(self.max_count - len(self.messages), RECORDS // 16))]
            at += len(batch)
            messages = self._read(units.where(batch))
            for row in batch.tolist():
                if self.is_full:
                    return
                # Units in front of this one were skipped, and this one is examined.
                queue_offset, self.next_offset = int(units.queue_offset[row]), int(next_offsets[row])
                message = next(messages)
                if message is None:
                    if not self.messages:
                        self.status = StoreStatus.MESSAGE_WAS_REMOVING
                elif wanted[row] and self.subscription.matches_record(message):
                    self._check_place(message, queue_offset)
                    self._add(message, queue_offset)
        if not self.is_full:
            self.next_offset = int(next_offsets[-1])

    def _check_place(self, message: Message, queue_offset: int) -> None:
        """Note if a unit leads to a message of another place."""
        is_own = (message.topic, message.queue_id) == (self.queue.topic, self.queue.queue_id)
        if is_own and message.queue_offset == queue_offset:
            return
        if self.queue.topic in message.properties.get(INNER_MULTI_DISPATCH, "").split(","):
            return
        if not is_own:
            text = f"the unit points to a message of {message.topic}, queue {message.queue_id}"
            self.faults.append(UnreadableUnit(queue_offset, message.position, text, shown=True))
        elif not is_inner_batch(message):
            text = f"the unit points to a message whose queue offset is {message.queue_offset:,}"
            self.faults.append(UnreadableUnit(queue_offset, message.position, text, lost=False))

    def _read(self, units: UnitTable) -> Iterator[Message | None]:
        """Yield the message of each unit, looked up together."""
        places: dict[int, tuple[MessageTable, int]] = {}
        for table in self.store.commit_log.tables_at(units.physical_offset, plain):
            places.update((position, (table, row)) for row, position in enumerate(table.column("position").tolist()))
        for queue_offset, physical_offset, size in zip(
            units.queue_offset.tolist(), units.physical_offset.tolist(), units.size.tolist(), strict=True
        ):
            message, reason = None, ""
            if size <= 0:
                reason = "the unit is empty"
            elif physical_offset in places:
                message = message_at(*places[physical_offset])
                if message.size != size:
                    reason = f"the unit says {size:,} bytes, but its message has {message.size:,}"
            else:
                reason = self._reason(physical_offset)
                if physical_offset < self.store.commit_log.gone_until:  # which is told
                    reason = ""
            if reason:
                self.faults.append(UnreadableUnit(queue_offset, physical_offset, reason, lost=message is None))
            yield message

    def _reason(self, physical_offset: int) -> str:
        try:
            self.store.message_at(physical_offset)
        except (FormatError, NotFoundError) as error:
            return str(error)
        return "no message starts there"

    def _add(self, record: Message, queue_offset: int) -> None:
        """Take what a client makes of a record."""
        # The places of messages follow from the unit: what a damaged record says might lead back.
        for place, message in enumerate(self._unwrapped(record, queue_offset), queue_offset):
            if place < self.offset:
                continue
            if self.is_full:
                self.next_offset = min(place, self.next_offset)
                return
            if self.subscription.matches_message(message):
                self.messages.append(message)
                self.status = StoreStatus.FOUND

    def _unwrapped(self, record: Message, queue_offset: int) -> list[Message]:
        if is_inner_batch(record):
            try:
                return inner_messages(record)
            except FormatError as error:
                self.faults.append(UnreadableUnit(queue_offset, record.position, str(error), lost=False))
        return [record]
