"""The event loop of blocking clients: it runs in a thread, one for all clients of the process."""

import contextlib
import functools
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import GenericAlias, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_args

from mqtool.errors import MqtoolError, UnavailableError, UsageError

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from mqtool.engine.client_runtime.client import Client, Running

T = TypeVar("T")
P = ParamSpec("P")
_LOOK_S = 1.0  # how often a waiting caller checks that the loop is alive
_PAUSE_S = 5.0  # how long a fork waits for the loop to pause


class Background:
    """An event loop in a thread, from its first use to the end of the process.

    Threads do not survive a fork: the child gets a loop of its own when it first needs one.
    """

    def __init__(self) -> None:
        self.generation = 0
        """The number of forks so far: clients of different generations have different loops."""
        self._lock = threading.RLock()  # a forgotten client may be collected and closed while its own thread holds it
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._of_parents: list[asyncio.AbstractEventLoop | None] = []
        self._pauses: list[threading.Event] = []  # each is set when a fork is over
        os.register_at_fork(before=self._pause, after_in_parent=self._continue, after_in_child=self._forked)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and return its result.

        Raises:
            UsageError: this is the loop's own thread, which would deadlock.
            UnavailableError: the loop has ended.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise UsageError(
                "a blocking call in the event loop of the clients would deadlock: use a client of mqtool.aio "
                "there, or a listener that is a plain function"
            )
        future = self.begin(work)
        try:
            while True:
                try:
                    return future.result(_LOOK_S)
                except TimeoutError:
                    if future.done():  # the error is that of the coroutine, or it has ended just now
                        return future.result()
                    self.check_alive()
        except BaseException:  # including an interrupt: nobody waits for the result any more
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function there and return its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    def begin(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run a coroutine there."""
        import asyncio

        try:
            return asyncio.run_coroutine_threadsafe(work, self._running())
        except BaseException:
            work.close()
            raise

    def _running(self) -> "asyncio.AbstractEventLoop":
        with self._lock:
            if self._loop is None:
                self._loop = new_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="mqtool clients", daemon=True)
                self._thread.start()
            self.check_alive()
            return self._loop

    def check_alive(self) -> None:
        """Raise UnavailableError if the loop has ended."""
        if self._thread and not self._thread.is_alive():
            raise UnavailableError(
                "the event loop of the clients has ended: the clients of this process no longer work"
            )

    def _pause(self) -> None:
        """Pause the loop for a fork: a module that it is importing could never be imported in the child."""
        thread, loop = self._thread, self._loop
        if loop is None or thread is None or not thread.is_alive() or thread is threading.current_thread():
            return
        is_paused, is_over = threading.Event(), threading.Event()
        self._pauses.append(is_over)

        def pause() -> None:
            is_paused.set()
            is_over.wait()

        loop.call_soon_threadsafe(pause)
        is_paused.wait(_PAUSE_S)

    def _continue(self) -> None:
        # Including those of forks in other threads: their forks may come at a bad moment, but nothing hangs.
        while self._pauses:
            self._pauses.pop().set()

    def _forked(self) -> None:
        self.generation += 1
        self._pauses.clear()
        # Kept, as closing it would remove the parent's connections from the selector that both share.
        self._of_parents.append(self._loop)
        self._lock, self._loop, self._thread = threading.RLock(), None, None


def new_loop() -> "asyncio.AbstractEventLoop":
    """Return an event loop, from uvloop if it is installed."""
    import asyncio

    with contextlib.suppress(ImportError):
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


background = Background()


AnyClient = TypeVar("AnyClient", bound="Running", covariant=True)
AnyMember = TypeVar("AnyMember", bound="Client", covariant=True)


class BlockingClient(Generic[AnyClient]):
    """The common part of all blocking clients; any thread may call them."""

    def __init__(self, make: Callable[[], AnyClient]) -> None:
        self._made = background.call(make)
        self._generation = background.generation

    def __del__(self) -> None:
        if self._is_unclosed:
            message = f"unclosed {self!r}: use a with block, or close()"
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)
            if sys.is_finalizing():  # nothing can run any more
                return
            with contextlib.suppress(MqtoolError):
                self._end_unclosed()

    def _end_unclosed(self) -> "Future[None]":
        return background.begin(self._made.shutdown())

    @property
    def _is_unclosed(self) -> bool:
        """Whether it runs, in this process."""
        async_client = getattr(self, "_made", None)  # None if the arguments were refused
        return async_client is not None and async_client.is_running and self._generation == background.generation

    def __repr__(self) -> str:
        return repr(self._made)

    @property
    def _client(self) -> AnyClient:
        if self._generation != background.generation:
            raise UsageError("this client was created before the process forked: create another one in the child")
        return self._made

    def start(self) -> None:
        """Start."""
        background.run(self._client.start())

    def shutdown(self) -> None:
        """Unregister from brokers, and close connections; running listeners finish first."""
        background.run(self._client.shutdown())

    def close(self) -> None:
        """Do what ``shutdown`` does, under the name that Python's own classes use."""
        self.shutdown()

    def __enter__(self) -> Self:
        background.run(self._client.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._generation != background.generation:
            return  # a child leaves the block of its parent: its own error counts, such as that of sys.exit
        background.run(self._client.__aexit__(kind, error, trace))


class BlockingMember(BlockingClient[AnyMember]):
    """A client of a group."""

    @property
    def client_id(self) -> str:
        """The id by which brokers know this client."""
        return self._client.client_id


Self_ = TypeVar("Self_", bound="Running")
Caller = TypeVar("Caller")
AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])


class LazyModule:
    """A module that is loaded when one of its attributes is first used; attributes are cached."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(importlib.import_module(self._name), name)
        setattr(self, name, attribute)
        return attribute


class _Later:
    """A method that is created in the class when it is first accessed.

    It is described by the asyncio method, which loads everything that clients need: that takes many times as long as
    loading a class here.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, client: object, kind: type | None = None) -> Any:
        method = self._make()
        setattr(self._owner, self._name, method)
        return method.__get__(client, kind)


def _later(make: Callable[[], T]) -> T:
    return cast(T, _Later(make))


def blocking(
    described: Callable[[], Callable[Concatenate[Self_, P], Coroutine[Any, Any, T]]],
) -> Callable[Concatenate[BlockingClient[Self_], P], T]:
    """Return the blocking form of a method for asyncio: the same arguments, results and errors."""

    def make() -> Callable[Concatenate[BlockingClient[Self_], P], T]:
        method = described()

        @functools.wraps(method)
        def called(client: BlockingClient[Self_], /, *args: P.args, **kwargs: P.kwargs) -> T:
            work: Coroutine[Any, Any, T] = _of(client, method)(*args, **kwargs)
            return background.run(work)

        return called

    return _later(make)


def in_loop(
    described: Callable[[], Callable[Concatenate[Self_, P], T]],
) -> Callable[Concatenate[BlockingClient[Self_], P], T]:
    """Return the thread-safe form of a method that is not a coroutine but needs the event loop."""

    def make() -> Callable[Concatenate[BlockingClient[Self_], P], T]:
        method = described()

        @functools.wraps(method)
        def called(client: BlockingClient[Self_], /, *args: P.args, **kwargs: P.kwargs) -> T:
            bound: Callable[P, T] = _of(client, method)
            return background.call(lambda: bound(*args, **kwargs))

        return called

    return _later(make)


def blocking_block(
    described: Callable[[], Callable[Concatenate[Self_, P], AbstractAsyncContextManager[T]]],
) -> Callable[Concatenate[BlockingClient[Self_], P], AbstractContextManager[T]]:
    """Return the ``with`` form of a method for ``async with``."""

    def make() -> Callable[Concatenate[BlockingClient[Self_], P], AbstractContextManager[T]]:
        import inspect

        method = described()

        @functools.wraps(method)
        @contextlib.contextmanager
        def called(client: BlockingClient[Self_], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            block: AbstractAsyncContextManager[T] = _of(client, method)(*args, **kwargs)
            value = background.run(block.__aenter__())
            try:
                yield value
            except BaseException as error:
                if not background.run(block.__aexit__(type(error), error, error.__traceback__)):
                    raise
            else:
                background.run(block.__aexit__(None, None, None))

        type_arguments = get_args(inspect.signature(method).return_annotation)
        return _shown_as(called, method, GenericAlias(AbstractContextManager, type_arguments))

    return _later(make)


def _shown_as(method: AnyCallable, described: Callable[..., Any], returned: Any) -> AnyCallable:
    """Let ``help`` and ``inspect`` show the signature of another method, with its own return type."""
    import inspect

    signature = inspect.signature(described).replace(return_annotation=returned)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method


def _of(client: BlockingClient[Any], method: Callable[..., Any]) -> Any:
    """Return the client's method of the same name: subclasses may override it."""
    return getattr(client._client, method.__name__)


def arguments_of(
    described: Callable[[], Callable[Concatenate[Any, P], Any]],
) -> Callable[[Callable[Concatenate[Caller, ...], T]], Callable[Concatenate[Caller, P], T]]:
    """Give a method that passes on its arguments the signature, and the docstring, of the one that takes them."""

    def given(method: Callable[..., Any]) -> Any:
        def make() -> Callable[..., Any]:
            shown = functools.update_wrapper(method, described(), ("__doc__",))
            return _shown_as(shown, described(), method.__annotations__["return"])

        return _Later(make)

    return given


def arguments_of_class(
    described: Callable[[], Callable[P, Any]],
) -> Callable[[Callable[Concatenate[Caller, ...], None]], Callable[Concatenate[Caller, P], None]]:
    """Give an ``__init__`` that passes on its arguments the signature, and the docstring, of a class."""

    def given(method: Callable[..., None]) -> Any:
        return _Later(lambda: functools.update_wrapper(method, described().__init__))

    return given
