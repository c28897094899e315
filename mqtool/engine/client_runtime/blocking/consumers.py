"""Consumers for programs without an event loop; those for asyncio document their behaviour and arguments."""

from typing import TYPE_CHECKING, Any, Self, TypeVar

from mqtool.engine.client_runtime.blocking.background import (
    BlockingMember,
    LazyModule,
    arguments_of_class,
    background,
    blocking,
    blocking_block,
    in_loop,
)

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client_runtime import (
        consumer,
        lite_pull_consumer,
        pop_consumer,
        pull_consumer,
        push_consumer,
        reader,
    )
else:
    consumer = LazyModule("mqtool.engine.client_runtime.consumer")
    lite_pull_consumer = LazyModule("mqtool.engine.client_runtime.lite_pull_consumer")
    pop_consumer = LazyModule("mqtool.engine.client_runtime.pop_consumer")
    pull_consumer = LazyModule("mqtool.engine.client_runtime.pull_consumer")
    push_consumer = LazyModule("mqtool.engine.client_runtime.push_consumer")
    reader = LazyModule("mqtool.engine.client_runtime.reader")

AioReader = TypeVar("AioReader", bound="reader.Reader")


class _BlockingReader(BlockingMember[AioReader]):
    """The common part of consumers that read queues themselves."""

    fetch_message_queues = blocking(lambda: reader.Reader.fetch_message_queues)
    min_offset = blocking(lambda: reader.Reader.min_offset)
    max_offset = blocking(lambda: reader.Reader.max_offset)
    offset_for_timestamp = blocking(lambda: reader.Reader.offset_for_timestamp)
    committed = blocking(lambda: reader.Reader.committed)


AioConsumer = TypeVar("AioConsumer", bound="consumer.Consumer")


class _Consuming(_BlockingReader[AioConsumer]):
    """The common part of consumers that rebalance queues."""

    subscribe = in_loop(lambda: consumer.Consumer.subscribe)
    unsubscribe = in_loop(lambda: consumer.Consumer.unsubscribe)
    queues = in_loop(lambda: consumer.Consumer.queues)


class PushConsumer(_Consuming["push_consumer.PushConsumer"]):
    """Delivers the messages of a group's topics to a listener, from ``with`` to the end of its block.

    Listeners run in threads of their own.
    """

    @arguments_of_class(lambda: push_consumer.PushConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: push_consumer.PushConsumer(*args, **kwargs))

    suspend = in_loop(lambda: push_consumer.PushConsumer.suspend)
    resume = in_loop(lambda: push_consumer.PushConsumer.resume)


class LitePullConsumer(_Consuming["lite_pull_consumer.LitePullConsumer"]):
    """Returns messages on request: from its share of the topics it subscribes to, or from queues assigned to it.

    ``poll`` returns several, ``for`` yields one after the other, ``batch`` returns several that are committed
    when its block ends. A message counts as consumed once its offset is committed; uncommitted messages are
    delivered again after a restart.
    """

    @arguments_of_class(lambda: lite_pull_consumer.LitePullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: lite_pull_consumer.LitePullConsumer(*args, **kwargs))

    assign = in_loop(lambda: lite_pull_consumer.LitePullConsumer.assign)
    assignment = in_loop(lambda: lite_pull_consumer.LitePullConsumer.assignment)
    register_topic_message_queue_change_listener = blocking(
        lambda: lite_pull_consumer.LitePullConsumer.register_topic_message_queue_change_listener
    )
    poll = blocking(lambda: lite_pull_consumer.LitePullConsumer.poll)
    batch = blocking_block(lambda: lite_pull_consumer.LitePullConsumer.batch)
    commit = blocking(lambda: lite_pull_consumer.LitePullConsumer.commit)
    seek = blocking(lambda: lite_pull_consumer.LitePullConsumer.seek)
    seek_to_begin = blocking(lambda: lite_pull_consumer.LitePullConsumer.seek_to_begin)
    seek_to_end = blocking(lambda: lite_pull_consumer.LitePullConsumer.seek_to_end)
    pause = in_loop(lambda: lite_pull_consumer.LitePullConsumer.pause)
    resume = in_loop(lambda: lite_pull_consumer.LitePullConsumer.resume)

    def __iter__(self) -> Self:
        """Yield messages one by one until this consumer is shut down; asking for the next consumes the last one."""
        background.call(self._client.__aiter__)
        return self

    def __next__(self) -> "ConsumerMessage":
        """Return the next message."""
        if message := self._client.next_at_hand():  # most of the time without a turn of the event loop
            return message
        return _next(self._client)


class PullConsumer(_BlockingReader["pull_consumer.PullConsumer"]):
    """Returns messages of any queue from any offset; the application stores the offsets, or commits them to brokers."""

    @arguments_of_class(lambda: pull_consumer.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: pull_consumer.PullConsumer(*args, **kwargs))

    pull = blocking(lambda: pull_consumer.PullConsumer.pull)
    pull_block_if_not_found = blocking(lambda: pull_consumer.PullConsumer.pull_block_if_not_found)
    commit = blocking(lambda: pull_consumer.PullConsumer.commit)


class PopConsumer(BlockingMember["pop_consumer.PopConsumer"]):
    """Pops messages of any queue, next to any number of members of its group; brokers of 5.x assign no queues.

    Messages that are not acknowledged in time are delivered again, to any member, and after as many times as the
    group allows they become dead letters.
    """

    @arguments_of_class(lambda: pop_consumer.PopConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: pop_consumer.PopConsumer(*args, **kwargs))

    subscribe = in_loop(lambda: pop_consumer.PopConsumer.subscribe)
    pop = blocking(lambda: pop_consumer.PopConsumer.pop)
    batch = blocking_block(lambda: pop_consumer.PopConsumer.batch)
    ack = blocking(lambda: pop_consumer.PopConsumer.ack)
    change_invisible_time = blocking(lambda: pop_consumer.PopConsumer.change_invisible_time)

    def __iter__(self) -> Self:
        """Yield messages one by one until this consumer is shut down; asking for the next consumes the last one."""
        background.call(self._client.__aiter__)
        return self

    def __next__(self) -> "ConsumerMessage":
        """Return the next message."""
        return _next(self._client)


def _next(client: "lite_pull_consumer.LitePullConsumer | pop_consumer.PopConsumer") -> "ConsumerMessage":
    try:
        return background.run(client.__anext__())
    except StopAsyncIteration:
        raise StopIteration from None
