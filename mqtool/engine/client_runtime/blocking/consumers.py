"""Consumers for programs without an event loop."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client_runtime import lite_pull_consumer, pop_consumer, pull_consumer, push_consumer
from mqtool.engine.client_runtime.blocking.background import BlockingMember, background
from mqtool.engine.client_runtime.consume_services import Listener, PushConsumerOptions
from mqtool.engine.client_runtime.consumer import Consumer
from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumerOptions, OnQueues
from mqtool.engine.client_runtime.pop_consumer import PopConsumerOptions
from mqtool.engine.client_runtime.pull_consumer import PullConsumerOptions, PullResult
from mqtool.engine.client_runtime.reader import Reader
from mqtool.formats.bodies import MessageQueue

AioReader = TypeVar("AioReader", bound=Reader)


class _Reading(BlockingMember[AioReader]):
    """What consumers have in common that read queues themselves."""

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        return background.run(self._client.fetch_message_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue has."""
        return background.run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message of a queue."""
        return background.run(self._client.max_offset(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message of a queue that was stored at a time (ms) or later."""
        return background.run(self._client.offset_for_timestamp(queue, timestamp))


AioConsumer = TypeVar("AioConsumer", bound=Consumer)


class _Consuming(_Reading[AioConsumer]):
    """What consumers have in common that share queues out."""

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume a topic, or those of its messages that an expression chooses: tags with ``||``, or SQL92."""
        background.call(lambda: self._client.subscribe(topic, expression, is_sql92=is_sql92))

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        background.call(lambda: self._client.unsubscribe(topic))

    def queues(self) -> list[MessageQueue]:
        """Return the queues that this consumer has now."""
        return background.call(self._client.queues)


class PushConsumer(_Consuming[push_consumer.PushConsumer]):
    """Gives the messages of a group's topics to a listener, from ``with`` to the end of its block; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        listener: Listener,
        name_servers: str | Sequence[str] | None = None,
        options: "PushConsumerOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Make a consumer; ``subscribe`` it to topics, then start it. Listeners run in threads of their own."""
        super().__init__(lambda: push_consumer.PushConsumer(group, listener, name_servers, options, **more))

    def suspend(self) -> None:
        """Give the listener nothing more for now."""
        background.call(self._client.suspend)

    def resume(self) -> None:
        """Go on."""
        background.call(self._client.resume)


class LitePullConsumer(_Consuming[lite_pull_consumer.LitePullConsumer]):
    """Gives messages when it is asked; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "LitePullConsumerOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Make a consumer; ``subscribe`` or ``assign``, and start it."""
        super().__init__(lambda: lite_pull_consumer.LitePullConsumer(group, name_servers, options, **more))

    def assign(self, queues: Collection[MessageQueue], expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume these queues and no others, whoever else does."""
        background.call(lambda: self._client.assign(queues, expression, is_sql92=is_sql92))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer has, or will have in a moment."""
        return background.call(self._client.assignment)

    def register_topic_message_queue_change_listener(self, topic: str, listener: OnQueues) -> None:
        """Have a function told, in a thread of this package, when the queues of a topic are others than before."""
        background.run(self._client.register_topic_message_queue_change_listener(topic, listener))

    def poll(self, timeout_ms: int | None = None) -> list[ConsumerMessage]:
        """Return some messages of one queue; none if none come in time."""
        return background.run(self._client.poll(timeout_ms))

    def __iter__(self) -> Self:
        """Give one message after the other until this consumer is shut down; who asks for one has consumed the last."""
        background.call(self._client.__aiter__)
        return self

    def __next__(self) -> ConsumerMessage:
        """Return the next message."""
        if message := self._client.next_at_hand():  # most of the time without a turn of the event loop
            return message
        try:
            return background.run(self._client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    @contextlib.contextmanager
    def batch(self, timeout_ms: int | None = None) -> Iterator[list[ConsumerMessage]]:
        """Give some messages of one queue, none if none come in time, and commit them when the block ends.

        After an exception they are not committed, and come first when this consumer is asked again.
        """
        client = self._client
        batch = background.run(client.take_batch(timeout_ms))
        try:
            yield batch.messages
        except BaseException:
            background.call(lambda: client.give_back(batch))
            raise
        if batch.messages:
            self.commit()

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Report what was consumed: by default all that was given."""
        background.run(self._client.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return what the group consumes next of a queue, None where nothing was committed yet."""
        return background.run(self._client.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on in a queue of this consumer from an offset; what was pulled of it is dropped."""
        background.run(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the first message of a queue."""
        background.run(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what comes to a queue from now on."""
        background.run(self._client.seek_to_end(queue))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull no more of some queues; ``poll`` still gives what was pulled."""
        background.call(lambda: self._client.pause(queues))

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pull of some queues again."""
        background.call(lambda: self._client.resume(queues))


class PullConsumer(_Reading[pull_consumer.PullConsumer]):
    """Gives messages of any queue from any offset; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "PullConsumerOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Make a consumer; start it, then pull."""
        super().__init__(lambda: pull_consumer.PullConsumer(group, name_servers, options, **more))

    def pull(
        self, queue: MessageQueue, offset: int, max_nums: int = 32, expression: str = "*", *, is_sql92: bool = False
    ) -> PullResult:
        """Return messages of a queue from an offset on, at once, whether there are any or not."""
        return background.run(self._client.pull(queue, offset, max_nums, expression, is_sql92=is_sql92))

    def pull_block_if_not_found(
        self, queue: MessageQueue, offset: int, max_nums: int = 32, expression: str = "*", *, is_sql92: bool = False
    ) -> PullResult:
        """Return messages of a queue from an offset on, and wait for some where there are none."""
        return background.run(
            self._client.pull_block_if_not_found(queue, offset, max_nums, expression, is_sql92=is_sql92)
        )

    def committed(self, queue: MessageQueue) -> int | None:
        """Return what the group consumes next of a queue, None where nothing was committed yet."""
        return background.run(self._client.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Have the broker note what the group consumes next of a queue."""
        background.run(self._client.commit(queue, offset))


class PopConsumer(BlockingMember[pop_consumer.PopConsumer]):
    """Takes messages that brokers of 5.x hide from others for a while; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "PopConsumerOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Make a consumer; ``subscribe`` it to a topic, then start it."""
        super().__init__(lambda: pop_consumer.PopConsumer(group, name_servers, options, **more))

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume a topic, or those of its messages that an expression chooses: tags with ``||``, or SQL92."""
        background.call(lambda: self._client.subscribe(topic, expression, is_sql92=is_sql92))

    def pop(self, timeout_ms: int | None = None) -> list[ConsumerMessage]:
        """Take some messages of one broker; none if none come in time."""
        return background.run(self._client.pop(timeout_ms))

    def __iter__(self) -> Self:
        """Give one message after the other until this consumer is shut down; who asks for one has consumed the last."""
        background.call(self._client.__aiter__)
        return self

    def __next__(self) -> ConsumerMessage:
        """Return the next message."""
        try:
            return background.run(self._client.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    @contextlib.contextmanager
    def batch(self, timeout_ms: int | None = None) -> Iterator[list[ConsumerMessage]]:
        """Give some messages, none if none come in time, and acknowledge them when the block ends.

        After an exception they come again, to this consumer or another, when they are hidden no longer.
        """
        messages = self.pop(timeout_ms)
        yield messages
        for message in messages:
            self.ack(message)

    def ack(self, message: ConsumerMessage) -> bool:
        """Be done with a message; return False where it was too late, as others may have it by now."""
        return background.run(self._client.ack(message))

    def change_invisible_time(self, message: ConsumerMessage, invisible_ms: int) -> ConsumerMessage | None:
        """Have a message hidden for so long from now on, and return it with the receipt that counts then."""
        return background.run(self._client.change_invisible_time(message, invisible_ms))
