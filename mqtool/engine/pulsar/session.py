"""A connection of a Pulsar client, and the commands sent to it."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from mqtool.engine.broker.outbox import Outbox
from mqtool.engine.broker.sessions import ClientCall, Notice, Session, ThenTold
from mqtool.engine.pulsar.entries import Entry
from mqtool.engine.pulsar.frames import build_frame, build_message_frame
from mqtool.engine.pulsar.producers import PulsarProducer
from mqtool.engine.pulsar.refusal import PulsarError
from mqtool.engine.pulsar.subscription import PulsarConsumer
from mqtool.engine.pulsar.topics import Durable, QueueTopic
from mqtool.engine.pulsar.wire import classes, command
from mqtool.engine.pulsar.wire_messages import TYPES
from mqtool.errors import UnavailableError
from mqtool.formats.hosts import parse_host
from mqtool.formats.new_message import Host
from mqtool.formats.peer import Peer

Frame = list[bytes]
AwaitedPlace = tuple[str, int]
"""``producer`` or ``consumer``, and its id on the connection."""
NO_REQUEST = (1 << 64) - 1
_NOBODY: Host = (bytes(4), 0)
_WORD = (1 << 64) - 1
Receipt = tuple[int, int, int, tuple[int, int]]
"""For a producer: its id, the sequence ids of the first and the last message, and the generation and offset."""
_RECEIPT, _MESSAGE = TYPES["send_receipt"], TYPES["message"]


class Joined:
    """A consumer of a connection, with its queue and subscription."""

    def __init__(self, consumer: PulsarConsumer, durable: Durable) -> None:
        self.consumer = consumer
        self.durable = durable
        self.queue = durable.queue
        self.awaits_end = False
        """It is to be notified at the end of a terminated topic."""


class Watcher:
    """A client that is notified of new topics and of deleted ones."""

    def __init__(self, namespace: str, pattern: re.Pattern[str], topics: dict[str, list[str]]) -> None:
        self.namespace = namespace
        self.pattern = pattern
        self.topics = topics
        """The names that it knows, by their RocketMQ topics."""
        self.count = sum(map(len, topics.values()))
        """The number of these names."""

    def replace(self, changed: Iterable[str], new: dict[str, list[str]]) -> set[str]:
        """Replace the names of changed topics, and return their former names."""
        gone = {name for topic in changed for name in self.topics.pop(topic, ())}
        self.topics |= new
        self.count += sum(map(len, new.values())) - len(gone)
        return gone


class PulsarSession(Session):
    """A Pulsar client at the other end of a connection."""

    def __init__(self, peer: Peer, outbox: Outbox[Frame], now: int) -> None:
        super().__init__(peer.host, peer.address)
        self.peer = peer
        try:
            self.born_host = parse_host(peer.address)
        except ValueError:  # a client that is already gone has no address
            self.born_host = _NOBODY
        self.reached_host = ""
        """The host of this side, as the client sees it."""
        self.is_connected = False
        self.expires_at: int | None = None  # ms: when its token expires
        self.can_refresh = False
        """Whether the client sends a new token if it is asked for one; otherwise its connection ends with the token."""
        self.challenged_at: int | None = None
        """When it was asked for a new token that it has not sent yet (ms)."""
        self.is_cpp = False
        """The client is the C++ client, or one of a language that wraps it."""
        self.is_backed_up = False
        self.last_heard = now  # ms
        self.pinged_at: int | None = None
        self.producers: dict[int, tuple[PulsarProducer, QueueTopic]] = {}
        self.consumers: dict[int, Joined] = {}
        self.watchers: dict[int, Watcher] = {}
        self.closed_producers: dict[int, None] = {}  # closed by this side: messages on their way to them are dropped
        self.probes: dict[tuple[Peer, AwaitedPlace], Callable[[int], None]] = {}
        """Called when it has answered a ping, or is gone: other clients want its places."""
        self.probed_at: int | None = None  # ms
        self.awaited: dict[AwaitedPlace, PulsarSession] = {}
        """Its producers and consumers that wait for the place of another client, if known."""
        self.receipts: list[Receipt] = []
        """Receipts that are sent before any other command, all at once."""
        self._outbox = outbox

    def say(self, name: str, **fields: Any) -> None:
        """Send a command with the fields of its own message."""
        self.send(command(name, **fields))

    def send(self, base: Any) -> None:
        """Send a command."""
        self.send_receipts()
        self._outbox.put(self.peer, [build_frame(base)])

    def send_receipts(self) -> None:
        """Send what ``receipts`` holds."""
        if not self.receipts:
            return
        base = classes.BaseCommand(type=_RECEIPT)  # built directly, and used again: ``say`` takes several times as long
        told = base.send_receipt
        place, frames = told.message_id, []
        for receipt in self.receipts:
            told.producer_id, told.sequence_id, told.highest_sequence_id, position = receipt
            place.ledgerId, place.entryId = position
            frames.append(build_frame(base))
        self.receipts.clear()
        self._outbox.put(self.peer, frames)

    def refuse(self, request_id: int, error: PulsarError, text: str) -> None:
        """Answer a refused request."""
        self.say("error", request_id=request_id, error=int(error), message=text)

    # Called by subscriptions

    def deliver(self, consumer: PulsarConsumer, entry: Entry, left: int | None, count: int) -> None:
        """Send an entry."""
        joined = self.consumers[consumer.id]
        place = joined.queue.place
        ledger = joined.queue.generation
        base = classes.BaseCommand(type=_MESSAGE)
        message = base.message
        message.consumer_id, told_id = consumer.id, message.message_id
        told_id.ledgerId, told_id.entryId, told_id.partition = ledger, entry.offset, place.partition
        if count:
            message.redelivery_count = count
        if left is not None:
            message.ack_set.extend(words_of(left))
        if consumer.epoch is not None:
            message.consumer_epoch = consumer.epoch
        self._outbox.put(self.peer, build_message_frame(base, entry.payload))

    def tell_active(self, consumer: PulsarConsumer, is_active: bool) -> None:
        """Tell a consumer of Failover whether it is the one that gets messages."""
        self.say("active_consumer_change", consumer_id=consumer.id, is_active=is_active)

    # Called by a broker

    def notify(self, notice: Notice) -> None:
        """Do nothing: Pulsar clients are not members of RocketMQ groups."""

    def understands(self, client_call: ClientCall) -> bool:  # noqa: ARG002
        """Tell whether it understands a request: none."""
        return False

    def ask(self, client_call: ClientCall, due: int, then: ThenTold) -> None:  # noqa: ARG002
        """Raise: requests cannot be sent to Pulsar clients."""
        raise UnavailableError("requests cannot be sent to Pulsar clients")


def words_of(bits: int) -> list[int]:
    """Return bits as signed words of 64.

    >>> words_of(5), words_of(1 << 63)
    ([5], [-9223372036854775808])
    """
    words = []
    while bits:
        word = bits & _WORD
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return words


def bits_of(words: list[int]) -> int:
    """Return the bits of signed words of 64."""
    return int.from_bytes(b"".join([(word & _WORD).to_bytes(8, "little") for word in words]), "little")
