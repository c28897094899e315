"""Reads messages of running brokers by place, id, key or a search, without affecting any group.

Cost: one request for a place or an id; for a key, one for each topic and broker; a search without a key pulls whole
queues, from its start time on.
"""

import dataclasses
import heapq
from collections.abc import AsyncGenerator, Collection, Iterable
from typing import NamedTuple

from mqtool.engine.client import calls
from mqtool.engine.client_runtime.admin_client import AdminClient
from mqtool.engine.client_runtime.admin_queries import MasterBroker, check_known
from mqtool.engine.client_runtime.wire import together
from mqtool.engine.store.search import Query
from mqtool.errors import BadDataError, FormatError, NotFoundError, UsageError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.inner_batch import messages_of
from mqtool.formats.message import Message, message_of
from mqtool.formats.properties import split_keys
from mqtool.formats.topics import is_system_topic

_AT_ONCE = 32
_LISTED = 20


class BrowsedQueue(NamedTuple):
    """A queue of a broker, and the offsets it holds when it is queried, half open."""

    broker: MasterBroker
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int


@dataclasses.dataclass(frozen=True)
class Browsed:
    """A message, the record that holds it, and the broker that returned it."""

    message: Message
    record: bytes
    broker: MasterBroker


class Browser:
    """Finds messages with a running admin client; ``remarks`` lists what could not be determined."""

    def __init__(self, admin: AdminClient, broker_name: str | None = None) -> None:
        self._admin = admin
        self._broker_name = broker_name
        self.remarks: list[str] = []

    async def masters(self) -> list[MasterBroker]:
        """Return the brokers to query."""
        return await self._admin.masters(self._broker_name)

    async def topics(self) -> set[str]:
        """Return the names of all topics of these brokers."""
        answers = await self._admin.ask_each(await self.masters(), calls.topic_configs)
        return {name for _, configs in answers for name in configs}

    # By address

    async def at_address(self, offset: int) -> Browsed:
        """Return the message at a physical offset of the only broker, or of the given one.

        Raises:
            NotFoundError: no message starts there.
            UsageError: there are several brokers.
        """
        masters = await self.masters()
        if len(masters) > 1:
            names = ", ".join(master.broker_name for master in masters)
            raise UsageError(f"{len(masters):,} brokers have a log ({names}): choose one with --broker")
        browsed = await self._viewed(masters[0], offset)
        if browsed is None:
            raise NotFoundError(f"{masters[0].broker_name} has no message that starts at {offset:,}")
        return browsed

    async def by_message_id(self, message_id: str, offset: int) -> Browsed | None:
        """Return the message with an offset message id; None if no broker has it."""
        for master in await self.masters():
            browsed = await self._viewed(master, offset)
            if browsed and browsed.message.message_id == message_id.upper():
                return browsed
        return None

    async def _viewed(self, master: MasterBroker, offset: int) -> Browsed | None:
        record = await self._admin.request(master.address, calls.message_at(offset))
        try:
            # Brokers interpret whatever is at an address as the size of a record.
            message = message_of(record, offset) if record else None
        except FormatError:
            return None
        if record is None or message is None or message.physical_offset != offset:
            return None
        return Browsed(message, record, master)

    # By place

    async def in_queue(self, topic: str, queue_id: int, queue_offset: int) -> Browsed:
        """Return the message with a queue offset.

        Raises:
            NotFoundError: there is none.
            UsageError: several brokers have such a queue.
        """
        places = await self.places([topic])
        of_id = [place for place in places if place.queue_id == queue_id]
        if not of_id:
            ids = sorted({place.queue_id for place in places})
            listed = ", ".join(map(str, ids[:_LISTED])) + (", .." if len(ids) > _LISTED else "")
            raise NotFoundError(f"{topic} has no queue {queue_id}; it has {listed or 'none'}")
        holding = [place for place in of_id if place.min_offset <= queue_offset < place.max_offset]
        if len(holding) > 1:
            names = ", ".join(place.broker.broker_name for place in holding)
            raise UsageError(f"{len(holding):,} brokers have this queue ({names}): choose one with --broker")
        if not holding:
            reaches = "; ".join(map(_reach, of_id))
            raise NotFoundError(
                f"queue {queue_id} of {topic} {reaches}: no message has the queue offset {queue_offset:,}"
            )
        async for browsed in self._read(holding[0], queue_offset):
            if browsed.message.queue_offset == queue_offset:
                return browsed
            break
        raise BadDataError(
            f"{holding[0].broker.broker_name} cannot read the message at queue offset {queue_offset:,}: "
            "see `mqtool verify` on its store"
        )

    async def places(self, topics: Collection[str]) -> list[BrowsedQueue]:
        """Return the queues of topics.

        Raises:
            NotFoundError: a topic does not exist; the message lists similar names.
        """
        masters = await self.masters()
        answers = await self._admin.ask_each(masters, calls.topic_configs)
        for topic in topics:
            check_known(topic, {name for _, configs in answers for name in configs}, "topic")
        asked = [(broker, topic) for topic in topics for broker, configs in answers if topic in configs]
        queues_of_each = await together(
            self._admin.request(broker.address, calls.topic_queues(topic)) for broker, topic in asked
        )
        return [
            BrowsedQueue(broker, topic, queue_id, queue.min_offset, queue.max_offset)
            for (broker, topic), queues in zip(asked, queues_of_each, strict=True)
            for queue_id, queue in queues.items()
        ]

    # By key

    async def by_key(self, key: str, topics: Collection[str] | None = None) -> list[Browsed]:
        """Return the messages that have a key or unique key, according to the brokers' indexes, oldest first.

        Args:
            key: the whole key.
            topics: the topics to search; by default all except the brokers' own.
        """
        masters = await self.masters()
        answers = await self._admin.ask_each(masters, calls.topic_configs)
        asked = [
            (broker, topic)
            for broker, configs in answers
            for topic in sorted(configs)
            if (not is_system_topic(topic) if topics is None else topic in topics)
        ]
        results = await together(self._with_key(broker, topic, key) for broker, topic in asked)
        return sorted((browsed for result in results for browsed in result), key=_when)

    async def _with_key(self, broker: MasterBroker, topic: str, key: str) -> list[Browsed]:
        """Return all messages with a key: brokers return the newest, so older ones are queried until there are none."""
        by_address: dict[int, list[Browsed]] = {}  # by address, as an inner batch has several
        oldest: int | None = None
        while True:
            until = {} if oldest is None else {"until": oldest}
            answer = await self._admin.request(broker.address, calls.messages_with_key(topic, key, **until))
            records: dict[int, list[Browsed]] = {}
            for message, record in messages_of(answer):
                records.setdefault(message.position, []).append(Browsed(message, record, broker))
            new = records.keys() - by_address.keys()
            by_address |= records
            if not new:
                if len(records) >= calls.MAX_BY_KEY:
                    self.remarks.append(
                        f"{broker.broker_name} has more than {calls.MAX_BY_KEY} messages of {topic} with the key "
                        f"{key} in one second: not all were found"
                    )
                break
            oldest = min(browsed.message.store_timestamp for messages in records.values() for browsed in messages)
        return [
            browsed
            for messages in by_address.values()
            for browsed in messages
            if browsed.message.topic == topic and _has(browsed.message, key)
        ]

    # By search

    async def starts(self, places: Iterable[BrowsedQueue], since: int | None) -> list[BrowsedQueue]:
        """Return queues with the offsets to read from for a time (ms); queues without such messages are left out."""
        kept = [place for place in places if place.max_offset > place.min_offset]
        if since is not None:
            offsets = await together(
                self._admin.request(place.broker.address, calls.offset_from(place.topic, place.queue_id, since))
                for place in kept
            )
            kept = [
                place._replace(min_offset=max(place.min_offset, offset))
                for place, offset in zip(kept, offsets, strict=True)
            ]
        return [place for place in kept if place.max_offset > place.min_offset]

    async def search(self, places: Iterable[BrowsedQueue], query: Query) -> AsyncGenerator[Browsed, None]:
        """Yield the messages of queues, up to their current ends, that match a query, by store time."""
        expression = "*"
        if query.tags and not any({*"*?["} & {*tag} for tag in query.tags):
            expression = " || ".join(query.tags)  # by hash: the results are compared with the query
        readers = [self._read(place, place.min_offset, expression, query.until) for place in places]
        heads = await together(anext(reader, None) for reader in readers)
        heap = [(_when(head), number, head) for number, head in enumerate(heads) if head]
        heapq.heapify(heap)
        while heap:
            _, number, browsed = heap[0]
            if query.matches(browsed.message):
                yield browsed
            following = await anext(readers[number], None)
            if following:
                heapq.heapreplace(heap, (_when(following), number, following))
            else:
                heapq.heappop(heap)

    async def _read(
        self, place: BrowsedQueue, offset: int, expression: str = "*", until: int | None = None
    ) -> AsyncGenerator[Browsed, None]:
        """Yield the messages of a queue from an offset to its current end, or to the first that was stored too late."""
        at, ask = offset, self._admin.request
        while at < place.max_offset:
            call = calls.pull(place.topic, place.queue_id, at, _AT_ONCE, expression)
            pulled = await ask(place.broker.address, call)
            for message, record in messages_of(pulled.records):
                if at <= message.queue_offset < place.max_offset:
                    if until is not None and message.store_timestamp >= until:
                        return
                    yield Browsed(message, record, place.broker)
            if pulled.next_offset <= at and pulled.code != ResponseCode.SUCCESS:
                self.remarks.append(
                    f"{place.broker.broker_name} returns nothing from queue {place.queue_id} of {place.topic} "
                    f"from offset {at:,} to {place.max_offset:,}: {pulled.status or pulled.code}"
                )
                return
            at = max(pulled.next_offset, at + 1)


def _reach(place: BrowsedQueue) -> str:
    if place.min_offset >= place.max_offset:
        return f"is empty on {place.broker.broker_name}"
    return f"holds {place.min_offset:,} to {place.max_offset - 1:,} on {place.broker.broker_name}"


def _when(browsed: Browsed) -> tuple[int, str, int, int]:
    message = browsed.message
    return message.store_timestamp, browsed.broker.broker_name, message.position, message.queue_offset


def _has(message: Message, key: str) -> bool:
    return key in (*split_keys(message.keys or ""), message.unique_key)
