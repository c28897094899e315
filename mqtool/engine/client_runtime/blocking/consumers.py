"""Consumers for programs without an event loop: what they do, and with which arguments, those for asyncio say."""

from typing import Any, Self, TypeVar

from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client_runtime import lite_pull_consumer, pop_consumer, pull_consumer, push_consumer
from mqtool.engine.client_runtime.blocking.background import (
    BlockingMember,
    arguments_of_class,
    background,
    blocking,
    blocking_block,
    in_loop,
)
from mqtool.engine.client_runtime.consumer import Consumer
from mqtool.engine.client_runtime.reader import Reader

AioReader = TypeVar("AioReader", bound=Reader)


class _Reading(BlockingMember[AioReader]):
    """What consumers have in common that read queues themselves."""

    fetch_message_queues = blocking(Reader.fetch_message_queues)
    min_offset = blocking(Reader.min_offset)
    max_offset = blocking(Reader.max_offset)
    offset_for_timestamp = blocking(Reader.offset_for_timestamp)
    committed = blocking(Reader.committed)


AioConsumer = TypeVar("AioConsumer", bound=Consumer)


class _Consuming(_Reading[AioConsumer]):
    """What consumers have in common that share queues out."""

    subscribe = in_loop(Consumer.subscribe)
    unsubscribe = in_loop(Consumer.unsubscribe)
    queues = in_loop(Consumer.queues)


class PushConsumer(_Consuming[push_consumer.PushConsumer]):
    """Gives the messages of a group's topics to a listener, from ``with`` to the end of its block.

    Listeners run in threads of their own.
    """

    @arguments_of_class(push_consumer.PushConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: push_consumer.PushConsumer(*args, **kwargs))

    suspend = in_loop(push_consumer.PushConsumer.suspend)
    resume = in_loop(push_consumer.PushConsumer.resume)


class LitePullConsumer(_Consuming[lite_pull_consumer.LitePullConsumer]):
    """Gives messages when it is asked: of its share of the topics it subscribes to, or of queues assigned to it.

    ``poll`` gives some, ``for`` one after the other, ``batch`` some that are consumed when its block ends.
    What was given is consumed once it is committed; what was not comes again after a restart.
    """

    @arguments_of_class(lite_pull_consumer.LitePullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: lite_pull_consumer.LitePullConsumer(*args, **kwargs))

    assign = in_loop(lite_pull_consumer.LitePullConsumer.assign)
    assignment = in_loop(lite_pull_consumer.LitePullConsumer.assignment)
    register_topic_message_queue_change_listener = blocking(
        lite_pull_consumer.LitePullConsumer.register_topic_message_queue_change_listener
    )
    poll = blocking(lite_pull_consumer.LitePullConsumer.poll)
    batch = blocking_block(lite_pull_consumer.LitePullConsumer.batch)
    commit = blocking(lite_pull_consumer.LitePullConsumer.commit)
    seek = blocking(lite_pull_consumer.LitePullConsumer.seek)
    seek_to_begin = blocking(lite_pull_consumer.LitePullConsumer.seek_to_begin)
    seek_to_end = blocking(lite_pull_consumer.LitePullConsumer.seek_to_end)
    pause = in_loop(lite_pull_consumer.LitePullConsumer.pause)
    resume = in_loop(lite_pull_consumer.LitePullConsumer.resume)

    def __iter__(self) -> Self:
        """Give one message after the other until this consumer is shut down; who asks for one has consumed the last."""
        background.call(self._client.__aiter__)
        return self

    def __next__(self) -> ConsumerMessage:
        """Return the next message."""
        if message := self._client.next_at_hand():  # most of the time without a turn of the event loop
            return message
        return _next(self._client)


class PullConsumer(_Reading[pull_consumer.PullConsumer]):
    """Gives messages of any queue from any offset; who uses it keeps the offsets, or has the brokers keep them."""

    @arguments_of_class(pull_consumer.PullConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: pull_consumer.PullConsumer(*args, **kwargs))

    pull = blocking(pull_consumer.PullConsumer.pull)
    pull_block_if_not_found = blocking(pull_consumer.PullConsumer.pull_block_if_not_found)
    commit = blocking(pull_consumer.PullConsumer.commit)


class PopConsumer(BlockingMember[pop_consumer.PopConsumer]):
    """Takes messages of any queue, beside any number of members of its group; brokers of 5.x share nothing out.

    What is not acknowledged in time comes again, to whichever member, and after as many times as the group allows it
    becomes a dead letter.
    """

    @arguments_of_class(pop_consumer.PopConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: pop_consumer.PopConsumer(*args, **kwargs))

    subscribe = in_loop(pop_consumer.PopConsumer.subscribe)
    pop = blocking(pop_consumer.PopConsumer.pop)
    batch = blocking_block(pop_consumer.PopConsumer.batch)
    ack = blocking(pop_consumer.PopConsumer.ack)
    change_invisible_time = blocking(pop_consumer.PopConsumer.change_invisible_time)

    def __iter__(self) -> Self:
        """Give one message after the other until this consumer is shut down; who asks for one has consumed the last."""
        background.call(self._client.__aiter__)
        return self

    def __next__(self) -> ConsumerMessage:
        """Return the next message."""
        return _next(self._client)


def _next(client: "lite_pull_consumer.LitePullConsumer | pop_consumer.PopConsumer") -> ConsumerMessage:
    try:
        return background.run(client.__anext__())
    except StopAsyncIteration:
        raise StopIteration from None
