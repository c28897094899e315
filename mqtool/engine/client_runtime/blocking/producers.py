"""Producers for programs without an event loop; those for asyncio document their behaviour and arguments."""

import atexit
import contextlib
import os
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from mqtool.engine.client_runtime.blocking.background import (
    BlockingMember,
    LazyModule,
    arguments_of,
    arguments_of_class,
    background,
    blocking,
)
from mqtool.errors import MqtoolError

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
    """The common part of producers."""

    def __init__(self, make: "Callable[[], AioProducer]") -> None:
        super().__init__(make)
        _producers.add(self)

    def _end_unclosed(self) -> "futures.Future[None]":
        return _awaited_at_exit(super()._end_unclosed(), repr(self))

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
        # Messages are prepared here: errors are raised here, and later changes of the message have no effect.
        call = client.ready(aio.SendCall(*args, **kwargs))
        if client.is_batching and call.message.may_be_batched:
            # Many are handed over at a time: a turn of the loop for each would take longest.
            future = client.post(call, background.run(client.to_choose_from(call)) if call.selector else [])
            background.check_alive()
            return future
        return background.begin(_begun(client.packed(call)))


# A program that does not close its producers may expect that pending messages are sent when it ends.

_END_S = 60.0  # no end of a producer takes longer, unless something blocks the event loop
_producers: weakref.WeakSet[_Producing[Any]] = weakref.WeakSet()
_ending: "set[futures.Future[None]]" = set()

os.register_at_fork(after_in_child=_ending.clear)


def _awaited_at_exit(future: "futures.Future[None]", name: str) -> "futures.Future[None]":
    from concurrent import futures

    # Who waits for a future may go on before its callbacks have run, and the process would end before the log entry.
    is_logged: futures.Future[None] = futures.Future()

    def ended(_: object) -> None:
        try:
            if not future.cancelled() and (error := future.exception()):
                import logging  # a seventh of the time to load a class

                logging.getLogger(__name__).error("%s was not closed: %s", name, error)
        finally:
            _ending.discard(is_logged)
            is_logged.set_result(None)

    _ending.add(is_logged)
    future.add_done_callback(ended)
    return future


@atexit.register
def _flush_unclosed() -> None:
    for producer in [*_producers]:
        if producer._is_unclosed:
            with contextlib.suppress(MqtoolError):  # the loop has ended, as every call has reported
                _awaited_at_exit(background.begin(producer._made.flush()), repr(producer))
    if _ending:
        from concurrent import futures

        futures.wait([*_ending], _END_S)


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
