"""The topics that Pulsar clients use: what they are in the store, their producers and their subscriptions.

A topic here is one RocketMQ queue: a whole plain topic, or a partition. (Rules: pulsar.md 6.2, 8.)
"""

import functools
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.consumer_offsets import UNKNOWN
from mqtool.engine.broker.limits import MAX_QUEUES_IN_ALL, check_name, check_room
from mqtool.engine.broker.settings import Role
from mqtool.engine.broker.topics import MAX_QUEUES, fault_of_name, may_be_sent_to
from mqtool.engine.intervals import is_time
from mqtool.engine.pulsar.catalogue import Catalogue, KnownTopic
from mqtool.engine.pulsar.cursor import Cursor
from mqtool.engine.pulsar.cursor_files import CursorFiles, CursorKey, Kept
from mqtool.engine.pulsar.deduplication import Deduplication, ProducerFiles, ProducersKey
from mqtool.engine.pulsar.entries import ROOM, Entry
from mqtool.engine.pulsar.limits import check_list
from mqtool.engine.pulsar.names import (
    DEFAULT,
    PulsarTopicName,
    TopicNameError,
    escape,
    parse_topic,
    pulsar_topic,
    rocketmq_topic,
    unescape,
)
from mqtool.engine.pulsar.pace import DispatchRate, Rates
from mqtool.engine.pulsar.producers import Producers
from mqtool.engine.pulsar.queue_log import KeptEntries, QueueLog
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.engine.pulsar.schemas import Schema, check_new, check_reader, find
from mqtool.engine.pulsar.subscription import HeldInAll, PulsarSubscription
from mqtool.engine.store.file_kinds import CONFIG
from mqtool.errors import LimitError
from mqtool.formats.codes import Perm
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.pulsar_subscriptions import SubscriptionState
from mqtool.formats.topics import DEAD_LETTER_PREFIX, DEFAULT_TOPIC, RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController

log = logging.getLogger(__name__)

EARLIEST = (1 << 64) - 1
"""Ledger and entry of the id that means the earliest position."""
_KEPT_AFTER_SEEK_MS = 60_000
_MAX_KEPT_AFTER_SEEK = 10_000
_SWEPT_AT_ONCE = 200
"""Subscriptions that are looked after in one turn."""
_MAX_BACK = 10
"""Entries from the end of a queue among which the last one for consumers is looked for."""


class TopicLocation(NamedTuple):
    """Where the messages of a topic are stored."""

    topic: str
    """The RocketMQ topic."""
    queue_id: int
    partition: int
    """-1 for a plain topic."""
    full_name: str


class QueueTopic:
    """One queue as a Pulsar topic."""

    def __init__(
        self, place: TopicLocation, generation: int, entries: QueueLog, rate: DispatchRate, producers: Producers
    ) -> None:
        self.place = place
        self.rate = rate
        self.generation = generation
        self.log = entries
        self.producers = producers
        self.subscriptions: dict[str, Durable] = {}
        self.deduplication: Deduplication | None = None
        """The state of its producers, if it drops messages that they resend."""
        self.bytes_in = 0
        """Bytes received from producers since the broker started."""

    @property
    def is_used(self) -> bool:
        """Whether there are producers or consumers."""
        return bool(self.producers.by_name) or any(
            durable.subscription.consumers for durable in self.subscriptions.values()
        )

    def offset_of(self, ledger_id: int, entry_id: int) -> int:
        """Return the offset that an id means: that of the first message or the end if the id is outside the queue."""
        start, end = self.log.start, self.log.end
        if ledger_id == EARLIEST or ledger_id < self.generation:
            return start
        if ledger_id > self.generation:
            return end
        return start if entry_id == EARLIEST else max(start, min(entry_id, end))

    def left_of(self, offset: int, bits: int) -> int | None:
        """Return the bits that refer to messages of the entry at an offset; None if these are all or none."""
        if (size := self.log.size_at(offset)) is None:
            return None
        everything = (1 << size[1]) - 1
        left = bits & everything
        return left if left not in (0, everything) else None

    def last_entry(self) -> Entry | None:
        """Return the last entry that consumers can be given, None if there is none among the last ones."""
        offset = self.log.end - 1
        for _ in range(_MAX_BACK):
            if offset < self.log.start:
                break
            entry = self.log.entry(offset)
            if entry is not None and not entry.is_marker:
                return entry
            offset = entry.offset - 1 if entry is not None else offset - 1
        return None

    def offset_at(self, timestamp: int) -> int:
        """Return the offset of the first message stored at a time (ms) or later."""
        return max(self.log.start, min(self.log.offset_at(timestamp), self.log.end))


class Durable:
    """A subscription with its state to be saved; a reader's is not saved."""

    def __init__(
        self, subscription: PulsarSubscription, queue: QueueTopic, key: CursorKey, *, is_durable: bool
    ) -> None:
        self.subscription = subscription
        self.queue = queue
        self.key = key
        self.is_durable = is_durable
        self.committed = UNKNOWN
        """The offset last written to the table of offsets."""
        self.expires_at: int | None = None
        """When a non-durable subscription without a consumer is removed (ms)."""
        self.told_lost = 0
        self.size_asleep = 0
        """How much it keeps while it has no consumers."""


class _Sweep:
    """A look at all subscriptions that are in use, of which a part is over."""

    def __init__(self, durables: list[Durable]) -> None:
        self.left = durables
        self.held = 0
        self.has_saved = False
        self.mixed: set[tuple[str, str]] = set()


class PulsarTopics:
    """The topics of a broker; times are in ms."""

    def __init__(self, broker: "BrokerController", now: int) -> None:
        """Load the catalogue and the cursors.

        Raises:
            FormatError: the catalogue cannot be read.
        """
        self._broker = broker
        config = broker.store.root / CONFIG.name
        self.catalogue = Catalogue(config, broker.saves)
        self._files = CursorFiles(config, broker.saves, lambda: broker.store.end_offset)
        self._producer_files = ProducerFiles(config, broker.saves)
        self.queues: dict[tuple[str, int], QueueTopic] = {}
        self._used_queues: dict[str, list[int]] = {}
        """Ids of ``queues``, by their topics."""
        self._queue_counts: dict[str, int] = {}
        """How many queues the topics of ``queues`` have."""
        self._deduplicating: set[QueueTopic] = set()
        self._awake: dict[Durable, None] = {}  # those that have consumers, or had some
        self._held = HeldInAll()
        self._held_asleep = 0
        self._mixed: set[tuple[str, str]] = set()
        """Topics and groups that have consumers of both kinds."""
        self._sweep: _Sweep | None = None
        self._next_save = now + broker.settings.pulsar_save_interval_ms
        self._log_start = broker.store.log.min_offset
        self._checked_permissions = broker.topics.version, broker.groups.version, broker.settings.perm
        self.most_body = broker.store.config.number("maxMessageSize", 4 << 20)
        self.most_message = self.most_body - ROOM
        self._kept = KeptEntries()
        self._names: dict[str, PulsarTopicName | None] = {}
        """Names of topics, in whole lists of which they would take most of the time."""
        self._named_for = broker.settings
        self._spaces: dict[tuple[str, str], str] = {}
        """Namespaces, and a topic in each."""
        self._left: dict[Durable, None] = {}
        """Subscriptions of readers that seek, in the order in which they left."""
        self._rate = DispatchRate(self._rates_in_all)
        broker.topics.on_change.append(self._topics_changed)
        if broker.state.role is not Role.SLAVE:
            self._finish_deletions(now)
            every = [*self._files.load()]
            restarted = {key.topic for key, kept in every if self._has_restarted(key, kept)}
            for topic in restarted:
                log.warning("the topic %s was deleted, and its queues began anew: so do its subscriptions", topic)
                self.catalogue.restart(topic)
            for key, kept in every:
                self._take_up(key, kept, now, is_restarted=key.topic in restarted)
            if restarted:
                broker.offsets.keep(now)
            broker.topics.terminated.update(topic for topic in self.catalogue.terminated() if broker.topics.get(topic))
            for topic in self.catalogue.deduplicating():
                topic_config = broker.topics.get(topic)
                for queue_id in range(topic_config.read_queue_count if topic_config is not None else 0):
                    self._queue(topic, queue_id)

    def _finish_deletions(self, now: int) -> None:
        """Start new generations of topics that are gone: a kill may have come after the table of topics was saved.

        If there are queues, they continue with the next topic of this name, and so do the facts about it.
        """
        topics = self._broker.topics
        gone = {topic for topic in self.catalogue.topics() if topics.get(topic) is None}
        for topic in gone - {topic for topic, _ in self._broker.store.queues()} if gone else ():
            self.catalogue.delete_topic(topic, now)

    def _has_restarted(self, key: CursorKey, kept: Kept) -> bool:
        """Tell whether a queue has other messages than those of which a cursor knows.

        Its topic was deleted and created again by another broker, or immediately before a kill.
        """
        if self._broker.topics.get(key.topic) is None or self.catalogue.get(key.topic).generation != kept.generation:
            return False
        entries = QueueLog(self._broker.store, *key[:2], self._kept, self.most_body)
        return max(kept.cursor.next_offset, kept.cursor.spans.end) > entries.start and entries.begins_after(
            kept.log_end
        )

    def _take_up(self, key: CursorKey, kept: Kept, now: int, *, is_restarted: bool) -> None:
        config = self._broker.topics.get(key.topic)
        known = self.catalogue.get(key.topic)
        if is_restarted and kept.generation == known.generation - 1:
            kept = kept._replace(cursor=Cursor(0), generation=known.generation, saved_at=now)
            kept.cursor.is_changed = True
            self._broker.offsets.forget(key.group, key.topic, key.queue_id)
        if config is None or known.generation != kept.generation or not 0 <= key.queue_id < config.read_queue_count:
            self._files.delete(key)
            return
        queue = self._queue(key.topic, key.queue_id)
        cursor, offsets = kept.cursor, self._broker.offsets
        of_group = offsets.get(key.group, key.topic, key.queue_id)
        table_is_newer = offsets.kept_at is None or offsets.kept_at > kept.saved_at
        if table_is_newer and of_group != UNKNOWN:  # RocketMQ consumers or administrators may have moved it
            if of_group < cursor.next_offset:
                cursor.seek(of_group)
            cursor.ack_until(of_group)
        cursor.cut_from(queue.log.end)  # a power loss may have destroyed messages: others will get their offsets
        subscription = self._new_subscription(queue, kept.subscription, cursor)
        durable = queue.subscriptions[kept.subscription] = Durable(subscription, queue, key, is_durable=True)
        self._fall_asleep(durable)
        if cursor.is_changed:  # before there are new messages, which the file would mark as acknowledged
            self._save(durable, now)
        else:
            self._commit(durable)

    # Names

    def name_of(self, topic: str) -> PulsarTopicName | None:
        """Return the Pulsar name of an existing RocketMQ topic, None if it is hidden from Pulsar clients."""
        if self._named_for is not self._broker.settings:  # some topics have the names of broker and cluster
            self._named_for = self._broker.settings
            self._names.clear()
        try:
            name = self._names[topic]
        except KeyError:
            name = self._names[topic] = self._name_of(topic)
        return None if name is not None and self._partition_of(name) is not None else name

    def _name_of(self, topic: str) -> PulsarTopicName | None:
        if self.is_hidden(topic):
            return None
        known = self.catalogue.get(topic)
        try:
            return parse_topic(known.name) if known.name else pulsar_topic(topic)
        except TopicNameError:
            return None

    def is_hidden(self, topic: str) -> bool:
        """Tell whether a topic is internal to RocketMQ, or has the name of such a topic for Pulsar clients."""
        return (
            (unescape(topic) or topic).startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
            or self._broker.topics.is_system(topic)
            or not may_be_sent_to(topic)
        )

    def spaces(self) -> set[tuple[str, str]]:
        """Return the existing tenants and namespaces."""
        return {DEFAULT} | {
            name.space for topic in self._broker.topics.configs if "|" in topic and (name := self.name_of(topic))
        }

    def has_space(self, space: tuple[str, str]) -> bool:
        """Tell whether a tenant and namespace exist. Cost: linear in the topics where it was not found before."""
        configs = self._broker.topics.configs
        if space == DEFAULT or self._spaces.get(space) in configs:
            return True
        self._spaces.pop(space, None)
        for topic in configs:
            if "|" in topic and (name := self.name_of(topic)) is not None and name.space == space:
                self._spaces[space] = topic
                return True
        return False

    def parse(self, text: str, unknown_space: PulsarError = PulsarError.TOPIC_NOT_FOUND) -> PulsarTopicName:
        """Parse the topic name that a client sends.

        Raises:
            PulsarRefusedError: no topic can have it, or the namespace does not exist.
        """
        try:
            name = parse_topic(text)
        except TopicNameError as error:
            kind = PulsarError.NOT_ALLOWED if error.is_non_persistent else PulsarError.INVALID_TOPIC_NAME
            raise PulsarRefusedError(kind, str(error)) from None
        if not self.has_space(name.space):
            raise PulsarRefusedError(unknown_space, "Namespace not found")
        topic = rocketmq_topic(name)
        if self.is_hidden(topic) or fault_of_name(topic):
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"The topic {name.full} belongs to RocketMQ")
        return name

    def partition_count(self, name: PulsarTopicName) -> int | None:
        """Return the number of partitions of a topic, 0 if it is plain, None if it does not exist."""
        if self._partition_of(name) is not None:
            return 0
        topic = rocketmq_topic(name)
        return self._partitions_of(topic) if self._broker.topics.get(topic) is not None else None

    def _partition_of(self, name: PulsarTopicName) -> tuple[PulsarTopicName, int] | None:
        """Return the topic and the number of an existing partition, None if the name is not that of one."""
        of = name.partition_of()
        if of is None or (count := self.partition_count(of[0])) is None:
            return None
        return of if of[1] < count else None

    def place_of(self, name: PulsarTopicName) -> TopicLocation | None:
        """Return where a topic is stored, None if it does not exist."""
        if (of := self._partition_of(name)) is not None:  # even if a RocketMQ topic has the name of the partition
            return TopicLocation(rocketmq_topic(of[0]), of[1], of[1], name.full)
        topic = rocketmq_topic(name)
        if self._broker.topics.get(topic) is None:
            return None
        if self.catalogue.get(topic).is_plain:
            return TopicLocation(topic, 0, -1, name.full)
        # A partitioned topic's own name means its first partition: clients use it only if there is one queue.
        return TopicLocation(topic, 0, 0, f"{name.full}-partition-0")

    def open(self, name: PulsarTopicName, now: int, *, create: bool = True) -> QueueTopic:
        """Return the queue of a topic, which is created if necessary.

        Raises:
            PulsarRefusedError: it does not exist and is not created.
            LimitError: there are too many topics.
        """
        place = self.place_of(name)
        if place is None:
            if not create or not self._broker.settings.auto_create_topics:
                raise PulsarRefusedError(PulsarError.TOPIC_NOT_FOUND, f"Topic {name.full} does not exist")
            if name.partition_of() is not None:
                text = f"Partition metadata not found for the partitioned topic of {name.full}"
                raise PulsarRefusedError(PulsarError.NOT_ALLOWED, text)
            topic = rocketmq_topic(name)
            self.create(topic, name, 1, is_plain=True, now=now)
            place = TopicLocation(topic, 0, -1, name.full)
        config = self._broker.topics.get(place.topic)
        if config is not None and config.is_batch:
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"{place.topic} is a RocketMQ batch topic")
        self._check_queues([(place.topic, place.queue_id)])
        return self._queue(place.topic, place.queue_id)

    def _check_queues(self, keys: Iterable[tuple[str, int]]) -> None:
        """Check that there is room for more queues in use by Pulsar clients; raises ``LimitError``."""
        new = sum(key not in self.queues for key in keys)
        check_room(len(self.queues), new, MAX_QUEUES_IN_ALL, "queues in use by Pulsar clients")

    def create(self, topic: str, name: PulsarTopicName, queue_count: int, *, is_plain: bool, now: int) -> None:
        """Create a topic.

        Raises:
            LimitError: there are too many.
        """
        count = min(queue_count, MAX_QUEUES)
        perm = int(Perm.READ | Perm.WRITE)
        config = TopicConfig(topic, count, count, perm, False, "SINGLE_TAG", 0, attributes={})
        self._broker.topics.put([config], now)
        full = name.full if pulsar_topic(topic) is None else ""
        self.catalogue.put(topic, KnownTopic(self.catalogue.get(topic).generation, is_plain, full))
        self._names.pop(topic, None)

    def deduplicate(self, topic: str, deduplicates: bool) -> None:
        """From now on drop messages that producers of a RocketMQ topic resend, or store them."""
        queues = [
            self._queue(topic, queue_id) for queue_id in range(self._broker.topics.configs[topic].read_queue_count)
        ]
        self.catalogue.put(topic, self.catalogue.get(topic)._replace(deduplicates=deduplicates))
        for queue in queues:
            key = ProducersKey(topic, queue.place.queue_id)
            if not deduplicates:
                queue.deduplication = None
                self._deduplicating.discard(queue)
                self._producer_files.delete(key)
            elif queue.deduplication is None:
                queue.deduplication = Deduplication(queue.log, queue.log.end)
                self._deduplicating.add(queue)
                self._producer_files.save(key, queue.generation, queue.deduplication)

    def terminate(self, topic: str, now: int) -> None:
        """Let a RocketMQ topic accept no more messages, from any producer."""
        config = self._broker.topics.configs[topic]
        self.catalogue.put(topic, self.catalogue.get(topic)._replace(is_terminated=True))
        self._broker.topics.put([replace(config, perm=config.perm & ~int(Perm.WRITE))], now)
        self._broker.topics.terminated.add(topic)

    # Schemas

    def schemas(self, topic: str) -> Sequence[Schema]:
        """Return the schemas of a RocketMQ topic, in the order of their versions."""
        return self.catalogue.get(topic).schemas

    def schema_of(self, name: PulsarTopicName, version: int | None = None) -> tuple[int, Schema]:
        """Return a schema of a topic and its version, the latest if no version is given.

        Raises:
            PulsarRefusedError: there is none.
        """
        place = self.place_of(name)
        known = self.schemas(place.topic) if place is not None else ()
        if version is None:
            version = len(known) - 1
        if not 0 <= version < len(known):
            raise PulsarRefusedError(PulsarError.TOPIC_NOT_FOUND, "Topic not found or no-schema")
        return version, known[version]

    def register(self, topic: str, schema: Schema) -> int:
        """Return the version of a producer's schema, which is added if it is new.

        Raises:
            PulsarRefusedError: it is not compatible with the latest one.
            LimitError: there is no room for it.
        """
        known = self.schemas(topic)
        if (version := find(known, schema)) is not None:
            return version
        check_new(known, schema)
        return self.catalogue.add_schema(topic, schema)

    def register_reader(self, queue: QueueTopic, schema: Schema) -> None:
        """Register the schema of a consumer: it becomes the first schema of a topic that was never used before.

        Raises:
            PulsarRefusedError: data written with the latest one cannot be read with it.
            LimitError: there is no room for it.
        """
        topic = queue.place.topic
        if known := self.schemas(topic):
            check_reader(known, schema)
        elif not queue.log.end and not queue.is_used:  # RocketMQ messages have no schema: anybody may read them
            self.register(topic, schema)

    def widen(self, topic: str, queue_count: int, now: int) -> None:
        """Give a topic more queues.

        Raises:
            LimitError: there are too many.
        """
        config = self._broker.topics.configs[topic]
        reads, writes = max(queue_count, config.read_queue_count), max(queue_count, config.write_queue_count)
        self._broker.topics.put([replace(config, read_queue_count=reads, write_queue_count=writes)], now)

    def _topics_changed(self, configs: Iterable[TopicConfig]) -> None:
        """Create the subscriptions of topics on their new queues, where producers may be sooner than consumers."""
        for config in configs:
            before, now = self._queue_counts.get(config.topic), config.read_queue_count
            if before is None:
                continue
            self._queue_counts[config.topic] = now
            if now > before and not self.catalogue.get(config.topic).is_plain:
                try:
                    self._widened(config.topic, before, now)
                except LimitError as error:
                    log.warning("new queues of %s have no subscriptions until consumers come: %s", config.topic, error)

    def _widened(self, topic: str, before: int, queue_count: int) -> None:
        names = {
            name
            for queue_id in range(before)
            if (queue := self.queues.get((topic, queue_id))) is not None
            for name, durable in queue.subscriptions.items()
            if durable.is_durable
        }
        if names:
            self._check_queues([(topic, queue_id) for queue_id in range(before, queue_count)])
        time = self._broker.topics.version.timestamp  # of this change
        for name in sorted(names):
            for queue_id in range(before, queue_count):
                queue = self._queue(topic, queue_id)
                self.subscribe(queue, name, queue.log.start, time, is_durable=True)

    def _queue(self, topic: str, queue_id: int) -> QueueTopic:
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            known = self.catalogue.get(topic)
            name = self.name_of(topic)
            full = name.full if name is not None else topic
            place = TopicLocation(topic, 0, -1, full) if known.is_plain else _partition(topic, queue_id, full)
            if name is not None and not known.is_plain:
                self._tell_hidden(name, queue_id)
            entries = QueueLog(self._broker.store, topic, queue_id, self._kept, self.most_body)
            keep = functools.partial(self.catalogue.keep_epoch, topic, queue_id)
            producers = Producers(dict(known.epochs).get(queue_id, -1), keep)
            queue = QueueTopic(place, known.generation, entries, DispatchRate(self._rates_of_topic), producers)
            if known.deduplicates:
                key = ProducersKey(topic, queue_id)
                queue.deduplication = self._producer_files.load(key, known.generation, queue.log)
                self._deduplicating.add(queue)
                self._producer_files.save(key, known.generation, queue.deduplication)
            self.queues[topic, queue_id] = queue
            self._used_queues.setdefault(topic, []).append(queue_id)
            if (config := self._broker.topics.get(topic)) is not None:
                self._queue_counts.setdefault(topic, config.read_queue_count)
        return queue

    def _tell_hidden(self, name: PulsarTopicName, partition: int) -> None:
        hidden = rocketmq_topic(name._replace(local=f"{name.local}-partition-{partition}"))
        if self._broker.topics.get(hidden) is not None:
            text = "Pulsar clients do not see the RocketMQ topic %s: its name is that of a partition of %s"
            log.warning(text, hidden, name.full)

    def full_names(self, topic: str, name: PulsarTopicName) -> list[str]:
        """Return the full name of an existing RocketMQ topic, or those of its partitions."""
        count = self._partitions_of(topic)
        return [f"{name.full}-partition-{number}" for number in range(count)] if count else [name.full]

    def topics_of(self, space: tuple[str, ...], topics: Iterable[str]) -> Iterator[tuple[str, PulsarTopicName]]:
        """Yield those RocketMQ topics that belong to a tenant and namespace, with their names."""
        for topic in topics:
            name = self.name_of(topic)
            if name is not None and name.space == space and topic != DEFAULT_TOPIC:
                yield topic, name

    def names(self, space: tuple[str, ...]) -> list[str]:
        """Return the full names of the topics of a tenant and namespace, with one item per partition.

        Raises:
            LimitError: there are too many.
        """
        names: list[str] = []
        for topic, name in self.topics_of(space, self._broker.topics.configs):
            names += self.full_names(topic, name)
            check_list(len(names))
        return sorted(names)

    def partitioned(self, space: tuple[str, ...]) -> list[str]:
        """Return the full names of the topics that have partitions."""
        topics = self.topics_of(space, self._broker.topics.configs)
        return sorted(name.full for topic, name in topics if self._partitions_of(topic))

    def _partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a RocketMQ topic, 0 if it is plain."""
        return 0 if self.catalogue.get(topic).is_plain else self._broker.topics.configs[topic].read_queue_count

    def queues_of(self, name: PulsarTopicName) -> list[QueueTopic]:
        """Return the queues of a topic, one for each partition; empty if the topic does not exist.

        Raises:
            LimitError: too many queues are in use.
        """
        count = self.partition_count(name)
        if count:
            keys = [(rocketmq_topic(name), number) for number in range(count)]
            self._check_queues(keys)
        else:
            place = self.place_of(name)
            keys = [(place.topic, place.queue_id)] if place is not None else []
        queues = [self._queue(*key) for key in keys]
        for queue in queues:
            self.follow_all(queue)
        return queues

    # Subscriptions

    def subscription(self, queue: QueueTopic, name: str) -> "Durable | None":
        """Return an existing subscription, moved to the current offset of its group."""
        durable = queue.subscriptions.get(name)
        if durable is not None and durable.is_durable and not durable.subscription.consumers:
            self._follow(durable)  # RocketMQ consumers may have read on in the meantime
        return durable

    def follow_all(self, queue: QueueTopic) -> None:
        """Move the subscriptions of a queue that have no consumers to where they are now.

        That is the current offset of the group, and past messages that were removed.
        """
        for name in queue.subscriptions:
            if (durable := self.subscription(queue, name)) is not None and durable.subscription.pass_removed():
                self._wake(durable)  # which is told, and saved

    def subscribe(self, queue: QueueTopic, name: str, offset: int, now: int, *, is_durable: bool) -> Durable:
        """Return a subscription; a new one starts at an offset.

        Raises:
            LimitError: there are too many offsets, or the name is too long.
        """
        if (durable := queue.subscriptions.get(name)) is not None:
            self._stays(durable)
            return durable
        check_name(name, "subscription")
        place = queue.place
        key = CursorKey(place.topic, place.queue_id, escape(name))
        if is_durable:
            self._broker.offsets.check_room(key.group, key.topic, [key.queue_id])
            self._broker.groups.find(key.group, now)
            of_group = self._broker.offsets.get(key.group, key.topic, key.queue_id)
            if of_group != UNKNOWN:  # RocketMQ consumers have read up to there
                offset = min(of_group, queue.log.end)
        subscription = self._new_subscription(queue, name, Cursor(offset))
        new_durable = queue.subscriptions[name] = Durable(subscription, queue, key, is_durable=is_durable)
        if is_durable:
            self._save(new_durable, now)
        return new_durable

    def _new_subscription(self, queue: QueueTopic, name: str, cursor: Cursor) -> PulsarSubscription:
        rates = self._rate, queue.rate, DispatchRate(self._rates_of_subscription)
        place = queue.place
        return PulsarSubscription(name, queue.log, cursor, place.full_name, place.partition, rates, self._held)

    def _rates_in_all(self) -> Rates:
        settings = self._broker.settings
        return Rates(settings.dispatch_messages_per_second, settings.dispatch_bytes_per_second)

    def _rates_of_topic(self) -> Rates:
        settings = self._broker.settings
        return Rates(settings.topic_messages_per_second, settings.topic_bytes_per_second)

    def _rates_of_subscription(self) -> Rates:
        settings = self._broker.settings
        return Rates(settings.subscription_messages_per_second, settings.subscription_bytes_per_second)

    def check_group(self, queue: QueueTopic, name: str) -> None:
        """Check that no RocketMQ consumers are connected in the group of a subscription.

        Raises:
            PulsarRefusedError: there are some.
        """
        if self._has_rocketmq_consumers(escape(name), queue.place.topic):
            text = f"Consumers of RocketMQ are connected in the group {escape(name)} of the same topic"
            raise PulsarRefusedError(PulsarError.CONSUMER_BUSY, text)

    def _has_rocketmq_consumers(self, group: str, topic: str) -> bool:
        known = self._broker.clients.group(group)
        return known is not None and topic in known.subscriptions

    def check_permissions(self, queue: QueueTopic, name: str, *, is_durable: bool) -> None:
        """Check that a topic may be read, and by the group of a subscription, as RocketMQ consumers are checked.

        Raises:
            PulsarRefusedError: it may not.
        """
        if text := self.fault_of_permissions(queue, name, is_durable=is_durable):
            raise PulsarRefusedError(PulsarError.AUTHORIZATION, text)
        if is_durable and not self._broker.groups.creates and self._broker.groups.get(escape(name)) is None:
            text = f"Subscription group {escape(name)} does not exist, and is not created automatically"
            raise PulsarRefusedError(PulsarError.SUBSCRIPTION_NOT_FOUND, text)

    def fault_of_permissions(self, queue: QueueTopic, name: str, *, is_durable: bool) -> str:
        """Return why a topic may not be read by the group of a subscription; empty if it may."""
        topic, group, groups = queue.place.topic, escape(name), self._broker.groups
        config = self._broker.topics.get(topic)
        if not self._broker.settings.perm & Perm.READ:
            return "This broker may not be read (brokerPermission)"
        if config is not None and not config.perm & Perm.READ:
            return f"The topic {topic} may not be read (perm {config.perm})"
        if not is_durable:
            return ""
        if (known := groups.get(group)) is not None and not known.consume_enabled:
            return f"The group {group} may not consume (consumeEnable)"
        return "" if groups.is_readable(group, topic) else f"The group {group} may not read the topic {topic}"

    def no_longer_permitted(self) -> list[Durable]:
        """Return the subscriptions with consumers that administrators have forbidden to read since the last call."""
        broker = self._broker
        permissions = broker.topics.version, broker.groups.version, broker.settings.perm
        if permissions == self._checked_permissions:
            return []
        self._checked_permissions = permissions
        return [
            durable
            for durable in self._awake
            if durable.subscription.consumers
            and self.fault_of_permissions(durable.queue, durable.subscription.name, is_durable=durable.is_durable)
        ]

    def unsubscribe(self, durable: Durable, now: int) -> None:
        """Delete a subscription; this is queued for saving when this returns."""
        self._stays(durable)
        queue = durable.queue
        if queue.subscriptions.get(durable.subscription.name) is durable:
            del queue.subscriptions[durable.subscription.name]
            self._drop(durable)
        if durable.is_durable:
            self._files.delete(durable.key)
            self._broker.offsets.forget(durable.key.group, durable.key.topic, durable.key.queue_id)
            self._broker.offsets.keep(now)  # a new subscription of this name would continue at an offset left there

    def joined(self, durable: Durable) -> None:
        """Note that a subscription has a consumer."""
        self._stays(durable)
        self._wake(durable)

    def _stays(self, durable: Durable) -> None:
        durable.expires_at = None
        self._left.pop(durable, None)

    def _wake(self, durable: Durable) -> None:
        """Check a subscription regularly from now on."""
        if durable not in self._awake:
            self._awake[durable] = None
            self._held_asleep -= durable.size_asleep
            durable.size_asleep = 0

    def _fall_asleep(self, durable: Durable) -> None:
        self._awake.pop(durable, None)
        durable.size_asleep = durable.subscription.size
        self._held_asleep += durable.size_asleep

    def _drop(self, durable: Durable) -> None:
        self._wake(durable)
        del self._awake[durable]

    def left(self, durable: Durable, now: int, *, by_seek: bool = False) -> None:
        """Note that a subscription may have no consumers left: a reader's subscription is removed with the last one."""
        if durable.is_durable or durable.subscription.consumers:
            return
        if by_seek:
            durable.expires_at = now + _KEPT_AFTER_SEEK_MS
            self._left[durable] = None
            if len(self._left) > _MAX_KEPT_AFTER_SEEK:
                self.unsubscribe(next(iter(self._left)), now)
        elif durable.expires_at is None:
            self.unsubscribe(durable, now)

    def moved(self, durable: Durable, now: int) -> None:
        """Note that a subscription was moved; it is queued for saving when this returns."""
        if durable.is_durable:
            self._save(durable, now)
        self._wake(durable)

    def used_queues_of(self, topic: str) -> list[QueueTopic]:
        """Return the queues of a topic that are in use."""
        return [self.queues[topic, queue_id] for queue_id in self._used_queues.get(topic, ())]

    def restart(self, topic: str, now: int) -> list[QueueTopic]:
        """Let the queues of a topic, which were deleted, and its subscriptions begin anew; return the former queues."""
        self.catalogue.restart(topic)
        gone = [self.queues.pop((topic, queue_id)) for queue_id in self._used_queues.pop(topic, ())]
        for former in gone:
            self._deduplicating.discard(former)
            queue = self._queue(topic, former.place.queue_id)
            if former.deduplication is not None:
                producers = Deduplication(queue.log, 0, former.deduplication.snapshot()[1])
                queue.deduplication = producers
                self._producer_files.save(ProducersKey(*queue.place[:2]), queue.generation, producers)
            for name, durable in former.subscriptions.items():
                self._drop(durable)
                if durable.is_durable:
                    self.subscribe(queue, name, 0, now, is_durable=True)
        self._broker.offsets.keep(now)
        return gone

    def delete_topic(self, topic: str, now: int) -> list[QueueTopic]:
        """Remove a deleted topic, and return its queues."""
        self._queue_counts.pop(topic, None)
        self._names.pop(topic, None)
        gone = [self.queues.pop((topic, queue_id)) for queue_id in self._used_queues.pop(topic, ())]
        for queue in gone:
            self._deduplicating.discard(queue)
            if queue.deduplication is not None:
                self._producer_files.delete(ProducersKey(topic, queue.place.queue_id))
            for durable in queue.subscriptions.values():
                self._drop(durable)
                if durable.is_durable:
                    self._files.delete(durable.key)
        self.catalogue.delete_topic(topic, now)
        return gone

    def states(self) -> Iterator[SubscriptionState]:
        """Yield the state of the subscriptions of all queues, except for those of readers."""
        for queue in self.queues.values():
            self.follow_all(queue)
            for durable in queue.subscriptions.values():
                if durable.is_durable:
                    subscription, key = durable.subscription, durable.key
                    yield SubscriptionState(
                        *key,
                        subscription.name,
                        subscription.kind.label if subscription.consumers else None,
                        [consumer.name for consumer in subscription.consumers],
                        subscription.cursor.next_offset,
                        subscription.backlog,
                        len(subscription.cursor.spans),
                        subscription.unacked,
                    )

    # Time

    def tick(self, now: int) -> list[Durable]:
        """Save changes when it is time, in several turns if they are many; return the subscriptions that were moved."""
        if self._sweep is None:
            interval = self._broker.settings.pulsar_save_interval_ms
            if not is_time(self._next_save, interval, now):
                return []
            self._next_save = now + interval
            for queue in self._deduplicating:
                self._save_producers(queue)
            if self._log_start != (log_start := self._broker.store.log.min_offset):
                self._log_start = log_start
                for queue in self.queues.values():
                    self.follow_all(queue)
            self._sweep = _Sweep([*self._awake])
        sweep, moved = self._sweep, []
        for _ in range(min(_SWEPT_AT_ONCE, len(sweep.left))):
            durable = sweep.left.pop()
            if durable in self._awake and self._look_after(durable, sweep, now):
                moved.append(durable)
        if not sweep.left:
            self._sweep = None
            self._tell_mixed(sweep.mixed)
            self._held.total = sweep.held + self._held_asleep
            if sweep.has_saved:
                self._broker.offsets.keep(now)
        return moved

    def _look_after(self, durable: Durable, sweep: "_Sweep", now: int) -> bool:
        """Save a subscription if it has changed, or remove it if its time is over; tell whether it was moved."""
        has_consumers, has_moved = bool(durable.subscription.consumers), False
        if durable.expires_at is not None and now >= durable.expires_at and not has_consumers:
            self.unsubscribe(durable, now)
            return False
        if durable.is_durable:
            has_moved = self._follow(durable)
            if durable.subscription.cursor.is_changed:
                self._save(durable, now)
                sweep.has_saved = True
            self._tell_lost(durable)
            if has_consumers and self._has_rocketmq_consumers(durable.key.group, durable.key.topic):
                sweep.mixed.add((durable.key.topic, durable.key.group))
        if has_consumers or durable.expires_at is not None:
            sweep.held += durable.subscription.size
        else:
            self._fall_asleep(durable)
        return has_moved

    def set_back(self, now: int) -> None:
        """Save at the next tick: the clock was set back."""
        self._next_save = now

    def next_tick(self) -> int | None:
        """Return when something is due; 0: now."""
        if self._sweep is not None:
            return 0
        return self._next_save if self.queues else None

    def save_all(self, now: int) -> None:
        """Queue all changes for saving."""
        for queue in self._deduplicating:
            self._save_producers(queue)
        for durable in self._awake:
            if durable.is_durable and durable.subscription.cursor.is_changed:
                self._save(durable, now)

    def _save_producers(self, queue: QueueTopic) -> None:
        if queue.deduplication is not None and queue.deduplication.is_to_be_saved:
            key = ProducersKey(queue.place.topic, queue.place.queue_id)
            self._producer_files.save(key, queue.generation, queue.deduplication)

    def _follow(self, durable: Durable) -> bool:
        """Move a subscription to where administrators or RocketMQ consumers have moved its group."""
        offsets, key = self._broker.offsets, durable.key
        offset = offsets.get(key.group, key.topic, key.queue_id)
        reset = None
        if not self._has_rocketmq_consumers(key.group, key.topic):  # these would not be notified of it
            reset = offsets.take_reset(key.group, key.topic, key.queue_id)
        if offset == UNKNOWN or (reset is None and offset == durable.committed):
            return False
        durable.subscription.move(min(offset, durable.queue.log.end))
        durable.committed = offset
        self._wake(durable)
        return True

    def _save(self, durable: Durable, now: int) -> None:
        cursor = durable.subscription.cursor
        self._commit(durable)
        self._files.save(durable.key, durable.subscription.name, durable.queue.generation, cursor, now)

    def _commit(self, durable: Durable) -> None:
        key, offset = durable.key, durable.subscription.cursor.next_offset
        if self._broker.offsets.get(key.group, key.topic, key.queue_id) != offset:
            self._broker.offsets.commit(key.group, key.topic, key.queue_id, offset)
        durable.committed = offset

    def _tell_mixed(self, mixed: set[tuple[str, str]]) -> None:
        """Log which subscriptions RocketMQ consumers have joined while they have Pulsar consumers."""
        for topic, group in sorted(mixed - self._mixed):
            text = "the group %s has RocketMQ and Pulsar consumers on the topic %s: both may get the same messages"
            log.warning(text, group, topic)
        self._mixed = mixed

    def _tell_lost(self, durable: Durable) -> None:
        lost = durable.subscription.lost
        if lost > durable.told_lost:
            log.warning(
                "subscription %s of %s: %d messages were removed, or cannot be read, before they were acknowledged",
                durable.subscription.name,
                durable.queue.place.full_name,
                lost - durable.told_lost,
            )
            durable.told_lost = lost


def _partition(topic: str, queue_id: int, full_name: str) -> TopicLocation:
    return TopicLocation(topic, queue_id, queue_id, f"{full_name}-partition-{queue_id}")
