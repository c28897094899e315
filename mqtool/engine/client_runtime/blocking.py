"""The same clients for programs without an event loop: theirs runs in a thread, one for all clients of the process."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from mqtool.engine.client.outgoing import ProducerMessage
from mqtool.engine.client.queue_choice import Selector
from mqtool.engine.client.sending import SendResult
from mqtool.engine.client_runtime import lite_pull_consumer, pop_consumer, pull_consumer, push_consumer
from mqtool.engine.client_runtime import producer as aio
from mqtool.engine.client_runtime.client import Client
from mqtool.engine.client_runtime.consume_services import Listener, PushConsumerOptions
from mqtool.engine.client_runtime.consumer import Consumer
from mqtool.engine.client_runtime.lite_pull_consumer import LitePullConsumerOptions, OnQueues
from mqtool.engine.client_runtime.pop_consumer import PopConsumerOptions
from mqtool.engine.client_runtime.producer import ProducerOptions, TransactionListener
from mqtool.engine.client_runtime.pull_consumer import PullConsumerOptions, PullResult
from mqtool.engine.client_runtime.reader import Reader
from mqtool.formats.bodies import MessageQueue

if TYPE_CHECKING:
    from mqtool.engine.client.incoming import ConsumerMessage

T = TypeVar("T")
AioProducer = TypeVar("AioProducer", bound=aio.Producer)


class _Background:
    """An event loop in a thread, from when it is first needed to the end of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Have work done there and return what it comes to."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:  # an interrupt, too: nobody waits for it any more
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function there and return what it does."""

        async def called() -> T:
            return function()

        return self.run(called())

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Have work done there."""
        return asyncio.run_coroutine_threadsafe(work, self._running())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = _new_loop()
                threading.Thread(target=self._loop.run_forever, name="mqtool clients", daemon=True).start()
            return self._loop


def _new_loop() -> asyncio.AbstractEventLoop:
    with contextlib.suppress(ImportError):
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


_background = _Background()


AnyClient = TypeVar("AnyClient", bound=Client)


class _Client(Generic[AnyClient]):
    """What all clients have in common; any thread may call them."""

    def __init__(self, make: Callable[[], AnyClient]) -> None:
        self._client = _background.call(make)

    @property
    def client_id(self) -> str:
        """How brokers call this client."""
        return self._client.client_id

    def start(self) -> None:
        """Begin."""
        _background.run(self._client.start())

    def shutdown(self) -> None:
        """Tell brokers that this client leaves, and end its connections; listeners that are at work end first."""
        _background.run(self._client.shutdown())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()


class _Producing(_Client[AioProducer]):
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
        return _background.run(self._client.send(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))

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
        begun = self._client.send_async(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms)
        if self._client.options.enable_backpressure_for_async_mode:
            return _background.begin(_result(_background.run(begun)))
        return _background.begin(_result_of_begun(begun))

    def send_oneway(
        self,
        message: ProducerMessage,
        queue: MessageQueue | None = None,
        *,
        selector: Selector | None = None,
        arg: Any = None,
    ) -> None:
        """Send a message without waiting for an answer; nobody learns whether it was stored."""
        _background.run(self._client.send_oneway(message, queue, selector=selector, arg=arg))

    def send_batch(
        self, messages: Sequence[ProducerMessage], queue: MessageQueue | None = None, *, timeout_ms: int | None = None
    ) -> list[SendResult]:
        """Send messages of one topic in as few requests as their size allows; see ``aio.Producer.send_batch``."""
        return _background.run(self._client.send_batch(messages, queue, timeout_ms=timeout_ms))

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
        return _background.run(self._client.request(message, queue, selector=selector, arg=arg, timeout_ms=timeout_ms))

    def reply(self, request: "ConsumerMessage", body: bytes, timeout_ms: int | None = None) -> SendResult:
        """Answer a message whose producer waits for that, and return where the reply is stored."""
        return _background.run(self._client.reply(request, body, timeout_ms))

    def recall(self, topic: str, recall_handle: str, timeout_ms: int | None = None) -> str:
        """Take a timer message back that is not delivered yet, and return its unique key."""
        return _background.run(self._client.recall(topic, recall_handle, timeout_ms))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that messages to a topic go to."""
        return _background.run(self._client.queues(topic))


async def _result(task: "asyncio.Task[T]") -> T:
    return await task


async def _result_of_begun(begun: "Coroutine[Any, Any, asyncio.Task[T]]") -> T:
    return await (await begun)


class Producer(_Producing[aio.Producer]):
    """Sends messages for a group, from ``with`` to the end of its block, or from ``start`` to ``shutdown``."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """Make a producer; nothing is sent yet. See ``aio.Producer``."""
        super().__init__(lambda: aio.Producer(group, name_servers, options))


class TransactionProducer(_Producing[aio.TransactionProducer]):
    """Sends messages that are delivered only when a local transaction has committed."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        name_servers: str | Sequence[str] | None = None,
        options: ProducerOptions | None = None,
    ) -> None:
        """Make a producer; see ``aio.TransactionProducer``."""
        super().__init__(lambda: aio.TransactionProducer(group, listener, name_servers, options))

    def send_in_transaction(self, message: ProducerMessage, arg: Any = None) -> SendResult:
        """Send a message, hidden; run the local transaction; and tell the broker how that ended."""
        return _background.run(self._client.send_in_transaction(message, arg))


AioReader = TypeVar("AioReader", bound=Reader)


class _Reading(_Client[AioReader]):
    """What consumers have in common that read queues themselves."""

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic that can be read."""
        return _background.run(self._client.fetch_message_queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that a queue has."""
        return _background.run(self._client.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset behind the last message of a queue."""
        return _background.run(self._client.max_offset(queue))

    def offset_for_timestamp(self, queue: MessageQueue, timestamp: int) -> int:
        """Return the offset of the first message of a queue that was stored at a time (ms) or later."""
        return _background.run(self._client.offset_for_timestamp(queue, timestamp))


AioConsumer = TypeVar("AioConsumer", bound=Consumer)


class _Consuming(_Reading[AioConsumer]):
    """What consumers have in common that share queues out."""

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume a topic, or those of its messages that an expression chooses: tags with ``||``, or SQL92."""
        _background.call(lambda: self._client.subscribe(topic, expression, is_sql92=is_sql92))

    def unsubscribe(self, topic: str) -> None:
        """Consume a topic no longer."""
        _background.call(lambda: self._client.unsubscribe(topic))

    def queues(self) -> list[MessageQueue]:
        """Return the queues that this consumer has now."""
        return _background.call(self._client.queues)


class PushConsumer(_Consuming[push_consumer.PushConsumer]):
    """Gives the messages of a group's topics to a listener, from ``with`` to the end of its block; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        listener: Listener,
        name_servers: str | Sequence[str] | None = None,
        options: PushConsumerOptions | None = None,
    ) -> None:
        """Make a consumer; ``subscribe`` it to topics, then start it. Listeners run in threads of their own."""
        super().__init__(lambda: push_consumer.PushConsumer(group, listener, name_servers, options))

    def suspend(self) -> None:
        """Give the listener nothing more for now."""
        _background.call(self._client.suspend)

    def resume(self) -> None:
        """Go on."""
        _background.call(self._client.resume)


class LitePullConsumer(_Consuming[lite_pull_consumer.LitePullConsumer]):
    """Gives messages when it is asked; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: LitePullConsumerOptions | None = None,
    ) -> None:
        """Make a consumer; ``subscribe`` or ``assign``, and start it."""
        super().__init__(lambda: lite_pull_consumer.LitePullConsumer(group, name_servers, options))

    def assign(self, queues: Collection[MessageQueue], expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume these queues and no others, whoever else does."""
        _background.call(lambda: self._client.assign(queues, expression, is_sql92=is_sql92))

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer has, or will have in a moment."""
        return _background.call(self._client.assignment)

    def register_topic_message_queue_change_listener(self, topic: str, listener: OnQueues) -> None:
        """Have a function told, in a thread of this package, when the queues of a topic are others than before."""
        _background.run(self._client.register_topic_message_queue_change_listener(topic, listener))

    def poll(self, timeout_ms: int | None = None) -> "list[ConsumerMessage]":
        """Return some messages of one queue; none if none come in time."""
        return _background.run(self._client.poll(timeout_ms))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Report what was consumed: by default all that ``poll`` gave."""
        _background.run(self._client.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return what the group consumes next of a queue, None where nothing was committed yet."""
        return _background.run(self._client.committed(queue))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on in a queue of this consumer from an offset; what was pulled of it is dropped."""
        _background.run(self._client.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the first message of a queue."""
        _background.run(self._client.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what comes to a queue from now on."""
        _background.run(self._client.seek_to_end(queue))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pull no more of some queues; ``poll`` still gives what was pulled."""
        _background.call(lambda: self._client.pause(queues))

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Pull of some queues again."""
        _background.call(lambda: self._client.resume(queues))


class PullConsumer(_Reading[pull_consumer.PullConsumer]):
    """Gives messages of any queue from any offset; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: PullConsumerOptions | None = None,
    ) -> None:
        """Make a consumer; start it, then pull."""
        super().__init__(lambda: pull_consumer.PullConsumer(group, name_servers, options))

    def pull(
        self, queue: MessageQueue, offset: int, max_nums: int = 32, expression: str = "*", *, is_sql92: bool = False
    ) -> PullResult:
        """Return messages of a queue from an offset on, at once, whether there are any or not."""
        return _background.run(self._client.pull(queue, offset, max_nums, expression, is_sql92=is_sql92))

    def pull_block_if_not_found(
        self, queue: MessageQueue, offset: int, max_nums: int = 32, expression: str = "*", *, is_sql92: bool = False
    ) -> PullResult:
        """Return messages of a queue from an offset on, and wait for some where there are none."""
        return _background.run(
            self._client.pull_block_if_not_found(queue, offset, max_nums, expression, is_sql92=is_sql92)
        )

    def committed(self, queue: MessageQueue) -> int | None:
        """Return what the group consumes next of a queue, None where nothing was committed yet."""
        return _background.run(self._client.committed(queue))

    def commit(self, queue: MessageQueue, offset: int) -> None:
        """Have the broker note what the group consumes next of a queue."""
        _background.run(self._client.commit(queue, offset))


class PopConsumer(_Client[pop_consumer.PopConsumer]):
    """Takes messages that brokers of 5.x hide from others for a while; see ``aio``'s."""

    def __init__(
        self,
        group: str,
        name_servers: str | Sequence[str] | None = None,
        options: PopConsumerOptions | None = None,
    ) -> None:
        """Make a consumer; ``subscribe`` it to a topic, then start it."""
        super().__init__(lambda: pop_consumer.PopConsumer(group, name_servers, options))

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Consume a topic, or those of its messages that an expression chooses: tags with ``||``, or SQL92."""
        _background.call(lambda: self._client.subscribe(topic, expression, is_sql92=is_sql92))

    def pop(self, timeout_ms: int | None = None) -> "list[ConsumerMessage]":
        """Take some messages of one broker; none if none come in time."""
        return _background.run(self._client.pop(timeout_ms))

    def ack(self, message: "ConsumerMessage") -> bool:
        """Be done with a message; return False where it was too late, as others may have it by now."""
        return _background.run(self._client.ack(message))

    def change_invisible_time(self, message: "ConsumerMessage", invisible_ms: int) -> "ConsumerMessage | None":
        """Have a message hidden for so long from now on, and return it with the receipt that counts then."""
        return _background.run(self._client.change_invisible_time(message, invisible_ms))
