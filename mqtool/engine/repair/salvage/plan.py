"""``salvage``: every sound message, copied from a damaged store into a new one.

``plan_salvage`` walks over the log as ``recover`` does and decides which queue offset each message gets; ``salvage``
copies. Unreadable byte ranges are listed in ``salvage.jsonl`` beside the new files.

Cost: linear in the log, which is read once for the plan and once more to copy; n log n in what is displaced.
"""

import collections
import contextlib
import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from mqtool.engine.repair.losses import untold_of_rocksdb
from mqtool.engine.repair.missing_log import require_log
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.placement import Placement, first_addresses, place
from mqtool.engine.repair.rebuild.index import shape_of
from mqtool.engine.repair.rebuild.plan import VERSIONS, batch_topics_of, has_tags
from mqtool.engine.repair.rebuild.queues import Sizes, has_ext
from mqtool.engine.repair.recover.bridges import LostMessage
from mqtool.engine.repair.recover.displaced import OF_ANOTHER, DisplacedRecords, PutBack, Unsound, put_back, with_edits
from mqtool.engine.repair.recover.log import Bad, RecordRun, edited_records, known_of, survey
from mqtool.engine.repair.recover.record_editor import Patch, RecordEditor, few_of, made_room, of_batch
from mqtool.engine.repair.recover.torn_batches import renumbered, with_records
from mqtool.engine.repair.salvage.light_places import LightPlaces, surplus
from mqtool.engine.repair.salvage.new_store import NewStore, making, of_other_logs, refuse_lack_of_room, refuse_used
from mqtool.engine.repair.salvage.queue_order import Missing, OffsetRun, Order, arrange
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.consume_queue import ConsumeQueue
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.file_kinds import COMPACTION
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import FormatError, MqtoolError, NotFoundError, StoreInUseError, UsageError
from mqtool.formats import commit_log as layout
from mqtool.formats import config_tables, consume_queue, scan
from mqtool.formats.message import message_at
from mqtool.formats.property_names import DELAY
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX

MANIFEST = "salvage.jsonl"
_HEX_SIZE = 64
_STEP = 16 << 20
_UNITS_AT_ONCE = 1 << 18
_LEFT_OVER = "left over from an earlier life of the log: its queue has other messages at these offsets"


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Bytes of the log that are not copied; ``segment`` is None if a file is missing."""

    segment: MappedFile | None
    physical_offset: int
    size: int
    reason: str
    known: LostMessage | None = None
    position: int | None = None
    """Position in a file outside of the log; then ``physical_offset`` is -1, as its bytes have no address."""

    @property
    def offset(self) -> int | None:
        """Where the bytes begin in their file, None if that is missing."""
        if self.position is not None or self.segment is None:
            return self.position
        return self.physical_offset - self.segment.start_offset


@dataclasses.dataclass(frozen=True)
class CopiedRange:
    """Consecutive records, and the positions in the segment of those that are not copied."""

    segment: MappedFile
    start: int
    end: int
    bad: tuple[int, ...]
    repaired: dict[int, bytes]  # inner batches that did not say what they hold, by address, as they are copied


class Edit(NamedTuple):
    """A record that is copied with corrected places in queues or system flags."""

    patch: Patch
    said: LostMessage
    now: LostMessage
    reason: str


class CopySource(NamedTuple):
    """Consecutive messages from one of two stores."""

    root: Path
    physical_offset: int  # of the first
    size: int
    message_count: int


@dataclasses.dataclass
class Salvage:
    """What a salvage copies, and what it cannot; counts are of messages by topic."""

    reader: StoreReader
    config: StoreConfig  # of the new store
    start_offset: int  # of its log
    batch_topics: set[str]
    stretches: list[CopiedRange]
    order: Order
    skipped: list[Skipped]
    kept: "collections.Counter[str]"
    lost: "collections.Counter[str]"
    placeholders: "collections.Counter[str]"
    tables: dict[str, bytes]  # of config/
    size: int  # bytes of what is copied
    remarks: list[str]
    edits: Sequence[Edit] = ()
    from_each: "tuple[collections.Counter[str], collections.Counter[str]] | None" = None
    """For a merge: what is kept of each store."""
    sources: list[CopySource] = dataclasses.field(default_factory=list)
    left_out: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """For a merge: sound messages of one store that are replaced by others, as rows of the manifest."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the counts of each topic."""
        for topic in sorted(self.kept.keys() | self.lost.keys()):
            counts = self.kept, self.lost, self.placeholders
            kept, lost, placeholders = (counted.get(topic, 0) for counted in counts)
            row = {"topic": topic, "kept": kept, "lost": lost, "placeholders": placeholders}
            if self.from_each:
                row |= {"from_left": self.from_each[0][topic], "from_right": self.from_each[1][topic]}
            yield row


def plan_salvage(reader: StoreReader, jobs: int = 1, progress: Progress = lambda _: None) -> Salvage:
    """Examine every record and decide where it goes.

    Args:
        reader: of the store, which is only read.
        jobs: threads.
        progress: called with the number of bytes of the log done so far.

    Raises:
        NotFoundError: there is no log, or no readable message in it.
        StoreInUseError: a broker writes to it.
    """
    refuse_live_or_empty(reader)
    placement = place(reader.commit_log)
    placement.keep_beginning(first_addresses(reader))
    reader = reader.with_log(placement.log)
    if not reader.commit_log.segments:
        raise NotFoundError(f"no message in {reader.root} can be read: there is nothing to salvage")
    look, back, log, edits = repaired(reader, placement, jobs, progress)
    if edits:
        look, *_ = _look_at(reader.with_log(log), jobs, progress)
        look.edits = edits
    if not look.kept:
        raise NotFoundError(f"no message in {reader.root} can be read: there is nothing to salvage")
    look.skip_left(back.left)
    look.began_at = min([*placement.lost_first, look.began_at])
    plan = look.finish()
    if not plan.kept.total():
        raise NotFoundError(f"no message in {reader.root} has a queue: there is nothing to salvage")
    remarks = [*named_otherwise(reader, placement), *told_back(back)]
    return dataclasses.replace(plan, remarks=[*plan.remarks, *remarks])


class Repaired(NamedTuple):
    """A log as it will be copied."""

    look: "Survey"  # of the log before ``edits``
    back: PutBack
    log: CommitLog  # with all that is put back and edited, in memory
    edits: list[Edit]


def repaired(reader: StoreReader, placement: Placement, jobs: int, progress: Progress) -> Repaired:
    """Examine every record, and correct those that `recover` would.

    Args:
        reader: of the store, with the log of ``placement``.
        placement: by ``place``.
        jobs: threads.
        progress: called with the number of bytes of the log done so far.
    """
    look, unsound, patches = _look_at(reader, jobs, progress)
    back = PutBack(reader.commit_log)
    if placement.too_long or placement.is_whole_in_doubt or look.is_damaged():
        back = put_back(reader, placement, unsound)
        if back.patches:
            look, _, patches = _look_at(reader.with_log(back.log), jobs, progress)
    edits = [*_edits_of(back.log, patches)]
    log = with_edits(back.log, (edit.patch for edit in edits)) if edits else back.log
    if look.has_light_twice and log.envelope is scan.BARE:
        by_position = {edit.patch.position: edit.patch for edit in edits}
        for patch in _without_surplus(reader.with_log(log), jobs, progress):
            first = by_position.get(patch.position)
            reason = f"{first.reason}, and {patch.reason}" if first else patch.reason
            by_position[patch.position] = patch._replace(reason=reason)
        edits = [*_edits_of(back.log, (by_position[position] for position in sorted(by_position)))]
        log = with_edits(back.log, (edit.patch for edit in edits)) if edits else back.log
    return Repaired(look, back, log, edits)


def _without_surplus(reader: StoreReader, jobs: int, progress: Progress) -> list[Patch]:
    """Return the records whose places in light queues other messages have, without these places."""
    look = Survey(reader)
    look.light_places = {}
    for _ in look.watch(survey(reader, reader.commit_log.min_offset, jobs, progress)):
        pass
    editor = RecordEditor(reader, reader.commit_log.end_offset, has_crc=False)
    for address, places in surplus(look.light_places, reader.consume_queues).items():
        editor.drop_light_of(address, places)
    return editor.patches()


def _look_at(reader: StoreReader, jobs: int, progress: Progress) -> "tuple[Survey, Unsound, list[Patch]]":
    """Examine every record; return what to copy, where none is sound, and the records that `recover` corrects."""
    start = reader.commit_log.min_offset
    look, unsound = Survey(reader), Unsound(reader.commit_log, start)
    pieces = look.watch(unsound.watch(survey(reader, start, jobs, progress)))
    if reader.commit_log.envelope is scan.BARE:
        return look, unsound, edited_records(reader, pieces, look.batch_topics)
    for _ in pieces:  # a DLedger log, which ``recover`` does not change
        pass
    return look, unsound, []


def _edits_of(log: CommitLog, patches: Iterable[Patch]) -> Iterator[Edit]:
    """Yield the records that get other places in queues, flags or delay levels; the new store repairs the rest."""
    for patch in patches:
        tables = (
            scan.scan(memoryview(data), patch.position, limit=1).table
            for data in (log.read(patch.position, len(patch.data)), patch.data)
        )
        old, new = ((known_of(table, 0, misplaced=False), message_at(table, 0)) for table in tables)
        fields = [
            (known, message.sys_flag, message.queue_offset, message.properties.get(DELAY))
            for known, message in (old, new)
        ]
        if fields[0] != fields[1]:
            yield Edit(patch, old[0], new[0], patch.reason + made_room(old[1], new[1], patch.reason))


def told_back(back: PutBack) -> Iterator[str]:
    """Yield a remark on the records that were put back, if there are any."""
    if count := sum(count for *_, count in back.told):
        yield f"{count:,} record{'s' if count > 1 else ''} that are elsewhere are read as if they were in their places"


def named_otherwise(reader: StoreReader, placement: Placement) -> Iterator[str]:
    """Yield a remark on each file of the log that is used as another segment than its name says, or not at all."""
    relative = reader.paths.relative
    for renamed in placement.renamed:
        reason = "its records say so" if renamed.has_records else "it has no records, and another file has its name"
        yield f"{relative(renamed.path)} is read as segment {renamed.target.name}: {reason}"
    for gone in placement.removed:
        if gone.donor or gone.is_named:
            yield f"{relative(gone.path)} is left out, {gone.size:,} bytes: {gone.reason}"


def salvage(
    plan: Salvage, into: Path, disk: Disk, jobs: int = 1, progress: Progress = lambda _: None
) -> "collections.Counter[str]":
    """Build the new store and return the number of its placeholders, by topic; a failure leaves nothing behind.

    Corrections of messages are added to the plan's remarks.

    Args:
        plan: by ``plan_salvage``.
        into: its folder, empty or missing.
        disk: through which everything is written.
        jobs: threads.
        progress: called with the number of bytes done so far, of twice the log.

    Raises:
        UsageError: ``into`` is not empty, or is in the store.
        WriteError: the disk is full, or fails.
    """
    check_target(plan.reader, into)
    refuse_lack_of_room(into, plan.size)
    with making(into, disk):
        size = int(plan.config.settings["mappedFileSizeCommitLog"])
        new = NewStore(into, disk, plan.config, size, plan.start_offset, plan.batch_topics)
        new.copy_tables(plan.tables)
        copied = _Copier(plan, new).run(progress)
        new.end()
        plan.remarks += new.remarks()
        version = VERSIONS[-1] if has_tags(plan.reader, None) else VERSIONS[0]
        new.write(MANIFEST, b"".join(orjson.dumps(row) + b"\n" for row in manifest(plan)))
        new.finish(version, jobs, lambda done: progress(copied + done))
    return collections.Counter(new.placeholders)


def refuse_live_or_empty(reader: StoreReader) -> None:
    """Raise ``StoreInUseError`` if a broker is running, ``NotFoundError`` if the log, or a part of it, is missing."""
    if reader.is_live:
        raise StoreInUseError(f"a broker is running on {reader.root}: stop it first, or take a copy")
    require_log(reader)
    if not reader.commit_log.segments:
        raise NotFoundError(f"{reader.root} has no commit log: there is nothing to salvage")


def check_target(reader: StoreReader, into: Path) -> None:
    """Raise ``UsageError`` if the new store's folder is in use, or in the old store."""
    refuse_used(into)
    if into.resolve().is_relative_to(reader.root.resolve()):
        raise UsageError(f"{into} is inside the store, which is left unchanged: choose another folder")


# The survey


class Survey:
    """Takes what a survey yields, in the order of the log."""

    def __init__(self, reader: StoreReader) -> None:
        self.reader = reader
        self.log = reader.commit_log
        self.began_at = self.log.min_offset
        """Where the log began before its first segments were lost: messages before that have expired."""
        self.batch_topics = batch_topics_of(reader)
        self.stretches: list[CopiedRange] = []
        self.skipped: list[Skipped] = []
        self.kept: collections.Counter[str] = collections.Counter()
        self.size = 0
        self.queues: dict[QueueKey, list[OffsetRun]] = {}
        self.misplaced: dict[int, Skipped] = {}  # by address
        self.next: dict[QueueKey, int] = {}
        self.last_timestamp = 0
        self.lost_size = 0
        self.gaps: list[Gap] = []  # since the last sound record
        self.segment: MappedFile | None = None
        self.edits: Sequence[Edit] = ()  # records that differ between the examined log and the store
        self.has_light_twice = False  # a light queue has an offset that is not after the one before
        self.light_places: LightPlaces | None = None  # to be noted, if there is a table
        self.doubtful_count = 0  # sound messages that contradict their CRC property

    def watch(self, pieces: Iterable[RecordRun | Gap]) -> Iterator[RecordRun | Gap]:
        """Observe what a survey yields, and pass it on."""
        for piece in pieces:
            self.take(piece)
            yield piece

    def take(self, piece: RecordRun | Gap) -> None:
        """Take records or a gap."""
        self.enter(piece.segment)
        if isinstance(piece, Gap):
            before = self.gaps[-1] if self.gaps else None
            if before and before.segment is piece.segment and before.end == piece.start:
                self.gaps[-1] = before._replace(end=piece.end)
            else:
                self.gaps.append(piece)
            return
        if piece.last_start >= 0 and self.gaps and self._is_stale(piece):
            self._skip(piece.segment, piece.start, piece.end, _LEFT_OVER, None)
            return
        for bad in piece.bad:
            self._take_bad(piece.segment, bad)
        if piece.last_start >= 0:
            self._take_sound(piece)
        elif any(bad.misplaced for bad in piece.bad):  # some may have their place in a queue
            self._note_stretch(piece)

    def _is_stale(self, piece: RecordRun) -> bool:
        """Return whether messages after a gap are left over from before a broker truncated the log there."""
        older = piece.like.store_timestamp < self.last_timestamp
        return older and all(span.stop <= self.next.get(span.queue, 0) for span in piece.spans)

    def enter(self, segment: MappedFile) -> None:
        """Enter a segment, and note what is missing before it."""
        before, self.segment = self.segment, segment
        if before is None or before is segment:
            return
        end = before.start_offset + self.log.file_size
        if before.size < self.log.file_size:
            self.miss(before, before.end_offset, end - before.end_offset, "the file is too short")
        if end < segment.start_offset:
            self.miss(None, end, segment.start_offset - end, "the segment is missing")

    def miss(self, segment: MappedFile | None, start_offset: int, size: int, reason: str) -> None:
        """Note bytes that no file has."""
        self.skipped.append(Skipped(segment, start_offset, size, reason))
        self.lost_size += size

    def _skip(self, segment: MappedFile, start: int, end: int, reason: str, known: LostMessage | None) -> None:
        self.skipped.append(Skipped(segment, segment.start_offset + start, end - start, reason, known))

    def _take_bad(self, segment: MappedFile, bad: Bad) -> None:
        skipped = Skipped(segment, segment.start_offset + bad.start, bad.end - bad.start, bad.reason, bad.known)
        if not bad.misplaced or bad.known is None:
            self.skipped.append(skipped)
            self.lost_size += skipped.size
            return
        known, self.misplaced[skipped.physical_offset] = bad.known, skipped
        if _has_unit(known):
            run = OffsetRun(skipped.physical_offset, known.queue_offset, known.queue_offset + known.batch_size, True)
            self.queues.setdefault((known.topic, known.queue_id), []).append(run)

    def _take_sound(self, piece: RecordRun) -> None:
        for gap in self.gaps:
            self._skip(gap.segment, gap.start, gap.end, "there is no record", None)
            self.lost_size += gap.end - gap.start
        self.gaps.clear()
        self._note_stretch(piece)
        self.kept.update(piece.topics)
        self.doubtful_count += len(piece.doubtful)
        self.last_timestamp = piece.like.store_timestamp
        if self.light_places is not None and piece.units is not None:
            for queue, first, last in piece.units.stretches:
                if self._is_fixed(queue):
                    part = piece.units.queue_offset[first:last], piece.units.physical_offset[first:last]
                    self.light_places.setdefault(queue, []).append(part)
        for span in piece.spans:
            self.has_light_twice |= span.start < self.next.get(span.queue, 0) and self._is_fixed(span.queue)
            self._add(span.queue, OffsetRun(span.physical_offset, span.start, span.stop))

    def _note_stretch(self, piece: RecordRun) -> None:
        bad = tuple(record.start for record in piece.bad)
        self.stretches.append(CopiedRange(piece.segment, piece.start, piece.end, bad, piece.repaired))
        self.size += piece.end - piece.start

    def _add(self, queue: QueueKey, run: OffsetRun) -> None:
        self.next[queue] = run.stop
        runs = self.queues.setdefault(queue, [])
        # Misplaced records of this piece were taken before its sound ones.
        later = []
        while runs and runs[-1].position > run.position:
            later.append(runs.pop())
        if runs and not runs[-1].misplaced and runs[-1].stop == run.start and not later:
            runs[-1] = runs[-1]._replace(stop=run.stop)
        else:
            runs.append(run)
        runs += reversed(later)

    def finish(self) -> Salvage:
        """Make all decisions."""
        most = self.log_size() // layout.MIN_SIZE
        room = self.lost_size // layout.MIN_SIZE
        order = arrange(self.queues, lambda run: most if run.length > 1 else room, self._is_fixed)
        self._fill_light(order)
        self.take_end()
        self._take_misplaced(order)
        for (topic, _), run in order.left_out:
            self.kept[topic] -= 1 if topic in self.batch_topics else run.length  # there a batch counts as one
        placeholders: collections.Counter[str] = collections.Counter()
        for missing in order.missing.values():
            for gap in missing:
                placeholders[gap.queue[0]] += gap.stop - gap.start
        tables, remarks = self.tables()
        remarks += [*of_other_logs(self.reader.config), *_not_copied(self.reader)]
        remarks += [*self._tell_of_batches(order), *_tell_of_edits(self.edits, order)]
        if self.doubtful_count:
            verify = f"`mqtool verify -s {shlex.quote(str(self.reader.root))}` shows where"
            subject = "one message" if self.doubtful_count == 1 else f"{self.doubtful_count:,} messages"
            remarks.append(
                f"{subject} did not match the CRC property, which is rewritten: body and topic are right, but times, "
                f"hosts, keys or tags may be damaged; {verify}"
            )
        config = config_of(self.reader)
        size = int(config.settings["mappedFileSizeCommitLog"])
        start = self.first_offset() // size * size
        if not start and any(first for first, _ in order.ranges.values()):
            start = size  # in a log that begins at 0 brokers take fill units for messages
        return Salvage(
            reader=self.reader,
            config=config,
            start_offset=start,
            batch_topics=self.batch_topics,
            stretches=self.stretches,
            order=order,
            skipped=sorted(self.skipped, key=lambda skipped: skipped.physical_offset),
            kept=self.kept,
            lost=placeholders + self._lost_elsewhere(order),
            placeholders=placeholders,
            tables=tables,
            size=self.size,
            remarks=remarks,
            edits=self.edits,
        )

    def _tell_of_batches(self, order: Order) -> Iterator[str]:
        """Yield sentences about inner batches whose numbers are rewritten; note those that move by that."""
        sentences = []
        for stretch in self.stretches:
            for position, data in stretch.repaired.items():
                old = stretch.segment.read(position - stretch.segment.start_offset, len(data))
                before, after = (scan.scan(memoryview(record), position, limit=1).table for record in (old, data))
                old_message, other = (message_at(table, 0) for table in (before, after))
                sentences.append(
                    f"the message at {position:,} is kept: {of_batch(old_message)}{made_room(old_message, other)}"
                )
                stated, now = (known_of(table, 0, misplaced=False) for table in (before, after))
                if stated.queue_offset != now.queue_offset:
                    run = OffsetRun(position, stated.queue_offset, stated.queue_offset + now.batch_size)
                    queue = now.topic, now.queue_id
                    order.moved.append((queue, run, queue, now.queue_offset))
        yield from few_of(sentences)

    def log_size(self) -> int:
        """Return how many bytes of log there are."""
        return self.log.total_size

    def first_offset(self) -> int:
        """Return the address at which the log begins."""
        return self.log.min_offset

    def tables(self) -> tuple[dict[str, bytes], list[str]]:
        """Return the tables of config/ that can be read, and a remark on each that cannot."""
        return read_tables(self.reader)

    def told_by_units(self, order: Order) -> dict[QueueKey, tuple[int, int]]:
        """Return, for each queue, how many messages units show before and after those that are copied."""
        return told_by_units(self.reader, order, self.began_at)

    def _is_fixed(self, queue: QueueKey) -> bool:
        """Return whether the queue offsets are listed in properties, as those of light queues are."""
        return queue[0].startswith(LIGHT_QUEUE_PREFIX)

    def take_end(self) -> None:
        """List what follows the last message, unless it is the unused end of the log, and what is cut off."""
        last = self.segment.start_offset if self.segment else 0
        for segment in self.log.segments:
            missing = self.log.file_size - segment.size
            if missing > 0 and segment.start_offset >= last:
                self.skipped.append(Skipped(segment, segment.end_offset, missing, "the file is too short"))
        self.take_last_gaps()

    def take_last_gaps(self) -> None:
        """List what follows the last message, except for zeros."""
        for gap, content in self._last_contents():
            self._skip(gap.segment, content, gap.end, "there is no record", None)

    def _last_contents(self) -> Iterator[tuple[Gap, int]]:
        """Yield the gaps after the last message that are not all zeros, and where their contents begin."""
        for gap in self.gaps:
            for at in range(gap.start, gap.end, _STEP):
                content = np.flatnonzero(gap.segment.stretch(at, min(at + _STEP, gap.end)))
                if len(content):
                    yield gap, at + int(content[0])
                    break

    def is_damaged(self) -> bool:
        """Return whether there is anything but sound records in their places, and zeros beyond the end."""
        return bool(self.skipped or self.misplaced) or any(True for _ in self._last_contents())

    def skip_left(self, left: Iterable[DisplacedRecords]) -> None:
        """List each displaced sound record that is not put back, unless it is taken."""
        for records in left:
            file, at = records.source.file, int(records.table.starts[0])
            is_outside = file.start_offset < 0
            address = -1 if is_outside else file.start_offset + at
            if address not in self.misplaced:
                known = known_of(records.table, 0, misplaced=True)
                size = int(records.table.column("size")[0])
                self.skipped.append(Skipped(file, address, size, OF_ANOTHER, known, at if is_outside else None))

    def _take_misplaced(self, order: Order) -> None:
        for address, skipped in self.misplaced.items():
            known = skipped.known
            assert known is not None
            if address in order.found:
                self.kept[known.topic] += 1
            else:
                reason = f"{skipped.reason}, and its queue already has that message or lacks none there"
                self.skipped.append(dataclasses.replace(skipped, reason=reason))

    def _fill_light(self, order: Order) -> None:
        """Remove the places in light queues of copied misplaced records from what is missing."""
        present: dict[QueueKey, list[int]] = collections.defaultdict(list)
        for address in order.found:
            known = self.misplaced[address].known
            for name, offset in known.light if known else ():
                present[name, 0].append(offset)
        for address, gaps in order.missing.items() if present else ():
            order.missing[address] = [part for gap in gaps for part in _parts_without(gap, present.get(gap.queue, []))]

    def _lost_elsewhere(self, order: Order) -> "collections.Counter[str]":
        """Count the lost messages that heads and units show before and after those that are copied."""
        lost: collections.Counter[str] = collections.Counter()
        outside = self.told_by_units(order)
        for (topic, _), offsets in outside.items():
            lost[topic] += sum(offsets)
        for (topic, _), run in order.left_out:
            lost[topic] += run.length
        for skipped in self.skipped:
            known = skipped.known
            if known is None or skipped.physical_offset in self.misplaced:
                continue
            queue = known.topic, known.queue_id
            first, stop = order.ranges.get(queue, (0, 0))
            before, behind = outside.get(queue, (0, 0))
            counted = _has_unit(known) and first - before <= known.queue_offset < stop + behind
            if not counted:
                lost[known.topic] += known.batch_size
        return lost


def _tell_of_edits(edits: Sequence[Edit], order: Order) -> Iterator[str]:
    """Yield sentences about records that are copied with corrected fields; note those that move."""
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for edit in edits:
        by_reason[edit.patch.reason].append(f"the message at {edit.now.position:,} is kept: {edit.reason}")
        stated, now = edit.said, edit.now
        places = [(known.topic, known.queue_id, known.queue_offset) for known in (stated, now)]
        if places[0] != places[1]:
            run = OffsetRun(stated.position, stated.queue_offset, stated.queue_offset + stated.batch_size)
            order.moved.append(((stated.topic, stated.queue_id), run, (now.topic, now.queue_id), now.queue_offset))
        targets = dict(now.light)
        for name, offset in dict.fromkeys(stated.light):
            run = OffsetRun(stated.position, offset, offset + 1)
            if (name, offset) not in now.light and name in targets:
                order.moved.append(((name, 0), run, (name, 0), targets[name]))
            elif (name, offset) not in now.light:
                order.left_out.append(((name, 0), run))
    for sentences in by_reason.values():
        yield from few_of(sentences)


def _parts_without(missing: Missing, present: list[int]) -> Iterator[Missing]:
    """Yield what is missing, without existing offsets."""
    start = missing.start
    for offset in sorted(offset for offset in present if missing.start <= offset < missing.stop):
        if start < offset:
            yield missing._replace(start=start, stop=offset)
        start = offset + 1
    if start < missing.stop:
        yield missing._replace(start=start)


def _has_unit(known: LostMessage) -> bool:
    return known.transaction in (0, layout.TRANSACTION_COMMIT)


def told_by_units(reader: StoreReader, order: Order, start_offset: int) -> dict[QueueKey, tuple[int, int]]:
    """Return, for each queue, how many messages its units show before and after those that are copied.

    Messages before ``start_offset``, an address, have expired.
    """
    by_queue = {}
    for key, queue in reader.consume_queues.items():
        first, stop = order.ranges.get(key, (0, 0))
        begin, end = queue.first_offset, queue.max_offset()
        if key not in order.ranges:
            first = stop = begin
        ahead = _count_units(reader, queue, begin, min(first, end), first, start_offset)
        edge = stop if key in order.ranges else None
        by_queue[key] = ahead, _count_units(reader, queue, max(stop, begin), end, edge, start_offset)
    for key, batch_queue in reader.batch_consume_queues.items():
        first, stop = order.ranges.get(key, (0, 0))
        before = behind = 0
        for low in range(0, batch_queue.used_count, _UNITS_AT_ONCE):
            units = batch_queue.units(low, min(low + _UNITS_AT_ONCE, batch_queue.used_count))
            units = units[(units["size"] > 0) & (units["physical_offset"] >= start_offset)]
            offsets, counts = units["queue_offset"], np.maximum(units["batch_size"].astype(np.int64), 1)
            before += int(counts[offsets < first].sum())
            behind += int(counts[offsets >= stop].sum())
        by_queue[key] = before, behind
    return by_queue


def _count_units(
    reader: StoreReader, queue: ConsumeQueue, start: int, stop: int, edge: int | None, start_offset: int
) -> int:
    """Count the messages that units in a range of queue offsets show, and those between them and an edge of it.

    An empty unit there also had a message. Units that are too far away count only themselves.
    """
    count, ends = 0, [] if edge is None else [edge]
    for low, units in queue.windows(start, stop):
        sizes = units["size"]
        is_message = (sizes > 0) & (sizes < consume_queue.PRE_BLANK_SIZE)
        rows = np.flatnonzero(is_message & (units["physical_offset"] >= start_offset))
        if len(rows):
            count += len(rows)
            ends += [low + int(rows[0]), low + int(rows[-1]) + 1]
    most = reader.commit_log.total_size // layout.MIN_SIZE
    span = max(ends, default=0) - min(ends, default=0)
    return span if span <= count + most else count


def config_of(reader: StoreReader) -> StoreConfig:
    """Return the settings of a store, including those that only its files show."""
    sizes, shape = Sizes.of(reader), shape_of(reader)
    file_sizes = {
        "mappedFileSizeCommitLog": reader.commit_log.file_size,
        "mappedFileSizeConsumeQueue": sizes.queue,
        "mapperFileSizeBatchConsumeQueue": sizes.batch_queue,
        "mappedFileSizeConsumeQueueExt": sizes.ext,
        "maxHashSlotNum": shape.slots,
        "maxIndexNum": shape.entries,
    }
    settings = {key: str(size) for key, size in file_sizes.items()}
    settings["enableConsumeQueueExt"] = str(has_ext(reader)).lower()
    settings["messageDelayLevel"] = " ".join(f"{ms // 1000}s" for ms in reader.delay_levels)
    return StoreConfig(settings)


def read_tables(reader: StoreReader) -> tuple[dict[str, bytes], list[str]]:
    """Return the tables of config/ that can be read, by name, and a remark on each that cannot."""
    tables: dict[str, bytes] = {}
    remarks = []
    folder = reader.paths.config
    names = {path.name.removesuffix(".bak") for pattern in ("*.json", "*.json.bak") for path in folder.glob(pattern)}
    for name in sorted(names):
        for path in (folder / name, folder / f"{name}.bak"):
            with contextlib.suppress(FormatError, NotFoundError):
                text = read_file(path)
                config_tables.read_table(name, text)
                tables[name] = text
                break
        else:
            remarks.append(f"cannot read config/{name} or its backup: it is left out")
    try:
        for name, table in reader.rocksdb_tables.items():
            tables.setdefault(name, config_tables.build_table(table, config_tables.Dialect.FASTJSON_1))
    except MqtoolError as error:
        remarks.append(f"the tables in RocksDB are left out: {error}")
    return tables, remarks


def _not_copied(reader: StoreReader) -> Iterator[str]:
    if reader.rocksdb_queues:
        yield "the queues of the new store are files: its broker needs storeType=default"
        yield untold_of_rocksdb(reader.commit_log)
    if reader.paths.timer_log.is_dir():
        yield "the timer is not copied: the broker rereads delayed messages, and may deliver some twice"
    if any((reader.root / COMPACTION.name).glob("compactionLog/*/*/*")):
        yield "compaction/ is not copied: the broker compacts again what the log contains"


# Copying


class _Copier:
    """Copies stretch by stretch."""

    def __init__(self, plan: Salvage, new: NewStore) -> None:
        self.plan = plan
        self.new = new
        self.log = plan.reader.commit_log
        self.kernels = scan.kernels_for(plan.size)
        self.missing_at = np.array(sorted(plan.order.missing), np.int64)
        self.found = np.array(sorted(plan.order.found), np.int64)

    def run(self, progress: Progress) -> int:
        """Copy everything; return the number of bytes."""
        done = 0
        for late in (False, True) if self.plan.order.has_late else (False,):
            for stretch in self.plan.stretches:
                self._copy(stretch, late)
                stretch.segment.release(stretch.start, stretch.end)
                done += stretch.end - stretch.start
                progress(done)
        return done

    def _copy(self, stretch: CopiedRange, late: bool) -> None:
        table = self._table(stretch)
        queue_ids = queue_offsets = None
        if self.plan.order.moves:
            is_late, is_kept, queue_ids, queue_offsets = self._moved(table)
            rows = np.flatnonzero(is_kept & (is_late == late))
            table, queue_ids, queue_offsets = table.where(rows), queue_ids[rows], queue_offsets[rows]
            table = renumbered(table, queue_offsets) if len(table) else table
        if len(table):
            missing = [] if late else list(self._missing(table))
            self.new.put(table, missing, queue_ids, queue_offsets)

    def _table(self, stretch: CopiedRange) -> MessageTable:
        envelope = self.log.envelope
        segment = stretch.segment
        table = scan.scan(
            self.log.buffer(segment, self.kernels),
            segment.start_offset,
            stretch.start - envelope.size,
            stretch.end,
            envelope,
            self.kernels,
        ).table
        starts = table.starts
        if stretch.repaired:
            positions = table.column("position").tolist()
            records = {row: stretch.repaired[at] for row, at in enumerate(positions) if at in stretch.repaired}
            table = with_records(table, records)
        if not stretch.bad:
            return table
        chosen = np.isin(table.column("position"), self.found)
        return table.where(np.flatnonzero(chosen | ~np.isin(starts, stretch.bad)))

    def _missing(self, table: MessageTable) -> Iterator[tuple[int, Missing]]:
        """Yield what is missing, each with the row before which it is."""
        positions = table.column("position")
        low, high = np.searchsorted(self.missing_at, [positions[0], positions[-1] + 1])
        for address in self.missing_at[low:high].tolist():
            for gap in self.plan.order.missing[address]:
                yield int(np.searchsorted(positions, address)), gap

    def _moved(self, table: MessageTable) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_], Ints, Ints]:
        """Return which messages come late, which come at all, and the new queue and offset of each."""
        late, kept = np.zeros(len(table), np.bool_), np.ones(len(table), np.bool_)
        queue_ids = table.column("queue_id").astype(np.int64)
        queue_offsets = table.column("queue_offset").copy()
        positions = table.column("position")
        transaction = table.column("sys_flag") & layout.TRANSACTION_MASK
        free = (transaction == 0) | (transaction == layout.TRANSACTION_COMMIT)
        free &= ~np.isin(positions, self.found)
        ids, names = table.topics()
        numbers = {name.decode("utf-8", "replace"): number for number, name in enumerate(names)}
        for (topic, queue_id), moves in self.plan.order.moves.items():
            if topic in numbers:
                is_it = free & (ids == numbers[topic]) & (table.column("queue_id") == queue_id)
                rows = np.flatnonzero(is_it)
                which = np.searchsorted(moves.positions, positions[rows], "right") - 1
                late[rows], kept[rows] = moves.late[which], moves.kept[which]
                queue_ids[rows] = moves.queue_ids[which]
                queue_offsets[rows] += moves.shifts[which]
        return late, kept, queue_ids, queue_offsets


# The manifest


def why_left_out(topic: str) -> str:
    """Return why messages of a topic, or a light queue, are in no queue of the new store."""
    if topic.startswith(LIGHT_QUEUE_PREFIX):
        return "that place in a light queue cannot be right, and the message is in its other queues"
    return "no broker has such a queue, and no queue of its topic lacks that place"


def manifest(plan: Salvage) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``salvage.jsonl``: what was skipped, missing, moved, left out, and the counts by topic."""
    relative = plan.reader.paths.relative
    for skipped in plan.skipped:
        file = relative(skipped.segment.path) if skipped.segment else None
        address = skipped.physical_offset if skipped.position is None else None
        row: dict[str, Any] = {"kind": "skipped", "file": file, "offset": skipped.offset, "physical_offset": address}
        row |= {"size": skipped.size, "reason": skipped.reason}
        if skipped.known:
            known = skipped.known
            row |= {"topic": known.topic, "queue_id": known.queue_id, "queue_offset": known.queue_offset}
        row["hex"] = (
            skipped.segment.read(skipped.offset or 0, min(skipped.size, _HEX_SIZE)).hex() if skipped.segment else ""
        )
        yield row
    for missing in plan.order.missing.values():
        for gap in missing:
            row = {"kind": "placeholders", "topic": gap.queue[0], "queue_id": gap.queue[1]}
            yield row | {"queue_offset": gap.start, "count": gap.stop - gap.start}
    for (topic, queue_id), run, target, offset in plan.order.moved:
        row = {"kind": "moved", "physical_offset": run.position, "topic": topic, "queue_id": queue_id}
        row |= {"queue_offset": run.start, "count": run.length}
        yield row | {"new_queue_id": target[1], "new_queue_offset": offset}
    for (topic, queue_id), run in plan.order.left_out:
        row = {"kind": "left out", "physical_offset": run.position, "topic": topic, "queue_id": queue_id}
        row |= {"queue_offset": run.start, "count": run.length, "reason": why_left_out(topic)}
        yield row
    for edit in plan.edits:
        row = {"kind": "edited", "physical_offset": edit.now.position, "topic": edit.now.topic}
        row |= {"queue_id": edit.now.queue_id, "queue_offset": edit.now.queue_offset, "reason": edit.reason}
        yield row
    for source in plan.sources:
        row = {"kind": "source", "store": str(source.root), "physical_offset": source.physical_offset}
        yield row | {"size": source.size, "message_count": source.message_count}
    yield from plan.left_out
    for remark in plan.remarks:
        yield {"kind": "remark", "text": remark}
    for counts in plan.rows():
        yield {"kind": "topic", **counts}
