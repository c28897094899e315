"""Topics: created, changed and deleted by administrators.

(Rules: remoting.md 3.5. RocketMQ: ``AdminBrokerProcessor``.)
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.topics import MAX_QUEUES, Topics, fault_of_name
from mqtool.formats.codes import Perm
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, is_system_topic

if TYPE_CHECKING:
    from mqtool.engine.store.live_queue import LiveQueue
    from mqtool.engine.store.message_store import MessageStore

_ALL_PERMS = int(Perm.PRIORITY | Perm.READ | Perm.WRITE | Perm.INHERIT)


class TopicRequests:
    """Requests of administrators about topics, with the parts of a broker that they need."""

    def __init__(self, store: "MessageStore", topics: Topics, delete_queues: Callable[[Collection[str]], None]) -> None:
        self._store = store
        self._topics = topics
        self._delete_queues = delete_queues

    def find(self, topic: str) -> TopicConfig:
        """Return a topic; raises ``OperationRefusedError`` if there is none."""
        config = self._topics.get(topic)
        if config is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"No topic in this broker. topic: {topic}")
        return config

    def put(self, configs: Sequence[TopicConfig], now: int) -> None:
        """Create or change topics, none of them if one is refused.

        Raises:
            OperationRefusedError: one is refused.
            LimitError: there would be too many, or the settings of one are too long.
        """
        for config in configs:
            if self._topics.is_system(config.topic):
                raise _of_the_broker(config.topic)
            if fault := fault_of_name(config.topic):
                raise OperationRefusedError(Reason.BAD_ARGUMENT, fault)
            if max(config.read_queue_count, config.write_queue_count) > MAX_QUEUES:
                text = f"The topic[{config.topic}] would have more than {MAX_QUEUES:,} queues."
                raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
            if min(config.read_queue_count, config.write_queue_count) < 0 or not 0 <= config.perm <= _ALL_PERMS:
                text = f"fewer than 0 queues, or a perm that is not in 0..{_ALL_PERMS}"
                text = f"The topic[{config.topic}] would have {text}"
                raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
            known = self._topics.get(config.topic)
            if known is not None and known.is_batch != config.is_batch:  # its queues would be in other files
                text = f"queue.type of the existing topic {config.topic} cannot be changed"
                raise OperationRefusedError(Reason.NOT_POSSIBLE, f"header field attributes {text}")
        self._topics.put(configs, now)

    def delete(self, topics: Sequence[str], now: int) -> None:
        """Delete topics and their queues, none of them if one may not be deleted; raises ``OperationRefusedError``."""
        for topic in topics:
            if not topic.strip():
                raise OperationRefusedError(Reason.BAD_ARGUMENT, "The specified topic is blank.")
            if self._topics.is_system(topic):
                raise _of_the_broker(topic)
        self._topics.delete_all(topics, now)
        self._delete_queues(topics)

    def make_missing(self, now: int, fetched_offset: int) -> list[str]:
        """Create topics that have messages but are not in the table yet, or give them more queues; return their names.

        A slave that becomes the master may have the first messages of a topic, but not the topic yet. A deleted topic
        is not created again: then the table is newer than its messages. Messages that a master fetches from its slaves
        are new to it, however old they are. Cost: linear in the queues.

        Args:
            now: the time.
            fetched_offset: from this address on, the log was just fetched.
        """
        known_at = self._topics.version.timestamp if self._topics.version.counter else 0
        counts: dict[str, int] = {}
        for topic, queue_id in self._store.queues():
            known = self._topics.get(topic)
            if known and queue_id < max(known.read_queue_count, known.write_queue_count):
                continue
            if is_system_topic(topic) or topic.startswith(LIGHT_QUEUE_PREFIX):
                continue
            last_offset = self._last_offset(topic, queue_id)
            if last_offset >= 0 and (
                last_offset >= fetched_offset or self._store.log.store_timestamp(last_offset) >= known_at
            ):
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        self._topics.of_messages(counts, now)
        return sorted(counts)

    def _last_offset(self, topic: str, queue_id: int) -> int:
        """Return the address of the last message of a queue, -1 if it has none."""
        queue = self._store.queue(topic, queue_id)
        last = queue.units(queue.next_offset - 1, 1) if queue and queue.next_offset else []
        return last[0].physical_offset if last else -1

    # Cleaning

    def delete_unused_queues(self) -> None:
        """Delete the queues of topics that do not exist."""
        topics = {topic for topic, _ in self._store.queues()}
        self._delete_of(topic for topic in topics if self._topics.get(topic) is None)

    def delete_expired_queues(self) -> None:
        """Delete the queues of topics that have no messages left."""
        queues: dict[str, list[LiveQueue]] = {}
        for topic, queue_id in self._store.queues():
            if queue := self._store.queue(topic, queue_id):
                queues.setdefault(topic, []).append(queue)
        start = self._store.log.min_offset
        self._delete_of(
            topic
            for topic, all_of in queues.items()
            if all(queue.min_offset(start) >= queue.next_offset for queue in all_of)
        )

    def _delete_of(self, topics: Iterable[str]) -> None:
        """Delete the queues of topics, except for those whose offsets the broker itself uses."""
        self._delete_queues([topic for topic in topics if not is_system_topic(topic)])


def _of_the_broker(topic: str) -> OperationRefusedError:
    return OperationRefusedError(Reason.BAD_ARGUMENT, f"The topic[{topic}] is conflict with system topic.")
