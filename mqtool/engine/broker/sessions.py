"""Who is at the other end, whatever protocol he speaks, and what a broker tells him without being asked."""

from collections.abc import Mapping
from typing import NamedTuple

from mqtool.formats.stored_message import StoredMessage


class ConsumersChanged(NamedTuple):
    """The consumers of a group are not those that they were: they share the queues out anew."""

    group: str


class TransactionCheck(NamedTuple):
    """How did this transaction end?"""

    half: StoredMessage
    """The half message as its producer knows it: for its own topic."""
    message_id: str
    unique_key: str | None
    transaction_id: str | None


class OffsetsReset(NamedTuple):
    """The consumers of a group go on elsewhere, and see to that themselves."""

    group: str
    topic: str
    timestamp: int  # ms, of which these offsets are
    is_forced: bool
    offsets: Mapping[int, int]  # by queue id


Notice = ConsumersChanged | TransactionCheck | OffsetsReset
"""What wants no answer."""


class Session:
    """A program at the other end of a connection: one object for as long as that lasts, a key for dicts.

    A door makes a class of its own of this, which knows how to tell something.
    """

    __slots__ = ("address", "host", "identity", "language", "version")

    def __init__(self, host: str, address: str) -> None:
        self.host = host
        self.address = address
        self.identity = ""  # the access key with which it has come, where access is controlled
        self.language: str | None = None
        self.version = 0

    def notify(self, notice: Notice) -> None:
        """Tell something."""
        raise NotImplementedError
