"""The producers of a topic: their names, who may send, and the order of receipts.

(Rules: pulsar.md 7.1.)
"""

import enum
from collections import deque
from collections.abc import Callable
from typing import Any

from mqtool.engine.pulsar.limits import MAX_OF_SUBSCRIPTION
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError


class Access(enum.IntEnum):
    """How a producer shares a topic, by Pulsar's numbers."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def label(self) -> str:
        """As Pulsar writes it."""
        return {0: "Shared", 1: "Exclusive", 2: "WaitForExclusive", 3: "ExclusiveWithFencing"}[self.value]


class SendReceipt:
    """A receipt that may have to wait until its message is safe."""

    __slots__ = ("is_safe", "what")

    def __init__(self, payload: Any, is_safe: bool) -> None:
        self.what = payload
        self.is_safe = is_safe


class PulsarProducer:
    """A producer."""

    def __init__(self, session: Any, id: int, name: str, access: Access, epoch: int) -> None:  # noqa: A002
        self.session = session
        self.id = id
        self.name = name
        self.access = access
        self.epoch = epoch
        self.topic_epoch: int | None = None
        self.schema_version = b""
        self.receipts: deque[SendReceipt] = deque()
        self.is_closed = False

    def safe_receipts(self) -> list[Any]:
        """Return the receipts that may be sent, in the order of their messages."""
        safe = []
        while self.receipts and self.receipts[0].is_safe:
            safe.append(self.receipts.popleft().what)
        return safe


class Producers:
    """The producers of one topic, or of one of its partitions."""

    def __init__(self, epoch: int = -1, keep: Callable[[int], None] = lambda _: None) -> None:
        """Make it without any.

        Args:
            epoch: the topic epoch of the last owner, -1 for none.
            keep: called with a new epoch: a former owner stays fenced off after a restart.
        """
        self.by_name: dict[str, PulsarProducer] = {}
        self._epoch = epoch
        self._keep = keep
        self._owner: PulsarProducer | None = None
        self._waiting: dict[PulsarProducer, Callable[[], None]] = {}

    @property
    def everyone(self) -> list[PulsarProducer]:
        """All producers, first those that wait for exclusive access."""
        return [*self._waiting, *self.by_name.values()]

    def add(
        self, producer: PulsarProducer, topic_epoch: int | None, then: Callable[[], None]
    ) -> list[PulsarProducer] | None:
        """Add a producer.

        Args:
            producer: its access says how it shares the topic.
            topic_epoch: its epoch if it was exclusive before.
            then: called once it is the only producer, if it has to wait for that.

        Returns:
            The producers that may no longer send, or None if it has to wait.

        Raises:
            PulsarRefusedError: it may not send.
        """
        if (present := self.by_name.get(producer.name)) is not None:
            is_same = present.session is producer.session and present.epoch < producer.epoch
            if not is_same:
                text = f"Producer with name '{producer.name}' is already connected to topic"
                raise PulsarRefusedError(PulsarError.PRODUCER_BUSY, text)
            self.remove(present)
        if producer.access is Access.SHARED:
            if self._owner is not None or self._waiting:
                text = "Topic has an existing exclusive producer: " + (self._owner.name if self._owner else "one waits")
                raise PulsarRefusedError(PulsarError.PRODUCER_BUSY, text)
            self.by_name[producer.name] = producer
            return []
        if topic_epoch is not None and topic_epoch < self._epoch:
            text = f"Topic epoch {topic_epoch} is fenced off by {self._epoch}"
            raise PulsarRefusedError(PulsarError.PRODUCER_FENCED, text)
        fenced: list[PulsarProducer] = []
        if self.by_name:
            if producer.access is Access.EXCLUSIVE:
                raise PulsarRefusedError(PulsarError.PRODUCER_FENCED, "Topic has other producers")
            if producer.access is Access.WAIT_FOR_EXCLUSIVE:
                if len(self._waiting) >= MAX_OF_SUBSCRIPTION:
                    text = f"At most {MAX_OF_SUBSCRIPTION:,} producers wait for a topic"
                    raise PulsarRefusedError(PulsarError.NOT_ALLOWED, text)
                self._waiting[producer] = then
                return None
            fenced = [*self.by_name.values()]
            self.by_name.clear()
        self._own(producer, topic_epoch)
        return fenced

    def _own(self, producer: PulsarProducer, topic_epoch: int | None) -> None:
        self._epoch = self._epoch + 1 if topic_epoch is None else max(topic_epoch, self._epoch)
        producer.topic_epoch = self._epoch
        self._keep(self._epoch)
        self._owner = producer
        self.by_name[producer.name] = producer

    def remove(self, producer: PulsarProducer) -> None:
        """Remove a producer; the first one that waits for exclusive access may send now."""
        producer.is_closed = True
        self._waiting.pop(producer, None)
        if self._owner is producer:
            self._owner = None
        if self.by_name.get(producer.name) is producer:
            del self.by_name[producer.name]
        if self._waiting and not self.by_name:
            first = next(iter(self._waiting))
            then = self._waiting.pop(first)
            self._own(first, None)
            then()
