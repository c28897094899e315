"""What was sent and what was consumed, and whether that is as it must be.

A message is known by its body, which is a text of its own. Faults make a message be sent, stored and delivered more
than once; what no fault may do is told by the methods here, each of which raises ``ViolationError``.
"""

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.topics import RETRY_PREFIX


class ViolationError(AssertionError):
    """Something that must never be."""


class ConsumerKind(enum.Enum):
    """How a group consumes."""

    CONCURRENT = "concurrent"
    ORDERLY = "orderly"
    LITE = "lite pull"
    ITERATE = "lite pull, one by one"
    BATCH = "lite pull, in blocks"
    ASSIGNED = "lite pull, of assigned queues"
    PULL = "pull by offset"
    POP = "pop"
    BROADCAST = "broadcast"
    BROADCAST_ORDERLY = "broadcast, orderly"


@dataclass
class ProducedMessage:
    """A message, and what its producer knows of it."""

    body: str
    topic: str
    tag: str
    lane: str
    number: int
    is_poison: bool = False
    """Whether every listener fails with it."""
    not_before_s: float = 0.0
    """When it may be delivered."""
    is_acknowledged: bool = False
    is_rolled_back: bool = False
    """Whether its transaction has been, or will be: nobody may ever get it."""
    place: tuple[MessageQueue, int] | None = None
    """Where it is stored, once that was acknowledged."""


@dataclass
class Progress:
    """What a group did with one queue."""

    finished: set[int] = field(default_factory=set)
    """Offsets of messages of which a listener has said what became of them."""
    checked: int = 0
    """All offsets below are finished, or of messages that the group does not want."""
    at_work: dict[str, int] = field(default_factory=dict)
    """Who is at work with messages of it."""


class GroupHistory:
    """What the members of a group got."""

    def __init__(
        self, name: str, kind: ConsumerKind, topics: tuple[str, ...], tags: frozenset[str], *, has_poison: bool
    ) -> None:
        self.name = name
        self.kind = kind
        self.topics = topics
        self.tags = tags
        """Those that it wants; all if there are none."""
        self.has_poison = has_poison
        self.delivered = 0
        self.consumed: dict[str, int] = defaultdict(int)
        """How often a listener succeeded, by body."""
        self.given_up: set[str] = set()
        """Bodies with which a listener failed as often as it may."""
        self.consumed_by: dict[str, set[str]] = defaultdict(set)
        self.progress: dict[MessageQueue, Progress] = defaultdict(Progress)

    def wants(self, topic: str, tag: str | None) -> bool:
        """Tell whether a message is for this group."""
        return topic in self.topics and (not self.tags or tag in self.tags)

    def cannot_take(self, sent: ProducedMessage) -> bool:
        """Tell whether its listeners fail with a message whenever it comes."""
        return self.has_poison and sent.is_poison


def queue_of(message: ConsumerMessage, group: str) -> MessageQueue:
    """Return the queue that a message came by, which is not that of its topic where it was sent back."""
    topic = RETRY_PREFIX + group if "RETRY_TOPIC" in message.properties else message.topic
    return MessageQueue(topic, message.broker_name, message.queue_id)


class History:
    """Everything that was sent, and all groups."""

    def __init__(self, is_unwanted: Callable[[MessageQueue, int, GroupHistory], bool | None]) -> None:
        """Begin with nothing.

        Args:
            is_unwanted: tells of a queue and an offset whether a message lies there that a group does not want; None
                where its broker is not there to be asked.
        """
        self.sent: dict[str, ProducedMessage] = {}
        self.groups: dict[str, GroupHistory] = {}
        self.last_fault_s = 0.0
        """When a fault last ended that may have two members of a group believe that a queue is theirs."""
        self._is_unwanted = is_unwanted

    # While it goes on

    def begin(self, group: GroupHistory, member: str, messages: Iterable[ConsumerMessage], time_s: float) -> None:
        """Take note of messages that a listener gets.

        Raises:
            ViolationError: nobody sent such a message, it comes too early, or the group does not want it; or another
                member is at work with the same queue of an orderly group.
        """
        for message in messages:
            group.delivered += 1
            body = message.body.decode()
            sent = self.sent.get(body)
            if sent is None or sent.topic != message.topic:
                raise ViolationError(f"{group.name} got {body} of {message.topic}, which nobody sent")
            if not group.wants(sent.topic, sent.tag):
                raise ViolationError(f"{group.name} got {body} with the tag {sent.tag}, which it has not subscribed to")
            if sent.is_rolled_back:
                raise ViolationError(f"{group.name} got {body}, whose transaction was rolled back")
            if sent.not_before_s > time_s + 0.005:
                raise ViolationError(f"{group.name} got {body} {sent.not_before_s - time_s:.3f} s too early")
            if group.kind is ConsumerKind.ORDERLY:
                at_work = group.progress[queue_of(message, group.name)].at_work
                others = at_work.keys() - {member}
                if others and time_s - self.last_fault_s > 120:
                    raise ViolationError(
                        f"{group.name}: {member} works on the queue of {body}, on which {others} does, too"
                    )
                at_work[member] = at_work.get(member, 0) + 1

    def end(self, group: GroupHistory, member: str, messages: Iterable[ConsumerMessage], *, is_success: bool) -> None:
        """Take note of what a listener says of messages.

        Raises:
            ViolationError: one before it in the queue of an orderly group has not succeeded yet.
        """
        for message in messages:
            body = message.body.decode()
            queue = queue_of(message, group.name)
            progress = group.progress[queue]
            if not is_success and message.reconsume_times >= MAX_TIMES:
                group.given_up.add(body)
            if group.kind is ConsumerKind.ORDERLY:
                progress.at_work[member] -= 1
                if not progress.at_work[member]:
                    del progress.at_work[member]
                if not is_success:
                    if message.reconsume_times >= MAX_TIMES and group.cannot_take(self.sent[body]):
                        progress.finished.add(message.queue_offset)  # it is given up
                    continue
                self.check_below(group, queue, message.queue_offset, "consumed")
            progress.finished.add(message.queue_offset)
            if is_success:
                group.consumed[body] += 1
                group.consumed_by[body].add(member)

    def gone(self, member: str) -> None:
        """Take note that a member does nothing any more."""
        for group in self.groups.values():
            for progress in group.progress.values():
                progress.at_work.pop(member, None)

    def check_below(self, group: GroupHistory, queue: MessageQueue, offset: int, what: str) -> None:
        """Look at all messages of a queue before an offset.

        Raises:
            ViolationError: a listener has not finished one of them.
        """
        progress = group.progress[queue]
        while progress.checked < offset:
            at = progress.checked
            if at not in progress.finished and not (is_unwanted := self._is_unwanted(queue, at, group)):
                if is_unwanted is None:
                    return
                raise ViolationError(f"{group.name} has {what} {queue} up to {offset}, but nobody has finished {at}")
            progress.checked += 1

    # When all is quiet

    def missing(self, group: GroupHistory, member: str | None = None) -> list[ProducedMessage]:
        """Return the messages that were acknowledged, and that a group, or one member, has not consumed."""
        return [
            one
            for one in self.sent.values()
            if one.is_acknowledged
            and not one.is_rolled_back
            and not group.cannot_take(one)
            and group.wants(one.topic, one.tag)
            and (member not in group.consumed_by.get(one.body, ()) if member else one.body not in group.consumed)
        ]

    def poison(self, group: GroupHistory) -> list[ProducedMessage]:
        """Return the messages that must have become dead letters of a group."""
        return [
            one
            for one in self.sent.values()
            if one.is_acknowledged and group.cannot_take(one) and group.wants(one.topic, one.tag)
        ]


MAX_TIMES = 2
"""How often a message is delivered again to groups that are sent poison."""
