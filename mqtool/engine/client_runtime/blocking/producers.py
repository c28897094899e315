"""Producers for programs without an event loop."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.queue_choice import Selector
from mqtool.engine.client.sending import SendResult
from mqtool.engine.client_runtime import producer as aio
from mqtool.engine.client_runtime.blocking.background import BlockingMember, background
from mqtool.engine.client_runtime.producer import ProducerOptions, TransactionListener
from mqtool.formats.bodies import MessageQueue

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage

T = TypeVar("T")
AioProducer = TypeVar("AioProducer", bound=aio.Producer)


class _Producing(BlockingMember[AioProducer]):
    """What producers have in common."""

    def send(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and return where it is stored; see ``aio.Producer.send``."""
        return background.run(self._client.send(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))

    def send_async(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> "Future[SendResult]":
        """Begin to send a message and return what will know where it is stored; it raises what ``send`` does.

        Waits where back pressure is enabled and too much is under way.
        """
        client = self._client
        if client.is_batching and message.may_be_batched and not client.options.enable_backpressure_for_async_mode:
            # Messages are made ready here, and handed over many at a time: a turn of the loop for each takes longest.
            queues = background.run(client.to_choose_from(message, timeout_ms)) if selector else []
            future: Future[SendResult] = Future()
            client.post(client.lane(message, queue, selector, arg, queues), client.waiting(message, timeout_ms, future))
            background.check_alive()
            return future
        begun = client.send_async(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms)
        if client.options.enable_backpressure_for_async_mode:
            return background.begin(_result(background.run(begun)))
        return background.begin(_result_of_begun(begun))

    def flush(self, timeout_ms: int = aio.FLUSH_MS) -> None:
        """Wait until all that ``send_async`` began has been sent, or has failed; see ``aio.Producer.flush``."""
        background.run(self._client.flush(timeout_ms))

    def send_oneway(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message without waiting for an answer; nobody learns whether it was stored."""
        background.run(self._client.send_oneway(message, queue, selector=selector, arg=arg))

    def send_batch(
        self, messages: Sequence[ProducerMessage], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows; see ``aio.Producer.send_batch``."""
        return background.run(self._client.send_batch(messages, queue, timeout_ms=timeout_ms))

    def request(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_ms: int | None = None,
    ) -> "ConsumerMessage":
        """Send a message, wait for the reply of whoever consumes it, and return that."""
        return background.run(self._client.request(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))

    def reply(self, request: "ConsumerMessage", body: bytes, timeout_ms: int | None = None) -> SendResult:
        """Answer a message whose producer waits for that, and return where the reply is stored."""
        return background.run(self._client.reply(request, body, timeout_ms))

    def recall(self, topic: str, recall_handle: str, timeout_ms: int | None = None) -> str:
        """Take a timer message back that is not delivered yet, and return its unique key."""
        return background.run(self._client.recall(topic, recall_handle, timeout_ms))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages to a topic go to."""
        return background.run(self._client.queues(topic))


async def _result(begun: "asyncio.Future[T]") -> T:
    return await begun


async def _result_of_begun(begun: "Coroutine[Any, Any, asyncio.Future[T]]") -> T:
    return await (await begun)


class Producer(_Producing[aio.Producer]):
    """Sends messages for a group, from ``with`` to the end of its block, or from ``start`` to ``shutdown``."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: "ProducerOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Make a producer; nothing is sent yet. See ``aio.Producer``."""
        super().__init__(lambda: aio.Producer(group, name_servers, options, **more))


class TransactionProducer(_Producing[aio.TransactionProducer]):
    """Sends messages that are delivered only when a local transaction has committed."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        name_servers: str | Sequence[str] | None = None,
        options: "ProducerOptions | Mapping[str, Any] | None" = None,
        **more: Any,
    ) -> None:
        """Make a producer; see ``aio.TransactionProducer``."""
        super().__init__(lambda: aio.TransactionProducer(group, listener, name_servers, options, **more))

    def send_in_transaction(self, message: ProducerMessage, arg: Any = None) -> SendResult:
        """Send a message, hidden; run the local transaction; and tell the broker how that ended."""
        return background.run(self._client.send_in_transaction(message, arg))
