"""How the queue of a message is chosen: round robin, avoiding brokers that fail, or by a selector.

(Rules: remoting.md 4.3. RocketMQ: ``TopicPublishInfo``, ``MQFaultStrategy``, ``SelectMessageQueueByHash``,
``SelectMessageQueueByRandom``.)
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from mqtool.engine.client.fault_latency import FaultLatency
from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.hashing import java_hash

Selector = Callable[[Sequence[MessageQueue], ProducerMessage, Any], MessageQueue]
"""Takes the queues of the topic, the message, and the application's argument; returns one of these queues."""


def select_by_hash(queues: Sequence[MessageQueue], _message: ProducerMessage, key: Any) -> MessageQueue:
    """Choose the same queue for the same key, as a Java producer does for an equal string or number."""
    return queues[abs(_java_hash_of(key)) % len(queues)]


def _java_hash_of(key: Any) -> int:
    if not isinstance(key, int):
        return java_hash(str(key))
    if -(1 << 31) <= key < 1 << 31:  # an Integer
        return key
    low = (key ^ key >> 32) & 0xFFFFFFFF  # a Long
    return low - ((low & 0x80000000) << 1)


def select_at_random(queues: Sequence[MessageQueue], _message: ProducerMessage, _arg: Any) -> MessageQueue:
    """Choose a random queue."""
    return random.choice(queues)


class InTurn:
    """Chooses the queues of a topic round robin.

    After a failure, a queue of another broker is preferred; with ``faults``, a broker to be avoided is left out as long
    as there is another.
    """

    def __init__(self, start: int, faults: FaultLatency | None = None) -> None:
        self._faults = faults
        self._index = start

    def choose(self, queues: Sequence[MessageQueue], failed_broker: str | None, now: int) -> MessageQueue:
        """Return the next queue; ``failed_broker`` is the broker of the previous, failed attempt."""
        if not failed_broker and not self._faults:
            self._index += 1
            return queues[self._index % len(queues)]
        brokers = {queue.broker_name for queue in queues}
        if self._faults:
            available = {name for name in brokers if self._faults.is_available(name, now)}
            brokers = available or {self._faults.least_bad(sorted(brokers))}
        brokers = brokers - {failed_broker} or brokers
        while True:
            self._index += 1
            queue = queues[self._index % len(queues)]
            if queue.broker_name in brokers:
                return queue
