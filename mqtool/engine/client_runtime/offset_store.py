"""Consumer offsets of a group: committed to brokers, or for broadcasting kept in a file of this client.

(Rules: remoting.md 6.2. RocketMQ: ``RemoteBrokerOffsetStore``, ``LocalFileOffsetStore``.)
"""

import asyncio
import logging
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from mqtool.engine.client import calls, fetching
from mqtool.engine.client_runtime.instance import Instance
from mqtool.errors import AnswerTimeoutError, FormatError, MqtoolError, WriteError
from mqtool.formats.bodies import MessageQueue, build_body, by_queue, parse_body

log = logging.getLogger(__name__)

FOLDER = ".rocketmq_offsets"
"""In the user's home directory, where Java clients keep their files."""
_ANSWER_MS = 5000


class OffsetStore(Protocol):
    """The offsets of the queues that a consumer holds."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Record the next offset to consume."""

    def known(self, queue: MessageQueue) -> int | None:
        """Return what this client has recorded since it started."""

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset recorded by any client, None if there is none; raises MqtoolError if it is unknown."""

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Persist the offsets of some queues."""

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        """Do the same, and return when it is done; raises MqtoolError if it fails."""

    async def hand_over(self, queue: MessageQueue) -> None:
        """Persist the offset of a queue, and record nothing more: it belongs to another client now."""

    def forget(self, queue: MessageQueue) -> None:
        """Record nothing more for a queue."""


class _Noted:
    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool) -> None:
        """Record the next offset to consume."""
        if not increase_only or offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def known(self, queue: MessageQueue) -> int | None:
        """Return what this client has recorded since it started."""
        return self._offsets.get(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Record nothing more for a queue."""
        self._offsets.pop(queue, None)


class BrokerOffsets(_Noted):
    """Offsets of a group whose members share its queues."""

    def __init__(self, instance: Instance, group: str) -> None:
        super().__init__()
        self._instance = instance
        self._group = group
        self._told: dict[MessageQueue, int] = {}

    async def read(self, queue: MessageQueue) -> int | None:
        """Query the broker."""
        return await self._instance.request_reader(
            queue.broker_name, fetching.committed_offset(self._group, queue), _ANSWER_MS
        )

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Commit to all brokers at once; brokers that cannot be reached are retried next time."""
        names = dict.fromkeys(queue.broker_name for queue in queues)
        await asyncio.gather(*(self._tell([queue for queue in queues if queue.broker_name == name]) for name in names))

    async def commit(self, queues: Collection[MessageQueue]) -> None:
        """Commit to the brokers, and wait for their answers; if one refuses, the others are still asked."""
        # Of a group's first commits in a topic that come at the same time, RocketMQ brokers forget all but one.
        committed = {(queue.broker_name, queue.topic) for queue in self._told}
        first: list[MessageQueue] = []
        others: list[MessageQueue] = []
        for queue in queues:
            place = queue.broker_name, queue.topic
            (others if place in committed else first).append(queue)
            committed.add(place)
        noted = {queue: self._offsets[queue] for queue in queues}
        outcomes: list[BaseException | None] = []
        for part in (first, others):
            asked = (self._ask(queue, noted[queue]) for queue in part)
            outcomes += await asyncio.gather(*asked, return_exceptions=True)
        for error in filter(None, outcomes):
            raise error

    async def _ask(self, queue: MessageQueue, offset: int) -> None:
        call = calls.set_offset(self._group, queue.topic, queue.queue_id, offset)
        await self._instance.request_reader(queue.broker_name, call, _ANSWER_MS)
        self._told[queue] = offset

    async def hand_over(self, queue: MessageQueue) -> None:
        """Commit this client's offset, unless the broker knows it: a new owner of the queue may be ahead."""
        if self._told.get(queue) != self.known(queue):
            await self.persist([queue])
        self.forget(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Record nothing more for a queue."""
        super().forget(queue)
        self._told.pop(queue, None)

    async def _tell(self, queues: Collection[MessageQueue]) -> None:
        """Commit the offsets of some queues of one broker."""
        for queue in queues:
            offset = self._offsets.get(queue)
            if offset is None:
                continue
            try:
                _, address = self._instance.broker_to_read(queue.broker_name)
                await self._instance.wire.send_oneway(address, fetching.commit(self._group, queue, offset))
                self._told[queue] = offset
            except AnswerTimeoutError as error:  # the next queue would wait as long
                log.warning("cannot commit the offsets of %d queues of %s: %s", len(queues), queue.broker_name, error)
                return
            except MqtoolError as error:
                log.warning("cannot commit the offset of %s: %s", queue, error)


class FileOffsets(_Noted):
    """Offsets of a group each of whose members consumes everything, in the format of Java's file."""

    def __init__(self, client_id: str, group: str, folder: Path | None = None) -> None:
        super().__init__()
        self.path = (folder or Path.home() / FOLDER) / client_id / group / "offsets.json"
        self._writing = threading.Lock()  # so that the last write has the latest offsets
        for path in (self.path, self.path.with_name("offsets.json.bak")):
            try:
                offsets = by_queue(parse_body(path.read_bytes()).get("offsetTable") or {}, "offsetTable")
                self._offsets = {queue: int(offset) for queue, offset in offsets.items()}
            except FileNotFoundError:
                continue
            except (OSError, FormatError, ValueError, TypeError) as error:
                log.warning("cannot read %s: %s", path, error)
                continue
            break

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset from the file, or what was recorded since."""
        return self._offsets.get(queue)

    async def hand_over(self, queue: MessageQueue) -> None:
        """Write the file."""
        await self.persist([queue])

    def forget(self, queue: MessageQueue) -> None:
        """Keep the offset: no other member records it, and this one continues there when it gets the queue back."""

    async def persist(self, queues: Collection[MessageQueue]) -> None:
        """Write the file, outside the event loop; its previous content is kept in a file with ``.bak``."""
        try:
            await self.commit(queues)
        except WriteError as error:
            log.warning("%s", error)

    async def commit(self, queues: Collection[MessageQueue]) -> None:  # noqa: ARG002
        """Do the same; raises WriteError."""
        await asyncio.to_thread(self._write)

    def _write(self) -> None:
        new = self.path.with_name("offsets.json.tmp")
        try:
            with self._writing:
                data = build_body({"offsetTable": dict(self._offsets)})
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with new.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if self.path.exists():
                    self.path.replace(self.path.with_name("offsets.json.bak"))
                new.replace(self.path)
        except OSError as error:
            raise WriteError(f"the offsets cannot be stored in {self.path}: {error.strerror or error}") from error
