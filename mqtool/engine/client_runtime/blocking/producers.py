"""Producers for programs without an event loop: what they do, and with which arguments, those for asyncio say."""

from typing import TYPE_CHECKING, Any, TypeVar

from mqtool.engine.client_runtime.blocking.background import (
    BlockingMember,
    LazyModule,
    arguments_of,
    arguments_of_class,
    background,
    blocking,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent import futures

    from mqtool.engine.client.sending import SendResult
    from mqtool.engine.client_runtime import producer as aio
else:
    aio = LazyModule("mqtool.engine.client_runtime.producer")

T = TypeVar("T")
AioProducer = TypeVar("AioProducer", bound="aio.Producer")


class _Producing(BlockingMember[AioProducer]):
    """What producers have in common."""

    send = blocking(lambda: aio.Producer.send)
    flush = blocking(lambda: aio.Producer.flush)
    send_oneway = blocking(lambda: aio.Producer.send_oneway)
    send_batch = blocking(lambda: aio.Producer.send_batch)
    request = blocking(lambda: aio.Producer.request)
    reply = blocking(lambda: aio.Producer.reply)
    recall = blocking(lambda: aio.Producer.recall)
    queues = blocking(lambda: aio.Producer.queues)

    @arguments_of(lambda: aio.Producer.send_async)
    def send_async(self, *args: Any, **kwargs: Any) -> "futures.Future[SendResult]":
        client = self._client
        if client.options.enable_backpressure_for_async_mode:
            return background.begin(_result(background.run(client.send_async(*args, **kwargs))))
        # Messages are made ready here: what is wrong with one is raised here, and who changes it next changes no other.
        call = client.ready(aio.SendCall(*args, **kwargs))
        if client.is_batching and call.message.may_be_batched:
            # They are handed over many at a time: a turn of the loop for each takes longest.
            future = client.post(call, background.run(client.to_choose_from(call)) if call.selector else [])
            background.check_alive()
            return future
        return background.begin(_begun(client.packed(call)))


async def _result(begun: "asyncio.Future[T]") -> T:
    return await begun


async def _begun(begin: "Callable[[], asyncio.Task[T]]") -> T:
    return await begin()


class Producer(_Producing["aio.Producer"]):
    """Sends messages for a group, from ``with`` to the end of its block, or from ``start`` to ``shutdown``."""

    @arguments_of_class(lambda: aio.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: aio.Producer(*args, **kwargs))


class TransactionProducer(_Producing["aio.TransactionProducer"]):
    """Sends messages that are delivered only after a local transaction has committed."""

    @arguments_of_class(lambda: aio.TransactionProducer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: aio.TransactionProducer(*args, **kwargs))

    send_in_transaction = blocking(lambda: aio.TransactionProducer.send_in_transaction)
