"""The program at the other end of a connection, in any protocol, and the calls that a broker makes to it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.formats.new_message import NewMessage
from mqtool.formats.stored_message import StoredMessage


class ConsumersChanged(NamedTuple):
    """The consumers of a group have changed: they rebalance."""

    group: str


class TransactionCheck(NamedTuple):
    """How did this transaction end?"""

    half: StoredMessage
    """The half message as its producer knows it: for its own topic."""
    message_id: str
    unique_key: str | None
    transaction_id: str | None


class OffsetsReset(NamedTuple):
    """The offsets of a group were reset: its consumers continue there, and commit the offsets themselves."""

    group: str
    topic: str
    timestamp: int  # ms: the time to which the offsets were reset
    is_forced: bool
    offsets: Mapping[int, int]  # by queue id


Notice = ConsumersChanged | TransactionCheck | OffsetsReset
"""Notifications without an answer."""


class TellRunningInfo(NamedTuple):
    """How are you doing? The answer is a text in JSON (RocketMQ: ``ConsumerRunningInfo``)."""

    group: str
    client_id: str
    wants_stacks: bool


class Consume(NamedTuple):
    """Consume this message now. The answer is a text in JSON (RocketMQ: ``ConsumeMessageDirectlyResult``)."""

    group: str
    client_id: str
    message_id: str
    broker_name: str | None
    topic: str | None
    record: bytes


class TellOffsets(NamedTuple):
    """How far have you read this topic? The answer is a dict of offsets by ``MessageQueue``."""

    group: str
    topic: str


class TakeReply(NamedTuple):
    """Here is the reply that you wait for. The answer is None."""

    message: NewMessage
    producer_group: str  # of the client that replies
    default_topic: str
    default_queue_count: int
    is_of_unit: bool
    broker_address: str
    pushed_at: int  # ms


ClientCall = TellRunningInfo | Consume | TellOffsets | TakeReply


class Told(NamedTuple):
    """The answer to a call: its result, or why there is none."""

    value: Any = None
    refusal: OperationRefusedError | None = None


ThenTold = Callable[[Told | None, int], None]
"""What to do with an answer, None if none has come in time, and the time in ms."""


class Session:
    """A program at the other end of a connection: one object per connection, usable as a key.

    Each door has its own subclass, which implements notifications and calls.
    """

    __slots__ = ("address", "host", "identity", "language", "version")

    def __init__(self, host: str, address: str) -> None:
        self.host = host
        self.address = address
        self.identity = ""  # the access key of the client, if access is controlled
        self.language: str | None = None
        self.version = 0

    def notify(self, notice: Notice) -> None:
        """Send a notification."""
        raise NotImplementedError

    def understands(self, client_call: ClientCall) -> bool:
        """Return whether the program at the other end supports a call."""
        raise NotImplementedError

    def ask(self, client_call: ClientCall, due: int, then: ThenTold) -> None:
        """Make a call; ``then`` gets the answer, or None if it has not come by ``due`` (ms).

        Raises:
            UnavailableError: too many answers are expected already.
        """
        raise NotImplementedError
