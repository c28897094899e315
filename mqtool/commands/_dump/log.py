"""``dump commitlog``: messages, and what is between them."""

import collections
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from mqtool.commands._dump.gaps import tell_gap
from mqtool.commands._dump.request import DumpRequest, Patterns, between
from mqtool.commands._options import matching, require_log
from mqtool.commands._output import Row
from mqtool.commands._rows import message_columns, message_row
from mqtool.engine.store.commit_log import CommitLog, Gap, is_whole
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError, NotFoundError
from mqtool.formats import kernels as plain
from mqtool.formats import scan
from mqtool.formats.message import message_at
from mqtool.formats.properties import split_keys
from mqtool.formats.property_names import KEYS, TAGS, UNIQ_KEY
from mqtool.formats.scan import MessageTable

_FIRST_ROWS = 512
_PLAIN_ROWS = 8192
"""Messages from which on loading the compiled kernels takes less time than going on without them."""
_LOOK_BACK = (64 << 10, 1 << 20, 16 << 20)
_FAULTS = {
    scan.Fault.BODY_SIZE: "its body would extend past its end",
    scan.Fault.TOPIC_SIZE: "its topic would extend past its end",
    scan.Fault.PROPERTIES_SIZE: "its properties would extend past its end",
    scan.Fault.TOTAL_SIZE: "its parts do not add up to its size",
}

Piece = MessageTable | Gap
Mask = npt.NDArray[np.bool_]


def messages(ask: DumpRequest) -> Iterator[Row]:
    """Yield the messages that are asked for, in the order of the log."""
    log = open_log(ask.store)
    ask.output.columns = message_columns(ask.output.width, ask.body)
    wanted = LogSelection(ask)
    start, stop = log.min_offset, log.end_offset
    if ask.since is not None or ask.until is not None:
        start, stop = ask.store.range_of_time(ask.since, ask.until)
    start, stop = max(start, ask.start or 0), stop if ask.stop is None else min(stop, ask.stop)
    if ask.follow:
        start = _not_beyond(log, start)
    tail = Tail(ask, log, max(start, log.min_offset))
    for table in tail.tables(_walk(ask, log, start, stop)):
        yield from wanted.rows(table)
    if ask.follow:
        from mqtool.commands._dump.follow import follow_log

        for table in follow_log(ask, tail.end_offset):
            yield from wanted.rows(table)
    wanted.complain()


def open_log(store: StoreReader) -> CommitLog:
    """Return the log of a store.

    Raises:
        NotFoundError: there is none.
    """
    log = store.commit_log
    if not log.segments:
        require_log(store)
        raise NotFoundError(f"{store.root} has no commit log")
    return log


def _not_beyond(log: CommitLog, start: int) -> int:
    """Return an address from which a walk meets the end of the messages, also where ``start`` is behind it."""
    used = [segment for segment in log.segments if log.begins(segment, 0)]
    end_offset = used[-1].end_offset if used else log.min_offset
    return start if start < end_offset else used[-1].start_offset if used else log.min_offset


class LogSelection:
    """Which messages are asked for."""

    def __init__(self, ask: DumpRequest) -> None:
        """Look up topics where that costs nothing.

        Raises:
            NotFoundError: there is no such topic.
        """
        self.ask = ask
        known = _known_topics(ask.store)
        if known and ask.topics:
            matching(ask.topics, known, "topic")
        where = "of the messages read"
        self.topics = Patterns(ask.topics, f"topic {where}")
        self._topics_known = bool(known)
        self.queues = Patterns(ask.queues, f"queue id {where}")
        self.tags = Patterns(ask.tags, f"tag {where}")
        self.keys = Patterns(ask.keys, f"key {where}")

    def rows(self, table: MessageTable) -> Iterator[Row]:
        """Yield the rows of a table that are asked for; says which records are broken, asked for or not."""
        table = _where(table, between(table.column("position"), self.ask.start, self.ask.stop))
        broken = table.where(np.flatnonzero(table.faults))
        faults = collections.deque(zip(broken.column("position").tolist(), broken.faults.tolist(), strict=True))
        table = self.select(table)
        for number in range(len(table)):
            message = message_at(table, number)
            while faults and faults[0][0] <= message.position:
                self._tell_fault(*faults.popleft())
            if message.physical_offset != message.position:
                self.ask.damage(
                    f"the record at {message.position:,} says that it is at {message.physical_offset:,}",
                    "records out of place",
                )
            behind = message.position + message.size
            self.ask.reached = f"physical offset {message.position:,}; continue with --from {behind}"
            yield message_row(message, self.ask.body)
        for position, fault in faults:
            self._tell_fault(position, fault)

    def _tell_fault(self, position: int, fault: int) -> None:
        self.ask.damage(
            f"the record at {position:,} is broken, {_FAULTS[scan.Fault(fault)]}: only what precedes that is read",
            "broken records",
        )

    def select(self, table: MessageTable) -> MessageTable:
        """Return the messages of a table that are asked for."""
        ask = self.ask
        table = _where(table, between(table.column("store_timestamp"), ask.since, ask.until))
        if self.queues and len(table):
            ids = table.column("queue_id")
            chosen_ids = [number for number in np.unique(ids).tolist() if self.queues.match_known(number, str)]
            table = _where(table, np.isin(ids, chosen_ids))
        if self.topics and len(table):
            ids, names = table.topics()
            chosen = np.array([self.topics.match_known(name, _text) for name in names], np.bool_)
            table = _where(table, chosen[ids])
        if self.tags and len(table):
            table = _where(table, self._has_tag(table))
        if self.keys and len(table):
            table = _where(table, self._has_key(table))
        return table

    def _has_tag(self, table: MessageTable) -> Mask:
        mask = np.zeros(len(table), np.bool_)
        for row, tag in _values(table, TAGS):
            mask[row] = self.tags.match_known(tag, _text)
        return mask

    def _has_key(self, table: MessageTable) -> Mask:
        mask = np.zeros(len(table), np.bool_)
        rows = self._may_have_key(table)
        chosen = table if rows is None else table.where(rows)
        chosen_rows = [row for row, keys in _values(chosen, KEYS) if self.keys.match_any(split_keys(_text(keys)))]
        chosen_rows += [row for row, key in _values(chosen, UNIQ_KEY) if self.keys.match(_text(key))]
        mask[np.array(chosen_rows, np.int64) if rows is None else rows[chosen_rows]] = True
        return mask

    def _may_have_key(self, table: MessageTable) -> npt.NDArray[np.int64] | None:
        """Return the rows in whose bytes a pattern's letters stand at all, None where that cannot be told cheaply."""
        literals = self.keys.literals()
        if literals is None or self.keys.is_learning:
            return None
        start, stop = int(table.starts[0]), int(table.starts[-1]) + int(table.column("size")[-1])
        data = bytes(memoryview(table.buffer)[start:stop])
        rows = set()
        for literal in literals:
            at = data.find(literal)
            while at >= 0:
                row = int(np.searchsorted(table.starts, start + at, "right")) - 1
                rows.add(row)
                if len(rows) > len(table) // 8:
                    return None
                # Once a record is enough.
                following = int(table.starts[row + 1]) - start if row + 1 < len(table) else len(data)
                at = data.find(literal, max(following, at + 1))
        return np.array(sorted(rows), np.int64)

    def complain(self) -> None:
        """Raise ``NotFoundError`` when a pattern selected nothing in all that was read."""
        if not self._topics_known:
            self.topics.complain()
        for patterns in (self.queues, self.tags, self.keys):
            patterns.complain()


def _values(table: MessageTable, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield row and value for each message that has a property."""
    offsets, sizes = table.properties([name])
    view = memoryview(table.buffer)
    rows = np.flatnonzero(sizes[0])
    for row, at, size in zip(rows.tolist(), offsets[0, rows].tolist(), sizes[0, rows].tolist(), strict=True):
        yield row, bytes(view[at : at + size])


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _where(table: MessageTable, mask: Mask) -> MessageTable:
    return table if mask.all() else table.where(mask)


def _known_topics(store: StoreReader) -> set[str]:
    """Return the topics that folders and tables tell, none where neither does."""
    from mqtool.formats import config_tables

    if store.paths.single:
        return set()
    folders = (store.paths.consume_queue, store.paths.batch_consume_queue)
    known = {path.name for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_dir()}
    try:
        table = store.config_table("topics.json")
        known |= config_tables.topics(table).keys() if table else set()
    except MqtoolError:
        pass  # a broken table is not a reason to withhold messages
    return known


class Tail:
    """What may still be in the making at the end of a log that a broker writes to.

    There a record counts when it is whole, and a stretch without records is not a damage but the place where the broker
    writes next. ``end_offset`` is that place.
    """

    def __init__(self, ask: DumpRequest, log: CommitLog, start_offset: int) -> None:
        self.ask = ask
        self.log = log
        self.end_offset = start_offset
        self.is_live = ask.follow or ask.store.is_live
        self._gaps: list[Gap] = []

    def tables(self, pieces: Iterator[Piece]) -> Iterator[MessageTable]:
        """Yield the messages of a walk; says what was skipped between them."""
        last: MessageTable | None = None
        for piece in pieces:
            if isinstance(piece, Gap):
                self._add(piece)
                continue
            if last is not None:
                yield last
                last = None
            yield from self._between()
            table = piece
            if self.is_live and not is_whole(table, len(table) - 1):
                rows = np.arange(len(table))
                last, table = table.where(rows[-1:]), table.where(rows[:-1])
            if len(table):
                self.end_offset = end_of(table)
                yield table
        if self.is_live:
            return
        for gap in self._gaps:
            if gap.segment.stretch(gap.start, gap.end).any():
                tell_gap(self.ask, gap)

    def _between(self) -> Iterator[MessageTable]:
        """Say what was skipped before the next message; yield what was written there in the meantime."""
        for gap in self._gaps:
            pieces: Iterable[Piece] = [gap]
            if self.is_live:
                pieces = self.log.walk(gap.segment, gap.start, gap.end, plain)
            for piece in pieces:
                if isinstance(piece, Gap):
                    tell_gap(self.ask, piece)
                else:
                    yield piece
        self._gaps.clear()

    def _add(self, gap: Gap) -> None:
        before = self._gaps[-1] if self._gaps else None
        if before and before.segment is gap.segment and before.end == gap.start:
            self._gaps[-1] = Gap(gap.segment, before.start, gap.end, before.stop)
        elif gap.end > gap.start:
            self._gaps.append(gap)


def end_of(table: MessageTable) -> int:
    """Return the address behind the last message of a table."""
    return int(table.column("position")[-1]) + int(table.column("size")[-1])


def _walk(ask: DumpRequest, log: CommitLog, start_offset: int, stop_offset: int) -> Iterator[Piece]:
    """Yield messages and gaps of a range; says which addresses no file has."""
    kernels = _Kernels(ask, log, start_offset, stop_offset)
    before = None
    for segment in ask.store.segments_once():
        if segment.end_offset <= start_offset or segment.start_offset >= stop_offset:
            continue
        if before and before.end_offset < segment.start_offset:
            ask.damage(
                f"no file holds the {segment.start_offset - before.end_offset:,} bytes "
                f"from {before.end_offset:,} to {segment.start_offset:,}"
            )
        before = segment
        at = _first_position(log, segment, start_offset - segment.start_offset)
        stop = min(segment.size, stop_offset - segment.start_offset)
        skip = max(0, start_offset - segment.start_offset)
        for piece in kernels.walk(segment, at, stop):
            if not isinstance(piece, Gap):
                yield piece
            elif piece.end > skip:
                yield Gap(segment, max(skip, piece.start), piece.end, piece.stop)


def _first_position(log: CommitLog, segment: MappedFile, start: int) -> int:
    """Return where to begin to walk so that every record from ``start`` on is met: at a record not far before it."""
    if start <= 0:
        return 0
    for distance in (log.envelope.size, *_LOOK_BACK):
        buffer, _ = log.buffer_of(segment, plain, max(0, start - distance), start + 1)
        position = scan.resync(buffer, segment.start_offset, max(0, start - distance), start + 1, log.envelope)
        if position is not None:
            return position
    return 0


class _Kernels:
    """Walks with the plain kernels, which are there at once, until so much is read that compiled ones pay."""

    def __init__(self, ask: DumpRequest, log: CommitLog, start_offset: int, stop_offset: int) -> None:
        self.ask = ask
        self.log = log
        self.left = sum(
            max(0, min(segment.end_offset, stop_offset) - max(segment.start_offset, start_offset))
            for segment in log.segments
        )
        self.done = self.rows = 0
        self.kernels = plain
        self.limit: int | None = _FIRST_ROWS
        if ask.limit and not (ask.topics or ask.queues or ask.tags or ask.keys or ask.since is not None):
            self.limit = min(_FIRST_ROWS, max(ask.limit, 16))

    def walk(self, segment: MappedFile, at: int, stop: int) -> Iterator[Piece]:
        """Yield what ``CommitLog.walk`` does."""
        while at < stop:
            used = self.kernels
            for piece in self.log.walk(segment, at, stop, used, self.limit):
                yield piece
                end = piece.end if isinstance(piece, Gap) else end_of(piece) - segment.start_offset
                self._count(end - at, 0 if isinstance(piece, Gap) else len(piece))
                at = end
                if used is not self.kernels:
                    break
            else:
                return

    def _count(self, size: int, rows: int) -> None:
        self.done += size
        self.rows += rows
        self.ask.advance(self.done)
        much = self.done >= scan.COMPILE_FROM or self.rows >= _PLAIN_ROWS
        if self.kernels is plain and much and self.left - self.done >= scan.COMPILE_FROM:
            self.ask.output.tell_compiling(self.left - self.done)
            self.kernels, self.limit = scan.compiled_kernels(), None
