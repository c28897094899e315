"""How fast subscriptions give out messages: limits of messages and bytes, and disks that fail for a while."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.pulsar.cursor import Cursor
from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.entries import Entry
from mqtool.engine.pulsar.frames import Command, build_payload, parse_frame
from mqtool.engine.pulsar.pace import DispatchRate, Rates
from mqtool.engine.pulsar.subscription import PulsarConsumer, PulsarSubscription, SubscriptionType
from mqtool.engine.pulsar.wire import command
from mqtool.engine.pulsar.wire_classes import MessageMetadata
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.peer import Peer
from tests.engine.pulsar.test_subscription import Entries

KINDS = [pytest.param(kind, id=kind.label) for kind in SubscriptionType]
TOPIC = "persistent://public/default/t"
NOW = 1_800_000_000_000


class Fragile(Entries):
    """A queue on a disk that fails."""

    is_broken = False

    def entry(self, offset: int) -> Entry | None:
        if self.is_broken:
            raise OSError("the disk fails")
        return super().entry(offset)


class TimedTaker:
    """A consumer's side that notes when it is given what."""

    def __init__(self) -> None:
        self.is_backed_up = False
        self.now = 0
        self.given: list[tuple[int, int]] = []

    def deliver(self, consumer: PulsarConsumer, entry: Entry, left: int | None, count: int) -> None:  # noqa: ARG002
        self.given.append((self.now, entry.offset))

    def tell_active(self, consumer: PulsarConsumer, is_active: bool) -> None:
        """Note nothing."""


def joined(subscription: PulsarSubscription, kind: SubscriptionType) -> TimedTaker:
    taker = TimedTaker()
    consumer = PulsarConsumer(taker, 0, "c")
    subscription.add(consumer, kind, 0)
    subscription.flow(consumer, 1 << 20)
    return taker


def live(subscription: PulsarSubscription, taker: TimedTaker, until: int) -> None:
    """Have a subscription give out what it may until a time, as a door does."""
    now = taker.now
    while now <= until:
        taker.now = now
        while subscription.dispatch(now):
            pass
        due = subscription.next_tick()
        if due is None:
            break
        assert due > now, "a timer is in the future"
        now = due
    taker.now = until


@pytest.mark.parametrize("kind", KINDS)
def test_no_more_messages_are_given_in_a_second_than_the_limit_allows_and_none_is_forgotten(
    kind: SubscriptionType,
) -> None:
    log = Entries()
    for number in range(200):
        log.append(1 + number % 3, is_raw=False, key=b"k%d" % (number % 5), deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(0), TOPIC, -1, [DispatchRate(lambda: Rates(50, 0))])
    taker = joined(subscription, kind)

    live(subscription, taker, 20_000)

    assert len(taker.given) == 200
    sizes = {entry.offset: entry.messages for entry in log.all}
    of_second = Counter[int]()
    for at, offset in taker.given:
        of_second[at // 1000] += sizes[offset]
    assert max(of_second.values()) <= 50 + 50 + 2, "what had filled up at first, a second's worth, and one batch"
    full = [of_second[second] for second in range(2, len(of_second) - 1)]
    assert all(40 <= count <= 60 for count in full), "and not less"


def test_bytes_are_limited_as_well_and_the_tightest_limit_counts() -> None:
    log = Entries()
    for _ in range(50):
        log.append(1, is_raw=False, key=b"k", deliver_at=0)  # of 100 bytes each
    rates = [
        DispatchRate(lambda: Rates(1000, 0)),
        DispatchRate(lambda: Rates(0, 500)),
        DispatchRate(lambda: Rates(0, 0)),
    ]
    subscription = PulsarSubscription("s", log, Cursor(0), TOPIC, -1, rates)
    taker = joined(subscription, SubscriptionType.SHARED)

    live(subscription, taker, 4000)

    assert 20 <= len(taker.given) <= 27


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_fault_entries_are_read_again_later_and_later_and_first_one_by_one(kind: SubscriptionType) -> None:
    log = Fragile()
    for number in range(40):
        log.append(1, is_raw=False, key=b"k%d" % number, deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(0), TOPIC)
    taker = joined(subscription, kind)
    now, waits = 2000, []  # the delay of Failover is over
    subscription.dispatch(0)
    taker.given.clear()
    consumer = subscription.consumers[0]
    subscription.redeliver(consumer, None)  # what was given before has to be read again as well

    log.is_broken = True
    for _ in range(4):
        with pytest.raises(OSError, match="fails"):
            subscription.dispatch(now)
        due = subscription.next_tick()
        assert due is not None
        assert subscription.dispatch(due - 1) is False, "nothing is tried before"
        waits.append(due - now)
        now = due
    log.is_broken = False
    turns = []
    is_more = True
    while is_more:
        is_more = subscription.dispatch(now)
        turns.append(len(taker.given))

    assert waits == [15_000, 30_000, 60_000, 60_000]
    assert turns[:5] == [1, 3, 7, 15, 31]
    assert sorted(offset for _, offset in taker.given) == [*range(40)]
    assert subscription.next_tick() is None


def test_settings_limit_what_a_running_broker_gives_out(tmp_path: Path) -> None:
    store = MessageStore(tmp_path / "store", now=NOW)
    broker = BrokerController(store, NOW)
    door = PulsarDoor(broker, NOW)
    peer = Peer(1, "127.0.0.1", 40_001)
    given = 0

    def say(now: int, name: str, payload: bytes | None = None, **fields: object) -> None:
        nonlocal given
        door.take(Command(name, getattr(command(name, **fields), name), payload), door.session(peer), now)
        given += sum(parse_frame(b"".join(frame)[4:]).name == "message" for _, frame in door.tick(now))

    say(NOW, "connect", client_version="test", protocol_version=21)
    say(NOW, "producer", topic="t", producer_id=0, request_id=1, producer_name="p")
    for number in range(30):
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=NOW)
        payload = build_payload(metadata.SerializeToString(), b"body")
        say(NOW, "send", payload, producer_id=0, sequence_id=number)
    broker.configure(replace(broker.settings, subscription_messages_per_second=10))
    say(NOW, "subscribe", topic="t", subscription="s", subType=1, consumer_id=0, request_id=2, initialPosition=1)
    say(NOW, "flow", consumer_id=0, messagePermits=100)

    assert given == 10
    now = NOW
    while (now := door.next_tick(now) or now) <= NOW + 1000:
        given += sum(parse_frame(b"".join(frame)[4:]).name == "message" for _, frame in door.tick(now))
    assert 19 <= given <= 21
    broker.configure(replace(broker.settings, subscription_messages_per_second=0))
    say(now, "ping")
    say(now, "flow", consumer_id=0, messagePermits=1)
    assert given == 30
    broker.stop(now)
    store.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_clock_that_was_set_back_holds_nothing_up(kind: SubscriptionType) -> None:
    log = Entries()
    for _ in range(200):
        log.append(1, is_raw=False, key=b"k", deliver_at=0)
    subscription = PulsarSubscription("s", log, Cursor(0), TOPIC, -1, [DispatchRate(lambda: Rates(50, 0))])
    taker = joined(subscription, kind)
    taker.now = 10_000_000
    live(subscription, taker, taker.now + 1500)
    given = len(taker.given)
    assert 0 < given < 200

    taker.now -= 1_000_000
    subscription.set_back(taker.now)
    subscription.dispatch(taker.now)
    live(subscription, taker, taker.now + 4000)

    assert len(taker.given) == 200
