"""Topics of running brokers as a stream: its progress is one offset per queue, with digests of what was read.

A micro-batch is the messages of ranges of queues, so each is delivered once, whichever executor reads it and however
often.

Cost: linear in the messages; planning a micro-batch sends some requests per queue.
"""

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from mqtool.errors import MqtoolError, NotFoundError, StoreChangedError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.codes import ResponseCode
from mqtool.spark.ends import LogEnd, Mark, mark_of
from mqtool.spark.options import Options, check_endless
from mqtool.spark.places import LossReporter, Place, check_places, moved, place_behind, resumed, shares
from mqtool.spark.queue_reader import (
    QueuePartition,
    ask_of_brokers,
    called,
    check_all,
    cut,
    fails,
    places,
    queue_name,
    read_queue,
    topics_of,
)
from mqtool.spark.queues import BrokerConnection, OffsetRange, Queues
from mqtool.spark.schemas import arrow_schema
from mqtool.spark.sentences import sentences
from mqtool.spark.table_reader import ask_for

_log = logging.getLogger("mqtool.spark")

Offsets = dict[str, dict[str, Place]]
"""By topic and by broker and queue."""
Places = dict[MessageQueue, Place]

_POLL_S = 0.1
"""Spark asks again at once where nothing has come."""


class QueuesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages of topics as they arrive; queues and brokers that are added later are included."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.topics = topics_of(options)
        self.connection = BrokerConnection.of(options)
        self.most = options.count("maxOffsetsPerTrigger")
        self.ask = ask_of_brokers(ask_for(options, schema), options)
        check_endless(options)
        self._losses = LossReporter(fails(options))
        self._queues: Queues | None = None
        self._ends: dict[MessageQueue, OffsetRange] = {}  # when they were last examined
        self._gone: set[MessageQueue] = set()
        self._compared: set[MessageQueue] = set()  # queues that were there then, as they had been read
        self._target: dict[MessageQueue, OffsetRange] | None = None
        self._known: set[tuple[MessageQueue, Mark]] = set()  # messages that were there then
        self._committed: dict[MessageQueue, int] = {}
        self._is_committing = True
        self._idle_since = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Leave the connections to the driver."""
        return {**self.__dict__, "_queues": None}

    def stop(self) -> None:
        """End all connections."""
        if self._queues is not None:
            self._queues.__exit__()
            self._queues = None

    @sentences()
    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return where a new query starts."""
        ends = self._look()
        check_all(self.topics, self.connection, ends)
        starting = places(self.options, "startingOffsets", ends, self.connection.namespace)
        since = self.ask.bounds.since
        by_time = {} if since is None else self._open().offsets_at(dict.fromkeys(ends, since))
        starts = {
            queue: starting.get(queue, max(offset_range.first, by_time.get(queue, 0)))
            for queue, offset_range in ends.items()
        }
        before = [(queue, start - 1) for queue, start in starts.items() if start > ends[queue].first]
        marks = dict(zip((queue for queue, _ in before), self._marks(before), strict=True))
        return _nested({queue: place_behind(LogEnd(start, marks.get(queue)), []) for queue, start in starts.items()})

    @sentences()
    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Return where the next micro-batch ends.

        Raises:
            StoreChangedError: a queue is another one than before, or became shorter, with ``failOnDataLoss``.
            NotFoundError: a queue is gone, with ``failOnDataLoss``.
        """
        before = _flat(start)
        ends = self._look(before)
        for queue in before.keys() - ends.keys():
            self._losses.tell(NotFoundError(f"{called(queue)} is gone: no broker has it any more"), "without it")
        self._commit({queue: place for queue, place in before.items() if queue in ends})
        if self._target is not None:
            ends = {
                queue: OffsetRange(offset_range.first, min(offset_range.stop, self._target[queue].stop))
                for queue, offset_range in ends.items()
                if queue in self._target
            }
        self._known = set()
        begins = {queue: self._resumed(queue, before.get(queue), offset_range) for queue, offset_range in ends.items()}
        self._compared = {*ends}
        lows = {queue: max(begins[queue]["offset"], offset_range.first) for queue, offset_range in ends.items()}
        left = {queue: max(0, offset_range.stop - lows[queue]) for queue, offset_range in ends.items()}
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        stops = {queue: lows[queue] + count for queue, count in shares(left, most).items()}
        read = [queue for queue, stop in stops.items() if stop > lows[queue]]
        last = dict(zip(read, self._marks([(queue, stops[queue] - 1) for queue in read]), strict=True))
        self._known |= {(queue, mark) for queue, mark in last.items() if mark}
        new = moved(before, begins, lows, {queue: LogEnd(stop, last.get(queue)) for queue, stop in stops.items()})
        self._wait_where_nothing_comes(new == before)
        return _nested(new)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options give."""
        return ReadMaxRows(self.most) if self.most else ReadAllAvailable()

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        """Return how far the queues reach."""
        return _nested({queue: {"offset": offset_range.stop} for queue, offset_range in self._ends.items()})

    @sentences()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how far a query reads that stops at what exists now."""
        self._target = self._look()

    @sentences()
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        """Return the ranges between two offsets.

        Raises:
            StoreChangedError: a queue is another one than before, with ``failOnDataLoss``.
            NotFoundError: retention was faster, or a queue is gone, with ``failOnDataLoss``.
        """
        before, after = _flat(start), _flat(end)
        changed = {queue: place for queue, place in after.items() if place != before.get(queue)}
        ends = self._look(changed)
        parts: list[InputPartition] = []
        for queue, place in changed.items():
            known = ends.get(queue)
            low: int = place["start"] if "start" in place else before[queue]["offset"]
            if known is None:
                text = (
                    f"{called(queue)} is gone: no broker has its messages from {low:,} to {place['offset']:,} any more"
                )
                self._losses.tell(NotFoundError(text), "without them")
                parts.append(QueuePartition(queue, low, place["offset"], is_gone=True))
                continue
            if "start" not in place:
                self._check(queue, before[queue])
            self._check(queue, place)
            if low < min(known.first, place["offset"]):
                first = min(known.first, place["offset"])
                text = f"{called(queue)}: the messages from {low:,} to {first:,} were deleted before they were read"
                self._losses.tell(NotFoundError(text), "after them")
            parts += cut(queue, low, place["offset"])
        return parts

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the record batches of a range."""
        assert isinstance(partition, QueuePartition)
        yield from read_queue(self.connection, partition, self.ask, arrow_schema(self.schema))

    def _commit(self, places: Places) -> None:
        """Have brokers note how far the group has come, where there is one.

        Spark tells a source of a micro-batch that is done only when it plans the next one, and never of the last.
        """
        offsets = {queue: place["offset"] for queue, place in places.items()}
        changed = {queue: offset for queue, offset in offsets.items() if self._committed.get(queue) != offset}
        if self.connection.group and changed:
            try:
                self._open().commit(changed)
                self._committed, self._is_committing = offsets, True
            except MqtoolError as error:  # the checkpoint has them
                if self._is_committing:  # said once, not with each micro-batch
                    _log.warning("cannot commit the offsets of %s: %s", self.connection.group, error)
                self._is_committing = False

    def _open(self) -> Queues:
        if self._queues is None:
            self._queues = Queues(self.connection).__enter__()
        return self._queues

    def _look(self, needed: Collection[MessageQueue] = ()) -> dict[MessageQueue, OffsetRange]:
        """Return the existing queues; one that is needed is waited for, but not twice."""
        self._ends = self._open().ends(self.topics, {*needed} - self._gone)
        self._gone = (self._gone | {*needed}) - self._ends.keys()
        return dict(self._ends)

    def _wait_where_nothing_comes(self, is_idle: bool) -> None:
        now = time.monotonic()
        if is_idle and now - self._idle_since < _POLL_S:
            time.sleep(_POLL_S)
        self._idle_since = time.monotonic() if is_idle else 0.0

    def _resumed(self, queue: MessageQueue, place: Place | None, ends: OffsetRange) -> Place:
        """Return the place from which to continue: the given one if the queue is still as it was.

        Otherwise it is after the newest message that was read and still exists, or at the first.
        """
        if place is None:
            return {"offset": ends.first, "marks": []}
        stop = self._ends[queue].stop
        if stop == place["offset"] and queue in self._compared:  # nothing has come since
            return place
        resumed_place, _ = resumed(place, ends.first, stop, lambda mark: self._holds(queue, mark))
        if resumed_place is not place:
            how = f"at {resumed_place['offset']:,} (messages from there on may be read twice)"
            self._losses.tell(_changed(queue, place["offset"]), how)
        return resumed_place

    def _check(self, queue: MessageQueue, place: Place) -> None:
        """Check that a queue is as it was when it was read, or must be read, up to a place."""
        marks = [Mark(*mark_fields) for mark_fields in place["marks"][:1]]
        if marks and (queue, marks[0]) not in self._known and self._holds(queue, marks[0]) is False:
            self._losses.tell(_changed(queue, place["offset"]), "with the current contents")

    def _holds(self, queue: MessageQueue, mark: Mark) -> bool | None:
        """Return whether a message is still where it was, None if it has been deleted or cannot be read."""
        ends = self._ends[queue]
        if mark.address < ends.first:
            return None
        if mark.address >= ends.stop:
            return False
        [current] = self._marks([(queue, mark.address)])
        if current == mark:
            self._known.add((queue, mark))
        return None if current is None else current == mark

    def _marks(self, places: Sequence[tuple[MessageQueue, int]]) -> list[Mark | None]:
        """Return marks of the messages at some offsets, None if no message starts."""
        answers = self._open().firsts(places)
        return [
            mark_of(answer.records, offset, offset + 1) if answer.code == ResponseCode.SUCCESS else None
            for (_, offset), answer in zip(places, answers, strict=True)
        ]


def _changed(queue: MessageQueue, offset: int) -> StoreChangedError:
    return StoreChangedError(
        f"{called(queue)} is not the queue that was read up to {offset:,}: it was truncated or replaced"
    )


def _flat(offsets: Offsets) -> Places:
    by_queue = {}
    check_places(place for queues in offsets.values() for place in queues.values())
    for topic, queues in offsets.items():
        for name, place in queues.items():
            broker_name, _, queue_id = name.rpartition(":")
            by_queue[MessageQueue(topic, broker_name, int(queue_id))] = place
    return by_queue


def _nested(places: Mapping[MessageQueue, Place]) -> Offsets:
    nested: Offsets = {}
    for queue, place in sorted(places.items(), key=lambda item: item[0]):
        nested.setdefault(queue.topic, {})[queue_name(queue)] = place
    return nested
