"""Hooks that a program or a library adds to sending and consuming: metrics, traces, checks."""

import contextvars
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mqtool.engine.client_runtime import user_code

if TYPE_CHECKING:
    import asyncio

    from mqtool.engine.client.incoming import ConsumerMessage
    from mqtool.engine.client.outgoing import ProducerMessage
    from mqtool.engine.client.sending import SendResult

log = logging.getLogger(__name__)


class Hook:
    """Is called before and after messages are sent and consumed; override the methods you need.

    What a ``before`` method returns is passed to its ``after`` method. If ``before`` raises, nothing is sent, or
    a listener does not get the messages, which are delivered again; messages that the program has requested are
    returned nevertheless, and the exception is logged. Exceptions of ``after`` are logged.
    """

    def before_send(self, messages: "Sequence[ProducerMessage]", group: str) -> Any:
        """Called with messages about to be sent, in the thread or task that sends them; properties may be added."""

    def after_send(
        self,
        messages: "Sequence[ProducerMessage]",
        started: Any,
        results: "Sequence[SendResult]",
        error: BaseException | None,
    ) -> None:
        """Called with where each message is stored (unknown after ``send_oneway``), or with the error of the send.

        For a batch that became several requests ``results`` has those that were stored before the error.
        """

    def before_consume(self, messages: "Sequence[ConsumerMessage]", group: str) -> Any:
        """Called with messages that a listener, in its thread or task, or the program that requested them will get."""

    def after_consume(
        self, messages: "Sequence[ConsumerMessage]", started: Any, status: Any, error: BaseException | None
    ) -> None:
        """Called with what the listener returned, or raised.

        For messages that the program has requested, ``status`` is SUCCESS if they count as consumed, LATER if the
        consumer is shut down before; ``error`` is what ended the block. ``poll``, ``pop`` and ``pull`` report SUCCESS
        when they return them.
        """


CalledHooks = list[tuple[Hook, Any]]


def before(hooks: Sequence[Hook], method: str, messages: Sequence[Any], group: str) -> CalledHooks:
    """Call the hooks in order; return them with their results. If one raises, those before it are told."""
    called_hooks: CalledHooks = []
    for hook in hooks:
        try:
            called_hooks.append((hook, user_code.call("hook", getattr(hook, f"before_{method}"), messages, group)))
        except Exception as error:
            after(called_hooks, method, messages, () if method == "send" else None, error)
            raise
    return called_hooks


def after(
    called_hooks: CalledHooks, method: str, messages: Sequence[Any], result: Any, error: BaseException | None
) -> None:
    """Call the hooks in reverse order."""
    for hook, token in reversed(called_hooks):
        try:
            user_code.call("hook", getattr(hook, f"after_{method}"), messages, token, result, error)
        except Exception:
            log.exception("a hook failed after messages were handled")


@contextmanager
def told_of_end(
    called_hooks: CalledHooks, messages: "Sequence[ProducerMessage]", results: "Sequence[SendResult]" = ()
) -> Iterator[None]:
    """Call the hooks when messages are sent, with the results known by then, or with none."""
    try:
        yield
    except BaseException as error:
        after(called_hooks, "send", messages, results, error)
        raise
    after(called_hooks, "send", messages, results, None)


@contextmanager
def told_of_failure(called_hooks: CalledHooks, messages: "Sequence[ProducerMessage]") -> Iterator[None]:
    """Call the hooks if messages cannot be prepared."""
    try:
        yield
    except BaseException as error:
        after(called_hooks, "send", messages, (), error)
        raise


def after_future(
    called_hooks: CalledHooks,
    messages: "Sequence[ProducerMessage]",
    future: "Future[SendResult] | asyncio.Future[SendResult]",
) -> None:
    """Call the hooks when a message is stored, or fails to be."""

    def done(ended: Any) -> None:
        error = CancelledError() if ended.cancelled() else ended.exception()
        after(called_hooks, "send", messages, () if error else (ended.result(),), error)

    future.add_done_callback(done)


def around_listener(hooks: Sequence[Hook], listener: Callable[..., Any], group: str) -> Callable[..., Any]:
    """Return a listener that calls the hooks."""
    if not hooks:
        return listener
    if user_code.is_coroutine(listener):

        async def listen_async(messages: "Sequence[ConsumerMessage]", context: Any) -> Any:
            called_hooks = before(hooks, "consume", messages, group)
            try:
                status = await listener(messages, context)
            except BaseException as error:
                after(called_hooks, "consume", messages, None, error)
                raise
            after(called_hooks, "consume", messages, status, None)
            return status

        return listen_async

    def listen(messages: "Sequence[ConsumerMessage]", context: Any) -> Any:
        called_hooks = before(hooks, "consume", messages, group)
        try:
            status = listener(messages, context)
        except BaseException as error:
            after(called_hooks, "consume", messages, None, error)
            raise
        after(called_hooks, "consume", messages, status, None)
        return status

    return listen


class Work:
    """Messages that the program has requested, and the hooks to be told of their outcome."""

    def __init__(self, hooks: Sequence[Hook], messages: "Sequence[ConsumerMessage]", group: str) -> None:
        """Tell the hooks that the program gets the messages; it does, whatever they raise."""
        self._messages = messages
        self._called: CalledHooks = []
        # What hooks set there stays between them: the program may end its work in another task or thread.
        self._context = contextvars.copy_context()
        for hook in hooks if messages else ():
            try:
                token = self._context.run(user_code.call, "hook", hook.before_consume, messages, group)
                self._called.append((hook, token))
            except Exception:
                log.exception("a hook failed before messages were delivered")

    def end(self, status: Any, error: BaseException | None = None) -> None:
        """Tell the hooks the outcome of the messages."""
        self._context.run(after, self._called, "consume", self._messages, status, error)


class Works:
    """Calls the hooks of a consumer for messages that the program requests; any thread may do so."""

    def __init__(self, hooks: Sequence[Hook], group: str) -> None:
        self._hooks = hooks
        self._group = group
        self._last: Work | None = None
        self._lock = threading.Lock()

    def begin(self, messages: "Sequence[ConsumerMessage]") -> Work:
        """Report messages that are returned at once; the caller ends that work."""
        return Work(self._hooks, messages, self._group)

    def begin_next(self, message: "ConsumerMessage", done: Any) -> None:
        """Report a message that is returned by itself, and that the previous one is ``done``."""
        if self._hooks:
            self.end_last(done)
            self._replace_last(Work(self._hooks, [message], self._group), done)

    def end_last(self, status: Any, error: BaseException | None = None) -> None:
        """Report the outcome of the last message that was returned by itself, unless already reported."""
        if self._last:
            self._replace_last(None, status, error)

    def _replace_last(self, work: Work | None, status: Any, error: BaseException | None = None) -> None:
        with self._lock:
            last, self._last = self._last, work
        if last:
            last.end(status, error)
