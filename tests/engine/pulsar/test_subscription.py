"""Subscriptions of all four types in virtual time: consumers that come, go, acknowledge, ask again and read slowly."""

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from mqtool.engine.pulsar.cursor import Cursor
from mqtool.engine.pulsar.entries import Entry
from mqtool.engine.pulsar.filters import EVERYTHING, EntryFilter
from mqtool.engine.pulsar.refusal import PulsarRefusedError
from mqtool.engine.pulsar.subscription import KeyPolicy, PulsarConsumer, PulsarSubscription, SubscriptionType

KEYS = [b"k0", b"k1", b"order-2"]
"""Of these k1 and order-2 go over to c3 where that joins c1 and c2."""


class Entries:
    """A queue in memory."""

    def __init__(self) -> None:
        self.start = 0
        self.all: list[Entry] = []
        self.end = 0

    def append(self, size: int, *, is_raw: bool, key: bytes, deliver_at: int, is_marker: bool = False) -> Entry:
        offset = self.end
        messages, size = (size, 1) if is_raw else (size, size)
        made = Entry(offset, size, messages, size > 1, b"", key, deliver_at, is_marker, "", 100)
        self.all += [made] * size
        self.end += size
        return made

    def entry(self, offset: int) -> Entry | None:
        return self.all[offset]

    def size_at(self, offset: int) -> tuple[int, int] | None:
        found = self.all[offset] if offset < self.end else None
        return (found.size, found.messages) if found and found.offset == offset else None

    def next_readable(self, offset: int) -> int:
        return offset + 1


class ConsumerSide:
    """A consumer's side: what it was given and has neither acknowledged nor given back."""

    def __init__(self, machine: "Subscribed") -> None:
        self.machine = machine
        self.is_backed_up = False
        self.granted = 0
        self.taken = 0
        self.has: dict[int, int] = {}  # messages that are not acknowledged, as bits

    def deliver(self, consumer: PulsarConsumer, entry: Entry, left: int | None, count: int) -> None:
        everything = (1 << entry.messages) - 1
        given = everything if left is None else left
        assert consumer in self.machine.subscription.consumers
        assert not self.is_backed_up
        assert self.granted > self.taken, (
            "nothing is given without permits, though a batch may take more than there are"
        )
        self.taken += given.bit_count()
        self.machine.delivered(self, entry, given, count)

    def tell_active(self, consumer: PulsarConsumer, is_active: bool) -> None:  # noqa: ARG002
        if is_active:
            self.machine.active = self


class Subscribed(RuleBasedStateMachine):
    """A subscription, and what it may and must do."""

    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000
        self.log = Entries()
        self.numbers = itertools.count()
        self.acked: set[tuple[int, int]] = set()  # offset of an entry and index of a message of it
        self.holders: dict[int, ConsumerSide] = {}
        self.active: ConsumerSide | None = None
        self.asked_again: set[int] = set()

    @initialize(target=clients, kind=st.sampled_from([*SubscriptionType, SubscriptionType.KEY_SHARED]))
    def begin(self, kind: SubscriptionType) -> Any:
        self.kind = kind
        self.subscription = PulsarSubscription("s", self.log, Cursor(0), "persistent://public/default/t")
        self.there: dict[ConsumerSide, PulsarConsumer] = {}
        for number in range(6):
            self.send(1 + 4 * (number == 4), number == 5, KEYS[number % 3], 0, False)
        joined = [self.join(name, 0) for name in (["c1"] if kind is SubscriptionType.EXCLUSIVE else ["c1", "c2"])]
        for client in joined:
            self.flow(client, 3)
        return multiple(*joined)

    # What happens

    @rule(
        size=st.sampled_from([1, 1, 1, 2, 5]),
        is_raw=st.booleans(),
        key=st.sampled_from(KEYS),
        delay=st.sampled_from([0, 0, 0, 500]),
        is_marker=st.sampled_from([False] * 9 + [True]),
    )
    def send(self, size: int, is_raw: bool, key: bytes, delay: int, is_marker: bool) -> None:
        deliver_at = self.now + delay if delay else 0
        made = self.log.append(size, is_raw=is_raw, key=key, deliver_at=deliver_at, is_marker=is_marker)
        if is_marker:
            self.acked |= {(made.offset, index) for index in range(made.messages)}

    @rule(target=clients, name=st.sampled_from(["c1", "c2", "c3", "c3"]), priority=st.sampled_from([0, 0, 1]))
    def join(self, name: str, priority: int) -> ConsumerSide:
        client = ConsumerSide(self)
        consumer = PulsarConsumer(client, next(self.numbers), name, priority, KeyPolicy())
        try:
            self.subscription.add(consumer, self.kind, self.now)
        except PulsarRefusedError:
            assert self.kind is SubscriptionType.EXCLUSIVE and self.there
        else:
            self.there[client] = consumer
        return client

    @rule(client=consumes(clients))
    def leave(self, client: ConsumerSide) -> None:
        if (consumer := self.there.pop(client, None)) is not None:
            self.asked_again |= set(client.has)
            self.subscription.remove(consumer, self.now)
            self.holders = {offset: one for offset, one in self.holders.items() if one is not client}
            client.has.clear()

    @rule(client=clients, permits=st.sampled_from([1, 3, 20]))
    def flow(self, client: ConsumerSide, permits: int) -> None:
        if (consumer := self.there.get(client)) is not None:
            client.granted += permits
            self.subscription.flow(consumer, permits)

    @rule(client=clients, is_backed_up=st.booleans())
    def back_up(self, client: ConsumerSide, is_backed_up: bool) -> None:
        client.is_backed_up = is_backed_up

    @rule(client=clients, data=st.data())
    def ack(self, client: ConsumerSide, data: st.DataObject) -> None:
        if client in self.there and client.has:
            offset = data.draw(st.sampled_from(sorted(client.has)))
            self._acked(offset, client.has.pop(offset))
            self.subscription.ack(offset)

    @rule(client=clients, data=st.data())
    def ack_some(self, client: ConsumerSide, data: st.DataObject) -> None:
        """Acknowledge some messages of a batch; clients repeat sets, and widen them after a redelivery."""
        if client in self.there and client.has:
            offset = data.draw(st.sampled_from(sorted(client.has)))
            left = data.draw(st.integers(0, (1 << self.log.all[offset].messages) - 1))
            self._acked(offset, ~left & (1 << self.log.all[offset].messages) - 1)
            client.has[offset] &= left
            if not client.has[offset]:
                del client.has[offset]
            self.subscription.ack(offset, left)

    @precondition(lambda self: self.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER))
    @rule(client=clients, data=st.data())
    def ack_all(self, client: ConsumerSide, data: st.DataObject) -> None:
        if client in self.there and client.has:
            until = data.draw(st.sampled_from(sorted(client.has)))
            for entry in {one.offset: one for one in self.log.all[: until + 1]}.values():
                self.acked |= {(entry.offset, index) for index in range(entry.messages)}
                client.has.pop(entry.offset, None)
                self.holders.pop(entry.offset, None)
            self.subscription.ack_until(until)

    @rule(offset=st.integers(0, 60), left=st.one_of(st.none(), st.integers(0, 31)))
    def ack_what_is_not_there(self, offset: int, left: int | None) -> None:
        if self.log.size_at(offset) is None:
            self.subscription.ack(offset, left)

    @rule(client=clients, all_of_it=st.booleans(), data=st.data())
    def redeliver(self, client: ConsumerSide, all_of_it: bool, data: st.DataObject) -> None:
        if (consumer := self.there.get(client)) is None:
            return
        offsets = None
        if not all_of_it and self.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            offsets = data.draw(st.lists(st.integers(0, 60), max_size=4))
        back = [*client.has] if offsets is None else [one for one in offsets if one in client.has]
        for offset in back:
            self.asked_again.add(offset)
            client.has.pop(offset, None)
            self.holders.pop(offset, None)
        self.subscription.redeliver(consumer, offsets)

    @rule(milliseconds=st.sampled_from([1, 400, 1000]))
    def time_passes(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.subscription.dispatch(self.now)

    # What must hold

    def _acked(self, offset: int, bits: int) -> None:
        messages = self.log.all[offset].messages
        self.acked |= {(offset, index) for index in range(messages) if bits >> index & 1}
        if all((offset, index) in self.acked for index in range(messages)):
            self.holders.pop(offset, None)

    def delivered(self, client: ConsumerSide, entry: Entry, given: int, count: int) -> None:
        assert not entry.is_marker
        for index in range(entry.messages):
            assert bool(given >> index & 1) == ((entry.offset, index) not in self.acked), (
                "just what is not acknowledged"
            )
        holder = self.holders.get(entry.offset)
        if self.kind is SubscriptionType.EXCLUSIVE:
            assert holder in (None, client)
            assert [*self.there] == [client]
        elif self.kind is SubscriptionType.FAILOVER:
            assert client is self.active, "only the active one is given anything"
        else:
            assert holder is None, "it is with nobody else"
            assert entry.deliver_at <= self.now, "not before its time"
            assert (count > 0) <= (entry.offset in self.asked_again)
        if self.kind is SubscriptionType.KEY_SHARED:
            others = [one for offset, one in self.holders.items() if self.log.all[offset].key == entry.key]
            assert all(one is client for one in others), "a key is with one at a time"
            if entry.offset not in self.asked_again and not entry.deliver_at:
                first = [
                    one
                    for one in self.log.all[: entry.offset]
                    if one.key == entry.key
                    and not one.deliver_at
                    and not one.is_marker
                    and any((one.offset, index) not in self.acked for index in range(one.messages))
                ]
                assert all(one.offset in self.holders for one in first), "those before it with its key were given"
        client.has[entry.offset] = given
        self.holders[entry.offset] = client

    @invariant()
    def the_cursor_passes_nothing_that_is_not_acknowledged(self) -> None:
        if not hasattr(self, "subscription"):
            return
        while self.subscription.dispatch(self.now):
            pass
        cursor = self.subscription.cursor
        for offset, entry in enumerate(self.log.all):
            if cursor.next_open(offset) > offset:
                assert all((entry.offset, index) in self.acked for index in range(entry.messages))
            left = cursor.left.get(entry.offset)
            if left is not None:
                for index in range(entry.messages):
                    assert bool(left >> index & 1) == ((entry.offset, index) not in self.acked)

    def teardown(self) -> None:
        """Have one consumer take all that is left: every message is acknowledged in the end."""
        if not hasattr(self, "subscription"):
            return
        for client, consumer in [*self.there.items()]:
            del self.there[client]
            self.subscription.remove(consumer, self.now)
        self.holders.clear()
        self.asked_again |= {entry.offset for entry in self.log.all}
        last = ConsumerSide(self)
        consumer = self.there[last] = PulsarConsumer(last, 1 << 20, "last")
        self.subscription.add(consumer, self.kind, self.now)
        last.granted = 1 << 30
        self.subscription.flow(consumer, last.granted)
        for _ in range(3):
            self.now += 2000
            while self.subscription.dispatch(self.now):
                pass
            for offset, given in [*last.has.items()]:
                self._acked(offset, given)
                self.subscription.ack(offset)
            last.has.clear()
        for entry in self.log.all:
            assert all((entry.offset, index) in self.acked for index in range(entry.messages)), "every one came"
        assert self.subscription.cursor.next_offset == self.log.end
        assert not self.subscription.cursor.left and not len(self.subscription.cursor.spans)


TestSubscribed: Any = Subscribed.TestCase
TestSubscribed.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


class Taker:
    """A consumer's side that notes what it is given."""

    def __init__(self) -> None:
        self.is_backed_up = False
        self.given: list[tuple[int, int | None]] = []

    @property
    def has(self) -> list[int]:
        return [offset for offset, _ in self.given]

    def deliver(self, consumer: PulsarConsumer, entry: Entry, left: int | None, count: int) -> None:  # noqa: ARG002
        self.given.append((entry.offset, left))

    def tell_active(self, consumer: PulsarConsumer, is_active: bool) -> None:
        raise NotImplementedError


def joined(subscription: PulsarSubscription, name: str, permits: int, policy: KeyPolicy | None = None) -> Taker:
    taker = Taker()
    consumer = PulsarConsumer(taker, len(subscription.consumers), name, 0, policy)
    subscription.add(consumer, SubscriptionType.KEY_SHARED, 0)
    subscription.flow(consumer, permits)
    return taker


def test_a_key_goes_over_to_a_newcomer_once_all_that_was_given_of_it_is_acknowledged() -> None:
    log = Entries()
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    first, second = joined(subscription, "c1", 100), joined(subscription, "c2", 100)
    for _ in range(2):
        log.append(1, is_raw=False, key=b"k1", deliver_at=0)
    subscription.dispatch(0)
    third = joined(subscription, "c3", 100)
    log.append(1, is_raw=False, key=b"k1", deliver_at=0)
    subscription.dispatch(0)
    assert (first.has, second.has, third.has) == ([], [0, 1], [])

    subscription.ack(0)
    subscription.dispatch(0)
    assert third.has == []
    subscription.ack(1)
    subscription.dispatch(0)
    assert third.has == [2]


def test_what_is_acknowledged_of_a_batch_stays_so_whatever_a_client_says_later() -> None:
    log = Entries()
    log.append(5, is_raw=False, key=b"k", deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")

    subscription.ack(0, 0b11100)
    subscription.ack(0, 0b11111)
    assert subscription.cursor.left == {0: 0b11100}
    subscription.ack(0, 0b00011)

    assert (subscription.cursor.next_offset, subscription.cursor.left) == (5, {})


def test_the_rest_of_a_batch_comes_again_whose_first_messages_a_group_of_rocketmq_has_read() -> None:
    for kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
        log = Entries()
        log.append(3, is_raw=False, key=b"k", deliver_at=0)
        subscription = PulsarSubscription("s", log, Cursor(1), "persistent://public/default/t")
        taker = Taker()
        consumer = PulsarConsumer(taker, 0, "c1")
        subscription.add(consumer, kind, 0)
        subscription.flow(consumer, 10)
        subscription.dispatch(0)

        subscription.redeliver(consumer, [0])
        subscription.dispatch(0)
        subscription.ack(0, 0b011)  # a client that knows nothing of what was read before

        assert (taker.has, subscription.cursor.left) == ([0, 0], {0: 0b010})
        subscription.ack(0, 0b101)
        assert subscription.cursor.next_offset == 3


def test_a_cumulative_acknowledgement_of_a_place_within_a_batch_acknowledges_nothing_of_it() -> None:
    log = Entries()
    log.append(3, is_raw=False, key=b"k", deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")

    subscription.ack_until(1)
    assert subscription.cursor.next_offset == 0
    subscription.ack_until(2)  # which is where clients find the entry before the next one

    assert subscription.cursor.next_offset == 3


def test_a_filter_acknowledges_what_is_not_wanted_also_of_a_batch() -> None:
    log = Entries()
    for tags in (b"AB", b"B", b"A"):
        made = log.append(len(tags), is_raw=False, key=b"k", deliver_at=0)
        properties = tuple(b"TAGS\1Tag%c\2price\1%d\2" % (tag, tag - 64) for tag in tags)
        log.all[-len(tags) :] = [made._replace(properties=properties)] * len(tags)
    raw = log.append(2, is_raw=True, key=b"k", deliver_at=0)
    for wanted, expected in (
        (EntryFilter("TagA || TagC"), [(0, 0b01), (3, None), (raw.offset, None)]),
        (EntryFilter(sql="price > 1"), [(0, 0b10), (2, None), (raw.offset, None)]),
        (EntryFilter("TagA", "price > 1"), [(raw.offset, None)]),
    ):
        subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
        taker = Taker()
        consumer = PulsarConsumer(taker, 0, "c1", wanted=wanted)
        subscription.add(consumer, SubscriptionType.SHARED, 0)
        subscription.flow(consumer, 10)
        subscription.dispatch(0)
        assert taker.given == expected
        for offset, _ in expected:
            subscription.ack(offset)
        assert subscription.cursor.next_offset == log.end
        with pytest.raises(PulsarRefusedError, match="a different filter"):
            subscription.check(SubscriptionType.SHARED, KeyPolicy(), EntryFilter("TagX"))


@pytest.mark.parametrize(
    "wanted", [EntryFilter("||"), EntryFilter(sql="price >"), EntryFilter("x" * 20_000), EntryFilter(sql="a" * 3000)]
)
def test_a_filter_that_makes_no_sense_is_refused(wanted: EntryFilter) -> None:
    with pytest.raises(PulsarRefusedError, match="filter"):
        wanted.compiled()


def test_what_a_consumer_leaves_behind_goes_to_another() -> None:
    log = Entries()
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    first, second = joined(subscription, "c1", 100), joined(subscription, "c2", 100)
    for key in (b"k0", b"k1", b"k0"):
        log.append(1, is_raw=False, key=key, deliver_at=0)
    subscription.dispatch(0)
    assert (first.has, second.has) == ([0, 2], [1])

    subscription.remove(subscription.consumers[0], 0)
    subscription.dispatch(0)

    assert second.has == [1, 0, 2]


def shared(subscription: PulsarSubscription, permits: int, wanted: EntryFilter = EVERYTHING) -> Taker:
    taker = Taker()
    consumer = PulsarConsumer(taker, len(subscription.consumers), f"c{len(subscription.consumers)}", wanted=wanted)
    subscription.add(consumer, SubscriptionType.SHARED, 0)
    subscription.flow(consumer, permits)
    return taker


def test_the_chunks_of_a_message_wait_for_their_consumer_and_others_are_served() -> None:
    log = Entries()
    for _ in range(4):
        made = log.append(1, is_raw=False, key=b"k", deliver_at=0)
        log.all[-1] = made._replace(chunk_of="u")
    log.append(1, is_raw=False, key=b"k", deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    second, first = shared(subscription, 10), shared(subscription, 1)
    owner = subscription.consumers[1]

    subscription.dispatch(0)
    assert (first.has, second.has) == ([0], [4])
    subscription.redeliver(owner, [0])
    subscription.flow(owner, 3)
    subscription.dispatch(0)
    assert (first.has, second.has) == ([0, 0, 1, 2], [4])
    subscription.remove(owner, 0)
    subscription.dispatch(0)

    assert second.has == [4, 0, 1, 2, 3]


def test_delayed_messages_that_become_due_at_once_are_read_as_they_are_given() -> None:
    class CountedEntries(Entries):
        reads = 0

        def entry(self, offset: int) -> Entry | None:
            self.reads += 1
            return super().entry(offset)

    log = CountedEntries()
    for number in range(3000):
        log.append(1, is_raw=False, key=b"k%d" % (number % 7), deliver_at=1000)
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    taker = joined(subscription, "c1", 3000)
    while subscription.dispatch(0):
        pass
    now, turns = 1000, 0

    while len(taker.given) < 3000:
        log.reads = 0
        subscription.dispatch(now)
        assert log.reads <= 200, "a turn is short"
        now, turns = now + 1, turns + 1

    assert turns < 3000
    assert [offset for offset in taker.has if offset % 7 == 3] == [*range(3, 3000, 7)]


def test_a_filter_that_leaves_too_many_gaps_waits_for_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("cursor", "subscription"):
        monkeypatch.setattr(f"mqtool.engine.pulsar.{module}.MAX_GAPS", 5)
    monkeypatch.setattr("mqtool.engine.pulsar.subscription.FEW_GAPS", 2)
    log = Entries()
    for number in range(40):
        made = log.append(1, is_raw=False, key=b"k", deliver_at=0)
        log.all[-1] = made._replace(properties=(b"TAGS\1Tag%c\2" % b"AB"[number % 2],))
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    taker = shared(subscription, 100, EntryFilter("TagA"))

    turns = [subscription.dispatch(0) for _ in range(10)]
    assert turns[-1] is False, "it does not look again and again"
    for offset in range(0, 40, 2):
        assert taker.has[-1] >= offset
        subscription.ack(offset)
        subscription.dispatch(0)

    assert taker.has == [*range(0, 40, 2)]
    assert subscription.cursor.next_offset == 40


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
def test_a_filter_passes_nothing_else_on_when_there_is_no_room_for_more_parts_of_batches(
    kind: SubscriptionType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqtool.engine.pulsar.cursor.MAX_LEFT_BYTES", 250)  # two batches
    log = Entries()
    for _ in range(5):
        made = log.append(3, is_raw=False, key=b"k", deliver_at=0)
        log.all[-3:] = [made._replace(properties=tuple(b"TAGS\1Tag%c\2" % tag for tag in b"ABA"))] * 3
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    taker = Taker()
    consumer = PulsarConsumer(taker, 0, "c1", wanted=EntryFilter("TagA"))
    subscription.add(consumer, kind, 0)
    subscription.flow(consumer, 100)

    subscription.dispatch(0)
    assert taker.given == [(offset, 0b101) for offset in range(0, 15, 3)]
    for offset in range(0, 12, 3):
        subscription.ack(offset)
    subscription.redeliver(consumer, None)
    subscription.dispatch(0)

    assert taker.given[5:] == [(12, 0b101)]
    subscription.ack(12)
    assert subscription.backlog == 0


@pytest.mark.parametrize(
    ("count", "left", "next_offset"),
    [(0, [3, 5, 6], 1), (1, [5, 6], 1), (2, [6], 1), (3, [], 7), (4, [], 8), (9, [], 9)],
)
def test_a_skip_counts_what_is_not_acknowledged_and_brings_nothing_back(
    count: int, left: list[int], next_offset: int
) -> None:
    log = Entries()
    for size in (1, 6, 1, 1):
        log.append(size, is_raw=False, key=b"k", deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(1), "persistent://public/default/t")
    subscription.ack(1, 0b110101)
    subscription.ack(1, 0b111110)

    subscription.skip(count)

    bits = subscription.cursor.left.get(1, 0)
    assert [1 + index for index in range(6) if bits >> index & 1] == left
    assert subscription.cursor.next_offset == next_offset


def test_after_an_entry_that_takes_long_to_read_others_have_their_turn() -> None:
    log = Entries()
    for is_marker in (False, True, False, False):
        made = log.append(1, is_raw=False, key=b"k", deliver_at=0, is_marker=is_marker)
        log.all[-1] = made._replace(is_slow=made.offset < 3)
    subscription = PulsarSubscription("s", log, Cursor(0), "persistent://public/default/t")
    taker = shared(subscription, 10)

    turns = []
    while subscription.dispatch(0):
        turns.append([*taker.has])

    assert turns == [[0], [0], [0, 2]]
    assert taker.has == [0, 2, 3]
