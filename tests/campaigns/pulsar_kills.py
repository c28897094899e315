"""A broker that is killed under load, again and again, with 100 subscriptions of Pulsar that have holes.

``mqtool serve`` runs on one store and is started again after each kill. A producer sends single messages and batches;
each subscription, half of them Shared and half Exclusive, acknowledges some of what it gets, of batches often a part,
and leaves the rest. After each start

- every message comes that a subscription has not acknowledged;
- what it has acknowledged comes again only if that is not in its file, which is true of nothing that was acknowledged
  before the file was written, so of the last half second and of what the disk takes: a second at most.

The tests try two kills, without the limit of time, as what the disk takes depends on the machine; this is the long
form::

    python -m tests.campaigns.pulsar_kills --kills 50

It prints a line for each kill and ends with an error at the first thing that is not as it should be.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import random
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.pulsar.cursor_files import load_cursors
from mqtool.engine.pulsar.frames import (
    Command,
    Payload,
    PulsarFrameDecoder,
    build_batch_body,
    build_frame,
    build_message_frame,
    build_payload,
    split_batch_body,
    split_payload,
)
from mqtool.engine.pulsar.session import bits_of, words_of
from mqtool.engine.pulsar.subscription import SubscriptionType
from mqtool.engine.pulsar.wire import command, parse
from mqtool.engine.pulsar.wire_classes import MessageMetadata, SingleMetadata
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from tests.commands.test_serve import started

SUBSCRIPTIONS = 100
_TOPIC = "persistent://public/default/t"
_PERMITS = 1 << 20
_MAX_UNANSWERED = 20
_PATIENCE_SECONDS = 120.0
_MOST_SECONDS = 1.0
"""Acknowledgements that old are on disk."""
_LONGEST_FRAME = 1 << 22
_READY = re.compile(r".*pulsar ([\d.]+):(\d+).*\n")


class LostError(AssertionError):
    """A message was lost, or came again that must not."""


class KilledSubscription:
    """What one subscription has to get; numbers are those of messages."""

    def __init__(self, number: int) -> None:
        self.name = f"s{number}"
        self.type = SubscriptionType.SHARED if number % 2 else SubscriptionType.EXCLUSIVE
        self.acked: dict[int, float] = {}
        """When the broker said so (s, wall clock), of messages that are acknowledged."""
        self.asked: set[int] = set()
        """Messages whose acknowledgement was on its way when the broker was killed: they may come."""
        self.got: set[int] = set()
        """In this life of the broker."""


class PulsarKill(NamedTuple):
    """What a kill came to."""

    messages: int
    holes: int  # ranges that were acknowledged behind messages that were not, as files have them
    came_again: int  # though they had been acknowledged
    oldest_seconds: float  # of these, before the kill


class KilledClients:
    """One connection with a producer and a consumer for each subscription."""

    def __init__(self, subscriptions: list[KilledSubscription], chance: random.Random) -> None:
        self.subscriptions = subscriptions
        self.chance = chance
        self.sent = 0  # messages
        self.receipts: set[int] = set()  # messages that the broker has
        self._entries: dict[int, list[int]] = {}  # messages of each entry that is on its way, by sequence ids
        self._acks: dict[int, tuple[KilledSubscription, list[int]]] = {}  # on their way, by request ids
        self._requests = 0
        self.numbers: dict[int, int] = {}  # of messages, by their offsets
        self.came_again: dict[tuple[str, int], float] = {}
        """When it had been acknowledged what came in this life, by subscription and number."""

    def connect(self, host: str, port: int) -> None:
        """Begin a life: the consumers are to be sent everything again that is not acknowledged."""
        self._socket = socket.create_connection((host, port))
        self._socket.settimeout(0.01)
        self._frames = PulsarFrameDecoder(_LONGEST_FRAME)
        self.came_again.clear()
        for subscription in self.subscriptions:
            subscription.got.clear()
        self._say("connect", client_version="kills", protocol_version=21)
        self._say("producer", topic=_TOPIC, producer_id=0, request_id=self._request())
        for number, subscription in enumerate(self.subscriptions):
            self._say(
                "subscribe",
                topic=_TOPIC,
                subscription=subscription.name,
                subType=int(subscription.type),
                consumer_id=number,
                request_id=self._request(),
                initialPosition=1,
            )
        self._subscribed = 0
        self._until(lambda: self._subscribed == len(self.subscriptions), "subscriptions")
        for number in range(len(self.subscriptions)):
            self._say("flow", consumer_id=number, messagePermits=_PERMITS)

    def disconnect(self) -> None:
        """End a life: what was on its way may have arrived, or not."""
        self._socket.close()
        self._entries.clear()
        for subscription, numbers in self._acks.values():
            subscription.asked.update(numbers)
        self._acks.clear()

    def load(self, seconds: float) -> None:
        """Send, consume and acknowledge for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if len(self._entries) < _MAX_UNANSWERED:
                self.send(self.chance.choice((1, 1, 3)))
            self._take()

    def send(self, count: int) -> int:
        """Send a message, or a batch, and return the number of the last one."""
        first, self.sent = self.sent, self.sent + count
        numbers = list(range(first, self.sent))
        bodies = [b"%d" % number for number in numbers]
        metadata = MessageMetadata(producer_name="p", sequence_id=first, publish_time=1)
        body = bodies[0]
        if count > 1:
            metadata.num_messages_in_batch = count
            body = build_batch_body(
                [Payload(SingleMetadata(payload_size=len(one)).SerializeToString(), one) for one in bodies]
            )
        self._entries[first] = numbers
        self._say("send", build_payload(metadata.SerializeToString(), body), producer_id=0, sequence_id=first)
        return self.sent - 1

    def settle(self) -> None:
        """Return when each consumer has got what there was, which one more message tells that comes behind it."""
        last = self.send(1)
        self._until(lambda: all(last in one.got for one in self.subscriptions), "the last message")

    def answers(self) -> None:
        """Return when the broker has said of all acknowledgements that it has them."""
        self._until(lambda: not self._acks and not self._entries, "answers")

    # The wire

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _say(self, name: str, payload: bytes | None = None, **fields: Any) -> None:
        base = command(name, **fields)
        self._write(build_message_frame(base, payload) if payload is not None else [build_frame(base)])

    def _write(self, pieces: list[bytes]) -> None:
        self._socket.settimeout(_PATIENCE_SECONDS)
        self._socket.sendall(b"".join(pieces))
        self._socket.settimeout(0.01)

    def _until(self, is_so: Any, what: str) -> None:
        end = time.monotonic() + _PATIENCE_SECONDS
        while not is_so():
            self._take()
            if time.monotonic() > end:
                raise LostError(f"not in time: {what}")

    def _take(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except TimeoutError:
            return
        if not data:
            raise LostError("the broker has closed the connection")
        self._frames.receive(data)
        for told in self._frames.commands():
            self._told(told)

    def _told(self, told: Command) -> None:
        name, body, payload = told
        if name == "ping":
            self._say("pong")
        elif name == "success":
            self._subscribed += 1
        elif name == "send_receipt":
            self.receipts.update(self._entries.pop(body.sequence_id))
        elif name == "ack_response":
            subscription, numbers = self._acks.pop(body.request_id)
            now = time.time()
            subscription.acked.update(dict.fromkeys(numbers, now))
        elif name == "message":
            assert payload is not None
            self._got(self.subscriptions[body.consumer_id], body, payload)
        elif "error" in name:
            raise LostError(f"{name}: {body.message}")

    def _got(self, subscription: KilledSubscription, body: Any, payload: bytes) -> None:
        raw, content = split_payload(payload)
        count = parse(MessageMetadata, raw).num_messages_in_batch
        is_batch = parse(MessageMetadata, raw).HasField("num_messages_in_batch")
        bodies = [one.body for one in split_batch_body(content, count)] if is_batch else [content]
        left = bits_of(body.ack_set) if body.ack_set else (1 << len(bodies)) - 1
        given = {place: int(text) for place, text in enumerate(bodies) if left >> place & 1}
        subscription.got.update(given.values())
        self.numbers.update((body.message_id.entryId + place, number) for place, number in given.items())
        for number in given.values():
            if number in subscription.acked:
                self.came_again[subscription.name, number] = subscription.acked.pop(number)
        places = [place for place in given if self.chance.random() < 0.6]
        if places:
            self._ack(body.consumer_id, subscription, body.message_id, given, places, len(bodies))

    def _ack(
        self,
        consumer_id: int,
        subscription: KilledSubscription,
        place: Any,
        given: dict[int, int],
        places: list[int],
        count: int,
    ) -> None:
        request = self._request()
        made = command("ack", consumer_id=consumer_id, ack_type=0, request_id=request)
        acked = made.ack.message_id.add(ledgerId=place.ledgerId, entryId=place.entryId)
        if len(places) < len(given):
            everything = (1 << count) - 1
            acked.ack_set.extend(words_of(everything & ~sum(1 << one for one in places)))
        self._acks[request] = subscription, [given[one] for one in places]
        self._write([build_frame(made)])


class PulsarKills:
    """A store, its broker, and the clients."""

    def __init__(self, store: Path, seed: int, subscriptions: int = SUBSCRIPTIONS) -> None:
        self.store = store
        self.chance = random.Random(seed)
        self.subscriptions = [KilledSubscription(number) for number in range(subscriptions)]
        self.clients = KilledClients(self.subscriptions, self.chance)
        self._killed_at = 0.0

    def life(self, *, is_last: bool = False) -> PulsarKill:
        """Start the broker, check what comes, put load on it and kill it; or stop it, the last time.

        Raises:
            LostError: something is not as it should be.
        """
        on_disk, holes = self._on_disk()
        with started("-s", self.store, "--port", "0", "--pulsar-port", "0") as (process, line):
            ready = _READY.fullmatch(line)
            assert ready, line
            self.clients.connect(ready[1], int(ready[2]))
            self.clients.settle()
            outcome = self._check(on_disk, holes)
            self.clients.load(self.chance.uniform(0.5, 2.5))
            if is_last:
                self.clients.answers()
                process.terminate()
            else:
                process.kill()
                self._killed_at = time.time()
            process.wait()
            self.clients.disconnect()
        return outcome

    def _on_disk(self) -> tuple[dict[str, tuple[float, set[int]]], int]:
        """Return when the file of each subscription was written (s), what it says is acknowledged, and all holes."""
        found, holes = {}, 0
        for _, kept in load_cursors(self.store / "config"):
            cursor = kept.cursor
            holes += len(cursor.spans)
            acked = {*range(cursor.next_offset)}.union(*(range(*span) for span in cursor.spans))
            for first, bits in cursor.left.items():
                acked |= {first + place for place in range(3) if not bits >> place & 1}  # of batches of three
            found[kept.subscription] = kept.saved_at / 1000, acked
        return found, holes

    def _check(self, on_disk: dict[str, tuple[float, set[int]]], holes: int) -> PulsarKill:
        """Hold what has come in this life against what has to come."""
        again, oldest = 0, 0.0
        for subscription in self.subscriptions:
            saved_at, offsets = on_disk.get(subscription.name, (0.0, set[int]()))
            saved = {self.clients.numbers[offset] for offset in offsets if offset in self.clients.numbers}
            came_again = {
                number: at for (name, number), at in self.clients.came_again.items() if name == subscription.name
            }
            missing = self.clients.receipts - subscription.acked.keys() - subscription.asked - subscription.got
            _law(not missing, f"{subscription.name} has lost {sorted(missing)[:10]}")
            in_file = sorted(came_again.keys() & saved)
            _law(not in_file, f"{subscription.name}: {in_file[:10]} came again and are in its file")
            for number, at in came_again.items():
                _law(at >= saved_at, f"{subscription.name}: {number} is not in a file of after its acknowledgement")
                _law(at <= self._killed_at, f"{subscription.name}: {number} came twice in a life")
                oldest = max(oldest, self._killed_at - at)
            arrived = subscription.asked - subscription.got  # these acknowledgements had come to the broker
            subscription.acked.update(dict.fromkeys(arrived - subscription.acked.keys(), self._killed_at))
            subscription.asked.clear()
            again += len(came_again)
        return PulsarKill(self.clients.sent, holes, again, oldest)


def _law(holds: bool, text: str) -> None:
    if not holds:
        raise LostError(text)


def main() -> int:
    """Run as many kills as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mqtool-pulsar-kills-") as folder:
        campaign, oldest = PulsarKills(Path(folder, "store"), given.seed), 0.0
        for number in range(given.kills + 1):
            outcome = campaign.life(is_last=number == given.kills)
            if number:
                oldest = max(oldest, outcome.oldest_seconds)
                print(
                    f"kill {number}: {outcome.messages:,} messages, {outcome.holes:,} holes, {outcome.came_again:,} "
                    f"came again, the oldest acknowledged {outcome.oldest_seconds:.1f} s before the kill",
                    flush=True,
                )
        findings = [one.code for one in verify_store(StoreReader(campaign.store)) if one.severity != Severity.NOTE]
    print(f"{given.kills} kills, findings of verify: {findings or 'none'}, the oldest that came again: {oldest:.1f} s")
    return 1 if findings or oldest > _MOST_SECONDS else 0


if __name__ == "__main__":
    sys.exit(main())
