"""Reads the queues of running brokers: the ranges that options select, split into tasks, and the records as columns."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pyspark.sql.datasource import (
    InputPartition,
)
from pyspark.sql.types import StructType

from mqtool.engine.client.names import with_namespace
from mqtool.engine.store.reader import CLOCK_STEP_MS
from mqtool.errors import BadDataError, NotFoundError, StoreChangedError, UsageError
from mqtool.formats import kernels as plain
from mqtool.formats import scan
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.codes import ResponseCode
from mqtool.formats.property_names import INNER_NUM
from mqtool.formats.scan import MessageTable
from mqtool.spark.messages import Batches, RowSelection
from mqtool.spark.options import EARLIEST, LATEST, Options, choose
from mqtool.spark.queues import BrokerConnection, OffsetRange, Queues
from mqtool.spark.schemas import arrow_schema
from mqtool.spark.sentences import sentences
from mqtool.spark.spread import spare_the_loaded
from mqtool.spark.table_reader import NarrowedReader, check_order, nothing_before_the_first
from mqtool.spark.tables import Ask

MAX_PART_MESSAGES = 1_000_000
"""Messages that one task reads."""
_AT_ONCE = 256
_STEP = 4 << 20
_INNER = (INNER_NUM,)


def topics_of(options: Options) -> list[str]:
    """Return the topics that are asked for.

    Raises:
        UsageError: there is none.
    """
    topics = options.bounds.topics
    if topics is None:
        raise UsageError("no topic given: set the option topic to a name, or to several separated by commas")
    return sorted(topics)


def check_all(topics: Iterable[str], connection: BrokerConnection, ends: Mapping[MessageQueue, OffsetRange]) -> None:
    """Check that all requested topics exist.

    Raises:
        NotFoundError: one is not.
    """
    existing = {queue.topic for queue in ends}
    if missing := [topic for topic in topics if with_namespace(topic, connection.namespace) not in existing]:
        raise NotFoundError(f"topic {', '.join(missing)} does not exist, or cannot be read")


def ask_of_brokers(ask: Ask, options: Options) -> Ask:
    """Return what is asked of queues: topics are chosen already, whatever namespace they are in."""
    return dataclasses.replace(ask, bounds=dataclasses.replace(ask.bounds, topics=None), fails_on_loss=fails(options))


def fails(options: Options) -> bool:
    """Return whether a loss ends a query."""
    return options.flag("failOnDataLoss", True)


# Offsets that are given


def queue_name(queue: MessageQueue) -> str:
    """Return what options and checkpoints call a queue below its topic."""
    return f"{queue.broker_name}:{queue.queue_id}"


def places(
    options: Options, name: str, ends: Mapping[MessageQueue, OffsetRange], namespace: str
) -> dict[MessageQueue, int]:
    """Return the offsets that an option gives, of queues that it names; their topics are in a namespace, or in none.

    Raises:
        UsageError: it names none that exist, or gives no offset.
    """
    text = options.values.get(name.lower())
    if text is None:
        return {}
    if not text.strip().startswith("{"):
        word = choose(name, text.strip(), (EARLIEST, LATEST, "{TOPIC: {QUEUE: OFFSET}}"))
        return {queue: _offset(name, queue, word, offset_range) for queue, offset_range in ends.items()}
    offsets = {}
    for topic, queues in options.table_of(name).items():
        full = with_namespace(choose(f"topic of {name}", topic, topics_of(options)), namespace)
        known = {queue_name(queue): queue for queue in ends if queue.topic == full}
        if len({queue.broker_name for queue in known.values()}) == 1:
            known |= {str(queue.queue_id): queue for queue in known.values()}
        by_queue = dict.fromkeys(known, queues) if isinstance(queues, str) else queues
        if not isinstance(by_queue, dict):
            raise UsageError(f'{name}: {topic} needs offsets by queue, for example {{"{topic}": {{"broker-a:0": 12}}}}')
        for key, place in by_queue.items():
            queue = known[choose(f"queue of {topic} in {name}", key, known)]
            offsets[queue] = _offset(name, queue, place, ends[queue])
    return offsets


def _offset(name: str, queue: MessageQueue, place: object, ends: OffsetRange) -> int:
    if place == EARLIEST:
        if name == "endingOffsets":
            raise nothing_before_the_first("an offset")
        return ends.first
    if place == LATEST:
        return ends.stop
    if type(place) is int and place > ends.stop:
        raise UsageError(f"{name}: {called(queue)} ends at {ends.stop:,}, before {place:,}")
    if type(place) is int and place >= 0:
        return place
    raise UsageError(
        f"{name}: {place} is not a valid offset for {queue.topic} {queue_name(queue)}: give a number, {EARLIEST} or "
        f"{LATEST}"
    )


# Reading


@dataclasses.dataclass
class QueuePartition(InputPartition):
    """A range of a queue."""

    queue: MessageQueue
    start: int
    stop: int
    is_gone: bool = False
    """No broker has it any more: a row stands for its messages."""


def cut(queue: MessageQueue, start: int, stop: int) -> list[QueuePartition]:
    """Return the partitions of a range of a queue."""
    return [
        QueuePartition(queue, at, min(at + MAX_PART_MESSAGES, stop))
        for at in range(start, max(start, stop), MAX_PART_MESSAGES)
    ]


class QueuesReader(NarrowedReader):
    """Reads topics up to where they end when the query starts."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self.options = options
        self.topics = topics_of(options)
        self.connection = BrokerConnection.of(options)
        self.ask = ask_of_brokers(self.ask, options)

    @sentences()
    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges of all queues."""
        bounds = self.ask.bounds
        parts: list[InputPartition] = []
        with Queues(self.connection) as queues:
            ends = queues.ends(self.topics)
            check_all(self.topics, self.connection, ends)
            starts, stops = (
                places(self.options, name, ends, self.connection.namespace)
                for name in ("startingOffsets", "endingOffsets")
            )
            chosen = {queue: offset_range for queue, offset_range in ends.items() if bounds.may_have(*queue[::2])}
            since = {} if bounds.since is None else queues.offsets_at(dict.fromkeys(chosen, bounds.since))
        for queue, (first, stop) in chosen.items():
            check_order(called(queue), starts.get(queue, 0), stops.get(queue, stop))
            low = max(starts.get(queue, first), since.get(queue, 0), bounds.first or 0)
            high = min(stops.get(queue, stop), stop if bounds.last is None else bounds.last)
            parts += cut(queue, low, high)
        return parts or [QueuePartition(MessageQueue("", "", 0), 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a range."""
        assert isinstance(partition, QueuePartition)
        yield from read_queue(self.connection, partition, self.ask, arrow_schema(self.schema))


def read_queue(connection: BrokerConnection, part: QueuePartition, ask: Ask, schema: Any) -> Iterator[Any]:
    """Yield the messages of a range of a queue, and rows of what is damaged or gone.

    Raises:
        NotFoundError: messages were deleted before they were read, where a loss is to end the query.
        StoreChangedError: the queue became shorter, where a loss is to end the query.
    """
    if part.start >= part.stop:
        return
    with sentences(), Queues(connection) as queues:
        yield from _RangeReading(queues, part, ask, schema).batches()
    spare_the_loaded()


class _RangeReading:
    """The reading of one range, some megabytes at a time."""

    def __init__(self, queues: Queues, part: QueuePartition, ask: Ask, schema: Any) -> None:
        broker = part.queue.broker_name
        self._queues, self._part, self._ask = queues, part, ask
        self._batches = Batches(RowSelection(ask.columns, broker, broker, ask.plain_bodies), schema, ask.mode)
        self._file = f"{part.queue.topic}/{part.queue.queue_id}"
        self._kernels: Any = None
        self._until = None if ask.bounds.until is None else ask.bounds.until + CLOCK_STEP_MS
        self._is_done = False  # what follows was stored too late

    def batches(self) -> Iterator[Any]:
        part, at = self._part, self._part.start
        if part.is_gone:
            yield from self._of_gap(at)
            return
        while at < part.stop and not self._is_done:
            begun, collected, size = at, [], 0
            while at < part.stop and size < _STEP:
                fetched = self._queues.fetch(part.queue, at, min(_AT_ONCE, part.stop - at))
                if fetched.next_offset <= at:
                    break
                if fetched.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY):
                    collected.append(fetched.records)
                    size += len(fetched.records)
                at = fetched.next_offset
            yield from self._of(b"".join(collected), begun, min(at, part.stop))
            if at < part.stop and fetched.next_offset <= at:
                yield from self._shorter(at, fetched.max_offset)
                return

    def _of(self, records: bytes, start: int, stop: int) -> Iterator[Any]:
        """Yield batches of records that came for a range of offsets, and rows for offsets that no record has."""
        if self._kernels is None:
            self._kernels = scan.kernels_for(len(records) * (self._part.stop - start) // max(1, stop - start))
        raw = np.frombuffer(records, np.uint8)
        scanned = scan.scan(memoryview(raw) if self._kernels is plain else raw, 0, kernels=self._kernels)
        if scanned.end < len(records):
            raise BadDataError(
                f"{called(self._part.queue)}: what the broker returned from {start:,} on is not a record"
            )
        table: MessageTable = _Pulled(
            **{field.name: getattr(scanned.table, field.name) for field in dataclasses.fields(scanned.table)}
        )
        offsets = table.column("queue_offset")
        if not np.array_equal(offsets, np.arange(start, stop)):
            for low, high in _missing(table, start, stop):
                self._ask.gone(
                    NotFoundError(
                        f"{called(self._part.queue)}: the messages from {low:,} to {high:,} were deleted before they "
                        "were read; set failOnDataLoss=false to continue after them"
                    )
                )
                yield from self._of_gap(low)
            table = table.where((offsets >= start) & (offsets < stop))
        if len(table):
            self._is_done = self._until is not None and table.column("store_timestamp").min() >= self._until
            yield from self._batches.of_table(self._ask.bounds.select(table, self._ask.tells_damage), self._file)

    def _shorter(self, at: int, stop: int) -> Iterator[Any]:
        self._ask.gone(
            StoreChangedError(
                f"{called(self._part.queue)} was truncated while it was being read: it ends at {min(at, stop):,}, "
                f"not at {self._part.stop:,}; set failOnDataLoss=false to continue without the rest"
            )
        )
        yield from self._of_gap(at)

    def _of_gap(self, offset: int) -> Iterator[Any]:
        return self._batches.of_damage(self._file, offset, "LOG-GAP", None)


class _Pulled(MessageTable):
    """Records returned by a broker: only they say where they are in its log."""

    def column(self, name: str) -> Any:
        """Return a column by the schema's name."""
        return super().column("physical_offset" if name == "position" else name)


def _missing(table: MessageTable, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of offsets that no record has; one that holds an inner batch has several."""
    at = start
    places_of, sizes = table.properties(_INNER)
    rows = zip(table.column("queue_offset").tolist(), places_of[0].tolist(), sizes[0].tolist(), strict=True)
    for offset, place, size in sorted(rows):
        if offset > at:
            yield at, min(offset, stop)
        count = bytes(table.buffer[place : place + size])
        at = max(at, offset + (int(count) if count.isdigit() else 1))
    if at < stop:
        yield at, stop


def called(queue: MessageQueue) -> str:
    """Return what sentences call a queue."""
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"
