"""Clients of Pulsar and their broker in virtual time, one run from each seed: subscriptions of all four types.

The door, the broker and its store are the real ones; only sockets are missing. Producers of Pulsar and of RocketMQ send
single messages and batches; consumers come and go, acknowledge one by one, cumulatively and parts of batches, give
messages back, at once or after a time, seek, and stop reading; the broker is stopped, or killed, or loses its power,
and begins again with what its files hold.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.pulsar.door import PulsarDoor
from mqtool.engine.pulsar.frames import (
    Command,
    Payload,
    build_batch_body,
    build_payload,
    parse_frame,
    split_batch_body,
    split_payload,
)
from mqtool.engine.pulsar.session import words_of
from mqtool.engine.pulsar.subscription import SubscriptionType
from mqtool.engine.pulsar.wire import command, parse
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats.new_message import NewMessage
from mqtool.formats.peer import Peer

START = 1_800_000_000_000
TOPIC = "persistent://public/default/t"
KEYS = (b"k0", b"k1", b"order-2")
"""Of these k1 and order-2 go over to c3 where that joins c1 and c2."""
_NAMES = ("c1", "c2", "c3")
SMALL_FILES = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "8000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
_TIME_OUT_MS = 3000
_LATEST_SAVE_MS = 1000
"""How old an acknowledgement may be that a kill takes back."""


class BrokenLawError(AssertionError):
    """Something happened that must not."""


class SimulatedConsumer:
    """A consumer on a connection of its own."""

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer = peer
        self.name = name
        self.granted = self.taken = 0
        self.is_active = False
        self.has: dict[int, dict[int, int]] = {}
        """Of the entries that it has, the numbers of the messages that it has not acknowledged, by their places."""
        self.sizes: dict[int, int] = {}
        self.since: dict[int, int] = {}  # ms: when it got each entry


class SimulatedSubscription:
    """What a subscription must do: each message in its time."""

    def __init__(self, name: str, kind: SubscriptionType) -> None:
        self.name = name
        self.kind = kind
        self.consumers: list[SimulatedConsumer] = []
        self.acked: dict[int, int] = {}
        """When each message was acknowledged (ms)."""
        self.maybe: set[int] = set()
        """Messages whose acknowledgement a kill may have taken back."""


class PulsarWorld:
    """A broker with its clients; ``run`` lives a seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.now = START
        self.lives = 0
        self.kills = 0
        self.losses = 0
        """Of power."""
        self._flushed = 0  # messages
        self._flushed_offset = 0
        self.keys: list[bytes] = []
        """Of each message, by its number: its place in the queue."""
        self.sent: list[tuple[int, int]] = []
        """Of each entry, its first message and when it was stored (ms)."""
        self.deliveries = 0
        self.seeks = 0
        self._peers = 0
        self._sequence = 0
        self.subscriptions = [SimulatedSubscription(kind.name.lower(), kind) for kind in SubscriptionType]
        self._begin(folder / "store-0")

    # The broker

    def _begin(self, root: Path) -> None:
        self.root = root
        self.store = MessageStore(root, StoreConfig(SMALL_FILES), now=self.now)
        self.broker = BrokerController(self.store, self.now)
        self.door = PulsarDoor(self.broker, self.now)
        self._of_peer: dict[Peer, tuple[SimulatedSubscription, SimulatedConsumer]] = {}
        self._producer = self._connect()
        self._say(self._producer, "producer", topic=TOPIC, producer_id=0, request_id=1)
        if not self.lives:
            for one in self.subscriptions:  # each is there before the first message
                self._leave(one, self._join(one, "first"))

    def _stop(self) -> None:
        self.broker.stop(self.now)
        self.store.close()
        for one in self.subscriptions:
            one.consumers.clear()
        self.lives += 1

    def restart(self) -> None:
        """Stop the broker, which writes all down, and start it again."""
        self.flush()
        self._stop()
        self._begin(self.root)

    def kill(self) -> None:
        """End the broker as it stands, and start it with what is in its files."""
        self.kills += 1
        root = self.folder / f"store-{self.lives + 1}"
        shutil.copytree(self.root, root)
        for one in self.subscriptions:
            late = [number for number, at in one.acked.items() if at + _LATEST_SAVE_MS > self.now]
            one.maybe |= set(late)
        self._stop()
        shutil.rmtree(self.root)
        self._begin(root)

    def flush(self) -> None:
        """Have all messages on the disk."""
        self.store.flush()
        self._flushed = len(self.keys)
        self._flushed_offset = self.store.end_offset

    def lose_power(self) -> None:
        """End the broker with its machine: what was not flushed of the log is gone, tables are as they were written."""
        self.losses += 1
        flushed_offset = max(self._flushed_offset, self.store.flushed_offset)
        root = self.folder / f"store-{self.lives + 1}"
        shutil.copytree(self.root, root)
        for path in (root / "commitlog").iterdir():
            kept = max(flushed_offset - int(path.name), 0)
            size = path.stat().st_size
            if kept < size:
                with path.open("r+b") as file:
                    file.seek(kept)
                    file.write(bytes(size - kept))
        for one in self.subscriptions:
            one.maybe |= {number for number, at in one.acked.items() if at + _LATEST_SAVE_MS > self.now}
        self._stop()
        shutil.rmtree(self.root)
        self._begin(root)
        queue = self.store.queue("t", 0)
        left = queue.next_offset if queue is not None else 0
        self._law(left >= self._flushed, f"{left} messages are left of {self._flushed} that were on the disk")
        del self.keys[left:]
        self.sent = [(first, at) for first, at in self.sent if first < left]
        for one in self.subscriptions:  # other messages come to their places
            one.acked = {number: at for number, at in one.acked.items() if number < left}
            one.maybe = {number for number in one.maybe if number < left}

    def pass_time(self, milliseconds: int) -> None:
        """Do all that is due until then."""
        until = self.now + milliseconds
        while (due := self.door.next_tick(self.now)) <= until:
            self.now = max(due, self.now)
            self._tick()
        self.now = until
        self._tick()

    def _tick(self) -> None:
        for peer, frame in self.door.tick(self.now):
            self._told(peer, parse_frame(b"".join(frame)[4:]))

    # The wire

    def _connect(self) -> Peer:
        self._peers += 1
        peer = Peer(self._peers, "127.0.0.1", 40_000 + self._peers)
        self._say(peer, "connect", client_version="simulated", protocol_version=21)
        return peer

    def _say(self, peer: Peer, name: str, payload: bytes | None = None, **fields: Any) -> None:
        body = getattr(command(name, **fields), name)
        self.door.take(Command(name, body, payload), self.door.session(peer), self.now)
        self._tick()

    def _told(self, peer: Peer, said: Command) -> None:
        name, body, payload = said
        if name in ("error", "send_error"):
            raise BrokenLawError(f"{name}: {body.message}")
        if peer not in self._of_peer:
            return
        subscription, consumer = self._of_peer[peer]
        if name == "active_consumer_change":
            consumer.is_active = body.is_active
        elif name == "close_consumer":
            subscription.consumers.remove(consumer)
            del self._of_peer[peer]
        elif name == "message":
            assert payload is not None
            self._delivered(subscription, consumer, body, payload)

    # Producers

    def send(self) -> None:
        """Send a message, or a batch, from one world or the other."""
        key = self.random.choice(KEYS)
        count = self.random.choice((1, 1, 2, 5))
        first = len(self.keys)
        self.keys += [key] * count
        self.sent.append((first, self.now))
        if count == 1 and self.random.random() < 0.4:
            text = b"KEYS\x01%b\x02" % key
            message = NewMessage("t", 0, b"%d" % first, text, born_timestamp=self.now, born_host=(bytes(4), 0))
            self.broker.sends.send(message, NewTopic("", 1, False), self.now)
            self._tick()
            return
        self._sequence += 1
        metadata = MessageMetadata(
            producer_name="p", sequence_id=self._sequence, publish_time=self.now, partition_key=key
        )
        body = b"%d" % first
        if count > 1:
            metadata.num_messages_in_batch = count
            numbers = [b"%d" % (first + place) for place in range(count)]
            singles = [SingleMetadata(partition_key=key, payload_size=len(one)).SerializeToString() for one in numbers]
            body = build_batch_body([Payload(*one) for one in zip(singles, numbers, strict=True)])
        payload = build_payload(metadata.SerializeToString(), body)
        self._say(self._producer, "send", payload, producer_id=0, sequence_id=self._sequence)

    # Consumers

    def join(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer come, if there is a place for one."""
        if subscription.kind is SubscriptionType.EXCLUSIVE and subscription.consumers:
            return
        if len(subscription.consumers) < len(_NAMES):
            self._join(subscription, self.random.choice(_NAMES))

    def _join(self, subscription: SimulatedSubscription, name: str) -> SimulatedConsumer:
        consumer = SimulatedConsumer(self._connect(), name)
        subscription.consumers.append(consumer)
        self._of_peer[consumer.peer] = subscription, consumer
        self._say(
            consumer.peer,
            "subscribe",
            topic=TOPIC,
            subscription=subscription.name,
            subType=int(subscription.kind),
            consumer_id=0,
            request_id=1,
            consumer_name=name,
            initialPosition=1,
        )
        return consumer

    def leave(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer go."""
        if subscription.consumers:
            self._leave(subscription, self.random.choice(subscription.consumers))

    def _leave(self, subscription: SimulatedSubscription, consumer: SimulatedConsumer) -> None:
        subscription.consumers.remove(consumer)
        del self._of_peer[consumer.peer]
        self.door.closed(consumer.peer, self.now)
        self._tick()

    def flow(self, subscription: SimulatedSubscription) -> None:
        """Let a consumer be sent more."""
        if subscription.consumers:
            self._grant(self.random.choice(subscription.consumers), self.random.choice((1, 3, 20)))

    def _grant(self, consumer: SimulatedConsumer, permits: int) -> None:
        consumer.granted += permits
        self._say(consumer.peer, "flow", consumer_id=0, messagePermits=permits)

    def read(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer stop reading, or read again."""
        if subscription.consumers:
            session = self.door.session(self.random.choice(subscription.consumers).peer)
            self.door.backed_up(session, not session.is_backed_up)
            self._tick()

    def _chosen(self, subscription: SimulatedSubscription) -> tuple[SimulatedConsumer, int] | None:
        able = [one for one in subscription.consumers if one.has]
        if not able:
            return None
        consumer = self.random.choice(able)
        return consumer, self.random.choice(sorted(consumer.has))

    def ack(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer acknowledge an entry, or some messages of one."""
        if (chosen := self._chosen(subscription)) is None:
            return
        consumer, entry = chosen
        held = consumer.has[entry]
        some = sorted(held) if self.random.random() < 0.7 else self.random.sample(sorted(held), 1)
        id: dict[str, Any] = {"ledgerId": 1, "entryId": entry}  # noqa: A001
        if len(some) < len(held):
            left = (1 << consumer.sizes[entry]) - 1
            id["ack_set"] = words_of(left & ~sum(1 << place for place in some))  # what was acknowledged before is set
        for place in some:
            subscription.acked[held.pop(place)] = self.now
        if not held:
            del consumer.has[entry]
        self._ack(consumer, 0, id)

    def ack_until(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer acknowledge all up to an entry."""
        if (
            subscription.kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
            or (chosen := self._chosen(subscription)) is None
        ):
            return
        consumer, entry = chosen
        for number in range(entry + consumer.sizes[entry]):
            subscription.acked.setdefault(number, self.now)
        consumer.has = {one: held for one, held in consumer.has.items() if one > entry}
        self._ack(consumer, 1, {"ledgerId": 1, "entryId": entry})

    def _ack(self, consumer: SimulatedConsumer, kind: int, id: dict[str, Any]) -> None:  # noqa: A002
        made = command("ack", consumer_id=0, ack_type=kind)
        one = made.ack.message_id.add(ledgerId=id["ledgerId"], entryId=id["entryId"])
        one.ack_set.extend(id.get("ack_set", ()))
        self.door.take(Command("ack", made.ack, None), self.door.session(consumer.peer), self.now)
        self._tick()

    def give_back(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer ask for an entry again, or for all that it has."""
        if (chosen := self._chosen(subscription)) is None:
            return
        consumer, entry = chosen
        made = command("redeliver", consumer_id=0)
        if subscription.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED) and self.random.random() < 0.7:
            del consumer.has[entry]
            made.redeliver.message_ids.add(ledgerId=1, entryId=entry)
        else:
            consumer.has.clear()
        self.door.take(Command("redeliver", made.redeliver, None), self.door.session(consumer.peer), self.now)
        self._tick()

    def time_out(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer ask again for what it has not acknowledged for three seconds."""
        if subscription.kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER) or not subscription.consumers:
            return
        consumer = self.random.choice(subscription.consumers)
        made = command("redeliver", consumer_id=0)
        for entry in [entry for entry in consumer.has if consumer.since[entry] <= self.now - _TIME_OUT_MS]:
            del consumer.has[entry]
            made.redeliver.message_ids.add(ledgerId=1, entryId=entry)
        if made.redeliver.message_ids:
            self.door.take(Command("redeliver", made.redeliver, None), self.door.session(consumer.peer), self.now)
            self._tick()

    def seek(self, subscription: SimulatedSubscription) -> None:
        """Have a consumer go to a message, by its id or its time; all consumers of the subscription are closed then."""
        if not subscription.consumers or not self.sent or self.random.random() < 0.8:
            return
        consumer = self.random.choice(subscription.consumers)
        target, stored_at = self.random.choice(self.sent)
        place: dict[str, Any] = {"message_id": {"ledgerId": 1, "entryId": target}}
        if self.random.random() < 0.5:
            place = {"message_publish_time": stored_at}
            target = next(first for first, at in self.sent if at >= stored_at)
        self._say(consumer.peer, "seek", consumer_id=0, request_id=2, **place)
        self._law(not subscription.consumers, "a seek has closed the consumers")
        for number in range(target):
            subscription.acked.setdefault(number, self.now)
        for number in range(target, len(self.keys)):
            subscription.acked.pop(number, None)
            subscription.maybe.discard(number)
        self.seeks += 1

    # Laws

    def _delivered(
        self, subscription: SimulatedSubscription, consumer: SimulatedConsumer, body: Any, payload: bytes
    ) -> None:
        self.deliveries += 1
        entry = body.message_id.entryId
        raw, content = split_payload(payload)
        metadata = parse(MessageMetadata, raw)
        if metadata.HasField("num_messages_in_batch"):
            numbers = [int(one.body) for one in split_batch_body(content, metadata.num_messages_in_batch)]
        else:
            numbers = [int(content)]
        left = sum((word & (1 << 64) - 1) << 64 * place for place, word in enumerate(body.ack_set))
        given = {place: number for place, number in enumerate(numbers) if not body.ack_set or left >> place & 1}
        self._law(numbers[0] == entry, f"the entry {entry} is that of message {numbers[0]}")
        self._law(consumer.granted > consumer.taken, "nothing is sent without permits")
        consumer.taken += len(given)
        for number in given.values():
            certain = number in subscription.acked and number not in subscription.maybe
            self._law(not certain, f"{subscription.name}: {number} comes again though it was acknowledged")
            subscription.acked.pop(number, None)
            subscription.maybe.discard(number)
        others = [one for one in subscription.consumers if one is not consumer]
        if subscription.kind is SubscriptionType.FAILOVER:
            self._law(consumer.is_active, "only the active consumer is sent messages")
        elif subscription.kind in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED):
            self._law(all(entry not in one.has for one in others), f"{entry} is with two")
        if subscription.kind is SubscriptionType.KEY_SHARED:
            key = self.keys[entry]
            earlier = {
                number for number in range(entry) if self.keys[number] == key and number not in subscription.acked
            }
            held = {number for places in consumer.has.values() for number in places.values()}
            self._law(earlier <= held, f"{entry} of {key!r} comes before {sorted(earlier - held)}")
        consumer.has[entry] = given
        consumer.since[entry] = self.now
        consumer.sizes[entry] = len(numbers)

    def check_cursors(self) -> None:
        """See that no position has passed a message that is not acknowledged."""
        queue = self.door.topics.queues["t", 0]
        for one in self.subscriptions:
            open_numbers = [number for number in range(len(self.keys)) if number not in one.acked]
            first = open_numbers[0] if open_numbers else len(self.keys)
            cursor = queue.subscriptions[one.name].subscription.cursor
            self._law(cursor.next_offset <= first, f"{one.name} is at {cursor.next_offset}, and {first} is open")
            stored = self.broker.offsets.get(one.name, "t", 0)
            self._law(stored <= first, f"the offset of {one.name} is {stored}, and {first} is open")

    def _law(self, holds: bool, text: str) -> None:
        if not holds:
            raise BrokenLawError(f"{text} (life {self.lives}, {self.now - START} ms)")

    # A run

    def run(self, steps: int) -> None:
        """Do what the seed says, and then have everything acknowledged.

        Raises:
            BrokenLawError: a law is broken.
        """
        often: list[Callable[[SimulatedSubscription], None]] = [self.join, self.flow]
        seldom: list[Callable[[SimulatedSubscription], None]] = [
            self.leave,
            self.read,
            self.ack_until,
            self.give_back,
            self.time_out,
            self.seek,
        ]
        of_subscriptions = [*often, *often, self.ack, self.ack, self.ack, *seldom]
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.25:
                self.send()
            elif chance < 0.4:
                self.pass_time(self.random.choice((1, 300, 1000, 3000)))
            elif chance < 0.404:
                self.restart()
            elif chance < 0.408:
                self.kill()
            elif chance < 0.412:
                self.lose_power()
            elif chance < 0.43:
                self.flush()
            else:
                self.random.choice(of_subscriptions)(self.random.choice(self.subscriptions))
            self.check_cursors()
        self._finish()

    def _finish(self) -> None:
        for one in self.subscriptions:  # those who are there have to get everything
            if not one.consumers:
                self._join(one, "last")
            for consumer in one.consumers:
                self.door.backed_up(self.door.session(consumer.peer), False)
                self._grant(consumer, 1 << 20)
        for _ in range(50):
            self.pass_time(1000)
            for one in self.subscriptions:
                while any(consumer.has for consumer in one.consumers):
                    self.ack(one)
        for one in self.subscriptions:
            missing = [number for number in range(len(self.keys)) if number not in one.acked]
            self._law(not missing, f"{one.name} was never given {missing[:10]}")
            durable = self.door.topics.queues["t", 0].subscriptions[one.name]
            self._law(durable.subscription.backlog == 0, f"{one.name} has a backlog in the end")
        self._stop()
