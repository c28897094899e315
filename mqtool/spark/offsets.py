"""``offsets`` as a Spark job: the progress of consumer groups, from what is saved and from what the log shows.

``config/consumerOffset.json`` records it, if the file is intact. The log shows some consumption too: a message in
a retry or dead-letter topic names the original message, which was delivered to its group; the checkpoints and
acknowledgements of pop consumers name queue offsets; op messages of ended transactions name half messages. The
log shows only a lower bound: a message that was consumed at the first attempt leaves no trace, and a group may not
have committed what was delivered to it. (Rules: store.md 10.4, 11.2, 11.4, 11.5.)

Cost: linear in the heads of the log; one row per group and queue is shuffled.
"""

import contextlib
import itertools
import uuid
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqtool.engine.store import rocksdb
from mqtool.engine.store.queue_view import open_queue
from mqtool.engine.store.reader import QueueKey, StoreReader
from mqtool.errors import BadDataError, FormatError, MissingExtraError, NotFoundError
from mqtool.formats import config_tables, pop
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.message import Message, message_at
from mqtool.formats.property_names import DLQ_ORIGIN_MESSAGE_ID, ORIGIN_MESSAGE_ID, REAL_TOPIC, RETRY_TOPIC
from mqtool.formats.scan import MessageTable
from mqtool.formats.topics import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    REVIVE_PREFIX,
    SCHEDULE_GROUP,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_GROUP,
)
from mqtool.spark import run_as_program
from mqtool.spark.partitions import LogRange, RangeReader, UnreadablePlace, log_ranges
from mqtool.spark.spread import spread
from mqtool.spark.stores import Store, reader_of
from mqtool.spark.tables import GONE

KINDS = ("saved", "retried", "dead", "popped", "acknowledged", "ended")
"""Where an offset comes from: each is the queue offset after the furthest message known to have been
delivered; the saved one is that which the group reads next."""
_EVIDENCE = ("retried", "dead", "popped", "acknowledged", "ended")
_WAITING = (SCHEDULE_TOPIC, TIMER_TOPIC)
_ROWS = pa.schema(
    [
        *((name, pa.string()) for name in ("store", "kind", "group", "topic")),
        ("queue_id", pa.int64()),
        ("offset", pa.int64()),
    ]
)
_ROWS_SCHEMA = "store string, kind string, group string, topic string, queue_id long, offset long"
_QUEUE_ENDS = ("min_offset", "max_offset")
_LISTED = "listed"  # a queue of a topic of which a group has saved offsets
_UNREAD = "unread"  # a table that keeps offsets
_LEFT_OUT = "left_out"  # an entry of such a table that names no topic and group
_STORE = "store"
_UNREADABLE = (BadDataError, FormatError, MissingExtraError)
_MAX_TOLD = 10_000
_MAX_OFFSET = (1 << 63) - 1
"""What is after a message with this offset, which only damage gives it, is no offset."""


class OffsetsTask(NamedTuple):
    """A range of a log, or the tables and queues of a store."""

    job: str
    store: Store
    part: LogRange | None


class ConsumedOffset(NamedTuple):
    """The progress of a group in a queue."""

    kind: str
    group: str | None  # None: of the queue itself, or of a table
    topic: str
    queue_id: int
    offset: int


def progress(spark: Any, stores: Sequence[Store], partition_size: int) -> tuple[Any, Any]:
    """Return the DataFrame of the progress of each group in each queue, and an observation of it.

    Columns: ``store``, ``group``, ``topic``, ``queue_id``, ``consumer_offset`` (what is saved, else ``at_least``),
    ``at_least`` (the furthest that the log shows), an offset for each of ``KINDS``, ``min_offset``, ``max_offset`` and
    ``lag``, which is null where the ends of the queue are not known. A group has a row for every queue of a topic of
    which it has saved an offset, as in ``mqtool offset list``. The observation counts, while the DataFrame is read, the
    tables of offsets that could not be read (``unread``) and their entries that name no topic and group (``left_out``).

    Args:
        spark: the session.
        stores: which.
        partition_size: bytes of log for one task.
    """
    from pyspark.sql import Observation, Window, functions
    from pyspark.sql.functions import col

    items = tasks(stores, partition_size)
    observed = Observation("offsets")
    counts = [functions.count_if(col("kind") == kind).alias(kind) for kind in (_UNREAD, _LEFT_OUT)]
    rows = spread(spark, items, find, _ROWS_SCHEMA).observe(observed, *counts)
    furthest = [
        functions.max(functions.when(col("kind") == kind, col("offset"))).alias(kind) for kind in (*KINDS, *_QUEUE_ENDS)
    ]
    # The ends of a queue stand in a row without a group; every group of the queue gets them.
    place = ("store", "topic", "queue_id")
    ends = {name: functions.max(name).over(Window.partitionBy(*place)) for name in _QUEUE_ENDS}
    known = rows.groupBy("store", "group", *place[1:]).agg(*furthest).withColumns(ends).where("group is not null")
    known = known.withColumn("at_least", functions.greatest(*_EVIDENCE))
    known = known.withColumn("consumer_offset", functions.coalesce("saved", "at_least"))
    # Where nothing is known a queue counts from its first message.
    left = functions.greatest(col("max_offset") - functions.coalesce("consumer_offset", "min_offset"), functions.lit(0))
    known = known.withColumn("lag", functions.when(col("max_offset").isNotNull(), left))
    columns = ("store", "group", "topic", "queue_id", "consumer_offset", "at_least", *KINDS, *_QUEUE_ENDS, "lag")
    return known.select(*columns), observed


def tasks(stores: Sequence[Store], partition_size: int) -> list[OffsetsTask]:
    """Return what there is to do: the tables and queues of each store, and ranges of its log."""
    job = uuid.uuid4().hex
    parts = [(store, part) for store in stores for part in (None, *log_ranges(store, store.open(), partition_size))]
    return [OffsetsTask(job, *place) for place in parts]


def find(item: OffsetsTask) -> Iterator[pa.RecordBatch]:
    """Yield what one item shows, a limited number of queues at a time."""
    reader = reader_of(item.job, item.store)
    offsets = _of_tables(reader) if item.part is None else _of_log(reader, item.part)
    while chunk := list(itertools.islice(offsets, _MAX_TOLD)):
        highest: dict[tuple[str, str | None, str, int], int] = {}
        for consumed in chunk:
            key = consumed[:4]
            highest[key] = max(highest.get(key, consumed.offset), consumed.offset)
        rows = [
            dict(zip(_ROWS.names, (item.store.path, *key, offset), strict=True))
            for key, offset in sorted_by_key(highest)
        ]
        yield pa.RecordBatch.from_pylist(rows, _ROWS)


def sorted_by_key(offsets: dict[tuple[str, str | None, str, int], int]) -> list[tuple[Any, int]]:
    """Return pairs in an order that does not depend on how they were found."""
    return sorted(offsets.items(), key=lambda pair: tuple(map(str, pair[0])))


def _of_tables(reader: StoreReader) -> Iterator[ConsumedOffset]:
    # Or Spark, where there is no row at all, drops what counts them.
    yield ConsumedOffset(_STORE, None, "", 0, 0)
    groups: dict[str, set[str]] = {}
    gone: set[QueueKey] = set()
    for name in config_tables.OFFSET_TABLES:
        nameless: list[str] = []
        try:
            saved = config_tables.consumer_offsets(reader.config_table(name) or {}, nameless)
        except _UNREADABLE:  # the log has to tell
            yield ConsumedOffset(_UNREAD, None, name, 0, 0)
            continue
        for entry in nameless:
            yield ConsumedOffset(_LEFT_OUT, None, entry, 0, 0)
        for (topic, group, queue_id), offset in saved.items():
            groups.setdefault(topic, set()).add(group)
            gone.add((topic, queue_id))
            yield ConsumedOffset("saved", group, topic, queue_id, offset)
    try:
        delays = config_tables.delay_offsets(reader.config_table("delayOffset.json") or {})
    except _UNREADABLE:
        delays = {}
        yield ConsumedOffset(_UNREAD, None, "delayOffset.json", 0, 0)
    for level, offset in delays.items():
        yield ConsumedOffset("saved", SCHEDULE_GROUP, SCHEDULE_TOPIC, level - 1, offset)
    try:
        for key, low, high in _ends(reader, groups):
            gone.discard(key)
            yield from _of_queue(*key, low, high, groups)
    except _UNREADABLE:  # then it is unknown which of them are gone
        return
    for key in gone:
        yield from _of_queue(*key, 0, 0, groups)


def _of_queue(
    topic: str, queue_id: int, low: int, high: int, groups: Mapping[str, Collection[str]]
) -> Iterator[ConsumedOffset]:
    yield ConsumedOffset("min_offset", None, topic, queue_id, low)
    yield ConsumedOffset("max_offset", None, topic, queue_id, high)
    for group in groups.get(topic, ()):
        yield ConsumedOffset(_LISTED, group, topic, queue_id, 0)


def _ends(reader: StoreReader, topics: Container[str]) -> Iterator[tuple[QueueKey, int, int]]:
    """Yield each queue of a store with the offsets between which a consumer finds messages, as a broker reports them.

    Of a queue in RocksDB they are what its database says, except for some topics: it would be opened for each queue.
    """
    for queues in (reader.consume_queues, reader.batch_consume_queues):
        for key in queues:
            with contextlib.suppress(KeyError):  # deleted just now
                if queue := open_queue(reader, *key):
                    yield key, queue.min_offset, queue.max_offset
    if reader.rocksdb_queues:
        for key, known in rocksdb.read_ends(reader.rocksdb_queues).queues.items():
            if queue := open_queue(reader, *key) if key[0] in topics else None:
                yield key, queue.min_offset, queue.max_offset
            else:
                yield key, known.min_offset, known.max_offset


def _of_log(reader: StoreReader, part: LogRange) -> Iterator[ConsumedOffset]:
    try:
        with RangeReader(part) as range_reader:
            for piece in range_reader.tables():
                if not isinstance(piece, UnreadablePlace):
                    for row in _rows(piece):
                        shown = _of_message(reader, message_at(piece, row))
                        yield from (consumed for consumed in shown if consumed.offset <= _MAX_OFFSET)
    except GONE:
        return


def _rows(table: MessageTable) -> list[int]:
    """Return the rows of messages that may show consumption."""
    ids, names = table.topics()
    prefixes = tuple(name.encode() for name in (RETRY_PREFIX, DEAD_LETTER_PREFIX, REVIVE_PREFIX, OP_TOPIC, *_WAITING))
    wanted = np.array([name.startswith(prefixes) for name in names], np.bool_)
    rows: list[int] = np.flatnonzero(wanted[ids] & (table.faults == 0)).tolist()
    return rows


def _of_message(reader: StoreReader, message: Message) -> Iterator[ConsumedOffset]:
    """Yield what a message shows, even if it still waits for its time."""
    properties = message.properties
    topic = properties.get(REAL_TOPIC, "") if message.topic in _WAITING else message.topic
    if topic.startswith(RETRY_PREFIX):
        group = _group_of(topic.removeprefix(RETRY_PREFIX), properties.get(RETRY_TOPIC, ""))
        yield from _of_origin(reader, "retried", group, properties.get(ORIGIN_MESSAGE_ID))
    elif topic.startswith(DEAD_LETTER_PREFIX):
        origin = properties.get(DLQ_ORIGIN_MESSAGE_ID) or properties.get(ORIGIN_MESSAGE_ID)
        yield from _of_origin(reader, "dead", topic.removeprefix(DEAD_LETTER_PREFIX), origin)
    elif topic.startswith(REVIVE_PREFIX):
        yield from _of_pop(message)
    elif topic == OP_TOPIC:
        for text in message.body.decode("utf-8", "replace").split(","):
            if text.isascii() and text.isdigit() and len(text) < 19:
                yield ConsumedOffset("ended", TRANSACTION_GROUP, HALF_TOPIC, message.queue_id, int(text) + 1)


def _group_of(name: str, topic: str) -> str:
    """Return the group of a retry topic; those of pop consumers are followed by the name of the topic.

    >>> _group_of("G", "T"), _group_of("G_T", "T"), _group_of("G+T", "T")
    ('G', 'G', 'G')
    """
    if topic and name.endswith((f"_{topic}", f"+{topic}")):
        return name[: -len(topic) - 1]
    return name


def _of_origin(reader: StoreReader, kind: str, group: str, message_id: str | None) -> Iterator[ConsumedOffset]:
    """Report the message that a group received and sent back; nothing if retention has deleted it."""
    if message_id is None:
        return
    try:
        origin = reader.message_at(parse_message_id(message_id))
    except (FormatError, NotFoundError):
        return
    yield ConsumedOffset(kind, group, origin.topic, origin.queue_id, origin.queue_offset + 1)


def _of_pop(message: Message) -> Iterator[ConsumedOffset]:
    try:
        if message.tags == pop.CHECK_POINT_TAG:
            point = pop.parse_check_point(message.plain_body())
            offset = max(point.offsets, default=point.start_offset - 1) + 1
            yield ConsumedOffset("popped", point.group, point.topic, point.queue_id, offset)
        elif message.tags in (pop.ACK_TAG, pop.BATCH_ACK_TAG):
            ack = pop.parse_ack(message.plain_body())
            yield ConsumedOffset("acknowledged", ack.group, ack.topic, ack.queue_id, max(ack.offsets) + 1)
    except FormatError:
        return


if __name__ == "__main__":
    run_as_program("offsets")
