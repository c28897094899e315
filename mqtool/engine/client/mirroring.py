"""What a mirror copies, where to, and how it recognizes its copies: plain values in and out.

A copy carries the route of its message: for each cluster from which it was copied, its position there. The last hop
identifies a copy, and the clusters of all hops keep a message from being sent back to where it has been.

Cost: linear in the messages; an ``OffsetMap`` keeps three numbers for each range of copies without a gap.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.client.outgoing import Packed
from mqtool.errors import UsageError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.client_batch import build_element
from mqtool.formats.codes import SysFlag
from mqtool.formats.properties import join_properties
from mqtool.formats.property_names import (
    BORN_HOST,
    BORN_TIMESTAMP,
    BUYER_ID,
    CORRELATION_ID,
    INSTANCE_ID,
    KEYS,
    OF_ROCKETMQ,
    SHARDING_KEY,
    TAGS,
    UNIQ_KEY,
    WAIT,
)
from mqtool.formats.topics import DEAD_LETTER_PREFIX, REPLY_SUFFIX, RETRY_PREFIX, is_system_topic

if TYPE_CHECKING:
    from mqtool.formats.message import Message

HOPS = "MQTOOL_MIRROR"
"""The property of a copy with its route: ``cluster:broker:topic:queue:offset:store time``, separated by spaces."""
RESENT = "resent"
"""The marker after the hops of a dead letter that was resent: it is no longer a copy of a mirror."""
"""RocketMQ's property for the born time (ms) of a message, if the head of the record has another time."""
_KEPT = frozenset(
    (TAGS, KEYS, UNIQ_KEY, SHARDING_KEY, BORN_TIMESTAMP, BORN_HOST, BUYER_ID, INSTANCE_ID, CORRELATION_ID)
)
_KEPT_FLAGS = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
_MAX_PROPERTIES = 32_767  # bytes, as their size is a signed number of two bytes; the broker adds some
_ROOM_OF_BROKER = 256
_MAX_OF_BATCH = 1 << 20
_MAX_RUNS = 10_000


class Hop(NamedTuple):
    """Where a message was in a cluster from which it was copied; the store time (ms) distinguishes recreated topics."""

    cluster: str
    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp: int

    @property
    def queue(self) -> MessageQueue:
        """Its queue."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


def clusters_of(properties: dict[str, str]) -> set[str]:
    """Return the clusters from which a message has been copied."""
    return {text.partition(":")[0] for text in properties.get(HOPS, "").split(" ")} - {"", RESENT}


def last_hop(properties: dict[str, str]) -> Hop | None:
    """Return the position from which a copy was made; None if the message is not a copy, or was resent since."""
    cluster, _, place = properties.get(HOPS, "").rpartition(" ")[2].partition(":")
    pieces = place.rsplit(":", 4)
    if len(pieces) != 5 or not all(piece.isdecimal() for piece in pieces[2:]):
        return None
    return Hop(cluster, pieces[0], pieces[1], *map(int, pieces[2:]))


def check_cluster_name(name: str) -> None:
    """Raise UsageError for a name that copies cannot carry."""
    if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise UsageError(f"copies cannot carry the cluster name {name!r}: give another with --from-name or --to-name")


def progress_group(target_cluster: str) -> str:
    """Return the group of the source whose offsets are the progress of a mirror."""
    return "mqtool_mirror_" + target_cluster.replace(".", "_")


def is_progress_group(group: str) -> bool:
    """Return whether a group is that of a mirror."""
    return group.startswith("mqtool_mirror_")


def is_mirrored(topic: str, cluster: str, broker_names: Iterable[str]) -> bool:
    """Return whether a topic belongs to applications: not to brokers, and not a retry or dead letter topic."""
    own = {cluster, cluster + REPLY_SUFFIX, *broker_names}
    return topic not in own and not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def target_queue(queue: MessageQueue, brokers: Sequence[str], writable: Iterable[MessageQueue]) -> MessageQueue:
    """Return the target queue for copies of a queue.

    Brokers are matched in the order of their names, queues by their ids; if the target has fewer of either, they wrap
    around.

    Args:
        queue: of the source.
        brokers: all of the source that have the topic.
        writable: the queues of the topic at the target, at least one.
    """
    by_broker: dict[str, list[MessageQueue]] = {}
    for candidate in sorted(writable, key=lambda candidate: (candidate.broker_name, candidate.queue_id)):
        by_broker.setdefault(candidate.broker_name, []).append(candidate)
    names = sorted(by_broker)
    choices = by_broker[names[sorted(brokers).index(queue.broker_name) % len(names)]]
    return choices[queue.queue_id % len(choices)]


class MirroredMessage(NamedTuple):
    """A message to be copied; ``queue_offset`` is that of its original."""

    queue_offset: int
    born_timestamp: int
    flag: int
    sys_flag: int
    body: bytes  # as it is stored, compressed or not
    properties: dict[str, str]

    def text(self, born_timestamp: int) -> str:
        """Return its properties, given the born time in the head."""
        if born_timestamp == self.born_timestamp:
            return join_properties(self.properties)
        return join_properties({BORN_TIMESTAMP: str(self.born_timestamp), **self.properties})


def copy_of(message: "Message", cluster: str, broker_name: str) -> MirroredMessage:
    """Return the copy of a message of a broker.

    Body, flag, tag, keys, unique and shard key and the application's own properties are kept. What clients and brokers
    recorded about its delivery (delays, attempts, transactions) is removed: another broker would apply it again.

    Raises:
        UsageError: its properties, including its origin, are too long.
    """
    properties = {name: value for name, value in message.properties.items() if name in _KEPT or name not in OF_ROCKETMQ}
    place = Hop(cluster, broker_name, message.topic, message.queue_id, message.queue_offset, message.store_timestamp)
    properties[HOPS] = f"{properties.get(HOPS, '')} {':'.join(map(str, place))}".lstrip()
    copied = MirroredMessage(
        message.queue_offset,
        message.born_timestamp,
        message.flag,
        message.sys_flag & _KEPT_FLAGS,
        message.body,
        properties,
    )
    size = len(copied.text(0).encode())
    if size > _MAX_PROPERTIES - _ROOM_OF_BROKER:
        raise UsageError(f"its properties, including its origin, take {size:,} bytes, which brokers do not store")
    return copied


def in_requests(copies: Iterable[MirroredMessage]) -> Iterator[list[MirroredMessage]]:
    """Yield copies in order, grouped into batches: compressed in the same way, and not too large in total."""
    batch: list[MirroredMessage] = []
    size = 0
    for copied in copies:
        takes = len(copied.body) + len(copied.text(0).encode())
        if batch and (size + takes > _MAX_OF_BATCH or copied.sys_flag != batch[0].sys_flag):
            yield batch
            batch, size = [], 0
        batch.append(copied)
        size += takes
    if batch:
        yield batch


def pack_copies(copies: Sequence[MirroredMessage], topic: str) -> tuple[Packed, int]:
    """Return the request that stores copies, and the born time (ms) in its head, which is that of the first copy.

    The batch gets no unique key of its own, because brokers would give it to all of its messages.
    """
    first, born = copies[0], copies[0].born_timestamp
    if len(copies) == 1:
        text = join_properties({**first.properties, WAIT: "true"})
        return Packed(topic, first.body, text, first.sys_flag, first.flag), born
    body = b"".join(build_element(copy.flag, copy.body, copy.text(born).encode()) for copy in copies)
    return Packed(topic, body, join_properties({WAIT: "true"}), first.sys_flag, is_batch=True), born


class OffsetMap:
    """Maps offsets of one queue to the offsets of their copies in the target queue, as far as known."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, int, int]] = []  # first offset at the origin, how many, first offset at the target

    def add(self, offset: int, target_offset: int) -> None:
        """Note a copy; copies are added in order."""
        if self._runs:
            first, count, target = self._runs[-1]
            if (offset - first, target_offset - target) == (count, count):
                self._runs[-1] = first, count + 1, target
                return
        self._runs.append((offset, 1, target_offset))
        if len(self._runs) > _MAX_RUNS:
            del self._runs[: _MAX_RUNS // 2]

    def behind(self, offset: int) -> int | None:
        """Return the target offset after the last copy of a message before an offset; None if unknown.

        >>> offsets = OffsetMap()
        >>> for offset, target_offset in ((5, 70), (6, 71), (9, 75)): offsets.add(offset, target_offset)
        >>> [offsets.behind(offset) for offset in (5, 6, 7, 9, 10)]
        [None, 71, 72, 72, 76]
        """
        at = bisect.bisect_left(self._runs, (offset,)) - 1
        if at < 0:
            return None
        first, count, target = self._runs[at]
        return target + min(offset - first, count)
