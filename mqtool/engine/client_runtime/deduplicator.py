"""Skips messages that were consumed before: brokers deliver at least once, and some work must not be done twice."""

import contextlib
import functools
import inspect
import os
import sqlite3
import threading
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from mqtool.engine.client.consuming import ConsumeStatus
from mqtool.engine.client.incoming import ConsumerMessage
from mqtool.engine.client_runtime.consume_services import ConsumeContext, Listener
from mqtool.engine.client_runtime.user_code import is_coroutine
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import ReadError, UsageError, WriteError
from mqtool.formats.identity import Delivered, Seen, delivered_identity, not_seen

Key = Callable[[ConsumerMessage], str | None]
"""Returns the key that identifies a message; None for one that is always new."""
_Claimed = tuple[ConsumerMessage, tuple[str, ...]]  # and the keys by which it is known once it is processed
_DAY_MS = 86_400_000
_with_locks: "weakref.WeakSet[Any]" = weakref.WeakSet()


def _forked() -> None:
    """Release, in a forked child, the locks of the parent's threads, and the messages that they are processing."""
    for deduplicator in _with_locks:
        deduplicator._forked()


os.register_at_fork(after_in_child=_forked)


class Memory(Protocol):
    """The keys of processed messages; any thread may use it."""

    def has(self, key: str) -> bool:
        """Return whether a key is known."""

    def add(self, keys: Iterable[str]) -> None:
        """Remember some keys."""


class BoundedMemory:
    """The newest keys, for as long as this process runs."""

    def __init__(self, most: int = 1_000_000) -> None:
        """Create a memory for ``most`` keys, about 150 bytes each; a message without keys of its own takes three."""
        self._most = most
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._forked()
        _with_locks.add(self)

    def _forked(self) -> None:
        self._lock = threading.Lock()

    def has(self, key: str) -> bool:
        """Return whether a key is known."""
        return key in self._keys

    def add(self, keys: Iterable[str]) -> None:
        """Remember some keys, and forget the oldest if there are too many."""
        with self._lock:
            for key in keys:
                self._keys[key] = None
                self._keys.move_to_end(key)
            while len(self._keys) > self._most:
                self._keys.popitem(last=False)


class SqliteMemory:
    """Keys in a file, which several processes may use; keys that are known there are on disk."""

    def __init__(self, path: str | Path, keep_ms: int = 7 * _DAY_MS, clock: Callable[[], int] = wall_clock) -> None:
        """Open a file, or create it.

        Args:
            path: of the file.
            keep_ms: after how long a key is forgotten; a broker can deliver a message again as long as it has it.
            clock: returns the time in ms since 1970.

        Raises:
            ReadError: it cannot be opened, or is something else.
        """
        self._path = path
        self._keep_ms = keep_ms
        self._clock = clock
        self._next_clean = 0
        self._lock = threading.Lock()
        self._of_parents: list[sqlite3.Connection] = []  # kept, as closing them would write to the file
        self._is_of_parent = False
        self._connection = self._opened()
        _with_locks.add(self)

    def _forked(self) -> None:
        self._lock, self._is_of_parent = threading.Lock(), True

    def _own(self) -> sqlite3.Connection:
        """Return the connection of this process: SQLite does not allow a child to use its parent's."""
        if self._is_of_parent:
            self._of_parents.append(self._connection)
            self._connection, self._is_of_parent = self._opened(), False
        return self._connection

    def _opened(self) -> sqlite3.Connection:
        path = self._path
        try:
            with contextlib.ExitStack() as opened:
                connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
                opened.callback(connection.close)
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("CREATE TABLE IF NOT EXISTS done (key TEXT PRIMARY KEY, time INTEGER)")
                connection.execute("CREATE INDEX IF NOT EXISTS done_by_time ON done (time)")
                opened.pop_all()  # it stays open
        except sqlite3.Error as error:
            raise ReadError(f"{path} cannot be used to remember messages: {error}") from error
        return connection

    def has(self, key: str) -> bool:
        """Return whether a key is known."""
        with self._lock:
            try:
                return self._own().execute("SELECT 1 FROM done WHERE key = ?", (key,)).fetchone() is not None
            except sqlite3.Error as error:
                raise ReadError(f"{self._path} cannot be read: {error}") from error

    def add(self, keys: Iterable[str]) -> None:
        """Remember some keys; they are on disk on return.

        Raises:
            WriteError: they are not.
        """
        now = self._clock()
        with self._lock:
            try:
                self._own().execute("BEGIN IMMEDIATE")
                self._connection.executemany("INSERT OR REPLACE INTO done VALUES (?, ?)", [(key, now) for key in keys])
                if now >= self._next_clean:
                    self._connection.execute("DELETE FROM done WHERE time < ?", (now - self._keep_ms,))
                    self._next_clean = now + max(1, self._keep_ms // 100)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise WriteError(f"{self._path} cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()


def _identity(message: ConsumerMessage) -> Delivered:
    return delivered_identity(
        message.topic,
        message.raw_properties,
        len(message.body),
        zlib.crc32(message.body),
        message.offset_message_id,
        f"{message.broker_name} {message.queue_id}",
        message.store_timestamp,
        message.reconsume_times,
        message.sys_flag,
    )


class Deduplicator:
    """Lets each message through once, if it was consumed: deduplicates messages.

    A message is identified by the rule of ``mqtool.formats.identity``: delivered again from the same place, by a
    retry, or because its producer stored it twice. Members of a batch are different messages, though they share a
    unique key.

    The process can die between the end of the work and the recording of the key: if even that is unacceptable,
    store the key together with the work, in one transaction of your own.
    """

    def __init__(self, memory: Memory | None = None, key: Key | None = None) -> None:
        """Create a filter.

        Args:
            memory: the keys of processed messages; by default the last million keys of this process.
            key: how to identify messages, instead of that rule.

        Raises:
            UsageError: one of them is something else.
        """
        if memory is not None and not (hasattr(memory, "has") and hasattr(memory, "add")):
            raise UsageError(f"the memory must have has() and add(), as SqliteMemory(path), not {memory!r}")
        if key is not None and not callable(key):
            raise UsageError(f"the key must be a function, not {key!r}")
        self._memory = BoundedMemory() if memory is None else memory
        self._key = key
        self._under_way: set[str] = set()
        self._lock = threading.Lock()
        _with_locks.add(self)

    def _forked(self) -> None:
        self._under_way, self._lock = set(), threading.Lock()

    @contextlib.contextmanager
    def new(self, messages: Iterable[ConsumerMessage]) -> Iterator[list[ConsumerMessage]]:
        """Yield new messages, and remember them at the end of the block unless it raises.

        >>> once = Deduplicator()
        >>> with once.new([]) as messages:
        ...     len(messages)
        0
        """
        with self._claimed(messages) as claimed:
            yield [message for message, _ in claimed]
            self._memory.add(_names(claimed))

    def listener(self, listen: Listener) -> Listener:
        """Return a listener that calls another with new messages only."""
        if is_coroutine(listen):

            @functools.wraps(listen)
            async def listen_later(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
                with self._claimed(messages) as claimed:
                    new = [message for message, _ in claimed]
                    return self._decide(await listen(new, context) if new else None, claimed, messages, context)

            return listen_later

        def listen_now(messages: Sequence[ConsumerMessage], context: ConsumeContext) -> Any:
            with contextlib.ExitStack() as until_done:
                claimed = until_done.enter_context(self._claimed(messages))
                new = [message for message, _ in claimed]
                status = listen(new, context) if new else None
                if not inspect.isawaitable(status):
                    return self._decide(status, claimed, messages, context)
                rest = until_done.pop_all()

            async def awaited() -> Any:  # for a function that returns an awaitable
                with rest:
                    return self._decide(await status, claimed, messages, context)

            return awaited()

        return listen_now

    @contextlib.contextmanager
    def _claimed(self, messages: Iterable[ConsumerMessage]) -> Iterator[list[_Claimed]]:
        """Yield messages that nobody has processed or is processing, and reserve them until the end of the block."""
        claimed: list[_Claimed] = []
        try:
            for message in messages:
                seen = self._seen(message)
                if seen.is_new:
                    claimed.append((message, seen.names))
                elif seen.names:
                    self._memory.add(seen.names)
            yield claimed
        finally:
            with self._lock:
                self._under_way.difference_update(_names(claimed))

    def _seen(self, message: ConsumerMessage) -> Seen:
        """Return whether a message is new, processed or in progress elsewhere; a new one is reserved for the caller."""
        key = self._key(message) if self._key else None
        if self._key and key is None:
            return Seen(True, ())
        with self._lock:
            # If another thread is processing the same message, its broker redelivers it should that fail.
            if key is None:
                seen = not_seen(_identity(message), self._is_known)
            else:
                seen = Seen(False, ()) if self._is_known(key) else Seen(True, (key,))
            if seen.is_new:
                self._under_way.update(seen.names)
            return seen

    def _is_known(self, name: str) -> bool:
        return name in self._under_way or self._memory.has(name)

    def _decide(
        self,
        status: Any,
        claimed: Sequence[_Claimed],
        messages: Sequence[ConsumerMessage],
        context: ConsumeContext,
    ) -> Any:
        """Remember the messages that a listener reports as consumed, and return its result."""
        if status is ConsumeStatus.LATER:
            return status
        done = claimed[: max(0, context.ack_index + 1)]
        self._memory.add(_names(done))
        if len(done) < len(claimed):  # it counts the messages passed to it, the consumer those received
            context.ack_index = messages.index(claimed[len(done)][0]) - 1
        return status


def _names(claimed: Sequence[_Claimed]) -> list[str]:
    return [name for _, names in claimed for name in names]
