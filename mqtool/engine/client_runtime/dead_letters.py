"""Resends dead letters of running brokers, each at most once.

A copy carries the address of its dead letter in a property, and a unique key made from that address. So a broker's
index shows whether a letter was resent before, by any client, even if the local record is lost; the record still shows
it when the copy has expired. A letter is recorded before it is sent: after a kill in between, the target topics are
read from that time on, without relying on an index.

Cost: for each letter a lookup by key in up to three topics on each broker, a send, and reading back the copy.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import orjson

from mqtool.engine.client import calls, sending
from mqtool.engine.client.mirroring import HOPS, RESENT
from mqtool.engine.client.outgoing import ProducerMessage, check_message, pack
from mqtool.engine.client.routes import masters, writable_queues
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.browser import Browsed, Browser
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.search import Query
from mqtool.errors import (
    AnswerTimeoutError,
    BadDataError,
    FormatError,
    InvalidRequestError,
    MqtoolError,
    NotFoundError,
    StoreInUseError,
    UnknownTopicError,
    UsageError,
    WriteError,
)
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.message import Message
from mqtool.formats.property_names import DLQ_ORIGIN_TOPIC, OF_ROCKETMQ, ORIGIN_MESSAGE_ID, RETRY_TOPIC, SHARDING_KEY
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX
from mqtool.formats.unique_key import build_unique_key

ORIGIN = "MQTOOL_ORIGIN"
"""The property of a copy with the address of its original."""
_GROUP = "mqtool"
_CLOCKS_DIFFER_MS = 600_000
_QUEUES = 4  # of a topic that is created by sending to it


class DeadLetter(NamedTuple):
    """A dead letter; ``topic`` is that of the message whose consumption failed, None if it is unknown."""

    found: Browsed
    topic: str | None

    @property
    def address(self) -> str:
        """Where it is stored: cluster, broker, topic, queue, offset, and, as topics are recreated, store time (ms)."""
        message, broker = self.found.message, self.found.broker
        place = (broker.cluster, broker.broker_name, message.topic, message.queue_id, message.queue_offset)
        return ":".join(map(str, (*place, message.store_timestamp)))

    @property
    def copy_key(self) -> str:
        """The unique key of its copy."""
        digest = hashlib.sha256(self.address.encode()).digest()
        process, maker, count = (int.from_bytes(digest[at : at + 4], "big") for at in (4, 8, 12))
        return build_unique_key(digest[:4], process, maker, self.found.message.store_timestamp, count)


def origin_topic(message: Message) -> str | None:
    """Return the topic of the message whose consumption failed, None if it is unknown."""
    properties = message.properties
    return properties.get(RETRY_TOPIC) or properties.get(DLQ_ORIGIN_TOPIC)


def copy_of(letter: DeadLetter, to_retry: bool) -> tuple[str, ProducerMessage]:
    """Return the target of the copy of a dead letter, and the copy: body, flag, tag, keys and own properties are kept.

    Raises:
        NotFoundError: its original topic is unknown.
        FormatError: its body is compressed and cannot be read.
    """
    message = letter.found.message
    if letter.topic is None:
        raise NotFoundError("its original topic is unknown: it was sent here by a producer")
    own = {name: value for name, value in message.properties.items() if name not in OF_ROCKETMQ}
    more = {ORIGIN: letter.address}
    if HOPS in own:
        more[HOPS] = f"{own[HOPS]} {RESENT}"
    target = letter.topic
    if to_retry:
        target = RETRY_PREFIX + message.topic.removeprefix(DEAD_LETTER_PREFIX)
        more[RETRY_TOPIC] = letter.topic
        if origin := message.properties.get(ORIGIN_MESSAGE_ID):
            more[ORIGIN_MESSAGE_ID] = origin
    copied = ProducerMessage(
        target,
        message.plain_body(),
        message.tags,
        message.keys,
        shard_key=message.properties.get(SHARDING_KEY, ""),
        flag=message.flag,
        properties={**own, **more},
        unique_key=letter.copy_key,
    )
    check_message(copied, may_be_empty=True)  # as of Pulsar producers
    return target, copied


class Resender:
    """Resends dead letters, with a running admin client, and reads each copy back."""

    def __init__(self, admin: AdminClient, log: "ResentLog", *, to_retry: bool) -> None:
        self._admin = admin
        self._browser = Browser(admin)
        self._log = log
        self._to_retry = to_retry
        self._turn = itertools.count()
        self._queues: dict[str, list[tuple[MessageQueue, str]]] = {}

    async def was_sent(self, letter: DeadLetter) -> bool:
        """Return whether a letter was resent before; if only the brokers know of it, it is recorded."""
        if letter.address in self._log.sent:
            return True
        group = letter.found.message.topic.removeprefix(DEAD_LETTER_PREFIX)
        # A copy that failed again is a dead letter itself, and has the same unique key.
        topics = {RETRY_PREFIX + group, DEAD_LETTER_PREFIX + group, letter.topic or ""}
        copies = await self._browser.by_key(letter.copy_key, topics)
        if letter.address in self._log.begun:
            known = sorted(topics & await self._browser.topics())
            since = self._log.begun[letter.address] - _CLOCKS_DIFFER_MS
            places = await self._browser.starts(await self._browser.places(known), since)
            copies += [browsed async for browsed in self._browser.search(places, Query())]
        resent = [browsed for browsed in copies if browsed.message.properties.get(ORIGIN) == letter.address]
        if resent:
            self._log.note(letter.address, 0, resent[0].message.message_id)
        return bool(resent)

    async def check_target(self, letters: Iterable[DeadLetter]) -> None:
        """Refuse to start if a topic that copies are sent to does not exist.

        Raises:
            NotFoundError: it does not exist; the message says what to do.
        """
        for letter in letters:
            if letter.topic is not None:
                group = letter.found.message.topic.removeprefix(DEAD_LETTER_PREFIX)
                await self._queues_of(RETRY_PREFIX + group if self._to_retry else letter.topic)

    async def send(self, letter: DeadLetter, now: int) -> str:
        """Resend a letter and return the id of its copy, which was read back.

        Raises:
            MqtoolError: it was not sent; after an AnswerTimeoutError it may have been, and the next run finds out.
            BadDataError: what was stored differs from what was sent.
        """
        target, copied = copy_of(letter, self._to_retry)
        self._log.note(letter.address, now, None)
        try:
            sent = await self._send(copied, target, now)
        except (UnknownTopicError, InvalidRequestError):  # it was deleted, and may be recreated with other queues
            del self._queues[target]
            sent = await self._send(copied, target, now)
        self._log.note(letter.address, now, sent.offset_message_id)
        await self._read_back(letter, copied, sent.offset_message_id)
        return sent.offset_message_id

    async def _send(self, copied: ProducerMessage, target: str, now: int) -> sending.SendResult:
        queues = await self._queues_of(target)
        queue, address = queues[next(self._turn) % len(queues)]
        return await self._admin.request(address, sending.send(pack(copied, target), queue, _GROUP, now, _QUEUES))

    async def _read_back(self, letter: DeadLetter, copied: ProducerMessage, message_id: str) -> None:
        offset = int(message_id[-16:], 16)
        stored = await self._browser.by_message_id(message_id, offset)
        if stored is None:
            raise BadDataError(f"the copy {message_id} cannot be read back")
        with contextlib.suppress(FormatError):
            message = stored.message
            if message.plain_body() == copied.body and message.properties.get(ORIGIN) == letter.address:
                return
        raise BadDataError(f"the copy {message_id} differs from what was sent")

    async def _queues_of(self, topic: str) -> list[tuple[MessageQueue, str]]:
        if topic not in self._queues:
            route = await self._admin.request_name_server(calls.route(topic))
            addresses = masters(route) if route else {}
            queues = [(queue, addresses[queue.broker_name]) for queue in writable_queues(route, topic)] if route else []
            if not queues:
                advice = "start a consumer of the group, or send to the original topics" if self._to_retry else ""
                raise NotFoundError(f"the target topic {topic} does not exist{advice and f': {advice}'}")
            self._queues[topic] = queues
        return self._queues[topic]


class ResentLog:
    """The record of what was resent, a file with one JSON line per step; only one process at a time can use it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sent: dict[str, str] = {}
        """The id of the copy, by the address of the letter."""
        self.begun: dict[str, int] = {}
        """When (ms) a copy was about to be sent, if it is unknown whether it was."""
        self._file: int | None = None

    def __enter__(self) -> "ResentLog":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise UsageError(f"{self.path} is not a file: what was sent cannot be recorded in it")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = self.path.read_bytes()
        except BlockingIOError as error:
            self._close()
            raise StoreInUseError(
                f"{self.path} is in use: dead letters of this group are already being resent"
            ) from error
        except UsageError:
            self._close()
            raise
        except OSError as error:
            self._close()
            raise WriteError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            if not data:  # a new file, which a power failure would take away with all that is synced in it
                Disk().sync_folder(self.path.parent)
            self._read(data)
            if data and not data.endswith(b"\n"):  # the last step was cut off by a kill
                self._write(b"\n")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def note(self, address: str, now: int, message_id: str | None) -> None:
        """Record that a letter is about to be sent, or, with the id of its copy, that it was sent; synced to disk.

        Raises:
            WriteError: the disk is full, or fails.
        """
        self._write(orjson.dumps({"letter": address, "timestamp": now, "copy": message_id}) + b"\n")
        if message_id is not None:
            self.sent[address] = message_id

    def _read(self, data: bytes) -> None:
        for number, line in enumerate(data.split(b"\n"), 1):
            try:
                row = orjson.loads(line)
                address, timestamp, copy = str(row["letter"]), int(row["timestamp"]), row["copy"]
            except (ValueError, TypeError, KeyError) as error:
                if not line or line.startswith(b'{"letter"'[: len(line)]):  # cut off by a kill
                    continue
                raise BadDataError(f"{self.path} is not a record of dead letters: line {number:,}") from error
            if copy is None:
                self.begun[address] = timestamp
            else:
                self.sent[address] = str(copy)

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise WriteError(f"{self.path} cannot be written: {error.strerror}; nothing more is sent") from error


def state_file(cluster: str, group: str) -> Path:
    """Return the default path of the record of what was resent."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    safe = "".join(
        character if character.isalnum() or character in "-_.%" else "_" for character in f"{cluster}-{group}"
    )
    return Path(state) / "mqtool" / "dlq" / f"{safe}.jsonl"


def is_uncertain(error: MqtoolError) -> bool:
    """Return whether a failed operation may have been carried out."""
    return isinstance(error, AnswerTimeoutError) or (error.retriable and error.code is None)
