"""Records with an intact message and a damaged field beside it: the correct values of the fields.

A message of the log that lacks its place in a queue has a damaged topic, queue, queue offset, flag or
property. The unit of that place leads to it, or it is the only one that fits. (Rules: store.md 2, 4.)

Cost: n log n in gaps and in messages that do not fit.
"""

import collections
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.parts import Span
from mqtool.engine.repair.recover.bridges import Hole, QueueGap, in_place
from mqtool.engine.repair.row_findings import FindingsOfRows
from mqtool.engine.repair.verify.records import check_records
from mqtool.engine.store.consume_queue import are_empty
from mqtool.engine.store.dispatch import QueueKey, dispatch
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats import commit_log as layout
from mqtool.formats import kernels as plain
from mqtool.formats import placeholder, record_edits, scan
from mqtool.formats.message import Message, message_at
from mqtool.formats.properties import (
    NAME_SEPARATOR,
    PAIR_SEPARATOR,
    build_properties,
    parse_properties,
)
from mqtool.formats.property_names import (
    CLUSTER,
    CRC32,
    DELAY,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    MSG_REGION,
    TRACE_ON,
    WAIT,
)
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX

_LIGHT = (INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET)
_LIGHT_REWRITTEN = "its light queues, which its properties do not name, are rewritten"
_LIGHT_REMOVED = "a place in a light queue, which another message has, is removed"
_LEAST = (WAIT, TRACE_ON, MSG_REGION, CLUSTER)
"""Properties that nobody needs once a message is stored: the first to be dropped for space."""
_OWN = (INNER_NUM, INNER_BASE, CRC32)
"""Properties that a broker adds, and that can be restored."""
_MAX_TOLD = 5
"""How many records of one kind get a sentence of their own."""
_ROUNDS = 4
"""How often messages are sought that fit only one place, once others have theirs."""
_OF_BATCH = "the number of messages in this batch is rewritten"


class Patch(NamedTuple):
    """A record that stays, with some of its fields corrected."""

    segment_offset: int
    position: int  # address
    data: bytes
    reason: str


class _Record(NamedTuple):
    """A record and its parsed contents."""

    data: bytes
    message: Message
    topic_at: int  # in the record
    topic_size: int


class RecordEditor:
    """Collects the corrected records, each once, with all of its changes."""

    def __init__(self, reader: StoreReader, end_offset: int, has_crc: bool) -> None:
        self.reader = reader
        self.end_offset = end_offset
        self.has_crc = has_crc
        self._told: dict[str, list[str]] = {}  # by kind
        self._edited: dict[int, tuple[bytes, str]] = {}  # by address
        self.own: dict[int, tuple[int, int]] = {}
        """By address, size and queue offset of records that keep their places but state another address."""
        self.placed: set[int] = set()
        """Addresses of the records that got a place in a queue."""
        self.fitting: set[int] = set()
        """Addresses of those that keep their stated place, as a rival with the same place got another one."""
        self.unfit: set[Span] = set()
        """Impossible places that messages state, without a replacement."""

    def patches(self) -> list[Patch]:
        """Return the records in the order of the log."""
        patches = []
        for position, (data, reason) in sorted(self._edited.items()):
            segment = self.reader.commit_log.segment_at(position)
            assert segment is not None
            patches.append(Patch(segment.start_offset, position, data, reason))
        return patches

    def remarks(self) -> Iterator[str]:
        """Yield the remarks, only a few of each kind."""
        for texts in self._told.values():
            yield from few_of(texts)

    # Places in queues

    def put_right(
        self,
        gaps: list[QueueGap],
        holes: list[Hole],
        odd: list[Span],
        alone: list[Span],
        ends: Mapping[QueueKey, tuple[int, int]],
        open_ends: Iterable[QueueGap] = (),
        rivals: Iterable[tuple[Span, Span]] = (),
    ) -> list[QueueGap]:
        """Assign missing places to the messages that are there; return the remaining gaps.

        Args:
            gaps: places that no message has.
            holes: addresses without a message.
            odd: messages that do not fit in their stated place.
            alone: the only messages of their queues.
            ends: one past the last message of each queue, and its address.
            open_ends: places of misfits before the first and after the last message of queues.
            rivals: some of these messages, with the other one that states the same place and may be the wrong one.
        """
        fixed: _Fixed = collections.defaultdict(dict)
        by_position: dict[int, list[QueueGap]] = collections.defaultdict(list)
        behind = [place for place, _ in self.led_to({span.physical_offset for span in (*odd, *alone)}, ends)]
        for place, position in self._units_of([*gaps, *behind], holes):
            by_position[position].append(place)
        misfits = {span.physical_offset for span in (*odd, *alone, *(other for _, other in rivals))}
        fitting = {position: places for position, places in by_position.items() if position not in misfits}
        for position in self._of_another_log(fitting):
            by_position[position] = [place for place in by_position[position] if _is_light_queue(place.queue)]
        for position, places in by_position.items():
            for place in self._follow_units(position, places):
                fixed[place.queue][place.start] = place.messages, position
                self.placed.add(position)
        gaps = list(without_places(gaps, fixed))
        fixed.clear()
        candidates = [span for span in (*odd, *alone) if span.is_one_record]
        candidates = [*_without_neighbours(candidates, ends)]
        open_ends = list(open_ends)
        for _ in range(_ROUNDS):
            if not self._fill(candidates, list(without_places([*open_ends, *gaps], fixed)), fixed, ends):
                break
        rivals_by_address = {
            span.physical_offset: other for span, other in rivals if span.physical_offset not in self.placed
        }
        fronts = [gap for gap in open_ends if not gap.start]
        self._fill(rivals_by_address.values(), list(without_places([*fronts, *gaps], fixed)), fixed, ends)
        self.fitting |= {
            position for position, other in rivals_by_address.items() if other.physical_offset in self.placed
        }
        unfit = [span for span in odd if not self._is_settled(span)]
        self.unfit = set(unfit)
        text = "has a queue offset that its queue has elsewhere: it gets no unit where the place is taken"
        for position in dict.fromkeys(span.physical_offset for span in unfit):
            self._tell(
                "unfit",
                f"left unchanged (LOG-QUEUE-ORDER, QUEUE-POSITION, QUEUE-MISSING): the message at {position:,} {text}",
            )
        return list(without_places(gaps, fixed))

    def _fill(
        self,
        spans: Iterable[Span],
        gaps: list[QueueGap],
        fixed: "_Fixed",
        ends: Mapping[QueueKey, tuple[int, int]],
    ) -> int:
        """Assign places to the messages that alone can have had them, each once; notes these as ``fixed``.

        Returns how many places were filled.
        """
        count = 0
        for span, gap in _fits(spans, gaps):
            position = span.physical_offset
            if position >= self.end_offset or gap.start in fixed[gap.queue] or self._is_of_lost(gap, position):
                continue
            if _is_of_other_place(span, gap, ends):
                continue
            if self._is_light(span):
                is_filled = self._move_light(span, gap)
            elif position in self.placed:
                continue
            elif is_filled := self._put(position, gap):
                self.placed.add(position)
            if is_filled:
                fixed[gap.queue][gap.start] = gap.messages, position
                count += 1
        return count

    def led_to(
        self, positions: Collection[int], ends: Mapping[QueueKey, tuple[int, int]]
    ) -> Iterator[tuple[QueueGap, int]]:
        """Yield the places after the last message of a queue whose units lead to messages, with these messages.

        Args:
            positions: addresses of the messages.
            ends: one past the last message of each queue, and its address.
        """
        if not positions:
            return
        wanted = np.array(list(positions), np.int64)
        for key, queue in self.reader.consume_queues.items():
            after, address = ends.get(key, (queue.first_offset, -1))
            for low, units in queue.windows(after, queue.max_offset()):
                at = units["physical_offset"].astype(np.int64)
                leads = np.isin(at, wanted) & (at > address) & ~are_empty(units)
                for row in np.flatnonzero(leads).tolist():
                    yield QueueGap(key, low + row, low + row + 1, address, self.end_offset), int(at[row])
        for key, batches in self.reader.batch_consume_queues.items():
            after, address = ends.get(key, (batches.first_offset, -1))
            units = batches.units_in_line(0, batches.used_count)
            leads = np.isin(units["physical_offset"], wanted) & (units["physical_offset"] > address)
            leads &= units["queue_offset"] >= after
            for unit in units[leads]:
                start, stop = int(unit["queue_offset"]), int(unit["queue_offset"]) + max(1, int(unit["batch_size"]))
                yield QueueGap(key, start, stop, address, self.end_offset), int(unit["physical_offset"])

    def _units_of(self, gaps: list[QueueGap], holes: list[Hole]) -> Iterator[tuple[QueueGap, int]]:
        """Yield place and address of units in gaps that point to a record outside of the holes."""
        starts, ends = np.array([hole.start for hole in holes] or [0]), np.array([hole.end for hole in holes] or [0])
        in_line: dict[QueueKey, Any] = {}  # units of batch queues, by queue offset
        for gap in gaps:
            queue = self.reader.consume_queues.get(gap.queue)
            batches = self.reader.batch_consume_queues.get(gap.queue)
            if batches is not None:
                if gap.queue not in in_line:
                    units = batches.units_in_line(0, batches.used_count)
                    in_line[gap.queue] = units[np.argsort(units["queue_offset"], kind="stable")]
                units = in_line[gap.queue]
                units = units[slice(*np.searchsorted(units["queue_offset"], (gap.start, gap.stop)))]
                offsets, counts = (units[name].astype(np.int64) for name in ("queue_offset", "batch_size"))
            elif queue is not None:
                low, high = max(gap.start, queue.first_offset), min(gap.stop, queue.max_offset())
                units = queue.units(low, max(low, high))
                offsets, counts = low + np.arange(len(units)), np.ones(len(units), np.int64)
            else:
                continue
            positions, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
            number = np.maximum(np.searchsorted(starts, positions, "right") - 1, 0)
            in_hole = (starts[number] <= positions) & (positions < ends[number])
            before = min(gap.before, self.end_offset)
            fits = ~in_hole & (positions > gap.after) & (positions < before) & (sizes >= layout.MIN_SIZE)
            for row in np.flatnonzero(fits).tolist():
                record = self._record(int(positions[row]))
                if record is not None and len(record.data) == int(sizes[row]):
                    start, stop = int(offsets[row]), int(offsets[row] + counts[row])
                    yield gap._replace(start=start, stop=stop), int(positions[row])

    def _of_another_log(self, by_position: Mapping[int, list[QueueGap]]) -> Iterator[int]:
        """Yield the messages that fit where they say, and that the units of other places only seem to lead to.

        Damage to a message leaves two of its topic, queue and offset, and does not hit the next in its queue alike.

        Args:
            by_position: messages that fit, by address, with the places whose units lead to them.
        """
        stated: dict[int, tuple[QueueKey, int, int]] = {}
        for position, places in by_position.items():
            record = self._record(position)
            if record is not None and _has_place(record.message) and not self._is_confirmed(record.message):
                message, start = record.message, record.message.queue_offset
                stated[position] = (message.topic, message.queue_id), start, start + places[0].messages
        starts, stops = ({(queue, bounds[at]) for queue, *bounds in stated.values()} for at in (0, 1))
        for position, (queue, start, stop) in stated.items():
            has_neighbour = (queue, start) in stops or (queue, stop) in starts
            if has_neighbour or not any(_is_alike(queue, start, place) for place in by_position[position]):
                yield position

    def _follow_units(self, position: int, places: list[QueueGap]) -> Iterator[QueueGap]:
        """Assign to a record the places whose units lead to it; yield those that it has then."""
        record = self._record(position)
        assert record is not None
        light = [place for place in places if _is_light_queue(place.queue)]
        other_places = [place for place in places if place not in light]
        if (
            other_places
            and not self._is_confirmed(record.message)
            and self._place(record, other_places[0].queue, other_places[0].start)
        ):
            yield other_places[0]
        if light and self._add_light(position, {place.queue[0]: place.start for place in light}):
            yield from light

    def _is_confirmed(self, message: Message) -> bool:
        """Return whether the unit of the place that a message claims leads to it."""
        key = message.topic, message.queue_id
        queue, batches = self.reader.consume_queues.get(key), self.reader.batch_consume_queues.get(key)
        if not _has_place(message):
            return False
        if batches is not None:
            return batches.offset_at(message.position) == message.queue_offset
        return queue is not None and queue.address_at(message.queue_offset) == message.position

    def _is_of_lost(self, gap: QueueGap, position: int) -> bool:
        """Return whether the unit of a place leads to a lost message rather than to the one at ``position``."""
        queue = self.reader.consume_queues.get(gap.queue)
        address = None if queue is None else queue.address_at(gap.start)
        if address in (None, position) or not gap.after < address < min(gap.before, self.end_offset):
            return False
        record = self._record(address)
        return record is None or placeholder.LOST in record.message.properties

    def _put(self, position: int, gap: QueueGap) -> bool:
        record = self._record(position)
        return record is not None and self._place(record, gap.queue, gap.start)

    def _place(self, record: _Record, queue: QueueKey, queue_offset: int) -> bool:
        """Write topic, queue and offset into a record that is whole except for these; return whether they fit."""
        message, (topic, queue_id) = record.message, queue
        if len(topic.encode()) != record.topic_size:
            return False
        flag = message.sys_flag
        if flag & layout.TRANSACTION_MASK != layout.TRANSACTION_COMMIT:
            flag &= ~layout.TRANSACTION_MASK
        data = record_edits.with_place(record.data, record.topic_at, topic.encode(), queue_id, queue_offset, flag)
        base = {INNER_BASE: str(queue_offset)} if flag & layout.INNER_BATCH else {}
        if any(message.properties.get(name) != value for name, value in base.items()):
            properties = with_pairs(message, base, self.has_crc)
            if properties is None:
                return False
            data = record_edits.with_properties(data, len(properties), properties)
        self._edit(message.position, data, "its topic, queue and offset cannot be right")
        text = f"the message at {message.position:,} is intact: it becomes {topic} {queue_id} {queue_offset} again"
        self._tell("placed", text)
        return True

    # Properties

    def _is_light(self, span: Span) -> bool:
        """Return whether a place is in a light queue, which a property of the message names besides its own queue."""
        name = span.queue[0]
        record = self._record(span.physical_offset) if _is_light_queue(span.queue) else None
        return record is not None and record.message.topic != name

    def _move_light(self, span: Span, gap: QueueGap) -> bool:
        """Replace the place in a light queue that a message states; return whether it still stated one."""
        return _is_light_queue(gap.queue) and self._change_light(span, [(gap.queue[0], str(gap.start))])

    def drop_light(self) -> None:
        """Remove impossible places in light queues from messages."""
        for span in sorted(self.unfit, key=lambda span: span.physical_offset):
            if self._is_light(span):
                self._change_light(span, [])

    def drop_light_of(self, position: int, places: Collection[tuple[str, int]]) -> None:
        """Remove places in light queues, which other messages have, from a message."""
        record = self._record(position)
        if record is not None:
            texts = {(name, str(offset)) for name, offset in places}
            left = [(name, offset) for name, offset in _light_of(record.message) if (name, offset) not in texts]
            self._write_light(record, left, _LIGHT_REMOVED)

    def _is_settled(self, span: Span) -> bool:
        """Return whether a misfit has another place, or may keep its stated one."""
        if span.physical_offset in self.fitting:
            return True
        if not self._is_light(span):
            return span.physical_offset in self.placed
        record = self._record(span.physical_offset)
        return record is None or _number_of(span, _light_of(record.message)) is None

    def _change_light(self, span: Span, instead: list[tuple[str, str]]) -> bool:
        record = self._record(span.physical_offset)
        light_places = _light_of(record.message) if record is not None else []
        number = _number_of(span, light_places)
        if record is None or number is None:
            return False
        return self._write_light(record, [*light_places[:number], *instead, *light_places[number + 1 :]])

    def _add_light(self, position: int, light: dict[str, int]) -> bool:
        record = self._record(position)
        assert record is not None
        light_places = _light_of(record.message)
        for name, offset in light.items():
            if (name, str(offset)) in light_places:
                continue
            places = [number for number, pair in enumerate(light_places) if not self._leads(pair, position)]
            differing = {number: _differing(light_places[number][0], name) for number in places}
            at = min(places, key=lambda number: differing[number], default=-1)
            if at >= 0 and differing[at] <= len(name) // 3:
                light_places[at] = name, str(offset)
            else:
                light_places.append((name, str(offset)))
        return self._write_light(record, light_places)

    def _write_light(
        self,
        record: _Record,
        light_places: list[tuple[str, str]],
        reason: str = _LIGHT_REWRITTEN,
    ) -> bool:
        """Write the light queues of a message, and its places in them; return whether there is room."""
        light_places = [(name, offset) for name, offset in light_places if offset.isdecimal()]
        pairs = {
            INNER_MULTI_DISPATCH: ",".join(name for name, _ in light_places),
            INNER_MULTI_QUEUE_OFFSET: ",".join(offset for _, offset in light_places),
        }
        return self._add_properties(record, pairs, reason)

    def _leads(self, light: tuple[str, str], position: int) -> bool:
        """Return whether the unit at a place of a light queue, as stated in properties, leads to an address."""
        name, offset = light
        queue = self.reader.consume_queues.get((name, 0))
        return queue is not None and offset.isdecimal() and queue.address_at(int(offset)) == position

    def take_batches(self, records: dict[int, bytes]) -> None:
        """Take, by address, inner batches whose numbers are rewritten, and messages wrongly marked as such."""
        for position, data in records.items():
            record = self._record(position)
            self._rewrite(position, data, of_batch(record.message) if record else _OF_BATCH)

    def _add_properties(self, record: _Record, pairs: dict[str, str], reason: str) -> bool:
        """Replace damaged properties of a record; return whether there is room for the new ones."""
        text = with_pairs(record.message, pairs, self.has_crc)
        if text is None:
            return False
        self._rewrite(record.message.position, record_edits.with_properties(record.data, len(text), text), reason)
        return True

    def _rewrite(self, position: int, data: bytes, reason: str) -> None:
        """Rewrite a record with other properties, and note which readable ones had to be dropped."""
        before = self._record(position)
        self._edited[position] = data, reason
        after = self._record(position)
        room = "" if before is None or after is None else made_room(before.message, after.message, reason)
        self._tell(reason, f"the message at {position:,} is kept: {reason}{room}")

    # Numbers

    def repair_times(self, times: Mapping[int, int]) -> None:
        """Write store times into messages, by address."""
        for position, time in sorted(times.items()):
            record = self._record(position)
            if record is not None:
                old = record.message.store_timestamp
                self._edit(position, record_edits.with_time(record.data, time), "its store time cannot be right")
                self._tell(
                    "time", f"the message at {position:,} was not stored at {old}: it gets its neighbour's time, {time}"
                )

    def repair_flags(self, flags: Mapping[int, int]) -> None:
        """Correct the system flags of messages that show what they should be, by address."""
        for position, flag in sorted(flags.items()):
            record = self._record(position)
            if record is not None:
                reason = "its system flag contradicts its body"
                # The body does not show whether a message is part of a transaction.
                flag = flag & ~layout.TRANSACTION_MASK | record.message.sys_flag & layout.TRANSACTION_MASK
                self._edit(position, record_edits.with_flag(record.data, flag), reason)
                self._tell("flag", f"the message at {position:,} is kept: {reason}, 0x{flag & 0xFFFFFFFF:x} is written")

    def repair_delay_levels(self, positions: Iterable[int]) -> None:
        """Write into delayed messages whose delay level is not a number, by address, that of their queue."""
        for position in positions:
            record = self._record(position)
            if record is not None and 0 <= record.message.queue_id < len(self.reader.delay_levels):
                level = str(record.message.queue_id + 1)
                self._add_properties(record, {DELAY: level}, "its delay level, which is not a number, is rewritten")

    def still_finds(self, finding: Finding) -> bool:
        """Return whether a finding in a record also applies to its replacement."""
        edited = self._edited.get(-1 if finding.physical_offset is None else finding.physical_offset)
        if edited is None:
            return True
        table = scan.scan(memoryview(edited[0]), finding.physical_offset or 0, limit=1).table
        findings = FindingsOfRows(table, finding.file or "", None)
        check_records(findings, dispatch(table, self.reader.delay_levels))
        return any(current.code == finding.code for _, current in findings.all)

    def _edit(self, position: int, data: bytes, reason: str) -> None:
        before = self._edited.get(position)
        self._edited[position] = data, f"{before[1]}; {reason}" if before else reason

    def repair_crcs(self, positions: Iterable[int]) -> None:
        """Rewrite the CRC property of records that are in their place and whose bodies are intact."""
        count = 0
        for position in positions:
            record = self._record(position)
            if record is None:
                continue
            data = record_edits.with_new_crc(record.data, len(record.message.raw_properties))
            if data != record.data:  # other edits write the CRC, too, where the property is intact
                self._edit(position, data, "its CRC property does not fit")
                count += 1
        if count:
            subject = "one record contradicts its" if count == 1 else f"{count:,} records contradict their"
            self._tell(
                "crc",
                f"{subject} CRC property while body, topic, queue and offset are right: the property is rewritten; "
                "times, hosts, keys or tags may be damaged; run `mqtool verify` beforehand to see where",
            )

    def _record(self, position: int) -> _Record | None:
        """Return the planned record at an address, None if no sound one begins there."""
        edited = self._edited.get(position)
        try:
            if edited:
                data = edited[0]
            elif position in self.own:
                data = in_place(self.reader, position, *self.own[position])
            else:
                data = bytes(self.reader.record_at(position))
        except MqtoolError:
            return None
        table = scan.scan(memoryview(data), position, limit=1).table
        if len(table) != 1 or table.faults[0] or int(table.column("physical_offset")[0]) != position:
            return None
        if table.broken()[0]:
            return None
        topic_at, topic_size = int(table.offsets(plain.TOPIC)[0]), int(table.sizes(plain.TOPIC)[0])
        return _Record(data, message_at(table, 0), topic_at, topic_size)

    def _tell(self, kind: str, text: str) -> None:
        self._told.setdefault(kind, []).append(text)


def _is_light_queue(queue: QueueKey) -> bool:
    return queue[0].startswith(LIGHT_QUEUE_PREFIX)


def _has_place(message: Message) -> bool:
    """Return whether a message that says so of itself has a place in a queue."""
    kind = message.sys_flag & layout.TRANSACTION_MASK
    return kind not in (layout.TRANSACTION_PREPARED, layout.TRANSACTION_ROLLBACK)


def _is_alike(queue: QueueKey, queue_offset: int, place: QueueGap) -> bool:
    """Return whether two places differ in at most one of topic, queue and offset."""
    pairs = zip((*queue, queue_offset), (*place.queue, place.start), strict=True)
    return sum(number != other for number, other in pairs) <= 1


def few_of(sentences: list[str]) -> Iterator[str]:
    """Yield some of the sentences about messages of one kind, and how many more there are."""
    yield from sentences[:_MAX_TOLD]
    if len(sentences) > _MAX_TOLD:
        yield f"the same applies to {len(sentences) - _MAX_TOLD:,} more messages"


def of_batch(message: Message) -> str:
    """Return the remark on a message whose batch numbers are corrected or removed."""
    is_batch = message.sys_flag & layout.INNER_BATCH
    return _OF_BATCH if is_batch else "it is not a batch, and no longer has the numbers of one"


def made_room(before: Message, after: Message, reason: str = "") -> str:
    """Return the end of a sentence about properties changed for a reason: which readable ones are gone besides."""
    meant = {*_OWN, *(_LIGHT if reason.endswith((_LIGHT_REWRITTEN, _LIGHT_REMOVED)) else ())}
    lost = [name for name in _whole(before) if name not in after.properties and name not in meant]
    return f", which leaves no room for {', '.join(lost)}" if lost else ""


def with_pairs(message: Message, pairs: dict[str, str], has_crc: bool) -> bytes | None:
    """Return the properties of a message with pairs in place of damaged ones, None if there is no room for them.

    Pairs without a value are removed. If little is damaged, only that is changed; otherwise as many of
    the intact others stay as there is room for.
    """
    raw = message.raw_properties
    text: bytes | None = raw
    for name, value in pairs.items():
        text = None if text is None else record_edits.with_pair(text, name, value)
    left = _whole(message)
    has_crc |= CRC32 in left
    left = {name: value for name, value in left.items() if name not in (CRC32, *pairs)}
    if text is not None and (record_edits.ends_in_crc(text) or not has_crc):
        parsed = parse_properties(text)
        is_there = all(parsed.get(name) == value for name, value in pairs.items())
        # The rest of an overwritten name is a new name; that of a value has none.
        is_torn = bool(parsed.keys() - message.properties.keys() - pairs.keys() and left.keys() - parsed.keys())
        is_torn |= bool(_nameless(text) - _nameless(raw))
        if is_there and not is_torn and all(parsed.get(name, value) == value for name, value in left.items()):
            return text
    crc = build_properties({CRC32: "0" * 10}) if has_crc else b""
    for name in ("", *_LEAST, *reversed([*left])):
        left.pop(name, None)
        text = build_properties({**left, **{name: value for name, value in pairs.items() if value}})
        if not crc and len(text) == len(raw) + 1:
            return text.removesuffix(PAIR_SEPARATOR.encode())
        room = len(raw) - len(text) - len(crc)
        if room >= 0:
            return text + PAIR_SEPARATOR.encode() * room + crc
    return None


def _nameless(properties: bytes) -> set[bytes]:
    """Return the texts between separators that are not pairs."""
    parts = properties.split(PAIR_SEPARATOR.encode())
    return {part for part in parts if part and NAME_SEPARATOR.encode() not in part}


def _whole(message: Message) -> dict[str, str]:
    """Return the readable properties."""
    return {name: value for name, value in message.properties.items() if _is_whole(name + value)}


def _differing(text: str, wanted: str) -> int:
    """Return how many letters at the beginning of a text differ from the wanted ones."""
    return len(wanted) - sum(letter == other for letter, other in zip(text, wanted, strict=False))


def _is_whole(text: str) -> bool:
    return not any(letter < " " or letter == "\ufffd" for letter in text)


def _light_of(message: Message) -> list[tuple[str, str]]:
    """Return the light queues that properties name, with their offsets."""
    names = message.properties.get(INNER_MULTI_DISPATCH, "").split(",")
    offsets = message.properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    return [pair for pair in itertools.zip_longest(names, offsets, fillvalue="") if pair[0]]


def _number_of(span: Span, light_places: list[tuple[str, str]]) -> int | None:
    """Return which of a message's places in light queues is that of a span, None if none is."""
    places = ((name, int(offset) if offset.isdecimal() else -1) for name, offset in light_places)
    return next((number for number, place in enumerate(places) if place == (span.queue[0], span.start)), None)


_Fixed = dict[QueueKey, dict[int, tuple[int, int]]]
"""How many places from a queue offset on a record takes, and its address."""


def without_places(gaps: Iterable[QueueGap], fixed: _Fixed) -> Iterator[QueueGap]:
    """Yield what remains of gaps after messages were found for some of their offsets.

    If the message is the one that seemed to be before or after the gap, the gap ends there.
    """
    ordered = {queue: sorted(offsets) for queue, offsets in fixed.items()}
    for gap in gaps:
        offsets = ordered.get(gap.queue)
        if not offsets:
            yield gap
            continue
        low, high = np.searchsorted(offsets, (gap.start, gap.stop)).tolist()
        start = gap.start
        for offset in [*offsets[low:high], gap.stop]:
            count, position = fixed[gap.queue][offset] if offset < gap.stop else (0, None)
            if start < offset and position != gap.after:
                yield gap._replace(start=start, stop=offset)
            start = offset + count
            if position == gap.before:
                break


def _fits(spans: Iterable[Span], gaps: list[QueueGap]) -> Iterator[tuple[Span, QueueGap]]:
    """Yield each message with the one missing place around it that it could have had."""
    events: list[tuple[int, int, Any]] = [(gap.before, 0, gap) for gap in gaps]
    events += [(span.physical_offset, 1, span) for span in spans]
    events += [(gap.after, 2, gap) for gap in gaps]
    open_: dict[Any, dict[QueueGap, None]] = collections.defaultdict(dict)
    for _, kind, item in sorted(events, key=lambda event: event[:2]):
        if kind == 1:
            fits = [open_[kind] for kind in kinds_of(item)]
            if all(len(candidates) <= 1 for candidates in fits):
                matches = {gap for candidates in fits for gap in candidates}
                if len(matches) == 1:
                    yield item, matches.pop()
            continue
        for number in kinds_of(item):
            if kind == 2:
                open_[number][item] = None
            else:
                open_[number].pop(item, None)


def _without_neighbours(spans: list[Span], ends: Mapping[QueueKey, tuple[int, int]]) -> Iterator[Span]:
    """Yield the messages that may be damaged, without those that have places of others and follow each other there.

    Two logs were mixed then: damage to a message does not hit the next in its queue alike.
    """
    starts, stops = {(span.queue, span.start) for span in spans}, {(span.queue, span.stop) for span in spans}
    for span in spans:
        has_neighbour = (span.queue, span.start) in stops or (span.queue, span.stop) in starts
        if not (has_neighbour and 0 <= span.start < ends.get(span.queue, (0, -1))[0]):
            yield span


def _is_of_other_place(span: Span, gap: QueueGap, ends: Mapping[QueueKey, tuple[int, int]]) -> bool:
    """Return whether a message states queue and offset of another message, and neither is that of the gap.

    Two logs were mixed then: of damage, only zeros make both.
    """
    after, _ = ends.get(span.queue, (0, -1))
    is_zeroed = (span.queue[1], span.start) == (0, 0)
    return 0 <= span.start < after and not is_zeroed and span.queue != gap.queue and span.start != gap.start


def kinds_of(item: Span | QueueGap) -> tuple[Any, Any]:
    """Return what a record with one damaged field has in common with its correct place.

    The number of its messages, and its topic; or queue and offset, and the length of the topic.
    """
    topic, queue_id = item.queue
    length = len(topic) if "\ufffd" in topic else len(topic.encode())
    count = item.stop - item.start
    return (topic, count), (queue_id, item.start, length, count)
