"""The common part of consumers that read queues themselves: which queues exist, and where they start and end.

(Rules: remoting.md 3.4. RocketMQ: ``MQAdminImpl``.)
"""

import contextlib
from typing import TypeVar

from mqtool.engine.client import calls, fetching
from mqtool.engine.client.calls import Call
from mqtool.engine.client.names import with_namespace
from mqtool.engine.client_runtime.client import Client
from mqtool.errors import NotFoundError, RefusedError
from mqtool.formats.bodies import MessageQueue

T = TypeVar("T")
ANSWER_MS = 3000


class Reader(Client):
    """A client that reads queues."""

    async def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all readable queues of a topic.

        Raises:
            NotFoundError: there is no such topic.
            UnavailableError: no name server answers.
        """
        queues = await self._instance.queues_to_read(with_namespace(topic, self.options.namespace))
        if not queues:
            raise NotFoundError(f"the topic {topic} does not exist or is not readable")
        return queues

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue has."""
        self._check_running()
        return await self._ask_of(queue, calls.min_offset(queue.topic, queue.queue_id))

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message of a queue."""
        self._check_running()
        return await self._ask_of(queue, fetching.max_offset(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message of a queue that was stored at a time (ms) or later."""
        self._check_running()
        return await self._ask_of(queue, calls.offset_at(queue.topic, queue.queue_id, timestamp))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the consumer offset of the group in a queue, None if nothing was committed yet.

        Brokers of 4.x answer 0 for both; then their table of all offsets is queried, and 0 is returned if they refuse
        that.
        """
        self._check_running()
        offset = await self._ask_of(queue, fetching.committed_offset(self.group, queue, zero_if_none=False))
        if offset == 0:
            with contextlib.suppress(RefusedError):
                held = await self._ask_of(queue, calls.consumer_offsets())
                return held.get((queue.topic, self.group, queue.queue_id))
        return offset

    async def _ask_of(self, queue: MessageQueue, call: Call[T]) -> T:
        """Send a query about a queue; raises what ``Wire.request`` does."""
        await self._instance.route(queue.topic)
        return await self._instance.request_reader(queue.broker_name, call, ANSWER_MS)
