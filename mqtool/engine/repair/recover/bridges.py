"""The messages that were in the holes of a log, and the records that bridge the holes.

``find_lost`` combines what heads in the holes, units that point into them and gaps in the order of queues say
about these messages. ``lay_out`` assigns every byte of the holes to a record: a placeholder for each of these
messages, at its place if that is known, else where there is room between its neighbours; fillers and blank records
where nothing is known. ``Bridges`` builds their bytes, a stretch at a time. (Rules: store.md 3, 4.)

Cost: n log n in the lost messages, holes, gaps and queues; memory holds about 60 bytes for a lost message.
"""

import bisect
import dataclasses
import functools
import heapq
import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.dispatch import QueueKey, Units, units_of
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError
from mqtool.formats import commit_log as layout
from mqtool.formats import consume_queue, placeholder
from mqtool.formats.placeholder import RecordTemplate, Stamp
from mqtool.formats.properties import CRC_SIZE
from mqtool.formats.record_edits import with_address, with_queue_offset
from mqtool.formats.record_head import blank
from mqtool.formats.scan import Ints
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, SCHEDULE_TOPIC

Bools = npt.NDArray[np.bool_]
_NONE = np.empty(0, np.int64)
_UNITS_AT_ONCE = 1 << 18
_CHUNK = 16 << 20
_MAX_STAMPS = 4096
_MANY = 8
"""From this number on, equal placeholders are built together."""
_FILLER, _BLANK = -1, -2
"""What a row has in place of the number of a queue."""
_HOSTS = layout.BORN_HOST_V6 | layout.STORE_HOST_V6
_WITHOUT_UNIT = (layout.TRANSACTION_PREPARED, layout.TRANSACTION_ROLLBACK)
_MAX_BATCH = (1 << 15) - 1
_LEAST_FILLER = placeholder.least_size(b"")


class LostMessage(NamedTuple):
    """A lost message about which its head or a unit says something."""

    position: int  # address
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    transaction: int = 0
    batch_size: int = 1
    light: tuple[tuple[str, int], ...] = ()  # further queues, light ones, and the offsets there
    misplaced: bool = False  # its record is whole except for where it says that it lies

    @property
    def queue(self) -> QueueKey:
        """The queue that its record names."""
        return self.topic, self.queue_id

    @property
    def has_unit(self) -> bool:
        """Whether it has a place in a queue."""
        return self.transaction not in _WITHOUT_UNIT


@dataclasses.dataclass
class Hole:
    """A stretch without a sound record, of one segment or of a missing one."""

    segment_offset: int
    start: int  # addresses
    end: int
    reasons: list[str]
    like: RecordTemplate  # of a sound record before it, with the time of the last
    known: list[LostMessage]  # by heads
    after: int = -1  # address of the last sound record before it
    is_end: bool = False  # it extends to the end of its segment
    lost: int = 0  # how many messages were there, as far as is known
    own: int = 0  # how many records keep their places

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    @property
    def why(self) -> str:
        """The reason that its placeholders state."""
        return f"{self.size} bytes at {self.start}: {', '.join(self.reasons)}"


class QueueGap(NamedTuple):
    """Queue offsets that no sound record has."""

    queue: QueueKey
    start: int
    stop: int
    after: int  # addresses between which their messages stood
    before: int

    @property
    def messages(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclasses.dataclass
class QueueOrder:
    """What the sound messages of a log show about its queues."""

    first: dict[QueueKey, tuple[int, int]]  # queue offset and address of the first message
    next: dict[QueueKey, tuple[int, int]]  # queue offset that follows the last, and its address
    gaps: list[QueueGap]  # between two messages, of each queue in order
    most: int  # messages that the log can hold
    from_zero: bool  # nothing has expired: every queue began at 0
    start: int = 0  # address where all of this begins
    strange: Collection[QueueKey] = ()  # except for these, which may be damaged names of others


class RecordColumns(NamedTuple):
    """Records, as columns of equal length in the order of the log."""

    start: Ints  # address
    size: Ints
    queue: Ints  # its number, or what stands in place of it
    queue_offset: Ints
    batch_size: Ints
    transaction: Ints
    light: Ints  # number of its light queues, -1 without any
    own: Bools  # the record that is there, with its own address

    def where(self, rows: Any) -> "RecordColumns":
        """Return some of them, by a mask, their numbers or a slice."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all():
            return self
        return RecordColumns(*(column[rows] for column in self))

    @property
    def has_unit(self) -> Bools:
        """Which of them have a place in a queue."""
        mask: Bools = self.queue >= 0
        for transaction in _WITHOUT_UNIT:
            mask &= self.transaction != transaction
        return mask

    @property
    def offsets_in_queue(self) -> Ints:
        """The queue offsets that their records state."""
        offsets: Ints = np.where(self.has_unit, self.queue_offset, 0)
        return offsets

    def __len__(self) -> int:
        return len(self.start)


def _rows(columns: Iterable[tuple[Any, ...]]) -> RecordColumns:
    """Return rows of tuples."""
    listed = list(columns)
    numbers: Any = np.array([row[:7] for row in listed], np.int64).reshape(-1, 7)
    start, size, queue, queue_offset, batch_size, transaction, light = numbers.T.copy()
    own = np.array([row[7] for row in listed], np.bool_)
    return RecordColumns(start, size, queue, queue_offset, batch_size, transaction, light, own)


class Keys:
    """Numbers for queues."""

    def __init__(self) -> None:
        self.all: list[QueueKey] = []
        self._numbers: dict[QueueKey, int] = {}

    def number(self, key: QueueKey) -> int:
        """Return the number of a queue, a new number for a new queue."""
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(key)
        return number


class _Units(NamedTuple):
    """Units of one queue that point into holes."""

    key: QueueKey
    position: Ints
    size: Ints
    queue_offset: Ints
    batch_size: Ints


Light = tuple[tuple[str, int], ...]


@dataclasses.dataclass
class HoleContents:
    """The messages that stood in holes."""

    keys: Keys
    rows: RecordColumns
    light: list[Light]
    gaps: list[QueueGap]  # messages of which only the queue offset is known


def find_lost(reader: StoreReader, holes: list[Hole], order: QueueOrder) -> HoleContents:
    """Return the messages that stood in holes.

    A unit takes precedence over a head: its place in its queue cannot be damaged. What would take the queue offset of a
    sound message is left out: it is a copy of another.
    """
    keys = Keys()
    heads = [known for hole in holes for known in hole.known]
    rows, light = _combined(heads, list(_units_in(reader, holes)), keys)
    rows = rows.where(_apart(rows))
    return _settled(reader, rows, light, keys, order, holes)


def _units_in(reader: StoreReader, holes: list[Hole]) -> Iterator[_Units]:
    """Yield the units that point to messages in holes."""
    if not holes:
        return
    starts, ends = np.array([hole.start for hole in holes]), np.array([hole.end for hole in holes])
    for key, queue in reader.consume_queues.items():
        least = placeholder.least_size(key[0].encode())
        for low, units in queue.windows(queue.first_offset, queue.max_offset()):
            rows = _inside(units, least, starts, ends)
            if len(rows):
                positions, sizes = (units[name][rows].astype(np.int64) for name in ("physical_offset", "size"))
                yield _Units(key, positions, sizes, low + rows, np.ones(len(rows), np.int64))
    for key, batch_queue in reader.batch_consume_queues.items():
        least = placeholder.least_size(key[0].encode())
        for low in range(0, batch_queue.used_count, _UNITS_AT_ONCE):
            units = batch_queue.units(low, min(low + _UNITS_AT_ONCE, batch_queue.used_count))
            rows = _inside(units, least, starts, ends)
            if len(rows):
                names = ("physical_offset", "size", "queue_offset", "batch_size")
                positions, sizes, offsets, counts = (units[name][rows].astype(np.int64) for name in names)
                yield _Units(key, positions, sizes, offsets, np.maximum(1, counts))


def _inside(units: Any, least: int, starts: Ints, ends: Ints) -> Ints:
    """Return the rows of the units that point into holes."""
    positions = units["physical_offset"].astype(np.int64)
    if (positions[1:] >= positions[:-1]).all():  # nearly always: then few need a closer look
        lows, highs = positions.searchsorted(starts), positions.searchsorted(ends)
        nonempty = highs > lows
        ranges = [
            np.arange(low, high) for low, high in zip(lows[nonempty].tolist(), highs[nonempty].tolist(), strict=True)
        ]
        rows = np.concatenate([_NONE, *ranges])
        holes = np.repeat(np.arange(len(starts)), highs - lows)
        return rows[_fits(positions[rows], units["size"][rows].astype(np.int64), least, holes, ends)]
    holes = np.searchsorted(starts, positions, "right") - 1
    return np.flatnonzero(_fits(positions, units["size"].astype(np.int64), least, holes, ends))


def _fits(positions: Ints, sizes: Ints, least: int, holes: Ints, ends: Ints) -> Bools:
    """Return which messages may have been in the holes given by number; negative numbers mean none."""
    inside = (holes >= 0) & (sizes >= least) & (sizes < consume_queue.PRE_BLANK_SIZE)
    fits: Bools = inside & (positions + sizes <= ends[np.maximum(holes, 0)])
    return fits


def _combined(heads: list[LostMessage], units: list[_Units], keys: Keys) -> tuple[RecordColumns, list[Light]]:
    """Return one row for each place of a lost message, in the order of the log; empties ``units``."""
    count = len(heads) + sum(len(block.position) for block in units)
    if not count:
        return _rows([]), []
    head_rows = _rows(
        (
            known.position,
            known.size,
            keys.number(known.queue),
            known.queue_offset,
            known.batch_size,
            known.transaction,
            -1,
            known.misplaced,
        )
        for known in heads
    )
    none = np.zeros(count - len(heads), np.int8)
    both = RecordColumns(
        np.concatenate([head_rows.start, *(block.position for block in units)]),
        np.concatenate([head_rows.size, *(block.size for block in units)]),
        np.concatenate([head_rows.queue, *(np.full(len(block.position), keys.number(block.key)) for block in units)]),
        np.concatenate([head_rows.queue_offset, *(block.queue_offset for block in units)]),
        np.concatenate([head_rows.batch_size, *(block.batch_size for block in units)]),
        np.concatenate([head_rows.transaction, none]),
        np.concatenate([head_rows.light, none - 1]),
        np.concatenate([head_rows.own, none != 0]),
    )
    units.clear()  # there may be millions
    order = np.lexsort((both.size, both.start))
    edge = (np.diff(both.start[order]) != 0) | (np.diff(both.size[order]) != 0)
    edges = np.flatnonzero(edge) + 1
    begins, ends = np.r_[0, edges], np.r_[edges, count]
    light: list[Light] = []
    names = keys.all
    firsts = order[begins]
    has_head = firsts < len(heads)
    pairs = np.flatnonzero(has_head & (ends - begins == 2))
    is_merged = np.zeros(len(firsts), np.bool_)
    is_merged[pairs] = _merge_pairs(both, firsts[pairs], order[begins[pairs] + 1], heads, names)
    several = np.flatnonzero(((ends - begins > 1) | has_head) & ~is_merged)
    for begin, end in zip(begins[several].tolist(), ends[several].tolist(), strict=True):
        first, *others = order[begin:end].tolist()
        head = heads[first] if first < len(heads) else None
        if others or (head is not None and head.light):
            units_here = [first, *others] if head is None else others
            queues = [(names[both.queue[row]], int(both.queue_offset[row]), row) for row in units_here]
            _merge(both, first, head, queues, light)
    return both.where(firsts), light


def _merge_pairs(rows: RecordColumns, at: Ints, units: Ints, heads: list[LostMessage], keys: list[QueueKey]) -> Bools:
    """Do what ``_merge`` does if a head and a unit name the same queue and no other, as in nearly all cases.

    Args:
        rows: of which the heads are the first.
        at: the row of the head of each place.
        units: that of its unit.
        heads: the records' own.
        keys: queues by number.

    Returns:
        At which places this was done.
    """
    is_light = np.array([topic.startswith(LIGHT_QUEUE_PREFIX) for topic, _ in keys], np.bool_)
    done: Bools = (rows.queue[at] == rows.queue[units]) & (rows.batch_size[at] == 1)
    done &= rows.where(at).has_unit & ~is_light[rows.queue[at]]
    done &= np.array([not heads[number].light for number in at.tolist()], np.bool_)
    at, units = at[done], units[done]
    rows.own[at] &= rows.queue_offset[at] == rows.queue_offset[units]
    rows.transaction[at] &= layout.TRANSACTION_COMMIT
    for column in (rows.queue_offset, rows.batch_size):
        column[at] = column[units]
    return done


def _merge(
    rows: RecordColumns, at: int, head: LostMessage | None, queues: list[tuple[QueueKey, int, int]], light: list[Light]
) -> None:
    """Merge a head and units that describe the same place into one row, the first.

    Args:
        rows: of which the head, if there is one, is at ``at``.
        at: the row of the place that stays.
        head: the record's own, if it can be read.
        queues: queue, queue offset and row of each unit.
        light: takes the light queues of the place.
    """
    light_offsets = dict(head.light) if head else {}
    units = []
    for unit in queues:
        (topic, _), offset, _ = unit
        if topic.startswith(LIGHT_QUEUE_PREFIX) or topic in light_offsets:
            light_offsets[topic] = offset
        else:
            units.append(unit)
    key = (head.topic, head.queue_id) if head and head.has_unit else None
    same = [unit for unit in units if unit[0] == key]
    if head is None and not units:
        units = queues[:1]  # of a light queue
    if units and not (same and head and head.batch_size > 1):
        # The unit is more reliable: its contents can be damaged, its place in its queue cannot.
        (topic, _), offset, row = (same or units)[0]
        rows.own[at] &= bool(same) and head is not None and head.queue_offset == offset
        rows.transaction[at] &= layout.TRANSACTION_COMMIT if head and head.has_unit else 0
        for column in (rows.queue, rows.queue_offset, rows.batch_size):
            column[at] = column[row]
        light_offsets.pop(topic, None)
    if light_offsets:
        rows.light[at] = len(light)
        light.append(tuple(light_offsets.items()))


def _apart(rows: RecordColumns) -> Bools:
    """Return the largest set of rows of which none overlaps another.

    Misplaced records come last: they may be copies that lie over the message to which a unit points.
    """
    keep = np.ones(len(rows), np.bool_)
    if not len(rows):
        return keep
    ends = rows.start + rows.size
    reach = np.maximum.accumulate(ends)
    touches = np.r_[False, rows.start[1:] < reach[:-1]]
    if not touches.any():
        return keep
    begins = np.flatnonzero(~touches)
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(rows)], strict=True):
        if end - begin > 1:
            keep[begin:end] = False
            chosen: list[tuple[int, int]] = []
            # The row that ends first leaves the most room for others.
            for row in sorted(range(begin, end), key=lambda row: (bool(rows.own[row]), int(ends[row]))):
                place = int(rows.start[row]), int(ends[row])
                at = bisect.bisect(chosen, place)
                if (not at or chosen[at - 1][1] <= place[0]) and (at == len(chosen) or place[1] <= chosen[at][0]):
                    chosen.insert(at, place)
                    keep[row] = True
    return keep


class _Claims(NamedTuple):
    """Queue offsets that rows claim, queue by queue in the order of the log."""

    queue: Ints
    start: Ints
    messages: Ints
    low: Ints  # addresses
    high: Ints
    row: Ints
    light: Ints  # which of its light queues, -1: its own queue

    def where(self, rows: Any) -> "_Claims":
        """Return some of them."""
        return _Claims(*(column[rows] for column in self))


def _claims_of(rows: RecordColumns, light: list[Light], keys: Keys) -> _Claims:
    own = rows.has_unit
    ends = rows.start + rows.size
    none = np.full(len(rows), -1)
    claims = _Claims(rows.queue, rows.queue_offset, rows.batch_size, rows.start, ends, np.arange(len(rows)), none)
    claims = claims if own.all() else claims.where(own)
    further = [
        (keys.number(light_key(keys.all, rows, row, name)), offset, 1, rows.start[row], ends[row], row, number)
        for row in np.flatnonzero(rows.light >= 0).tolist()
        for number, (name, offset) in enumerate(light[rows.light[row]])
    ]
    if further:
        claims = _Claims(*(np.r_[column, other] for column, other in zip(claims, np.array(further).T, strict=True)))
        claims = claims.where(np.argsort(claims.low, kind="stable"))
    return claims.where(by_queue(claims.queue))


def by_queue(queues: Ints) -> Ints:
    """Return the order by queue, of one queue as they come; ``queues`` are numbers from 0 on."""
    is_few = len(queues) and int(queues.max()) < 1 << 16
    return np.argsort(queues.astype(np.uint16) if is_few else queues, kind="stable")  # of 16 bits in linear time


def light_key(keys: list[QueueKey], rows: RecordColumns, row: int, name: str) -> QueueKey:
    """Return the light queue of a name that a row goes to as well."""
    return name, 0 if name.startswith(LIGHT_QUEUE_PREFIX) else keys[rows.queue[row]][1]


def _settled(
    reader: StoreReader, rows: RecordColumns, light: list[Light], keys: Keys, order: QueueOrder, holes: list[Hole]
) -> HoleContents:
    """Drop claims to queue offsets that are taken; find the offsets that nothing claims."""
    claims = _claims_of(rows, light, keys)
    gaps: dict[QueueKey, list[QueueGap]] = {}
    for gap in order.gaps:
        gaps.setdefault(gap.queue, []).append(gap)
    edges = np.flatnonzero(np.diff(claims.queue)) + 1
    bounds = np.r_[0, edges, len(claims.queue)].tolist() if len(claims.queue) else [0]
    of_queue = {keys.all[claims.queue[low]]: slice(low, high) for low, high in itertools.pairwise(bounds)}
    room = _HoleCapacity(holes)
    left: list[QueueGap] = []
    kept = np.zeros(len(claims.queue), np.bool_)
    fronts = {key: _front(reader, key, *first, order.start) for key, first in order.first.items()}
    for key in dict.fromkeys([*of_queue, *gaps, *fronts]):
        selection = of_queue.get(key, slice(0))
        keep, more = _settle_queue(key, claims.where(selection), gaps.get(key, []), order, room, fronts.get(key))
        kept[selection] = keep
        left += more
    stays = ~rows.has_unit
    dropped: dict[int, set[int]] = {}
    stays[claims.row[kept & (claims.light < 0)]] = True
    for claim in np.flatnonzero(~kept & (claims.light >= 0)).tolist():
        row, number = int(claims.row[claim]), int(claims.light[claim])
        place = int(rows.light[row])
        dropped.setdefault(place, set()).add(number)
    for place, numbers in dropped.items():
        light[place] = tuple(pair for number, pair in enumerate(light[place]) if number not in numbers)
    for row in np.flatnonzero(~stays & (rows.light >= 0) & ~rows.own).tolist():  # its light queues stay alone
        place = int(rows.light[row])
        if light[place] and placeholder.least_size(light[place][0][0].encode()) <= rows.size[row]:
            (name, offset), *others = light[place]
            rows.queue[row] = keys.number(light_key(keys.all, rows, row, name))
            rows.queue_offset[row], rows.batch_size[row] = offset, 1
            light[place] = tuple(others)
            stays[row] = True
    return HoleContents(keys, rows.where(stays), light, left)


def _front(reader: StoreReader, key: QueueKey, first: int, address: int, start: int) -> int | None:
    """Return the queue offset of the first unit that points to a message before the first sound one of its queue."""
    batches = reader.batch_consume_queues.get(key)
    if batches is not None:
        units = batches.units_in_line(0, batches.used_count)
        leads = (units["physical_offset"] >= start) & (units["physical_offset"] < address)
        before = units[leads & (units["queue_offset"] < first)]
        return int(before["queue_offset"][0]) if len(before) else None
    queue = reader.consume_queues.get(key)
    if queue is None:
        return None
    stop = min(first, queue.max_offset())
    for low, units in queue.windows(queue.first_offset, stop):
        positions, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
        tells = (sizes >= layout.MIN_SIZE) & (sizes < consume_queue.PRE_BLANK_SIZE)
        places = np.flatnonzero(tells & (positions >= start) & (positions < address))
        if len(places):
            return low + int(places[0])
    return None


def _settle_queue(
    key: QueueKey,
    claims: _Claims,
    gaps: list[QueueGap],
    order: QueueOrder,
    room: "_HoleCapacity",
    known_from: int | None,
) -> tuple[Bools, list[QueueGap]]:
    """Return which claims of one queue stay, and which gaps remain; units list messages from ``known_from``."""
    starts = claims.start
    gaps = list(gaps)
    first, first_address = order.first.get(key, (-1, -1))
    after, last_address = order.next.get(key, (-1, -1))
    if first < 0:
        free = (starts >= 0) & (starts <= 1 << 62)
    else:
        free = (starts >= after) & (starts - after <= order.most) & (claims.low > last_address)
        free |= (starts < first) & (starts >= 0) & (claims.low < first_address)
        if gaps:
            number = np.searchsorted([gap.start for gap in gaps], starts, "right") - 1
            columns = np.array([gap[1:] for gap in gaps])[np.maximum(number, 0)].T
            free |= (
                (number >= 0)
                & (starts + claims.messages <= columns[1])
                & (columns[2] < claims.low)
                & (claims.low < columns[3])
            )
    ends = starts + claims.messages
    rows: Any = slice(None) if free.all() else np.flatnonzero(free)
    if (starts[rows][1:] < ends[rows][:-1]).any():
        rows = np.flatnonzero(free)[rising(starts[rows].tolist(), ends[rows].tolist())]
    keep = np.zeros(len(starts), np.bool_)
    keep[rows] = True
    claims, starts, ends = claims.where(rows), starts[rows], ends[rows]
    # What was missing before the first sound message, and after the last one.
    front = int(starts[0]) if len(starts) and (first < 0 or starts[0] < first) else first
    front = min(front, known_from) if known_from is not None else front
    stop, before = (first, first_address) if first >= 0 else (int(ends[-1]) if len(starts) else 0, 1 << 62)
    if (
        order.from_zero
        and key not in order.strange
        and front > 0
        and front <= room.before(first_address if first >= 0 else 1 << 62)
    ):
        front = 0
    if 0 <= front < stop:
        gaps.insert(0, QueueGap(key, front, stop, -1, before))
    if first >= 0 and len(ends) and ends[-1] > after:
        gaps.append(QueueGap(key, after, int(ends[-1]), last_address, 1 << 62))
    return keep, [part for gap in _not_filled(gaps, starts, ends) for part in _unclaimed(gap, claims, starts, ends)]


def _not_filled(gaps: list[QueueGap], starts: Ints, ends: Ints) -> list[QueueGap]:
    """Return the gaps that consecutive ranges do not cover."""
    if not gaps or not len(starts):
        return gaps
    lows, highs = np.array([(gap.start, gap.stop) for gap in gaps], np.int64).T
    sums = np.r_[0, np.cumsum(ends - starts)]
    covered = sums[starts.searchsorted(highs)] - sums[starts.searchsorted(lows)]
    return [gaps[number] for number in np.flatnonzero(covered < highs - lows).tolist()]


def _unclaimed(gap: QueueGap, claims: _Claims, starts: Ints, ends: Ints) -> list[QueueGap]:
    """Return the parts of a gap that no claim covers."""
    low, high = np.searchsorted(starts, (gap.start, gap.stop)).tolist()
    if not high - low:
        return [gap]
    begins, stops = np.r_[gap.start, ends[low:high]], np.r_[starts[low:high], gap.stop]
    after, before = np.r_[gap.after, claims.high[low:high]], np.r_[claims.low[low:high], gap.before]
    nonempty = begins < stops
    columns = (column[nonempty].tolist() for column in (begins, stops, after, before))
    return [QueueGap(gap.queue, *bounds) for bounds in zip(*columns, strict=True)]


def rising(starts: list[int], ends: list[int]) -> list[int]:
    """Return the numbers of the longest series of ranges in ascending order."""
    lasts: list[int] = []  # the smallest start that a series of each length ends with
    number_at: list[int] = []
    before = [-1] * len(starts)
    for number, start in enumerate(starts):
        length = bisect.bisect_left(lasts, start)
        if length and ends[number_at[length - 1]] > start:
            continue
        before[number] = number_at[length - 1] if length else -1
        lasts[length : length + 1] = [start]
        number_at[length : length + 1] = [number]
    chosen = []
    number = number_at[-1] if number_at else -1
    while number >= 0:
        chosen.append(number)
        number = before[number]
    return chosen[::-1]


class _HoleCapacity:
    """How many messages the holes can have held."""

    def __init__(self, holes: list[Hole]) -> None:
        self._starts = [hole.start for hole in holes]
        self._sums = [0, *itertools.accumulate(hole.size for hole in holes)]

    def before(self, address: int) -> int:
        """Return how many messages the holes that begin before an address can have held."""
        return self._sums[bisect.bisect_left(self._starts, address)] // layout.MIN_SIZE


# Records


class _HoleStretch(NamedTuple):
    """Bytes of a hole without a message whose place is known."""

    start: int
    size: int
    hole: int
    row: int  # in front of which it lies, -1 at the end of its hole


class HoleLayout(NamedTuple):
    """The records to which every byte of the holes belongs."""

    bridges: "Bridges"
    stood: RecordColumns  # placeholders of messages whose places are known
    placed: list[QueueGap]  # messages of which only the queue offset is known, and that got a placeholder
    unplaced: list[QueueGap]  # those for which there is no room between their neighbours
    without_crc: list[int]  # addresses of fillers that have no room for the CRC property which others end in


def lay_out(reader: StoreReader, lost: HoleContents, holes: list[Hole], batch_topics: Collection[str]) -> HoleLayout:
    """Assign every byte of the holes to a record; records of ``batch_topics`` stand for several messages at once.

    The rows of ``lost`` become those records, some of which are larger.

    Raises:
        BadDataError: a hole is too small for any record.
    """
    layer = _Layer(reader, lost, holes, batch_topics)
    for stretch in layer.stretches():
        layer.use(stretch)
    return layer.finish()


class _Layer:
    """Uses the free stretches of the holes, in the order of the log."""

    def __init__(
        self, reader: StoreReader, lost: HoleContents, holes: list[Hole], batch_topics: Collection[str]
    ) -> None:
        self.reader = reader
        self.batch_topics = batch_topics
        self.holes = holes
        self.keys = lost.keys
        self.light = lost.light
        self.rows = lost.rows
        self.number = _numbers_of(np.array([hole.start for hole in holes], np.int64), self.rows.start)
        self.more: list[RecordColumns] = []
        self.waiting = sorted(lost.gaps, key=lambda gap: gap.after, reverse=True)
        self.open: list[tuple[int, int, QueueGap]] = []  # by the address before which they belong
        self.placed: list[QueueGap] = []
        self.unplaced: list[QueueGap] = []
        self.without_crc: list[int] = []
        self._least: dict[tuple[QueueKey, int, bool], int] = {}

    def stretches(self) -> list[_HoleStretch]:
        """Return the free stretches in the order of the log."""
        rows, number = self.rows, self.number
        starts = np.array([hole.start for hole in self.holes], np.int64)
        ends = np.array([hole.end for hole in self.holes], np.int64)
        row_ends = rows.start + rows.size
        is_first = np.r_[True, number[1:] != number[:-1]][: len(rows)]
        begins = np.where(is_first, starts[number], np.r_[0, row_ends[:-1]][: len(rows)])
        free = np.flatnonzero(rows.start > begins)
        tails = starts.copy()
        tails[number] = row_ends  # in order: that of the last row of each hole stays
        behind = np.flatnonzero(ends > tails)
        stretches = [
            _HoleStretch(*values)
            for columns in (
                (begins[free], (rows.start - begins)[free], number[free], free),
                (tails[behind], (ends - tails)[behind], behind, np.full(len(behind), -1)),
            )
            for values in zip(*(column.tolist() for column in columns), strict=True)
        ]
        return sorted(stretches)

    def use(self, stretch: _HoleStretch) -> None:
        """Fill a stretch with placeholders for messages whose place is not known, and fillers."""
        hole = self.holes[stretch.hole]
        at, end = stretch.start, stretch.start + stretch.size
        is_end = hole.is_end and stretch.row < 0
        while self.waiting and self.waiting[-1].after <= at:
            gap = self.waiting.pop()
            heapq.heappush(self.open, (gap.before, len(self.waiting), gap))
        while self.open:
            before, number, gap = heapq.heappop(self.open)
            if before <= at:
                self.unplaced.append(gap)
                continue
            used, left = self._place(gap, at, end - at - (layout.BLANK_SIZE if is_end else 0), hole)
            at += used
            if left is not None:
                heapq.heappush(self.open, (before, number, left))
                break
        if is_end and end - at >= layout.BLANK_SIZE:
            self._add(_BLANK, at, end - at)
            at = end
        elif not is_end:
            while end - at >= 2 * placeholder.MAX_SIZE:
                self._add(_FILLER, at, placeholder.MAX_SIZE)
                at += placeholder.MAX_SIZE
            if end - at >= _LEAST_FILLER + CRC_SIZE * hole.like.has_crc:
                self._add(_FILLER, at, end - at)
                at = end
        if at < end and not self._widen(stretch, at, end - at):
            self._fill_without_crc(hole, at, end - at)

    def _fill_without_crc(self, hole: Hole, at: int, size: int) -> None:
        if size < _LEAST_FILLER:
            raise BadDataError(
                f"the {hole.size:,} bytes at {hole.start:,} cannot be bridged, because no record is that small: "
                "`recover --cut` ends the log there"
            )
        self._add(_FILLER, at, size)
        self.without_crc.append(at)

    def _place(self, gap: QueueGap, at: int, room: int, hole: Hole) -> tuple[int, QueueGap | None]:
        """Put placeholders for messages of a gap at an address; returns the bytes taken and what is left of the gap."""
        least = self._least_size(gap.queue, hole.like)
        is_batch = gap.queue[0] in self.batch_topics
        if is_batch:
            # One record stands for all of them.
            count = min(gap.messages, _MAX_BATCH, max(0, room - least) // placeholder.ELEMENT_SIZE)
            size, records = least + count * placeholder.ELEMENT_SIZE, min(count, 1)
        else:
            count = records = min(gap.messages, max(0, room) // least)
            size = least
        if not count:
            return 0, gap
        offsets = gap.start + np.arange(records)
        queue = self.keys.number(gap.queue)
        self._add(queue, at + size * np.arange(records), size, offsets, count if is_batch else 1)
        hole.lost += count
        self.placed.append(gap._replace(stop=gap.start + count))
        left = gap._replace(start=gap.start + count)
        return records * size, left if left.messages else None

    def _least_size(self, queue: QueueKey, like: RecordTemplate) -> int:
        key = queue, like.sys_flag, like.has_crc
        size = self._least.get(key)
        if size is None:
            is_batch = queue[0] in self.batch_topics
            topic, queue_id = queue
            properties = placeholder.needed(topic, queue_id, 1 << 62, _MAX_BATCH if is_batch else 1)
            size = placeholder.min_size(topic.encode(), like) + len(properties)
            self._least[key] = size
        return size

    def _add(self, queue: int, starts: Any, size: int, offsets: Any = 0, batch_size: int = 1) -> None:
        start = np.atleast_1d(starts)
        none = np.zeros(len(start), np.int64)
        columns = start, none + size, none + queue, none + offsets, none + batch_size, none, none - 1, none != 0
        self.more.append(RecordColumns(*columns))

    def _widen(self, stretch: _HoleStretch, at: int, size: int) -> bool:
        """Add bytes that are too few for a record to a neighbouring one; return whether there is one.

        A record that keeps its own bytes gives them up only for bytes that nothing else can take.
        """
        if at > stretch.start:
            self.more[-1].size[-1] += size
            return True
        row = stretch.row
        is_behind = row < 0
        if is_behind:
            row = int(np.searchsorted(self.rows.start, at)) - 1
            if row < 0 or int(self.number[row]) != stretch.hole:
                return False
        if self.rows.own[row] and size >= _LEAST_FILLER:
            return False
        if not is_behind:
            self.rows.start[row] -= size
        self.rows.size[row] += size
        self.rows.own[row] = False
        return True

    def finish(self) -> HoleLayout:
        """Sort all records."""
        self.unplaced += [gap for _, _, gap in self.open] + self.waiting
        rows = self.rows
        if self.more:  # mostly few
            more = RecordColumns(*(np.concatenate(columns) for columns in zip(*self.more, strict=True)))
            at = rows.start.searchsorted(more.start)
            rows = RecordColumns(*(np.insert(column, at, other) for column, other in zip(rows, more, strict=True)))
        for name, which in (("lost", ~self.rows.own), ("own", self.rows.own)):
            counts = np.bincount(self.number[which], minlength=len(self.holes))
            for number in np.flatnonzero(counts).tolist():
                hole = self.holes[number]
                setattr(hole, name, getattr(hole, name) + int(counts[number]))
        bridges = Bridges(self.reader, self.holes, self.keys.all, rows, self.light)
        return HoleLayout(bridges, self.rows.where(~self.rows.own), self.placed, self.unplaced, self.without_crc)


def in_place(reader: StoreReader, start: int, size: int, queue_offset: int) -> bytes:
    """Return a record that keeps its place, with its own address."""
    record = with_address(reader.commit_log.read(start, size), start)
    return with_queue_offset(record, queue_offset)  # an inner batch states it a second time


def _groups(rows: RecordColumns, kinds: Ints) -> list[Ints]:
    """Return the rows that one ``Stamp`` writes if they are many: of one kind, queue and transaction."""
    alike = np.flatnonzero(~rows.own & (rows.queue >= 0) & (rows.batch_size == 1) & (rows.light < 0))
    keys = np.stack([kinds[alike], rows.queue[alike], rows.transaction[alike]])
    order = np.lexsort(keys)
    keys = keys[:, order]
    edges = np.flatnonzero((keys[:, 1:] != keys[:, :-1]).any(axis=0)) + 1
    return [group for group in np.split(alike[order], edges) if len(group) >= _MANY]


def _numbers_of(starts: Ints, positions: Ints) -> Ints:
    """Return the number of the last of some starts that is not behind each position; both are in order."""
    bounds = np.r_[0, positions.searchsorted(starts), len(positions)]
    numbers: Ints = np.repeat(np.arange(-1, len(starts)), np.diff(bounds))
    return numbers


class Bridges:
    """The records that bridge the holes of a log, one after another from the start of each hole to its end."""

    def __init__(
        self, reader: StoreReader, holes: list[Hole], keys: list[QueueKey], rows: RecordColumns, light: list[Light]
    ) -> None:
        self.rows = rows
        self.keys = keys
        self.light = light
        self._ends = rows.start + rows.size
        self._reader = reader
        self._holes = holes
        self._starts = np.array([hole.start for hole in holes], np.int64)
        self._stamps: dict[tuple[int, int, int], Stamp] = {}
        self.corrected: dict[int, bytes] = {}
        """By address, records that keep their places and need more than their own address."""

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        """Yield the bytes of the records that begin in a range of addresses, in stretches of some MiB.

        Of a blank record only the head.
        """
        for low, high, first, last in self._stretches(start, stop, _CHUNK):
            out = np.full(high - low, 0, np.uint8)  # touched: untouched pages are slow to write
            self._write(out, low, first, last)
            yield low, out

    def outline(self, out: npt.NDArray[np.uint8], base: int, holes: list[Hole]) -> None:
        """Write only what units and entries need of the records of some holes; bodies stay as they are.

        Args:
            out: the bytes of a segment.
            base: address of the first of them.
            holes: of this segment.
        """
        of_holes = np.zeros(len(self._holes), np.bool_)
        of_holes[self._starts.searchsorted([hole.start for hole in holes])] = True
        first, last = self.rows.start.searchsorted((base, base + len(out))).tolist()
        numbers = _numbers_of(self._starts, self.rows.start[first:last])
        chosen = np.flatnonzero(of_holes[numbers])
        rows, numbers = self.rows.where(first + chosen), numbers[chosen]
        likes = [(hole.like.sys_flag & _HOSTS) + hole.like.has_crc for hole in self._holes]
        groups = _groups(rows, np.array(likes)[numbers])
        for group in groups:
            subset, of_one = rows.where(group), numbers[group]
            stamp = self._new_stamp(int(of_one[0]), int(subset.queue[0]), int(subset.transaction[0]), "")
            times = self._columns[-1][of_one]
            stamp.write(out, subset.start - base, subset.size, subset.start, subset.offsets_in_queue, times)
        for row in np.delete(first + chosen, np.concatenate([_NONE, *groups])).tolist():
            at, record = self._record(row)
            out[at - base : at - base + len(record)] = np.frombuffer(record, np.uint8)

    def derived(self, start: int, stop: int) -> Iterator[Units | tuple[int, npt.NDArray[np.uint8]]]:
        """Yield the units and entries of the records that begin in a range of addresses, in stretches of some MiB.

        Units if they have neither entries nor significant properties; else their bytes.
        """
        topics, topic_ids, queue_ids, is_delayed, times = self._columns
        for low, high, first, last in self._stretches(start, stop, 4 * _CHUNK):
            rows = self.rows.where(slice(first, last))
            queued = rows.where(rows.has_unit)
            means_more = rows.own.any() or (rows.batch_size != 1).any() or (rows.light >= 0).any()
            if means_more or is_delayed[queued.queue].any():
                out = np.zeros(high - low, np.uint8)
                self._write(out, low, first, last)
                yield low, out
                continue
            yield units_of(
                topics,
                topic_ids[queued.queue],
                queue_ids[queued.queue],
                np.arange(len(queued)),
                queued.queue_offset,
                queued.batch_size,
                np.zeros(len(queued), np.int64),
                queued.start,
                queued.size,
                times[_numbers_of(self._starts, queued.start)],
            )

    @functools.cached_property
    def _columns(self) -> tuple[list[str], Ints, Ints, Bools, Ints]:
        """All topics; of each queue the number of its topic, its id and whether it is delayed; times by hole."""
        topics = {topic: number for number, topic in enumerate(dict.fromkeys(topic for topic, _ in self.keys))}
        topic_ids = np.array([topics[topic] for topic, _ in self.keys], np.int64)
        queue_ids = np.array([queue_id for _, queue_id in self.keys], np.int64)
        is_delayed = np.array([topic == SCHEDULE_TOPIC for topic, _ in self.keys], np.bool_)
        times = np.array([hole.like.store_timestamp for hole in self._holes], np.int64)
        return list(topics), topic_ids, queue_ids, is_delayed, times

    def extents(self, holes: list[Hole]) -> Iterator[tuple[int, int]]:
        """Yield where the pieces of each of some holes begin and how long they are."""
        for is_long, holes_of_kind in itertools.groupby(holes, lambda hole: hole.size > _CHUNK):
            if is_long:
                for hole in holes_of_kind:
                    yield from ((low, high - low) for low, high, _, _ in self._stretches(hole.start, hole.end, _CHUNK))
            else:  # a piece each; there may be many
                starts, ends = np.array([(hole.start, hole.end) for hole in holes_of_kind], np.int64).T
                last = self.rows.start.searchsorted(ends) - 1
                blank_ends = self.rows.start[last] + layout.BLANK_SIZE
                ends = np.where(self.rows.queue[last] == _BLANK, blank_ends, ends)
                yield from zip(starts.tolist(), (ends - starts).tolist(), strict=True)

    def _stretches(self, start: int, stop: int, size: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the addresses between which each piece of a size lies, and which rows are in it."""
        starts, ends = self.rows.start, self._ends
        row, last = int(starts.searchsorted(start)), int(starts.searchsorted(stop))
        while row < last:
            low = int(starts[row])
            end = min(last, max(row + 1, int(ends.searchsorted(low + size, "right"))))
            is_blank = int(self.rows.queue[end - 1]) == _BLANK
            high = int(self.rows.start[end - 1]) + layout.BLANK_SIZE if is_blank else int(ends[end - 1])
            yield low, high, row, end
            row = end

    def _write(self, out: npt.NDArray[np.uint8], base: int, first: int, last: int) -> None:
        """Write records into a buffer of zeros whose first byte has the address ``base``."""
        single: Iterable[int] = range(first, last)
        if last - first >= _MANY:
            rows = self.rows.where(slice(first, last))
            numbers = _numbers_of(self._starts, rows.start)
            groups = _groups(rows, numbers)
            for group in groups:
                subset = rows.where(group)
                stamp = self._stamp(int(numbers[group[0]]), int(subset.queue[0]), int(subset.transaction[0]))
                stamp.write(out, subset.start - base, subset.size, subset.start, subset.offsets_in_queue)
            if groups:
                single = np.delete(np.arange(first, last), np.concatenate(groups)).tolist()
        for row in single:
            at, record = self._record(row)
            out[at - base : at - base + len(record)] = np.frombuffer(record, np.uint8)

    def _stamp(self, number: int, queue: int, transaction: int) -> Stamp:
        key = number, queue, transaction
        stamp = self._stamps.get(key)
        if stamp is None:
            if len(self._stamps) > _MAX_STAMPS:
                self._stamps.clear()
            stamp = self._stamps[key] = self._new_stamp(number, queue, transaction, self._holes[number].why)
        return stamp

    def _new_stamp(self, number: int, queue: int, transaction: int, why: str) -> Stamp:
        topic, queue_id = self.keys[queue]
        properties = placeholder.needed(topic, queue_id, 0)
        return Stamp(topic.encode(), queue_id, why, self._holes[number].like, transaction, properties)

    def _record(self, row: int) -> tuple[int, bytes]:
        """Return the address and the bytes of a row; of a blank record only the head."""
        start, size, queue, offset, batch_size, transaction, light, own = (int(column[row]) for column in self.rows)
        hole = self._holes[int(self._starts.searchsorted(start, "right")) - 1]
        if own:
            return start, self.corrected.get(start) or in_place(self._reader, start, size, offset)
        if queue == _BLANK:
            return start, blank(size)
        if queue == _FILLER:
            return start, placeholder.filler(size, start, hole.why, hole.like)
        topic, queue_id = self.keys[queue]
        places = self.light[light] if light >= 0 else ()
        properties = placeholder.needed(topic, queue_id, offset, batch_size, places)
        queue_offset = 0 if transaction in _WITHOUT_UNIT else offset
        name, why, like = topic.encode(), hole.why, hole.like
        return start, placeholder.build(
            size, start, name, queue_id, queue_offset, why, like, transaction, properties, batch_size
        )
