"""``recover``: what a broker does at startup, but without its faults and without loss.

The log ends after its last sound record, even one after damage: holes before it are bridged by placeholders
(``recover.log``). What is torn or left over beyond the end is cleared, so that it cannot come back. Queues are trimmed
and filled up (``recover.queues``), the index is rebuilt where it does not agree, the checkpoint says that all of it
is on the disk, and ``abort`` goes: a broker of any version then starts as after a clean stop and finds nothing to do.
(Rules: store.md 3 to 7, 15; changes_5_5.md 9, 11.)

Cost: linear in the log, which is read once if it is sound, and twice if holes must be bridged; n log n in what is lost.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np

from mqtool.engine.repair.group_effects import group_effects, offsets_of
from mqtool.engine.repair.java_recovery import older_versions
from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.losses import untold_of_rocksdb
from mqtool.engine.repair.missing_log import require_log
from mqtool.engine.repair.parts import Progress, one_ahead
from mqtool.engine.repair.placement import Placement, Renamed, first_addresses, place
from mqtool.engine.repair.plan import Change, Plan
from mqtool.engine.repair.rebuild.index import IndexBuilder, shape_of
from mqtool.engine.repair.rebuild.plan import batch_topics_of, build_index, build_queues, set_to_batch
from mqtool.engine.repair.rebuild.queues import Sizes
from mqtool.engine.repair.recover import left_alone
from mqtool.engine.repair.recover.bridges import Bridges, Hole
from mqtool.engine.repair.recover.displaced import PatchedFile, PutBack, Unsound, put_back
from mqtool.engine.repair.recover.log import LogPlan, RecordRun, plan_log, survey
from mqtool.engine.repair.recover.planned_log import derive
from mqtool.engine.repair.recover.queues import DifferenceCounter, DifferenceSink, QueueRepairer, QueueWriter
from mqtool.engine.repair.rehearsal import rehearsed
from mqtool.engine.repair.verify import index as index_checks
from mqtool.engine.repair.verify.index import IndexVerifier
from mqtool.engine.repair.verify.log import Run
from mqtool.engine.store import rocksdb
from mqtool.engine.store.commit_log import CommitLog, Gap
from mqtool.engine.store.disk import allocated
from mqtool.engine.store.dispatch import IndexEntries, QueueKey, Units, by_topic, no_entries
from mqtool.engine.store.file_kinds import BATCH_CONSUME_QUEUE, INDEX
from mqtool.engine.store.file_queue import FileQueue, segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, UsageError
from mqtool.formats import checkpoint, consume_queue, index_file, scan
from mqtool.formats import commit_log as layout
from mqtool.formats.record_head import read_start
from mqtool.formats.scan import Ints

_NORMAL_SEGMENTS = 3
"""How many of its last segments a broker reads after a clean stop."""
_STEP = 16 << 20
_MAX_ENTRIES = 64 << 20
"""Bytes of index entries that a plan keeps in memory."""


class _Narrow(NamedTuple):
    """64-bit numbers that are close to each other, in half the space."""

    least: int
    above: Any

    @classmethod
    def of(cls, column: Ints) -> Self:
        """Return a compact copy of numbers."""
        least = int(column.min()) if len(column) else 0
        is_near = not len(column) or int(column.max()) - least < 1 << 32
        return cls(least, (column - least).astype(np.uint32)) if is_near else cls(0, column.copy())

    def wide(self) -> Ints:
        """Return the numbers."""
        numbers: Ints = self.above + np.int64(self.least)
        return numbers


class _Keys(NamedTuple):
    """The input of ``IndexBuilder`` for consecutive messages."""

    key_hash: Any
    physical_offset: _Narrow
    store_timestamp: _Narrow
    last_timestamp: int
    more: bool

    def add_to(self, builder: IndexBuilder) -> None:
        """Pass all of it to the builder of the index."""
        offsets = self.physical_offset.wide()
        # Of rows and tags only the number is asked.
        none, no_tags = np.broadcast_to(np.int64(0), offsets.shape), np.broadcast_to(np.False_, offsets.shape)
        entries = IndexEntries(none, self.key_hash, offsets, self.store_timestamp.wide(), no_tags)
        builder.add(entries, self.last_timestamp, self.more)


class _KeptKeys:
    """The index entries of all messages of a log, kept if they are few, so that the log need not be read again."""

    def __init__(self) -> None:
        self.all: list[_Keys] | None = []
        self._size = 0

    def take(self, units: Units, run: Run | None) -> None:
        """Take the next messages; without a run they have no entries."""
        if self.all is None:
            return
        if run is None:
            of, more = no_entries(), True
            last = int(units.store_timestamp[-1]) if len(units.store_timestamp) else 0
            last = last or (self.all[-1].last_timestamp if self.all else 0)
        else:
            of, last = run.entries, run.last_timestamp
            more = not len(of.rows) or int(of.rows[-1]) < run.count - 1
        offsets, times = _Narrow.of(of.physical_offset), _Narrow.of(of.store_timestamp)
        self.all.append(_Keys(of.key_hash.copy(), offsets, times, last, more))  # copied: parts of something larger
        self._size += of.key_hash.nbytes + offsets.above.nbytes + times.above.nbytes
        if self._size > _MAX_ENTRIES:
            self.all = None


@dataclasses.dataclass
class _IndexView:
    """Whether the index agrees with the messages so far."""

    verifier: IndexVerifier
    differs: bool = False
    entries: int = 0

    @classmethod
    def of(cls, reader: StoreReader, start_offset: int) -> Self:
        """Begin with the entries of the messages from an address on."""
        verifier = IndexVerifier(reader, live=False)
        if start_offset > reader.commit_log.min_offset:
            verifier.skip_to(start_offset)
        return cls(verifier)

    def take(self, run: Run) -> None:
        """Compare the keys of a run with the next entries; after a difference nothing more is compared."""
        self.entries += len(run.entries.rows)
        if not self.differs:
            self.differs = any(finding.severity != "note" for finding in self.verifier.take(run))


class _DerivedChecker:
    """Compares units and entries of messages with queues and index."""

    def __init__(
        self,
        reader: StoreReader,
        start_offset: int,
        sink: DifferenceSink,
        index: _IndexView | None,
        batch_topics: Collection[str],
        began_at: int | None = None,
    ) -> None:
        self.reader = reader
        self.start_offset = start_offset
        self.index = index
        self.keys: _KeptKeys | None = None  # if the index is built from them
        self.is_cut_short = False  # by damage: the repaired log is different
        has_files = reader.rocksdb_queues is None
        self.queues = QueueRepairer(reader, start_offset, sink, batch_topics, began_at) if has_files else None

    def take(self, units: Units, run: Run | None) -> None:
        """Take the next messages of the log; without a run they have no entries."""
        if self.queues:
            self.queues.take(units)
        if self.index and run is not None:
            self.index.take(run)
        if self.keys:
            self.keys.take(units, run)

    def watch(self, pieces: Iterable[RecordRun | Gap], begins_sound: Callable[[], object]) -> Iterator[RecordRun | Gap]:
        """Observe what a survey yields up to the first damaged record, and pass all of it on."""
        for piece in pieces:
            if not isinstance(piece, Gap):
                self.is_cut_short |= bool(piece.bad)
                if not self.is_cut_short:
                    begins_sound()
                    if piece.units is not None and piece.run is not None:
                        self.take(piece.units, piece.run)
            yield piece

    def walk(self, plan: LogPlan, jobs: int, tags_in_index: bool = False) -> None:
        """Take all messages of the planned log, placeholders included."""
        if self.queues:
            self.queues.odd = by_topic(plan.odd)
        for units, run in one_ahead(derive(self.reader, plan, self.start_offset, tags_in_index, jobs)):
            self.take(units, run)
        self.finish(plan)

    def finish(self, plan: LogPlan) -> None:
        """Check what is after the last message of each queue."""
        if self.queues:
            self.queues.finish(plan)


@dataclasses.dataclass
class Recovery:
    """Everything that has to be done, as determined both for the plan and for the repair."""

    reader: StoreReader  # with the log as it should be, except for what is lost
    placement: Placement
    back: PutBack
    start_offset: int
    is_widened: bool  # the whole log was read, for messages before the last segments, or because these lack some
    log: LogPlan
    queues: DifferenceCounter
    batch_queues: list[tuple[str, int]]
    batch_topics: Collection[str]  # that keep several messages in a unit
    of_wrong_type: list[Path]  # folders of topics whose queues are of the other type
    ends: dict[QueueKey, int] | None  # one past the last offset of each queue; None if they are not repaired
    index: bool  # must be rebuilt
    keys: list[_Keys] | None  # of which; None if the log must be read for that
    entries: int  # that an index has then
    checkpoint: bytes | None  # None: it is right
    cleared: list[tuple[MappedFile, int, int]]  # segment, positions of what is left beyond the end
    removed: list[MappedFile]  # segments that lie wholly beyond the end


def plan_recover(reader: StoreReader, options: Mapping[str, Any], jobs: int, progress: Progress) -> Plan:
    """Return what ``recover`` would do.

    Args:
        reader: of the store.
        options: ``mode``: "normal", "abnormal", or None to go by the abort file; ``cut``: end the log at the first
            damage; ``cut_at``: end it where the message at this address begins.
        jobs: threads.
        progress: called with the number of bytes done so far.

    Raises:
        UsageError: this kind of store cannot be repaired, or no message starts at ``cut_at``.
        BadDataError: a hole cannot be bridged.
        NotFoundError: there is no log, or segments that it lacks are in folders that are not named.
    """
    recovery = _survey(reader, options, jobs, progress)
    losses = recovery.log.losses.rows()
    offsets, remarks = offsets_of(reader)
    written, noted = _made(recovery)
    plan = Plan(
        command="recover",
        options=options,
        changes=tuple(_changes(recovery)),
        losses=losses,
        remarks=(*_remarks(recovery), *remarks, *_left(reader, recovery)),
        journal_size=noted,
        write_size=written,
        growth=written,
        read_size=reader.commit_log.total_size if recovery.index or recovery.queues.units is None else 0,
        groups=group_effects(offsets, losses, recovery.ends),
        found=recovery,
    )
    return rehearsed(reader, plan, lambda journal: _rehearse(recovery, journal)) if plan.changes else plan


def apply_recover(reader: StoreReader, plan: Plan, journal: Journal, jobs: int, progress: Progress) -> None:
    """Do what the plan says."""
    recovery: Recovery = plan.found or _survey(reader, plan.options, jobs, progress)
    _apply_log(recovery, journal)
    reader = StoreReader(reader.root, reader.config)
    if reader.rocksdb_queues is None:
        _apply_queue_files(recovery, reader, journal)
        reader = StoreReader(reader.root, reader.config)
        writer = QueueWriter(reader, journal)
        with journal.together():
            if not recovery.queues.tell(writer):
                log = dataclasses.replace(recovery.log, holes=[], patches=[], bridges=None)
                _DerivedChecker(reader, recovery.start_offset, writer, None, recovery.batch_topics).walk(log, jobs)
        _apply_batch_queues(reader, recovery.batch_queues, recovery.log.odd, journal, jobs)
    if recovery.index:
        _apply_index(reader, recovery.keys, journal, jobs)
    _apply_rest(recovery, reader, journal)


# What there is to do


def has_work(reader: StoreReader, jobs: int, progress: Progress) -> bool:
    """Return whether ``recover --abnormal`` changes anything; raises like its plan.

    Where the log itself is changed, queues and index are not examined.
    """
    _require_log(reader)
    looked = _looked(reader, {"mode": "abnormal"}, jobs, progress, of_log=True)
    return looked.is_log_changed or any(True for _ in _changes(_recovery(looked, _IndexFiles(reader))))


def _survey(reader: StoreReader, options: Mapping[str, Any], jobs: int, progress: Progress) -> Recovery:
    _require_log(reader)
    with ThreadPoolExecutor(1) as beside:
        files = _IndexFiles(reader)
        looked = _looked(reader, options, jobs, progress, lambda: files.begin(beside))
        return _recovery(looked, files)


def _require_log(reader: StoreReader) -> None:
    if reader.commit_log.envelope is not scan.BARE:
        raise UsageError(
            f"{reader.root} is a DLedger log, which is not repaired here: let a peer send it what is missing"
        )
    require_log(reader)


def _looked(
    reader: StoreReader,
    options: Mapping[str, Any],
    jobs: int,
    progress: Progress,
    begins_sound: Callable[[], object] = lambda: None,
    *,
    of_log: bool = False,
) -> "_LogSurvey":
    """Return what the log holds.

    Args:
        reader: of the store.
        options: of ``plan_recover``.
        jobs: threads.
        progress: called with the number of bytes done so far.
        begins_sound: called once the beginning of the log has turned out to be sound.
        of_log: examine queues and index only if the log stays unchanged.
    """
    placement = place(reader.commit_log)
    placement.keep_beginning(first_addresses(reader))
    log = placement.log
    mode = options.get("mode") or ("abnormal" if reader.paths.abort.exists() else "normal")
    is_normal = mode == "normal" and not placement.is_whole_in_doubt

    def first_of(segments: list[MappedFile]) -> int:
        # Records may be missing at the end of a file of a wrong length, or follow it. No clean stop leaves wrong names.
        looked_at: list[MappedFile | Renamed] = []
        if is_normal:
            looked_at = [*segments[-_NORMAL_SEGMENTS:], *placement.of_wrong_length, *placement.renamed]
        return min((file.start_offset for file in looked_at), default=log.min_offset)

    began_at = min([*placement.lost_first, log.min_offset])
    # A log that is cut would end where it begins: it begins with the segments that are left.
    lost_first = [] if options.get("cut") else placement.lost_first
    start = first = min([*lost_first, first_of(log.segments)])
    batch_topics = batch_topics_of(reader)
    cut_at = options.get("cut_at")
    look = functools.partial(
        _look,
        cut=bool(options.get("cut")),
        cut_at=cut_at,
        jobs=jobs,
        progress=progress,
        begins_sound=begins_sound,
        batch_topics=batch_topics,
        began_at=began_at,
        of_log=of_log,
    )
    is_widened = False
    while True:
        seen, back = look(reader.with_log(log), start), PutBack(log)
        if placement.too_long or placement.is_whole_in_doubt or seen.is_unsound:
            back = put_back(seen.reader, placement, seen.unsound)
            if back.patches:
                seen = look(reader.with_log(back.log), min(start, back.log.min_offset))
        behind = list(_behind(seen.reader.commit_log, seen.plan))
        # The same repair again looks at the last of those that stay.
        first = min(first, first_of([segment for segment in seen.reader.commit_log.segments if segment not in behind]))
        # Where the log ends is before the first that was examined, if no message is behind.
        ends_before = seen.plan.last_start < 0
        is_short = seen.is_short or ends_before
        # What is missing may be elsewhere: nothing is given up before all of the log was read, unless it is to be cut:
        # it would end at the first damage in all of it.
        if not options.get("cut"):
            is_short |= seen.leads_nowhere or (cut_at is None and bool(seen.plan.losses))
        due = log.min_offset if is_short else max(first, log.min_offset)
        if due >= start:
            break
        start, is_widened = due, is_widened or is_short
    if cut_at is not None:
        _check_cut(seen.plan, cut_at)
    return _LogSurvey(seen, back, placement, is_widened, batch_topics, behind)


def _check_cut(plan: LogPlan, at: int) -> None:
    """Check that a log ends where requested; a segment may end in a blank record before that.

    Raises:
        UsageError: it does not.
    """
    if plan.last_start < 0:
        raise UsageError(f"no message precedes {at:,}: nothing of the log would be left")
    if plan.end_offset > at:
        raise UsageError(
            f"no message starts at {at:,}: one starts at {plan.last_start:,} and ends at {plan.end_offset:,}"
        )
    if plan.end_offset < at and not plan.is_cut:
        raise UsageError(f"the log ends at {plan.end_offset:,}, before {at:,}")


def _recovery(looked: "_LogSurvey", index_files: "_IndexFiles") -> Recovery:
    seen, back, placement, is_widened, batch_topics, behind = looked
    reader, plan = seen.reader, seen.plan
    if plan.is_cut:
        back = back.before(plan.end_offset)
    back.tell_left(plan)
    created = {segment.start_offset for segment in back.created}
    if placement.renamed:  # headers are compared with messages by address
        index_files = _IndexFiles(reader)
    index = _index_is_wrong(reader, plan, seen.index, index_files)
    return Recovery(
        reader,
        placement,
        back.without(behind),
        seen.start_offset,
        is_widened,
        plan,
        seen.tally,
        sorted(seen.follower.queues.others) if seen.follower.queues else [],
        batch_topics,
        list(_of_wrong_type(reader, batch_topics)) if seen.follower.queues else [],
        seen.follower.queues.ends() if seen.follower.queues else None,
        index,
        seen.follower.keys.all if seen.follower.keys else None,
        seen.index.entries,
        _checkpoint(reader, plan, index or reader.paths.abort.exists()),
        list(_left_over(reader, plan)),
        [segment for segment in behind if segment.start_offset not in created],
    )


def _of_wrong_type(reader: StoreReader, batch_topics: Collection[str]) -> Iterator[Path]:
    """Yield the folders of topics below ``consumequeue`` that keep several messages in a unit, and the other way."""
    for topic in sorted({topic for topic, _ in reader.consume_queues}.intersection(batch_topics)):
        yield reader.paths.consume_queue / topic
    for topic in sorted({topic for topic, _ in reader.batch_consume_queues}.difference(batch_topics)):
        yield reader.paths.batch_consume_queue / topic


@dataclasses.dataclass
class _Seen:
    """The result of reading the log from an address on."""

    reader: StoreReader
    start_offset: int
    plan: LogPlan
    unsound: Unsound
    tally: DifferenceCounter
    index: _IndexView
    follower: _DerivedChecker

    @property
    def is_short(self) -> bool:
        """Whether queues lack units of messages before the first that was examined, or have to be rebuilt."""
        return self.follower.queues is not None and (self.follower.queues.is_short or bool(self.follower.queues.others))

    @property
    def leads_nowhere(self) -> bool:
        """Whether a queue leads to none of its messages before the first that was examined."""
        return self.follower.queues is not None and self.follower.queues.leads_nowhere

    @property
    def is_log_changed(self) -> bool:
        """Whether the log is changed."""
        return bool(self.plan.holes or self.plan.patches)

    @property
    def is_unsound(self) -> bool:
        """Whether there is anything but sound records, and zeros beyond the end."""
        log = self.reader.commit_log
        return bool(self.plan.holes) or any(_left_over(self.reader, self.plan)) or any(_behind(log, self.plan))


class _LogSurvey(NamedTuple):
    """The log as it is and as it should be, and the consequences for queues and index."""

    seen: _Seen
    back: PutBack
    placement: Placement
    is_widened: bool  # more was read than was to be examined
    batch_topics: set[str]
    behind: list[MappedFile]  # segments that lie wholly beyond the end

    @property
    def is_log_changed(self) -> bool:
        """Whether the log is changed."""
        return self.seen.is_log_changed or bool(self.back.patches)


def _look(
    reader: StoreReader,
    start: int,
    cut: bool,
    cut_at: int | None,
    jobs: int,
    progress: Progress,
    begins_sound: Callable[[], object],
    batch_topics: set[str],
    began_at: int,
    of_log: bool,
) -> _Seen:
    tags = IndexVerifier(reader, live=False).has_tags()
    tally, index = DifferenceCounter(), _IndexView.of(reader, start)
    known = len(batch_topics)
    follower = _DerivedChecker(reader, start, tally, index, batch_topics, began_at)
    unsound = Unsound(reader.commit_log, start)
    pieces = unsound.watch(survey(reader, start, jobs, progress, tags, cut_at))
    plan = plan_log(reader, follower.watch(pieces, begins_sound), start, cut, batch_topics, cut_at)
    seen = _Seen(reader, start, plan, unsound, tally, index, follower)
    if of_log and seen.is_log_changed:
        return seen
    is_changed = plan.holes or plan.patches or plan.is_cut or plan.odd
    if not (is_changed or follower.is_cut_short or len(batch_topics) > known):
        follower.finish(plan)
    else:
        # Placeholders belong between the messages, cut-off messages are gone, and some topics turned out to keep inner
        # batches: all again, in order.
        tally, index = DifferenceCounter(), _IndexView.of(reader, start)
        index.differs = any(hole.lost for hole in plan.holes)  # entries of lost messages lead to none
        index.verifier.anew = {patch.position: patch.data for patch in plan.patches}
        index.verifier.anew |= plan.bridges.corrected if plan.bridges else {}
        follower = _DerivedChecker(reader, start, tally, index, batch_topics, began_at)
        if index.differs and start <= reader.commit_log.min_offset:
            follower.keys = _KeptKeys()
        follower.walk(plan, jobs, tags)
    return _Seen(reader, start, plan, unsound, tally, index, follower)


def _behind(log: CommitLog, plan: LogPlan) -> Iterator[MappedFile]:
    """Yield the segments beyond the end, except for empty ones that a broker has made ahead."""
    end = next((segment.end_offset for segment in log.segments if segment.end_offset >= plan.end_offset), 0)
    for segment in log.segments:
        if segment.start_offset < plan.end_offset or segment is log.segments[0]:
            continue
        if segment.start_offset > end or segment.bytes.any():
            yield segment
        else:
            end = segment.start_offset + log.file_size


def _left_over(reader: StoreReader, plan: LogPlan) -> Iterator[tuple[MappedFile, int, int]]:
    """Yield what is not zero in the last segment beyond the end, except for a correct blank record."""
    for segment in reader.commit_log.segments:
        if segment.start_offset <= plan.end_offset < segment.end_offset:
            at = plan.end_offset - segment.start_offset
            if plan.is_cut and isinstance(segment, PatchedFile):
                segment = segment.on_disk  # beyond the end nothing is put back
            _, magic = read_start(segment.read(at, layout.BLANK_SIZE))
            if magic == layout.MAGIC_BLANK and reader.commit_log.is_blank(segment, at):
                continue
            for start in range(at, segment.size, _STEP):
                if (segment.bytes[start : start + _STEP] != 0).any():
                    yield segment, at, segment.size
                    break


class _IndexFiles:
    """Whether something is wrong with the index files by themselves.

    If the log is sound they are checked in parallel; if messages are lost the index is rebuilt in any case.
    """

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._look: Future[bool] | None = None

    def begin(self, beside: ThreadPoolExecutor) -> None:
        """Start a thread that checks them, if none has been started."""
        self._look = self._look or beside.submit(self._find)

    @property
    def differ(self) -> bool:
        """Whether something is wrong."""
        return self._look.result() if self._look else self._find()

    def _find(self) -> bool:
        reader = self._reader
        problems = [any(finding.severity != "note" for finding in index_checks.check_folder(reader))]
        for file in reader.index_files:
            problems.append(any(index_checks.check_header(reader, file)))
            problems.append(bool(index_checks.check_chains(reader, file, scan.kernels_for(file.size), live=False)))
        return any(problems)


def _index_is_wrong(reader: StoreReader, plan: LogPlan, verifier: _IndexView, files: _IndexFiles) -> bool:
    if verifier.verifier.is_off:
        return False
    if not reader.index_files:
        return bool(plan.kept)
    if verifier.differs or files.differ:
        return True
    return any(finding.severity != "note" for finding in verifier.verifier.finish(plan.end_offset))


def _checkpoint(reader: StoreReader, plan: LogPlan, must: bool) -> bytes | None:
    """Return the checkpoint for the log, None if the old one may stay."""
    old = None
    with contextlib.suppress(BadDataError):  # too short
        old = reader.checkpoint
    if plan.last_start < 0:
        return bytes(checkpoint.CHECKPOINT_SIZE) if old is None else None
    fields: dict[str, Any] = dict.fromkeys(checkpoint.CHECKPOINT.names, 0)
    if old is not None:
        fields = {name: old[name] for name in fields}
        times = ("physical_timestamp", "logics_timestamp", "index_timestamp")
        ahead = any(fields[name] > plan.last_timestamp for name in times)
        beyond = (
            fields["confirm_physical_offset"] > plan.end_offset or fields["logics_physical_offset"] > plan.end_offset
        )
        is_long = reader.paths.checkpoint.stat().st_size != checkpoint.CHECKPOINT_SIZE
        must = must or ahead or beyond or is_long
    if not must and old is not None:
        return None
    fields["physical_timestamp"] = fields["logics_timestamp"] = plan.last_timestamp
    full = [file.header.end_timestamp for file in reader.index_files[:-1]]
    fields["index_timestamp"] = min(plan.last_timestamp, max(full, default=0))
    for name in ("confirm_physical_offset", "logics_physical_offset"):
        fields[name] = plan.last_start if fields[name] else 0
    fields["rest"] = bytes(checkpoint.CHECKPOINT.size_of("rest"))
    built = bytes(checkpoint.CHECKPOINT.schema.build(fields))
    return None if old is not None and built == reader.paths.checkpoint.read_bytes() else built


# The plan in words


def _changes(recovery: Recovery) -> Iterator[Change]:
    reader, log = recovery.reader, recovery.reader.commit_log
    relative = functools.cache(reader.paths.relative)
    names = {renamed.path: renamed.target for renamed in recovery.placement.renamed}

    def named(path: Path) -> str:  # as it is called by then
        return relative(names.get(path, path))

    segments = {segment.start_offset: segment for segment in log.segments}
    created = {segment.start_offset for segment in recovery.back.created}

    def file_at(base: int) -> str:  # a new segment may have the name that another one yields
        if base in segments:
            return (relative if base in created else named)(segments[base].path)
        return relative(log.folders[0] / segment_name(base))

    for gone in recovery.placement.removed:
        yield Change("remove", relative(gone.path), gone.reason, None, gone.size)
    for renamed in recovery.placement.renamed:
        by = "its records say that it is" if renamed.has_records else "without records, it yields its name and becomes"
        yield Change("rename", relative(renamed.path), f"{by} segment {renamed.target.name}")
    for base in sorted({hole.segment_offset for hole in recovery.log.holes} - set(segments) | created):
        path = log.folders[0] / segment_name(base)
        yield Change("create", relative(path), "the segment is missing", None, log.file_size)
    for segment in _of_wrong_length(recovery):
        yield _size_change(named(segment.path), segment.size, log.file_size)
    for segment, start, size, count in recovery.back.told:
        text = f"{count:,} record{'s belong here and are' if count > 1 else ' belongs here and is'} elsewhere"
        yield Change("write", file_at(segment.start_offset), text, start, size)
    for hole in recovery.log.holes:
        text = "; ".join(hole.reasons)
        if hole.lost or not hole.own:
            count = hole.lost
            text += f": {count:,} placeholder{'s bridge' if count != 1 else ' bridges'} the gap"
        yield Change("write", file_at(hole.segment_offset), text, hole.start - hole.segment_offset, hole.size)
    for patch in recovery.log.patches:
        at = patch.position - patch.segment_offset
        yield Change("write", file_at(patch.segment_offset), patch.reason, at, len(patch.data))
    for segment, start, stop in recovery.cleared:
        text = "what is left after the last message is cleared, because it could come back"
        yield Change("cut", named(segment.path), text, start, stop - start)
    for segment in recovery.removed:
        yield Change("remove", named(segment.path), "it is beyond the end of the log", None, segment.size)
    for path in recovery.of_wrong_type:
        yield Change("remove", relative(path), "the queues of this topic are of another type: brokers refuse them")
    yield from _size_changes(reader, recovery.of_wrong_type)
    for (topic, queue_id), count in sorted(recovery.queues.written.items()):
        folder = relative(reader.paths.consume_queue / topic / str(queue_id))
        yield Change(
            "write", folder, f"{count:,} unit{'s are' if count != 1 else ' is'} missing or wrong", None, count * 20
        )
    for (topic, queue_id), end in sorted(recovery.queues.trimmed.items()):
        folder = relative(reader.paths.consume_queue / topic / str(queue_id))
        yield Change("cut", folder, f"units from {end:,} on have no message")
    for topic, queue_id in recovery.batch_queues:
        folder = relative(reader.paths.batch_consume_queue / topic / str(queue_id))
        yield Change("replace", folder, "units are missing or wrong")
    if recovery.index:
        yield Change("replace", relative(reader.paths.index), "the index does not match the log")
    if recovery.checkpoint is not None:
        yield Change("write", "checkpoint", "it records how far log and queues reach", 0, len(recovery.checkpoint))
    if reader.paths.abort.exists():
        yield Change("remove", "abort", "the store is as after a clean stop")


def _size_changes(reader: StoreReader, removed: Collection[Path]) -> Iterator[Change]:
    if reader.rocksdb_queues is not None:
        return
    for queue, size in _queues_that_stay(reader, removed):
        for stray in queue.strays:
            if not stray.is_folder:
                yield Change("remove", reader.paths.relative(stray.path), "not a queue file: brokers refuse it")
        for segment in queue.segments:
            if segment.size != size:
                yield _size_change(reader.paths.relative(segment.path), segment.size, size)


def _queues_that_stay(reader: StoreReader, removed: Collection[Path]) -> Iterator[tuple[FileQueue, int]]:
    """Yield all queues except those in removed folders, each with the correct length of its files."""
    sizes = Sizes.of(reader)
    of_kinds: list[tuple[Iterable[FileQueue], int]] = [
        (reader.consume_queues.values(), sizes.queue),
        (reader.batch_consume_queues.values(), sizes.batch_queue),
        (reader.consume_queue_exts.values(), sizes.ext),
    ]
    for queues, size in of_kinds:
        yield from ((queue, size) for queue in queues if queue.folders[0].parent not in removed)


def _size_change(file: str, size: int, right: int) -> Change:
    text = f"the file is not {right:,} bytes long: brokers refuse to start with it"
    return Change("cut" if size > right else "write", file, text, min(size, right), abs(size - right))


def _remarks(recovery: Recovery) -> list[str]:
    log = recovery.log
    remarks = [
        *recovery.reader.remarks,
        *log.remarks,
        *older_versions.remarks(recovery.reader, log.kept, log.end_offset),
    ]
    if recovery.is_widened:
        remarks.append(
            f"queues lack units of messages before the last {_NORMAL_SEGMENTS} segments, have them at the places of "
            "later ones, lead to no message there, or are rebuilt; or these segments lack messages that may be "
            "elsewhere, or contain none: the whole log is read and repaired, as with --abnormal"
        )
    if recovery.start_offset > recovery.reader.commit_log.min_offset:
        before = f"{recovery.start_offset:,}"
        remarks.append(f"as after a clean stop, the log before {before} was not checked: --abnormal reads all of it")
    for gap in log.unplaced:
        topic, queue_id = gap.queue
        offsets = gap.start if gap.messages == 1 else f"{gap.start} to {gap.stop - 1}"
        remarks.append(
            f"there is no room for a placeholder for {topic} {queue_id} {offsets}: a broker that rebuilds its queues "
            "will move the later units of that queue; those that exist lead to no message of it (LOG-QUEUE-ORDER, "
            "QUEUE-DANGLING, QUEUE-BEYOND)"
        )
    if recovery.reader.rocksdb_queues is not None:
        remarks.append("the queues are in RocksDB: they are left unchanged, the broker completes them itself")
        remarks.append(untold_of_rocksdb(recovery.reader.commit_log))
    return remarks


def _left(reader: StoreReader, recovery: Recovery) -> Iterator[str]:
    bridged = [(hole.start, hole.end) for hole in recovery.log.holes if hole.lost]
    renamed = reader.with_log(recovery.placement.log) if recovery.placement.renamed else reader
    yield from left_alone.remarks(reader, renamed, recovery.ends, recovery.log.end_offset, recovery.log.left, bridged)
    yield from _without_type(recovery)


def _without_type(recovery: Recovery) -> Iterator[str]:
    """Yield a sentence if topics have queues of inner batches, and settings that do not say so."""
    reader = recovery.reader
    of_batches = {topic for topic, _ in (*reader.batch_consume_queues, *recovery.batch_queues)}
    in_rocksdb = any(rocksdb.is_rocksdb(reader.paths.config / name) for name in rocksdb.CONFIG_DATABASES)
    if not of_batches or in_rocksdb:
        return
    untyped = sorted(of_batches.intersection(recovery.batch_topics) - set_to_batch(reader))
    if untyped:
        more = f", and {len(untyped) - 1:,} more" if len(untyped) > 1 else ""
        folder = reader.paths.relative(reader.paths.batch_consume_queue / untyped[0])
        yield (
            f"left unchanged (QUEUE-TYPE): {folder}: the type of the topic is not BatchCQ{more}: brokers refuse to "
            "start; run `mqtool rebuild config`"
        )


def _rehearse(recovery: Recovery, journal: Journal) -> None:
    """Make the costly changes; ``_made`` estimates those that depend on others."""
    reader = recovery.reader
    if not recovery.placement.renamed:  # the new names do not exist yet
        _apply_log(recovery, journal, _unwritten)
    if reader.rocksdb_queues is None:
        _apply_queue_files(recovery, reader, journal)
        with journal.together():
            recovery.queues.tell(QueueWriter(reader, journal))
    if recovery.index and reader.paths.index.exists():
        journal.remove(reader.paths.index)
    _apply_rest(recovery, reader, journal)


def _made(recovery: Recovery) -> tuple[int, int]:
    """Return upper bounds for what cannot be rehearsed: bytes written, and bytes that undo needs."""
    reader, log = recovery.reader, recovery.log
    written = noted = 0
    if recovery.placement.renamed:
        written = sum(hole.size for hole in log.holes)
        written += sum(len(patch.data) for patch in (*log.patches, *recovery.back.patches))
        noted = written + sum(stop - start for _, start, stop in recovery.cleared)
        too_long = recovery.placement.too_long
        noted += sum(min(segment.size - reader.commit_log.file_size, allocated(segment.path)) for segment in too_long)
    if recovery.queues.units is None:
        size = sum(recovery.queues.written.values()) * consume_queue.UNIT_SIZE
        written, noted = written + size, noted + size
    keys = recovery.batch_queues
    written += sum(allocated(reader.paths.batch_consume_queue / topic / str(queue_id)) for topic, queue_id in keys)
    if recovery.index:
        shape, entries = shape_of(reader), recovery.entries
        if recovery.start_offset > reader.commit_log.min_offset:  # the old index has the messages before it
            entries += sum(file.entry_stop for file in reader.index_files)
        files = 1 + entries // max(1, shape.entries - 1)
        written += files * int(index_file.HEADER_SIZE + shape.slots * index_file.SLOT_SIZE)
        written += entries * int(index_file.ENTRY_SIZE)
    return written, noted


def _of_wrong_length(recovery: Recovery) -> list[MappedFile]:
    """Return the segments that are too long or too short, as long as they are, except for those that are removed."""
    removed = {segment.path for segment in recovery.removed}
    return [segment for segment in recovery.placement.of_wrong_length if segment.path not in removed]


# Doing it


Pieces = Iterable[tuple[int, bytes]]


def _pieces(bridges: Bridges, holes: list[Hole]) -> Pieces:
    """Yield positions and bytes of the records that bridge holes."""
    for hole in holes:
        all_pieces = bridges.pieces(hole.start, hole.end)
        for position, data in one_ahead(all_pieces) if hole.size > _STEP else all_pieces:
            yield position, cast(bytes, data.data)  # not copied: it is most of what is written


def _unwritten(bridges: Bridges, holes: list[Hole]) -> Pieces:
    """Yield the same, but only the number of bytes."""
    for position, size in bridges.extents(holes):
        yield position, cast(bytes, range(size))


def _apply_log(recovery: Recovery, journal: Journal, pieces: Callable[[Bridges, list[Hole]], Pieces] = _pieces) -> None:
    log = recovery.reader.commit_log
    size = log.file_size
    for gone in recovery.placement.removed:
        journal.remove(gone.path)
    if recovery.placement.renamed:
        journal.rename([(renamed.path, renamed.target) for renamed in recovery.placement.renamed])
        recovery.placement.carried_out(log)
    for segment in recovery.removed:
        journal.remove(segment.path)
    for segment in _of_wrong_length(recovery):
        journal.truncate(segment.path, size)
    paths = {segment.start_offset: segment.path for segment in log.segments}
    for base in sorted({hole.segment_offset for hole in recovery.log.holes} - set(paths)):
        paths[base] = log.folders[0] / segment_name(base)
        journal.create(paths[base], size)
    for segment in recovery.back.created:
        journal.create(segment.path, size)
    with journal.together():
        for patch in recovery.back.patches:
            journal.write(paths[patch.segment_offset], patch.position - patch.segment_offset, patch.data)
        if recovery.log.bridges:
            _write_bridges(recovery.log.bridges, recovery.log.holes, paths, journal, pieces)
        for patch in recovery.log.patches:
            journal.write(paths[patch.segment_offset], patch.position - patch.segment_offset, patch.data)
    for segment, start, _ in recovery.cleared:
        journal.truncate(segment.path, start)
        journal.truncate(segment.path, size)


def _write_bridges(
    bridges: Bridges,
    holes: Collection[Hole],
    paths: Mapping[int, Path],
    journal: Journal,
    pieces: Callable[[Bridges, list[Hole]], Pieces],
) -> None:
    """Write the records that bridge holes; ``paths``: of segments, by their start address."""
    long = [hole for hole in holes if hole.size > _STEP]
    for hole in long:  # first, so that their notes need not wait for earlier writes
        for position, size in bridges.extents([hole]):
            at = position - hole.segment_offset
            journal.note(paths[hole.segment_offset], at, at + size)
    short = [hole for hole in holes if hole.size <= _STEP]
    for write, holes_of_kind in ((journal.write, short), (journal.write_noted, long)):
        for base, holes_of_segment in itertools.groupby(holes_of_kind, lambda hole: hole.segment_offset):
            path = paths[base]
            for position, data in pieces(bridges, list(holes_of_segment)):
                write(path, position - base, data)


def _apply_sizes(queue: FileQueue, size: int, journal: Journal) -> None:
    """Give the files of a queue their correct length, and remove foreign files: brokers refuse both."""
    for stray in queue.strays:
        if not stray.is_folder:
            journal.remove(stray.path)
    for segment in queue.segments:
        if segment.size != size:
            journal.truncate(segment.path, size)


def _apply_batch_queues(
    reader: StoreReader, keys: list[tuple[str, int]], odd: Collection[tuple[str, int]], journal: Journal, jobs: int
) -> None:
    if not keys:
        return
    into = journal.workspace / "batch"
    build_queues(reader, into, journal.disk, {topic for topic, _ in keys}, jobs, odd=odd)
    for topic, queue_id in keys:
        draft = into / BATCH_CONSUME_QUEUE.name / topic / str(queue_id)
        target = reader.paths.batch_consume_queue / topic / str(queue_id)
        if draft.exists():
            journal.move_in(draft, target)
        else:
            journal.remove(target)


def _apply_queue_files(recovery: Recovery, reader: StoreReader, journal: Journal) -> None:
    for topic in recovery.of_wrong_type:
        journal.remove(topic)
    for queue, size in _queues_that_stay(reader, recovery.of_wrong_type):
        _apply_sizes(queue, size, journal)


def _apply_rest(recovery: Recovery, reader: StoreReader, journal: Journal) -> None:
    if recovery.checkpoint is not None:
        path = reader.paths.checkpoint
        if not path.exists():
            journal.create(path, checkpoint.CHECKPOINT_SIZE)
        elif path.stat().st_size != checkpoint.CHECKPOINT_SIZE:
            journal.truncate(path, checkpoint.CHECKPOINT_SIZE)
        journal.write(path, 0, recovery.checkpoint)
    if reader.paths.abort.exists():
        journal.remove(reader.paths.abort)


def _apply_index(reader: StoreReader, keys: list[_Keys] | None, journal: Journal, jobs: int) -> None:
    into = journal.workspace / "new"
    if keys is None:
        build_index(reader, into, journal.disk, None, jobs)
    else:
        kernels = scan.kernels_for(reader.commit_log.total_size)
        journal.disk.make_folder(into)
        builder = IndexBuilder(into / INDEX.name, journal.disk, shape_of(reader), kernels)
        for run_keys in keys:
            run_keys.add_to(builder)
        builder.finish()
    if (into / INDEX.name).exists():
        journal.move_in(into / INDEX.name, reader.paths.index)
    elif reader.paths.index.exists():
        journal.remove(reader.paths.index)
