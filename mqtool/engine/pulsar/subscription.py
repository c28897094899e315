"""A subscription of a queue: its consumers, their permits, and which consumer gets the next entry.

Of the four types, Exclusive and Failover deliver everything to one consumer, in order; Shared delivers entries to any
consumer with permits; Key_Shared delivers those of a key to one consumer at a time, in order. The bytes sent to one
consumer in one turn are limited, so that others have their turn. Times are in ms.
(Rules: pulsar.md 5, 6.1. Pulsar: ``PersistentDispatcherSingleActiveConsumer`` and its siblings.)
"""

import bisect
import enum
import heapq
import itertools
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from mqtool.engine.pulsar.cursor import MAX_GAPS, Cursor, Spans
from mqtool.engine.pulsar.entries import Entry
from mqtool.engine.pulsar.filters import EVERYTHING, EntryFilter
from mqtool.engine.pulsar.limits import FEW_GAPS, MAX_HELD, MAX_NAME, MAX_OF_SUBSCRIPTION
from mqtool.engine.pulsar.pace import DispatchRate, ReadPace
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.engine.pulsar.selectors import Ring, StickyHashRanges, active_of, range_slot

_AT_ONCE = 1 << 18
"""Bytes sent to one consumer in one turn, except for a larger single entry."""
_RUN = 20
"""Entries delivered to one consumer of Shared before the next one has its turn."""
_FAILOVER_DELAY_MS = 1000
_FULL_MS = 1000
"""How soon to check again whether there is room for more."""
MAX_UNACKED = 50_000
"""Unacknowledged messages of a Shared or Key_Shared consumer; at this limit it is blocked until half are left."""
MAX_UNACKED_IN_ALL = 200_000
_MAX_DELAYED = 50_000
_MAX_DUE = 1000
"""Delayed entries that become ready in one turn."""
_MAX_KNOWN, _FEW_KNOWN = 10_000, 100
_MAX_CHUNKED = 1000
_MAX_AHEAD = 20_000
"""Entries that may be read ahead and wait for the only consumer that may get them."""


class SubscriptionType(enum.IntEnum):
    """Types of subscriptions, by Pulsar's numbers."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def label(self) -> str:
        """As Pulsar writes it."""
        return {0: "Exclusive", 1: "Shared", 2: "Failover", 3: "Key_Shared"}[self.value]


class KeyPolicy(NamedTuple):
    """How consumers of Key_Shared divide the keys."""

    is_sticky: bool = False
    ranges: tuple[tuple[int, int], ...] = ()
    allows_disorder: bool = False


class EntryLog(Protocol):
    """What a subscription reads: ``QueueLog``."""

    @property
    def start(self) -> int:
        """The first offset that is kept."""
        ...

    @property
    def end(self) -> int:
        """The offset that the next message gets."""
        ...

    def entry(self, offset: int) -> Entry | None:
        """Return the entry that a message belongs to, None if it cannot be read."""
        ...

    def size_at(self, offset: int) -> tuple[int, int] | None:
        """Return the sizes of the entry at an offset, in messages of the queue and of its own."""
        ...

    def next_readable(self, offset: int) -> int:
        """Return where to continue if no message can be read at an offset."""
        ...


class Receiver(Protocol):
    """The other end of a subscription: the session of a consumer."""

    is_backed_up: bool
    """Much of the data sent to it waits to be read."""

    def deliver(self, consumer: "PulsarConsumer", entry: Entry, left: int | None, count: int) -> None:
        """Send an entry: which of its messages are not acknowledged (None: all), how often it was delivered before."""
        ...

    def tell_active(self, consumer: "PulsarConsumer", is_active: bool) -> None:
        """Tell a consumer of Failover whether it is the one that gets messages."""
        ...


class Given(NamedTuple):
    """An entry that was delivered to a consumer and is not acknowledged."""

    size: int
    messages: int
    left: int  # messages that are counted
    slot: int


class PulsarConsumer:
    """A consumer of a subscription."""

    def __init__(
        self,
        receiver: Receiver,
        id: int,  # noqa: A002
        name: str,
        priority: int = 0,
        policy: KeyPolicy | None = None,
        wanted: EntryFilter = EVERYTHING,
    ) -> None:
        self.receiver = receiver
        self.id = id
        self.name = name
        self.priority = priority
        self.policy = policy or KeyPolicy()
        self.slots = Spans((start, end + 1) for start, end in self.policy.ranges)
        """The slots whose keys it wants; all if empty."""
        self.wanted = wanted
        self.epoch: int | None = None
        self.permits = 0
        self.held_permits = 0  # granted while the consumer was blocked
        self.is_blocked = False
        self.unacked = 0
        self.given: dict[int, Given] = {}
        self.bytes_of_turn = 0
        self.average = 1.0  # messages of an entry

    @property
    def can_take(self) -> bool:
        """Whether an entry may be sent to it now."""
        return (
            self.permits > 0
            and not self.is_blocked
            and self.bytes_of_turn < _AT_ONCE
            and not self.receiver.is_backed_up
        )

    @property
    def is_held_by_turn(self) -> bool:
        """Whether it has to wait for its next turn to get more."""
        return (
            self.permits > 0
            and not self.is_blocked
            and self.bytes_of_turn >= _AT_ONCE
            and not self.receiver.is_backed_up
        )

    def grant(self, permits: int) -> None:
        """Add permits."""
        if self.is_blocked:
            self.held_permits = min(self.held_permits + permits, 1 << 31)
        else:
            self.permits = min(self.permits + permits, 1 << 31)

    def look_at_unacked(self, most: int) -> None:
        """Block or unblock it by its number of unacknowledged messages."""
        if self.unacked >= most:
            self.is_blocked = True
        elif self.is_blocked and self.unacked <= most // 2:
            self.unblock()

    def unblock(self) -> None:
        """Unblock it."""
        self.is_blocked = False
        held, self.held_permits = self.held_permits, 0
        self.permits += held


class HeldInAll:
    """How much all subscriptions keep: delivered entries, entries to be redelivered, and gaps."""

    def __init__(self) -> None:
        self.total = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be kept."""
        return self.total >= MAX_HELD


class PulsarSubscription:
    """A subscription of one queue."""

    def __init__(
        self,
        name: str,
        log: EntryLog,
        cursor: Cursor,
        topic: str,
        partition: int = -1,
        rates: Sequence[DispatchRate] = (),
        held: "HeldInAll | None" = None,
    ) -> None:
        """Make one without consumers.

        Args:
            name: of the subscription.
            log: what it reads.
            cursor: its acknowledgements.
            topic: full name of the topic, or of the partition if it is one.
            partition: number of the partition, -1 for a topic without.
            rates: limits of deliveries.
            held: how much all subscriptions keep.
        """
        self.name = name
        self.log = log
        self.cursor = cursor
        self.topic = topic
        self.partition = partition
        self.kind = SubscriptionType.EXCLUSIVE
        self._is_wanted: Callable[[bytes], bool] | None = None
        self._wanted_of = (-1, 0)  # the last entry of which some messages match, and which
        self.consumers: list[PulsarConsumer] = []
        self.given = 0
        """Messages that were sent to consumers."""
        self.lost = 0
        """Messages that were removed, or could not be read, before they were acknowledged."""
        self._rates = rates
        self._held = held or HeldInAll()
        self._rates_in_use: list[DispatchRate] = []
        self._pace = ReadPace()
        self._reads_left = 0
        self._held_until: int | None = None
        self._dispatcher: _Dispatcher = _OneActive(self)

    # Joining and leaving

    def check(self, kind: SubscriptionType, policy: KeyPolicy, wanted: EntryFilter) -> None:
        """Check that a consumer may join.

        Raises:
            PulsarRefusedError: it may not.
        """
        if self.consumers:
            if len(self.consumers) >= MAX_OF_SUBSCRIPTION:
                text = f"A subscription has at most {MAX_OF_SUBSCRIPTION:,} consumers"
                raise PulsarRefusedError(PulsarError.NOT_ALLOWED, text)
            if kind is not self.kind:
                text = f"Subscription is of different type: {self.kind.label}, not {kind.label}"
                raise PulsarRefusedError(PulsarError.CONSUMER_BUSY, text)
            if kind is SubscriptionType.EXCLUSIVE:
                raise PulsarRefusedError(PulsarError.CONSUMER_BUSY, "Exclusive consumer is already connected")
            if wanted != self.consumers[0].wanted:
                raise PulsarRefusedError(
                    PulsarError.CONSUMER_BUSY, "Consumers of the subscription have a different filter"
                )
            policy_here = self.consumers[0].policy
            if kind is SubscriptionType.KEY_SHARED and (policy_here.is_sticky, policy_here.allows_disorder) != (
                policy.is_sticky,
                policy.allows_disorder,
            ):
                raise PulsarRefusedError(PulsarError.CONSUMER_BUSY, "Subscription is of different Key_Shared mode")
        if kind is SubscriptionType.KEY_SHARED and policy.is_sticky:
            ranges = StickyHashRanges((other, other.policy.ranges) for other in self.consumers)
            if fault := ranges.fault_of(policy.ranges):
                raise PulsarRefusedError(PulsarError.CONSUMER_ASSIGN, fault)

    def add(self, consumer: PulsarConsumer, kind: SubscriptionType, now: int) -> None:
        """Add a consumer.

        Raises:
            PulsarRefusedError: it may not join.
        """
        self.check(kind, consumer.policy, consumer.wanted)
        if not self.consumers:
            self._is_wanted = consumer.wanted.compiled()
            self._wanted_of = -1, 0
            self.kind = kind
            if kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
                self._dispatcher = _OneActive(self)
            elif kind is SubscriptionType.SHARED:
                self._dispatcher = _SharedDispatch(self)
            else:
                self._dispatcher = _KeyShared(self, consumer.policy)
        bisect.insort_right(self.consumers, consumer, key=lambda consumer: consumer.priority)
        self._dispatcher.added(consumer, now)

    def remove(self, consumer: PulsarConsumer, now: int) -> None:
        """Remove a consumer; its unacknowledged messages go to others."""
        self.consumers.remove(consumer)
        self._dispatcher.removed(consumer, now)
        consumer.given.clear()

    # Commands of consumers

    def flow(self, consumer: PulsarConsumer, permits: int) -> None:
        """Add permits of a consumer."""
        consumer.grant(permits)

    def ack(self, offset: int, left: int | None = None) -> None:
        """Acknowledge an entry, or those of its messages whose bits are not set in ``left``."""
        if offset >= self.log.end:
            return
        size = self._dispatcher.size_of(offset) or self.log.size_at(offset)
        if size is None:
            return
        rest = 0
        if self.cursor.next_open(offset) < offset + size[0]:  # else it was skipped, or removed, in the meantime
            if self._held.is_full and not self.cursor.has_room_for(offset, size[0], FEW_GAPS):
                rest = (left or 0) & (1 << size[1]) - 1  # redelivered once all consumers have left
            elif left is None:
                self.cursor.ack(offset, size[0])
            else:
                rest = self._ack_some(offset, size, left)
        self._dispatcher.acked(offset, rest)

    def _ack_some(self, offset: int, size: tuple[int, int], left: int) -> int:
        """Acknowledge the messages of an entry that are not in ``left``, and return those still left."""
        if size[0] > 1:  # a RocketMQ group may have read the first messages of a batch
            passed = self.cursor.next_open(offset) - offset
            left = left >> passed << passed
        if left and self._held.is_full:
            return self.cursor.left.get(offset, (1 << size[1]) - 1)
        return self.cursor.ack_some(offset, *size, left)

    def ack_until(self, offset: int, left: int | None = None) -> None:
        """Acknowledge everything before an entry, and the entry itself except for ``left``."""
        if self.kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER) or offset >= self.log.end:
            return
        size = self._dispatcher.size_of(offset) or self.log.size_at(offset)
        if size is None and left is None and offset >= max(self.cursor.next_offset, self.log.start):
            # The id before one that a client has: the last message of a batch stored as single messages.
            entry = self.log.entry(offset)
            if entry is not None and offset == entry.end - 1:
                self.cursor.ack_until(entry.end)
            return
        if size is None or self.cursor.next_offset >= offset + size[0]:
            return
        if left is None:
            self.cursor.ack_until(offset + size[0])
        else:
            self.cursor.ack_until(offset)
            self._ack_some(offset, size, left)

    def redeliver(self, consumer: PulsarConsumer, offsets: Collection[int] | None) -> None:
        """Redeliver entries that a consumer has; None: all."""
        self._dispatcher.redeliver(consumer, offsets)

    def seek(self, offset: int, left: int | None, now: int) -> list[PulsarConsumer]:
        """Continue at an offset, and return the former consumers, which have to subscribe again."""
        self.cursor.seek(offset, left)
        gone = [*self.consumers]
        for consumer in gone:
            self.remove(consumer, now)
        return gone

    def skip(self, count: int) -> None:
        """Acknowledge the next ``count`` unacknowledged messages."""
        if count >= self.backlog:
            self.cursor.ack_until(self.log.end)
            return
        end, passed, acked = self._end_of_skip(count), -1, 0
        while acked != passed:  # acknowledged messages of batches do not count
            passed, acked = acked, self._acked_of_batches(end)
            end = self._end_of_skip(count + acked)
        entry = self.log.entry(end) if end < self.log.end else None
        if entry is None or entry.offset == end:
            self.cursor.ack_until(end)
        else:
            skipped = end - entry.offset
            self.cursor.ack_until(entry.offset)
            self.cursor.ack_some(
                entry.offset, entry.size, entry.messages, (1 << entry.messages) - 1 >> skipped << skipped
            )

    def _end_of_skip(self, count: int) -> int:
        return min(self.cursor.skip(count), self.log.end)

    def _acked_of_batches(self, end: int) -> int:
        """Return how many messages before an offset are acknowledged while others of their batches are not."""
        count = 0
        for first, left in self.cursor.left.items():
            if first < end and (size := self.log.size_at(first)) is not None and size[0] > 1:
                passed = max(self.cursor.next_offset - first, 0)
                count += (~left & (1 << min(size[0], end - first)) - 1 >> passed << passed).bit_count()
        return count

    def move(self, offset: int) -> None:
        """Continue at an offset that was set elsewhere, with the present consumers."""
        self.cursor.seek(offset)
        self._dispatcher.moved()

    # Delivery

    @property
    def backlog(self) -> int:
        """Messages that are not acknowledged."""
        return self.cursor.open_before(self.log.end)

    @property
    def active(self) -> PulsarConsumer | None:
        """The active consumer, if the type has one."""
        return self._dispatcher.active

    @property
    def unacked(self) -> int:
        """Unacknowledged messages of Shared or Key_Shared consumers."""
        return self._dispatcher.unacked

    @property
    def size(self) -> int:
        """How much it keeps about unacknowledged messages, and about acknowledged ones after them."""
        return self.cursor.size + self._dispatcher.size

    @property
    def is_short_of_room(self) -> bool:
        """Whether all subscriptions together keep too much."""
        return self._held.is_full

    def may_hold_more(self, now: int) -> bool:
        """Tell whether there is room for deliveries; if not, it is checked again in a second."""
        if self._held.is_full:
            self._held_until = now + _FULL_MS
        return not self._held.is_full

    def may_filter(self, now: int) -> bool:
        """Tell whether there is room for the gaps that a filter leaves."""
        gaps = len(self.cursor.spans)
        return self._is_wanted is None or gaps < FEW_GAPS or (gaps < MAX_GAPS and self.may_hold_more(now))

    def pass_removed(self) -> bool:
        """Move past messages that were removed from the start of the log, and tell whether there were any."""
        start = self.log.start
        if self.cursor.next_offset >= start:
            return False
        self.lost += self.cursor.open_before(start)
        self.cursor.ack_until(start)
        return True

    def dispatch(self, now: int) -> bool:
        """Deliver what may be delivered; return whether the next turn has more right away."""
        if not self.consumers:
            return False
        self.pass_removed()
        if self._pace.retry_at is not None and now < self._pace.retry_at:
            return False
        for consumer in self.consumers:
            consumer.bytes_of_turn = 0
        self._reads_left, self._held_until = self._pace.most, None
        self._rates_in_use = [rate for rate in self._rates if rate.is_on]
        try:
            self._dispatcher.dispatch(now)
        except Exception:
            self._pace.failed(now)
            raise
        self._pace.succeeded()
        if self._held_until is not None or not self._dispatcher.has_more:
            return False
        return any(
            consumer.is_held_by_turn or (consumer.can_take and not self._reads_left) for consumer in self.consumers
        )

    def may_read(self, now: int) -> bool:
        """Tell whether one more entry may be read and delivered in this turn."""
        if self._reads_left and self._rates_in_use and (wait := max(rate.wait_ms(now) for rate in self._rates_in_use)):
            self._held_until = now + wait
            return False
        return self._reads_left > 0

    def set_back(self, now: int) -> None:
        """Wait no longer than before: the clock was set back."""
        self._pace.set_back(now)
        if isinstance(self._dispatcher, _OneActive):
            self._dispatcher.set_back(now)

    def next_tick(self) -> int | None:
        """Return when something is due."""
        if self._pace.retry_at is not None:
            return self._pace.retry_at
        dues = [due for due in (self._held_until, self._dispatcher.due) if due is not None]
        return min(dues) if dues else None

    def readable(self, offset: int) -> Entry | None:
        """Return the unacknowledged entry at an offset; None if it is not for consumers, or not now."""
        self._reads_left -= 1
        entry = self.log.entry(offset)
        if entry is not None and entry.is_slow:
            self._reads_left = 0  # others have their turn
        if entry is None:
            after = self.log.next_readable(offset)
            self.lost += after - offset
            self.cursor.ack(offset, after - offset)
        elif entry.is_marker:
            self.lost += 0 if entry.payload else 1  # not a message at all, from a producer or on disk
            self.cursor.ack(entry.offset, entry.size)
            return None
        elif self._is_wanted is not None and not self._some_wanted(entry):
            return None
        return entry

    def _some_wanted(self, entry: Entry) -> bool:
        """Acknowledge the messages of an entry that do not match, and tell whether others do."""
        assert self._is_wanted is not None
        wanted = sum(self._is_wanted(properties) << place for place, properties in enumerate(entry.properties))
        if not entry.properties or wanted == (1 << entry.messages) - 1:
            return True
        self._wanted_of = entry.offset, wanted
        left = self.cursor.ack_some(entry.offset, entry.size, entry.messages, wanted)
        if left and not left & wanted:  # there was no room for their bits
            self.cursor.ack(entry.offset, entry.size)
        return bool(left & wanted)

    def given_before(self, offset: int) -> tuple[Entry, int] | None:
        """Return an entry to be redelivered, and its first unacknowledged offset; None if nothing of it is left."""
        if offset < self.log.start:
            return None
        entry = self.readable(offset)
        if entry is None or (open_at := self.cursor.next_open(entry.offset)) >= entry.end:
            return None
        return entry, open_at

    def left_of(self, entry: Entry, offset: int) -> int:
        """Return which messages of an entry are not acknowledged if all before an offset are."""
        everything = (1 << entry.messages) - 1
        left = self.cursor.left.get(entry.offset, everything) & everything
        if self._wanted_of[0] == entry.offset:
            left &= self._wanted_of[1]
        behind = left >> (offset - entry.offset) << (offset - entry.offset)
        return behind or everything >> (offset - entry.offset) << (offset - entry.offset)

    def give(self, consumer: PulsarConsumer, entry: Entry, left: int, count: int) -> None:
        """Send an entry."""
        messages = left.bit_count()
        self.given += messages
        consumer.permits -= messages
        consumer.bytes_of_turn += entry.length
        for rate in self._rates_in_use:
            rate.take(messages, entry.length)
        consumer.average = 0.9 * consumer.average + 0.1 * entry.messages
        is_whole = messages == entry.messages
        consumer.receiver.deliver(consumer, entry, None if is_whole else left, count)


class _Dispatcher(ABC):
    """Decides which consumer gets which entries."""

    due: int | None = None
    active: PulsarConsumer | None = None
    unacked = 0
    """Unacknowledged messages of its consumers, if they are counted."""

    def __init__(self, subscription: PulsarSubscription) -> None:
        self.subscription = subscription
        self.cursor = subscription.cursor
        self.read_offset = subscription.cursor.next_offset

    @abstractmethod
    def added(self, consumer: PulsarConsumer, now: int) -> None: ...

    @abstractmethod
    def removed(self, consumer: PulsarConsumer, now: int) -> None: ...

    @abstractmethod
    def size_of(self, offset: int) -> tuple[int, int] | None: ...

    @abstractmethod
    def acked(self, offset: int, left: int) -> None: ...

    @abstractmethod
    def redeliver(self, consumer: PulsarConsumer, offsets: Collection[int] | None) -> None: ...

    @abstractmethod
    def dispatch(self, now: int) -> None: ...

    @abstractmethod
    def moved(self) -> None: ...

    @property
    def has_more(self) -> bool:
        return self.cursor.next_open(self.read_offset) < self.subscription.log.end

    @property
    @abstractmethod
    def size(self) -> int:
        """How much is kept about entries that are delivered, to be redelivered, or delayed."""


class _OneActive(_Dispatcher):
    """Exclusive and Failover."""

    def __init__(self, subscription: PulsarSubscription) -> None:
        super().__init__(subscription)
        self._known: OrderedDict[int, tuple[int, int]] = OrderedDict()  # delivered entries, in their order
        self._order: list[tuple[int, str, int, PulsarConsumer]] = []
        """Consumers by priority, name, and order of joining."""
        self._serials: dict[PulsarConsumer, int] = {}
        self._next_serial = itertools.count()

    def added(self, consumer: PulsarConsumer, now: int) -> None:
        self._serials[consumer] = next(self._next_serial)
        bisect.insort(self._order, self._place_of(consumer))
        self._choose(now)
        if self.active is not consumer:
            consumer.receiver.tell_active(consumer, False)

    def removed(self, consumer: PulsarConsumer, now: int) -> None:
        del self._order[bisect.bisect_left(self._order, self._place_of(consumer))]
        del self._serials[consumer]
        if consumer is self.active:
            self.active = None
        elif self.subscription.partition < 0:  # the points of the others do not move
            return
        self._choose(now)

    def _place_of(self, consumer: PulsarConsumer) -> tuple[int, str, int, PulsarConsumer]:
        return consumer.priority, consumer.name, self._serials[consumer], consumer

    def _choose(self, now: int) -> None:
        subscription, order = self.subscription, self._order
        chosen = order[0][3] if order else None
        is_failover = subscription.kind is SubscriptionType.FAILOVER
        if chosen is not None and is_failover:
            count = bisect.bisect_right(order, chosen.priority, key=lambda place: place[0])
            if subscription.partition >= 0:
                chosen = order[subscription.partition % count][3]
            else:
                chosen = order[active_of([name for _, name, _, _ in order[:count]], subscription.topic)][3]
        if chosen is self.active:
            return
        self.active = chosen
        self.due = now + _FAILOVER_DELAY_MS if chosen is not None and is_failover else None
        self.moved()

    def set_back(self, now: int) -> None:
        if self.due is not None:
            self.due = min(self.due, now + _FAILOVER_DELAY_MS)

    def moved(self) -> None:
        self.read_offset = self.cursor.next_offset
        self._known.clear()

    def size_of(self, offset: int) -> tuple[int, int] | None:
        return self._known.get(offset)

    def acked(self, offset: int, left: int) -> None:
        if not left:
            self._known.pop(offset, None)

    @property
    def size(self) -> int:
        return len(self._known)

    def redeliver(self, consumer: PulsarConsumer, offsets: Collection[int] | None) -> None:  # noqa: ARG002
        if consumer is self.active and self.due is None:
            self.moved()

    def dispatch(self, now: int) -> None:
        subscription, active = self.subscription, self.active
        if self.due is not None:
            if now < self.due:
                return
            self.due = None
            self.moved()
            for consumer in subscription.consumers:
                consumer.receiver.tell_active(consumer, consumer is active)
        slots = active.slots if active is not None and subscription.kind is SubscriptionType.EXCLUSIVE else Spans()
        log_end = subscription.log.end
        while active is not None and active.can_take and subscription.may_read(now) and subscription.may_filter(now):
            offset = self.read_offset = self.cursor.next_open(self.read_offset)
            if offset >= log_end:
                return
            entry = subscription.readable(offset)
            self.read_offset = entry.end if entry is not None else offset + 1
            if entry is None:
                continue
            if slots and slots.end_at(slot := range_slot(entry.key)) == slot:
                continue
            left = subscription.left_of(entry, offset)
            while len(self._known) >= (_FEW_KNOWN if subscription.is_short_of_room else _MAX_KNOWN):
                self._known.popitem(last=False)
            self._known[entry.offset] = (entry.size, entry.messages)
            subscription.give(active, entry, left, 0)


class _Several(_Dispatcher):
    """The common part of Shared and Key_Shared: who has which entry, redelivery, and delayed entries."""

    def __init__(self, subscription: PulsarSubscription) -> None:
        super().__init__(subscription)
        self.owners: dict[int, PulsarConsumer] = {}
        self.counts: dict[int, int] = {}  # how often redelivery of entries was requested
        self._delayed: list[tuple[int, int, int]] = []  # a heap of times, offsets and slots
        self._is_full = False

    # Redelivery

    @abstractmethod
    def again(self, offsets: Iterable[tuple[int, int]]) -> None:
        """Schedule entries for redelivery: offset and slot of each."""

    @abstractmethod
    def forget(self, offset: int) -> None:
        """Stop redelivery of an entry."""

    @abstractmethod
    def count_again(self) -> int:
        """Return the number of entries to be redelivered."""

    def added(self, consumer: PulsarConsumer, now: int) -> None:  # noqa: ARG002
        if len(self.subscription.consumers) == 1:
            self.moved()

    def removed(self, consumer: PulsarConsumer, now: int) -> None:  # noqa: ARG002
        for offset in consumer.given:
            del self.owners[offset]
        self.unacked -= consumer.unacked
        if not self.subscription.consumers:
            self.moved()
            self.counts.clear()
        else:
            self.again((offset, delivery.slot) for offset, delivery in consumer.given.items())

    def moved(self) -> None:
        self.read_offset = self.cursor.next_offset
        self._delayed.clear()
        self.due = None
        self.unacked = 0
        for consumer in self.subscription.consumers:
            consumer.given.clear()
            consumer.unacked = 0
            if consumer.is_blocked:
                consumer.unblock()
        self.owners.clear()

    def size_of(self, offset: int) -> tuple[int, int] | None:
        owner = self.owners.get(offset)
        return owner.given[offset][:2] if owner is not None else None

    def acked(self, offset: int, left: int) -> None:
        owner = self.owners.get(offset)
        if owner is not None:
            delivery = owner.given[offset]
            now_left = left.bit_count()
            owner.unacked -= delivery.left - now_left
            self.unacked -= delivery.left - now_left
            if left:
                owner.given[offset] = delivery._replace(left=now_left)
            else:
                del owner.given[offset], self.owners[offset]
                self.released(delivery.slot)
            owner.look_at_unacked(MAX_UNACKED)
        if not left:
            self.counts.pop(offset, None)
            self.forget(offset)

    def redeliver(self, consumer: PulsarConsumer, offsets: Collection[int] | None) -> None:
        wanted = (
            [*consumer.given]
            if offsets is None
            else [offset for offset in dict.fromkeys(offsets) if offset in consumer.given]
        )
        back = []
        for offset in wanted:
            delivery = consumer.given.pop(offset)
            del self.owners[offset]
            consumer.unacked -= delivery.left
            self.unacked -= delivery.left
            self.counts[offset] = self.counts.get(offset, 0) + 1
            back.append((offset, delivery.slot))
            self.released(delivery.slot)
        if consumer.is_blocked:
            consumer.unblock()
        self.again(back)

    def released(self, slot: int) -> None:
        """Note that no consumer has an entry of a slot any more."""

    # Delivery

    def hand(self, consumer: PulsarConsumer, entry: Entry, offset: int, slot: int) -> None:
        """Deliver an entry to a consumer."""
        left = self.subscription.left_of(entry, offset)
        messages = left.bit_count()
        consumer.given[entry.offset] = Given(entry.size, entry.messages, messages, slot)
        consumer.unacked += messages
        self.unacked += messages
        self.owners[entry.offset] = consumer
        self.subscription.give(consumer, entry, left, self.counts.get(entry.offset, 0))
        consumer.look_at_unacked(MAX_UNACKED)

    @property
    def size(self) -> int:
        return len(self.owners) + len(self._delayed) + len(self.counts) + self.count_again()

    def may_read_on(self, now: int) -> bool:
        """Tell whether entries that were never delivered may be read."""
        if self.unacked >= MAX_UNACKED_IN_ALL:
            self._is_full = True
        elif self.unacked < MAX_UNACKED_IN_ALL // 2:
            self._is_full = False
        has_room = not self._is_full and len(self._delayed) < _MAX_DELAYED
        return has_room and self.subscription.may_hold_more(now) and self.subscription.may_filter(now)

    def read_next(self, now: int) -> tuple[Entry, int] | None:
        """Return the next undelivered entry and where it starts; None at the end of the log or of this turn."""
        end = self.subscription.log.end
        while self.subscription.may_read(now):
            offset = self.read_offset = self.cursor.next_open(self.read_offset)
            if offset >= end:
                return None
            entry = self.subscription.readable(offset)
            self.read_offset = entry.end if entry is not None else offset + 1
            if entry is None:
                continue
            if entry.deliver_at <= now:
                return entry, offset
            heapq.heappush(self._delayed, (entry.deliver_at, entry.offset, self.slot_of(entry)))
            self.due = self._delayed[0][0]
            if len(self._delayed) >= _MAX_DELAYED:
                return None
        return None

    def take_due(self, now: int) -> None:
        """Schedule the delayed entries that are due, if there are many a part of them: the next turn has more."""
        for _ in range(_MAX_DUE):
            if not self._delayed or self._delayed[0][0] > now:
                break
            _, offset, slot = heapq.heappop(self._delayed)
            self.again([(offset, slot)])
        self.due = max(self._delayed[0][0], now + 1) if self._delayed else None

    def slot_of(self, entry: Entry) -> int:  # noqa: ARG002
        """Return the slot of an entry."""
        return 0


class _SharedDispatch(_Several):
    """Shared: entries go round robin to consumers that can take one, best priority first."""

    def __init__(self, subscription: PulsarSubscription) -> None:
        super().__init__(subscription)
        self._again: list[int] = []  # a heap
        self._is_again: set[int] = set()
        self._turn = 0
        self._chunks: dict[str, PulsarConsumer] = {}  # the receiver of a first chunk gets all chunks
        self._waiting: dict[PulsarConsumer, list[int]] = {}  # heaps of chunks that it cannot take yet

    def again(self, offsets: Iterable[tuple[int, int]]) -> None:
        for offset, _ in offsets:
            if offset not in self._is_again:
                self._is_again.add(offset)
                heapq.heappush(self._again, offset)

    def forget(self, offset: int) -> None:
        self._is_again.discard(offset)

    def count_again(self) -> int:
        return len(self._again) + self._count_waiting()

    def _count_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def moved(self) -> None:
        super().moved()
        self._again.clear()
        self._is_again.clear()
        self._chunks.clear()
        self._waiting.clear()

    def removed(self, consumer: PulsarConsumer, now: int) -> None:
        self.again((offset, 0) for offset in self._waiting.pop(consumer, ()))
        self._chunks = {
            uuid: consumer_of_chunk
            for uuid, consumer_of_chunk in self._chunks.items()
            if consumer_of_chunk is not consumer
        }
        super().removed(consumer, now)

    @property
    def has_more(self) -> bool:
        return bool(self._is_again or self._waiting) or super().has_more

    def may_read_on(self, now: int) -> bool:
        return super().may_read_on(now) and self._count_waiting() < _MAX_AHEAD

    def dispatch(self, now: int) -> None:
        self.take_due(now)
        for owner in [owner for owner in self._waiting if owner.can_take]:
            chunks = self._waiting[owner]
            self.again((heapq.heappop(chunks), 0) for _ in range(min(len(chunks), owner.permits)))
            if not chunks:
                del self._waiting[owner]
        while (consumer := self._next_consumer()) is not None:
            headroom = max(1, min(consumer.permits, MAX_UNACKED - consumer.unacked))
            run = max(1, min(_RUN, -int(-headroom // max(consumer.average, 1.0))))
            for _ in range(run):
                if not consumer.can_take:
                    break
                next_entry = self._next_entry(now)
                if next_entry is None:
                    return
                self._hand_on(consumer, *next_entry)

    def _hand_on(self, consumer: PulsarConsumer, entry: Entry, offset: int) -> None:
        if 0 < len(entry.chunk_of) <= 2 * MAX_NAME:
            owner = self._chunks.setdefault(entry.chunk_of, consumer)
            if len(self._chunks) > _MAX_CHUNKED:
                del self._chunks[next(iter(self._chunks))]
            if not owner.can_take:
                heapq.heappush(self._waiting.setdefault(owner, []), entry.offset)
                return
            consumer = owner
        self.hand(consumer, entry, offset, 0)

    def _next_consumer(self) -> PulsarConsumer | None:
        consumers = self.subscription.consumers
        able = [number for number, consumer in enumerate(consumers) if consumer.can_take]
        if not able:
            return None
        best = consumers[able[0]].priority
        able = [number for number in able if consumers[number].priority == best]
        self._turn = next((number for number in able if number > self._turn), able[0])
        return consumers[self._turn]

    def _next_entry(self, now: int) -> tuple[Entry, int] | None:
        while self._again and self.subscription.may_read(now):
            offset = self._again[0]
            entry = self.subscription.given_before(offset) if offset in self._is_again else None  # reading may fail
            heapq.heappop(self._again)
            self._is_again.discard(offset)
            if entry is not None:
                return entry
        return self.read_next(now) if self.may_read_on(now) else None


class _KeyShared(_Several):
    """Key_Shared: the entries of a slot go to one consumer at a time, in order."""

    def __init__(self, subscription: PulsarSubscription, policy: KeyPolicy) -> None:
        super().__init__(subscription)
        self._is_ordered = not policy.allows_disorder
        self._ranges: StickyHashRanges[PulsarConsumer] | None = StickyHashRanges() if policy.is_sticky else None
        self._ring: Ring[PulsarConsumer] = Ring(lambda consumer: consumer.name)
        self._again: dict[int, list[int]] = {}  # offsets of each slot, as heaps
        self._is_again: dict[int, int] = {}  # slots by offset
        self._held: dict[int, int] = {}  # how many entries of a slot are with a consumer
        self._holders: dict[int, PulsarConsumer] = {}  # and with which one

    def slot_of(self, entry: Entry) -> int:
        return self._ranges.slot(entry.key) if self._ranges is not None else self._ring.slot(entry.key)

    def _select(self, slot: int) -> PulsarConsumer | None:
        return self._ranges.select(slot) if self._ranges is not None else self._ring.select(slot)

    def added(self, consumer: PulsarConsumer, now: int) -> None:
        if self._ranges is not None:
            self._ranges.add(consumer, consumer.policy.ranges)
        else:
            self._ring.add(consumer)
        super().added(consumer, now)

    def removed(self, consumer: PulsarConsumer, now: int) -> None:
        if self._ranges is not None:
            self._ranges.remove(consumer)
        else:
            self._ring.remove(consumer)
        for delivery in consumer.given.values():
            self.released(delivery.slot)
        super().removed(consumer, now)

    def moved(self) -> None:
        super().moved()
        self._again.clear()
        self._is_again.clear()
        self._held.clear()
        self._holders.clear()

    def again(self, offsets: Iterable[tuple[int, int]]) -> None:
        for offset, slot in offsets:
            if offset not in self._is_again:
                self._is_again[offset] = slot
                heapq.heappush(self._again.setdefault(slot, []), offset)

    def forget(self, offset: int) -> None:
        slot = self._is_again.pop(offset, None)
        if slot is not None:
            self._first_of(slot)

    def count_again(self) -> int:
        return len(self._is_again)

    def _first_of(self, slot: int) -> int | None:
        """Return the first entry of a slot that is to be redelivered."""
        heap = self._again.get(slot)
        while heap:
            if heap[0] in self._is_again:
                return heap[0]
            heapq.heappop(heap)
        self._again.pop(slot, None)
        return None

    def released(self, slot: int) -> None:
        left = self._held.get(slot, 0) - 1
        if left > 0:
            self._held[slot] = left
        else:
            self._held.pop(slot, None)
            self._holders.pop(slot, None)

    def hand(self, consumer: PulsarConsumer, entry: Entry, offset: int, slot: int) -> None:
        self._held[slot] = self._held.get(slot, 0) + 1
        self._holders[slot] = consumer
        super().hand(consumer, entry, offset, slot)

    @property
    def has_more(self) -> bool:
        return bool(self._is_again) or super().has_more

    def _taker(self, slot: int) -> PulsarConsumer | None:
        """Return the consumer that can get an entry of a slot now."""
        consumer = self._select(slot)
        if consumer is None or not consumer.can_take:
            return None
        if self._is_ordered and self._holders.get(slot, consumer) is not consumer:
            return None  # the former owner of the slot has not finished
        return consumer

    def dispatch(self, now: int) -> None:
        self.take_due(now)
        ready = [
            (first, slot)
            for slot in [*self._again]
            if self._taker(slot) and (first := self._first_of(slot)) is not None
        ]
        heapq.heapify(ready)
        while ready:
            offset, slot = heapq.heappop(ready)
            consumer = self._taker(slot)
            if consumer is None:
                continue
            if not self.subscription.may_read(now):
                return
            next_entry = self.subscription.given_before(offset)  # which reads it, and may fail
            del self._is_again[offset]
            if next_entry is not None:
                self.hand(consumer, *next_entry, slot)
            if (following := self._first_of(slot)) is not None:
                heapq.heappush(ready, (following, slot))
        most = min(2000 * len(self.subscription.consumers), _MAX_AHEAD)
        while (
            len(self._is_again) < most
            and self.may_read_on(now)
            and any(consumer.can_take for consumer in self.subscription.consumers)
        ):
            next_entry = self.read_next(now)
            if next_entry is None:
                return
            entry, offset = next_entry
            slot = self.slot_of(entry)
            consumer = None if self._is_ordered and slot in self._again else self._taker(slot)
            if consumer is None:
                self.again([(entry.offset, slot)])
            else:
                self.hand(consumer, entry, offset, slot)
