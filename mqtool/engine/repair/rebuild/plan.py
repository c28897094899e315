"""Queues and index rebuilt from the commit log, in one walk over it.

Stretches of the log are dispatched in parallel and taken in order by the builders of queues and index. Messages
after damage are taken, too; a broker's own rebuild ends there. ``build`` writes to any folder; the repair writes
in the workspace of its journal and then swaps them in.

Cost: linear in the log; memory holds a few stretches, whatever its size.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.missing_log import require_log
from mqtool.engine.repair.parts import (
    Part,
    PartReport,
    Progress,
    in_order,
    part_size,
    parts_below,
    parts_of,
    spans_of,
    walk_part,
)
from mqtool.engine.repair.placement import place
from mqtool.engine.repair.plan import Change, Loss, Plan
from mqtool.engine.repair.rebuild import config as rebuild_config
from mqtool.engine.repair.rebuild.index import IndexBuilder, shape_of
from mqtool.engine.repair.rebuild.losses import given_up
from mqtool.engine.repair.rebuild.queues import (
    FOLDERS,
    QueueBuilder,
    QueueRange,
    Sizes,
    UnitBlock,
    folder_of,
    has_ext,
    pieces_of,
    tell,
)
from mqtool.engine.repair.rehearsal import CountingDisk, rehearsed
from mqtool.engine.repair.verify.index import IndexVerifier
from mqtool.engine.repair.verify.log import LogVerifier, Run, last_start
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.disk import Disk, allocated
from mqtool.engine.store.dispatch import (
    IndexEntries,
    QueueKey,
    Units,
    by_topic,
    dispatch,
    inner_batch_topics,
    no_entries,
)
from mqtool.engine.store.fast_path import FastPath, take_fast_path
from mqtool.engine.store.file_kinds import INDEX
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, FormatError, MissingExtraError, NotFoundError, UsageError
from mqtool.formats import checkpoint, config_tables, scan
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import SCHEDULE_TOPIC

PART = 32 << 20
_LISTED = 10
_MAX_WAITING = 16  # tables whose entries are written to the index
VERSIONS = ("4.9", "5.3", "5.5")
TAGS_SINCE = "5.5"
"""Of ``VERSIONS``, the first whose index holds entries by tag."""
_INDEX_TIME_AT = checkpoint.CHECKPOINT.offset_of("index_timestamp")
_INDEX_TIME_SIZE = checkpoint.CHECKPOINT.size_of("index_timestamp")


_HOLES = {"LOG-MAGIC", "LOG-SIZES", "LOG-BLANK"}
"""Findings of ``LogVerifier`` for a stretch between messages that is not a record."""


@dataclasses.dataclass
class Derived(Run):
    """A run of messages, with their units and entries."""

    pieces: list[UnitBlock]
    inner_batches: set[str]  # topics that have some
    faulty: int  # records with inconsistent sizes or an impossible topic: they are in no queue
    more: bool  # messages without an index entry follow the last entry


@dataclasses.dataclass
class Built:
    """What a rebuild has created, and what it could not place."""

    queues: dict[QueueKey, QueueRange] = dataclasses.field(default_factory=dict)
    index_names: list[str] = dataclasses.field(default_factory=list)
    entries: int = 0
    index_timestamp: int = 0  # when the message of the last entry was stored
    messages: int = 0
    end_offset: int = 0  # of the log
    holes: int = 0  # places where the log is damaged
    unplaced: "collections.Counter[QueueKey]" = dataclasses.field(default_factory=collections.Counter)
    """Messages that got no unit, by queue: their queue offsets were taken, or no folder can have the name."""
    filled: "collections.Counter[str]" = dataclasses.field(default_factory=collections.Counter)
    """Queue offsets whose messages are lost, by topic."""
    gaps: dict[QueueKey, list[tuple[int, int]]] = dataclasses.field(default_factory=dict)
    """The same by queue, as ranges."""
    kinds: set[str] = dataclasses.field(default_factory=set)
    """Folders of queues that were created."""
    batch_topics: Collection[str] = ()
    """The topics that keep several messages in a unit, those included that have no queue."""

    @classmethod
    def of(cls, queues: QueueBuilder) -> "Built":
        """Return the queues that were written."""
        return cls(
            queues.ranges(), unplaced=queues.unplaced, filled=queues.filled, gaps=queues.gaps, kinds=queues.kinds()
        )

    @property
    def units(self) -> int:
        """The number of units."""
        return sum(queue.units for queue in self.queues.values())

    @property
    def unplaced_topics(self) -> "collections.Counter[str]":
        """Messages that got no unit, by topic."""
        counts: collections.Counter[str] = collections.Counter()
        for (topic, _), count in self.unplaced.items():
            counts[topic] += count
        return counts

    def forget(self, topics: Collection[str]) -> None:
        """Exclude the queues of some topics."""
        self.queues = {key: queue for key, queue in self.queues.items() if key[0] not in topics}
        self.gaps = {key: ranges for key, ranges in self.gaps.items() if key[0] not in topics}
        self.unplaced = collections.Counter({key: n for key, n in self.unplaced.items() if key[0] not in topics})
        self.filled = collections.Counter({topic: n for topic, n in self.filled.items() if topic not in topics})

    def add(self, other: "Built") -> None:
        """Add the queues of another walk."""
        self.queues |= other.queues
        self.unplaced += other.unplaced
        self.filled += other.filled
        self.gaps |= other.gaps
        self.kinds |= other.kinds


@dataclasses.dataclass(frozen=True)
class RebuildRules:
    """What is derived from the log of a store."""

    reader: StoreReader
    kernels: Any
    delay_levels: list[int]
    queues: bool
    index: bool
    topics: Collection[str] | None
    batch_topics: Collection[str]
    with_times: bool
    with_tags: bool
    odd: Mapping[str, Ints] = dataclasses.field(default_factory=dict)
    """Messages that get no unit, for ``Units.without``."""


def build_queues(
    reader: StoreReader,
    into: Path,
    disk: Disk,
    topics: Collection[str] | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    odd: Collection[tuple[str, int]] = (),
) -> Built:
    """Rebuild the queues of a store below ``into``: consumequeue/, batchconsumequeue/, consumequeue_ext/.

    Args:
        reader: of the store, which is only read.
        into: a folder, created if it is missing, without any of these.
        disk: through which everything is written; it is synced when this returns.
        topics: only these; None for all.
        jobs: number of threads.
        progress: called with the number of bytes of the log done so far.
        odd: topics and addresses of messages that get no unit.

    Raises:
        WriteError: the disk is full, or fails.
    """
    return build(reader, into, disk, index=False, topics=topics, jobs=jobs, progress=progress, odd=odd)


def build_index(
    reader: StoreReader,
    into: Path,
    disk: Disk,
    version: str | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
) -> Built:
    """Rebuild the index of a store in ``into / "index"``; ``version`` as in ``build``, all else as above."""
    return build(reader, into, disk, queues=False, version=version, jobs=jobs, progress=progress)


def build(
    reader: StoreReader,
    into: Path,
    disk: Disk,
    queues: bool = True,
    index: bool = True,
    topics: Collection[str] | None = None,
    version: str | None = None,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    odd: Collection[tuple[str, int]] = (),
) -> Built:
    """Rebuild queues, index or both below ``into``, in one walk over the log.

    Args:
        reader: of the store, which is only read.
        into: a folder, created if it is missing.
        disk: through which everything is written; it is synced when this returns.
        queues: whether to build the queues.
        index: whether to build the index, which is of all topics.
        topics: queues of these only; None for all.
        version: of ``VERSIONS``: whose broker will use the index; None for the one that the store shows.
        jobs: number of threads.
        progress: called with the number of bytes of the log done so far.
        odd: topics and addresses of messages that get no unit.

    Raises:
        WriteError: the disk is full, or fails.
    """
    rules = rules_of(reader, queues, index, topics, version)
    rules = dataclasses.replace(rules, odd=by_topic(odd))
    known = set(rules.batch_topics)
    new_folders = make_folders(disk, into)
    built, shown = _build(rules, into, disk, jobs, progress)
    late = shown - known if topics is None else (shown - known) & set(topics)
    built.batch_topics = known | late
    if late and queues:
        # Only the log shows that these topics hold inner batches, and it was noticed too late.
        for topic, kind in itertools.product(sorted(late), FOLDERS):
            disk.remove_tree(into / kind / topic)
        built.forget(late)
        rules = dataclasses.replace(rules, index=False, topics=late, batch_topics=known | late)
        again, _ = _build(rules, into, disk, jobs, lambda _: None)
        built.add(again)
    for folder in (*new_folders, into):
        disk.sync_folder(folder)
    return built


def rules_of(
    reader: StoreReader, queues: bool, index: bool, topics: Collection[str] | None, version: str | None
) -> RebuildRules:
    """Return the rules of a walk for ``build``, with the same arguments."""
    return RebuildRules(
        reader=reader,
        kernels=scan.kernels_for(reader.commit_log.total_size),
        delay_levels=reader.delay_levels,
        queues=queues,
        index=index,
        topics=topics,
        batch_topics=batch_topics_of(reader),
        with_times=has_ext(reader),
        with_tags=index and has_tags(reader, version),
    )


def parts_to_walk(reader: StoreReader, kernels: Any, size: int) -> list[Part]:
    """Return the stretches of a log, of so many bytes at most."""
    parts = list(parts_of(reader.commit_log, size))
    if reader.is_live:  # what a broker writes meanwhile may be incomplete
        parts = parts_below(parts, last_start(reader.commit_log, kernels))
    return parts


def in_turn(log: LogVerifier, reports: Iterable[PartReport[Run]]) -> Iterator[Derived | None]:
    """Yield each run that belongs to the log, in order, and None if a stretch of the log was lost."""
    segment: MappedFile | None = None
    for report in reports:
        for event in log.take(report):
            if isinstance(event, Derived):
                if event.faulty > 0 or _is_apart(segment, event.segment):
                    yield None
                segment = event.segment
                yield event
            elif isinstance(event, Finding) and event.code in _HOLES:
                yield None


def _build(rules: RebuildRules, into: Path, disk: Disk, jobs: int, progress: Progress) -> tuple[Built, set[str]]:
    """Walk over the log once; return what was built, and the topics that turned out to hold inner batches."""
    reader = rules.reader
    log = LogVerifier(reader, live=False)
    built, shown = Built(), set[str]()
    with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(1) as beside:
        # With only one thread things are done in order.
        index_work = _Backlog(beside if jobs > 1 else None)
        queues = index = None
        if rules.queues:
            queues = QueueBuilder(reader, into, disk, Sizes.of(reader), rules.batch_topics, pool, jobs)
        if rules.index:
            index = IndexBuilder(into / INDEX.name, disk, shape_of(reader), rules.kernels)
        parts = parts_to_walk(reader, rules.kernels, part_size(PART, jobs))
        reports = _told(in_order(pool, functools.partial(walk_stretch, rules), parts, jobs + 2), progress)
        for run in in_turn(log, reports):
            if run is None:
                built.holes += 1
                if queues:
                    queues.shake()
                continue
            shown |= run.inner_batches
            if queues:
                queues.add(run.pieces, torn=run.faulty > 0, in_place=run.in_place)
            if index:
                index_work.add(functools.partial(index.add, run.entries, run.last_timestamp, run.more))
        if index:
            index_work.add(index.finish)
        if queues:
            queues.finish()
            built.add(Built.of(queues))
        index_work.finish()
        if index:
            built.index_names, built.entries = [path.name for path in index.paths], index.entries
            built.index_timestamp = index.end_timestamp
    built.messages, built.end_offset = log.count, log.end_offset
    return built, shown


def _told(reports: Iterable[PartReport[Run]], progress: Progress) -> Iterator[PartReport[Run]]:
    done = 0
    for report in reports:
        yield report
        done += report.part.stop - report.part.start
        progress(done)


class _Backlog:
    """A bounded queue of work that another thread does in order."""

    def __init__(self, pool: ThreadPoolExecutor | None) -> None:
        self._pool = pool
        self._waiting: collections.deque[Future[None]] = collections.deque()

    def add(self, work: Callable[[], None]) -> None:
        """Do it, or queue it; an error of earlier work is raised here."""
        if self._pool is None:
            work()
            return
        self._waiting.append(self._pool.submit(work))
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popleft().result()

    def finish(self) -> None:
        """Wait until all is done."""
        while self._waiting:
            self._waiting.popleft().result()


def _is_apart(before: MappedFile | None, after: MappedFile) -> bool:
    """Return whether segments are missing between two segments."""
    return before is not None and before is not after and before.end_offset != after.start_offset


def walk_stretch(rules: RebuildRules, part: Part, start: int | None = None) -> PartReport[Run]:
    """Derive units and entries of the messages that begin in a stretch; ``start``: of its first record, if known."""
    log = rules.reader.commit_log

    def quick(start: int) -> Iterator[Run]:
        stretches = take_fast_path(log, part.segment, start, part.stop, rules.kernels, False, rules.with_tags)
        return (_fast_path_run(rules, part.segment, stretch) for stretch in stretches)

    return walk_part(log, rules.kernels, part, start, lambda table: _derive(rules, part.segment, table), quick)


def _fast_path_run(rules: RebuildRules, segment: MappedFile, stretch: FastPath) -> Derived:
    return Derived(
        segment=segment,
        start=stretch.start,
        end=stretch.end,
        in_place=True,
        stated_offset=segment.start_offset + stretch.start,
        count=stretch.count,
        first_timestamp=stretch.first_timestamp,
        last_timestamp=stretch.last_timestamp,
        findings=[],
        spans=spans_of(stretch.units),
        entries=stretch.entries if rules.index else no_entries(),
        pieces=_pieces(rules, stretch.units),
        inner_batches=set(),
        faulty=0,
        more=rules.index and _has_more(stretch.entries, stretch.count),
    )


def _pieces(rules: RebuildRules, units: Units) -> list[UnitBlock]:
    return pieces_of(units, rules.batch_topics, rules.with_times, rules.topics, rules.odd) if rules.queues else []


def _has_more(entries: IndexEntries, count: int) -> bool:
    """Return whether messages without an entry follow the last entry of some messages."""
    return not len(entries.rows) or int(entries.rows[-1]) < count - 1


def _derive(rules: RebuildRules, segment: MappedFile, table: MessageTable) -> Iterator[Run]:
    """Dispatch a table, split where records in place and records from elsewhere meet."""
    placed = table.column("position") == table.column("physical_offset")
    edges = [0, *(np.flatnonzero(placed[1:] != placed[:-1]) + 1).tolist(), len(table)]
    for first, last in itertools.pairwise(edges):
        whole = first == 0 and last == len(table)
        yield _derive_run(rules, segment, table if whole else table.where(slice(first, last)), bool(placed[first]))


def _derive_run(rules: RebuildRules, segment: MappedFile, table: MessageTable, in_place: bool) -> Derived:
    sound = table if not table.faults.any() else table.where(table.faults == 0)
    if not in_place:
        sound = sound.where(~_are_copies(rules.reader.commit_log, sound))
    timestamps = table.column("store_timestamp")
    pieces: list[UnitBlock] = []
    spans, entries, more, inner_batches = [], no_entries(), False, set[str]()
    faulty = len(table) - len(sound)
    if len(sound):
        faulty += int(sound.nameless().sum())
        derived = dispatch(sound, rules.delay_levels, rules.with_tags)
        units = derived.units.of_possible()
        spans = spans_of(units)
        pieces = _pieces(rules, units)
        inner_batches = inner_batch_topics(sound, derived.properties)
        if rules.index:
            entries, more = derived.entries, _has_more(derived.entries, len(sound))
    return Derived(
        segment=segment,
        start=int(table.starts[0]) - rules.reader.commit_log.envelope.size,
        end=int(table.starts[-1]) + int(table.column("size")[-1]),
        in_place=in_place,
        stated_offset=int(table.column("physical_offset")[0]),
        count=len(table),
        first_timestamp=int(timestamps[0]),
        last_timestamp=int(timestamps[-1]),
        findings=[],
        spans=spans,
        entries=entries,
        pieces=pieces,
        inner_batches=inner_batches,
        faulty=faulty,
        more=more,
    )


def _are_copies(log: CommitLog, table: MessageTable) -> npt.NDArray[np.bool_]:
    """Return which records have a copy at their stated address: only the copies get units."""
    rows = zip(range(len(table)), table.column("physical_offset").tolist(), strict=True)
    return np.array([log.read(stated, len(table.record(row))) == table.record(row) for row, stated in rows], np.bool_)


def batch_topics_of(reader: StoreReader) -> set[str]:
    """Return the topics that keep several messages in a unit: by their settings, or because all their queues do."""
    of_others = {topic for topic, _ in reader.consume_queues}
    return {topic for topic, _ in reader.batch_consume_queues if topic not in of_others} | set_to_batch(reader)


def set_to_batch(reader: StoreReader) -> set[str]:
    """Return the topics whose settings say that they keep several messages in a unit, none if these are unreadable."""
    try:
        table = reader.config_table("topics.json")
        return {topic.topic for topic in config_tables.topics(table or {}).values() if topic.is_batch}
    except (BadDataError, FormatError, MissingExtraError):  # the log shows it, too
        return set()


def has_tags(reader: StoreReader, version: str | None) -> bool:
    """Return whether a broker of ``version``, or else the one that wrote the store, makes index entries by tag."""
    if version is not None:
        return VERSIONS.index(version) >= VERSIONS.index(TAGS_SINCE)
    return IndexVerifier(reader, live=False).has_tags()


def make_folders(disk: Disk, path: Path) -> list[Path]:
    """Create a folder and its missing parents; return the folders that got new entries."""
    missing = list(itertools.takewhile(lambda folder: not folder.exists(), (path, *path.parents)))
    for folder in reversed(missing):
        disk.make_folder(folder)
    return [folder.parent for folder in missing]


# The repair

TARGETS = ("queues", "index", "config", "all")
_NO_NAME = "\0"  # of any file
_TAKEN = "their queue offsets belong to other messages, or are impossible: they are in no queue, as before"


@dataclasses.dataclass(frozen=True)
class _Request:
    """What must be rebuilt, from the options of a plan."""

    queues: bool
    index: bool
    config: bool
    topics: tuple[str, ...] | None
    version: str | None
    survey: bool

    @classmethod
    def of(cls, reader: StoreReader, options: Mapping[str, Any]) -> "_Request":
        target, topics = options["target"], options.get("topics")
        if target not in TARGETS:
            raise UsageError(f"{target} cannot be rebuilt: use one of {', '.join(TARGETS)}")
        if topics and target != "queues":
            raise UsageError("only queues can be rebuilt for individual topics")
        queues, index = target in ("queues", "all"), target in ("index", "all")
        if queues and reader.rocksdb_queues is not None:
            if target == "queues":
                raise UsageError(
                    "the queues of this store are in RocksDB: a broker rebuilds them itself; --into DIR creates files"
                )
            tell(reader, "the queues are in RocksDB and are left unchanged: a broker rebuilds them itself")
            queues = False
        return cls(
            queues,
            index,
            target in ("config", "all"),
            tuple(topics) if topics else None,
            options.get("version"),
            options.get("survey", True),
        )


def plan_rebuild(reader: StoreReader, options: Mapping[str, Any], jobs: int, progress: Progress) -> Plan:
    """Plan to rebuild queues, index or config.

    Options: ``target`` is one of ``TARGETS``; ``topics`` limits the queues; ``version`` is whose broker will use the
    index; ``survey``: walk over the log to predict the result. Without a survey the plan predicts
    no loss, and ``apply_rebuild`` refuses if there is one.

    Raises:
        UsageError: meaningless options, queues that are not in files, or misnamed segments.
        NotFoundError: there is no log, or no message in it while there are queues or an index, or segments that it
            lacks are in folders that are not named.
    """
    refuse_log(reader)
    request = _Request.of(reader, options)
    changes, losses = [], []
    built = None
    disk = CountingDisk()
    if request.survey:
        built = _survey(reader, request, jobs, progress, disk)
        _refuse_empty(reader, request, built)
        if request.queues:
            losses = losses_of(reader, built, request.topics)
    if request.queues:
        changes += _queue_changes(reader, request, built)
    if request.index and (built is None or built.index_names):
        text = f"{built.entries:,} entries in {len(built.index_names):,} files" if built else "from the log"
        changes.append(Change(_verb(reader.paths.index), reader.paths.relative(reader.paths.index), text))
        changes += _index_time_changes(reader, built)
    elif request.index and reader.paths.index.exists():
        changes.append(Change("remove", reader.paths.relative(reader.paths.index), "no message of the log has a key"))
        changes += _index_time_changes(reader, built)
    if request.config:
        batch_topics = built.batch_topics if built else batch_topics_of(reader)
        further = built.queues if built else ()
        changes += rebuild_config.changes(reader, batch_topics, further, _ends(reader, request, built))
    room = disk.written if request.survey and (request.queues or request.index) else _room(reader, request)
    plan = Plan(
        "rebuild",
        dict(options),
        tuple(changes),
        tuple(losses),
        (
            *reader.remarks,
            *_remarks(reader, request, built),
            *(rebuild_config.left_unchanged(reader) if request.config else ()),
        ),
        write_size=room,
        growth=room,
        read_size=reader.commit_log.total_size,
    )
    return rehearsed(reader, plan, lambda journal: _rehearse(reader, request, built, journal))


def losses_of(reader: StoreReader, built: Built, topics: Collection[str] | None) -> list[Loss]:
    """Return the losses of rebuilt queues.

    Args:
        reader: of the store, with its queues as they were.
        built: the result of the rebuild.
        topics: of the rebuilt queues; None for all.
    """
    losses = [Loss(topic, count, 0, _TAKEN) for topic, count in sorted(built.unplaced_topics.items())]
    return [*losses, *given_up(reader, built.queues, built.gaps, topics, built.end_offset if reader.is_live else None)]


def _ends(reader: StoreReader, request: _Request, built: Built | None) -> dict[QueueKey, int] | None:
    """Return one past the last offset of each resulting queue; None if queues are not changed."""
    if built is None or not request.queues:
        return None
    kept = {key: reader.consume_queues[key].max_offset() for key in _expired(reader, request, built)}
    return {key: queue.next for key, queue in built.queues.items()} | kept


def _index_time_changes(reader: StoreReader, built: Built | None) -> Iterator[Change]:
    """Yield the change of the checkpoint; its time is known only after a walk over the log."""
    path, text = reader.paths.checkpoint, "an unclean stop must not drop the new index"
    if not path.exists():
        yield Change("create", "checkpoint", text, size=checkpoint.CHECKPOINT_SIZE)
        return
    time = None if built is None else built.index_timestamp.to_bytes(_INDEX_TIME_SIZE, "big", signed=True)
    if time is None or read_file(path)[_INDEX_TIME_AT:][:_INDEX_TIME_SIZE] != time:
        yield Change("write", "checkpoint", text, _INDEX_TIME_AT, _INDEX_TIME_SIZE)


def refuse_log(reader: StoreReader) -> None:
    """Raise an error if queues built from this log would lack existing messages; see ``plan_rebuild``."""
    require_log(reader)
    placement = place(reader.commit_log)
    wrong = [renamed.path for renamed in placement.renamed] + [
        removed.path for removed in placement.removed if removed.is_named
    ]
    if wrong:
        raise UsageError(
            f"{wrong[0]} does not have the name that its records show (LOG-NAME): `mqtool recover` renames segments, "
            "then rebuild"
        )


def _refuse_empty(reader: StoreReader, request: _Request, built: Built) -> None:
    """Raise ``NotFoundError`` where queues or index would go, as the log holds no message: they say what it held."""
    folders = [reader.root / kind for kind in FOLDERS] if request.queues else []
    folders += [reader.paths.index] if request.index else []
    existing = [path for path in folders if path.is_dir() and any(path.iterdir())]
    if not built.messages and existing:
        raise NotFoundError(
            f"the log of {reader.root} contains no messages: nothing can be rebuilt from it, and {existing[0].name} is "
            "kept, which shows what it contained; `mqtool recover` lists everything that is lost"
        )


_BODIES = (
    "bodies were not checked: as at a broker, a message whose body does not match its CRC is in its queue; "
    "`mqtool verify` finds such messages"
)


def _verb(path: Path) -> str:
    return "replace" if path.exists() else "create"


def _queue_changes(reader: StoreReader, request: _Request, built: Built | None) -> list[Change]:
    kinds = _kinds_made(reader, request, built) if built else _kinds_there(reader)
    if request.topics is None:
        text = f"{len(built.queues):,} queues with {built.units:,} units" if built else "from the log"
        changes = [Change(_verb(reader.root / kind), kind, text) for kind in kinds]
        gone = [kind for kind in _kinds_there(reader) if kind not in kinds and (reader.root / kind).exists()]
        return changes + [Change("remove", kind, "the log has no messages for its queues") for kind in gone]
    changes = []
    for topic, kind in itertools.product(request.topics, kinds):
        text = "from the log"
        if built:
            queues = [queue for key, queue in built.queues.items() if key[0] == topic]
            text = f"{len(queues):,} queues with {sum(queue.units for queue in queues):,} units"
        if kind == FOLDERS[0] or (reader.root / kind / topic).exists():
            changes.append(Change(_verb(reader.root / kind / topic), f"{kind}/{topic}", text))
    return changes


def _kinds_made(reader: StoreReader, request: _Request, built: Built) -> list[str]:
    """Return the folders of queues that are built, or kept because their messages have expired."""
    kept = [kind for key in _expired(reader, request, built) for kind in (FOLDERS[0], *dict(_ext_folder(reader, key)))]
    return [kind for kind in FOLDERS if kind in built.kinds or kind in kept]


def _kinds_there(reader: StoreReader) -> list[str]:
    return [kind for kind in FOLDERS if kind == FOLDERS[0] or (reader.root / kind).exists()]


def _remarks(reader: StoreReader, request: _Request, built: Built | None) -> Iterator[str]:
    if request.queues:
        yield _BODIES
    if built is None:
        yield "the log was not read for this plan: messages that cannot be placed are not predicted (--survey reads it)"
        return
    if built.holes:
        places = "one place" if built.holes == 1 else f"{built.holes:,} places"
        yield f"the log is damaged in {places}: a broker drops what comes after when it recovers; run `mqtool recover`"
    if "messageDelayLevel" not in reader.config.settings and any(
        key[0] == SCHEDULE_TOPIC and key not in reader.consume_queues for key in built.queues
    ):
        yield "delayed messages get the times of RocketMQ's default delay levels: set messageDelayLevel if yours differ"
    impossible = sorted(built.unplaced.keys() - built.queues.keys())
    for topic, queue_id in impossible[:_LISTED]:
        name = f"{folder_of(topic in built.batch_topics)}/{topic}/{queue_id}"
        why = "no broker has such a queue" if queue_id < 0 else "no queue has the offsets that its messages state"
        yield f"{name}: {why}, its messages get no unit; `mqtool recover` finds their places"
    if len(impossible) > _LISTED:
        yield f"the same applies to {len(impossible) - _LISTED:,} more queues"
    for topic, count in sorted(built.filled.items()):
        yield f"{topic}: {count:,} messages are missing in the log; filler units take their places in the queues"


def _rehearse(reader: StoreReader, request: _Request, built: Built | None, journal: Journal) -> None:
    """Rehearse the swap, to determine its cost."""
    if request.queues:
        if built:
            _keep_expired(reader, journal, request, built)
        for kind in FOLDERS if request.topics is None else ():
            if (reader.root / kind).exists():
                journal.remove(reader.root / kind)
        for topic in request.topics or ():
            if (reader.paths.consume_queue / topic).exists():
                journal.remove(reader.paths.consume_queue / topic)
    if request.index and (built is None or built.index_names or reader.paths.index.exists()):
        if reader.paths.index.exists():
            journal.remove(reader.paths.index)
        _note_index(reader, journal, 0)
    if request.config and built:
        rebuild_config.apply(reader, journal, built.batch_topics, built.queues, _ends(reader, request, built))


def _room(reader: StoreReader, request: _Request) -> int:
    """Return how many bytes the new files take if they are like the old ones."""
    folders = [reader.paths.consume_queue] * request.queues + [reader.paths.index] * request.index
    return sum(map(allocated, filter(Path.exists, folders)))


def _survey(reader: StoreReader, request: _Request, jobs: int, progress: Progress, disk: Disk | None = None) -> Built:
    """Return what a rebuild would make on a disk that only counts. Tables under ``config/`` follow from all queues."""
    if request.config:
        request = dataclasses.replace(request, queues=True)
    return _build_into(reader, reader.root / _NO_NAME, disk or CountingDisk(), request, jobs, progress)


def _build_into(reader: StoreReader, into: Path, disk: Disk, request: _Request, jobs: int, progress: Progress) -> Built:
    return build(
        reader,
        into,
        disk,
        queues=request.queues,
        index=request.index,
        topics=request.topics,
        version=request.version,
        jobs=jobs,
        progress=progress,
    )


def apply_rebuild(reader: StoreReader, plan: Plan, journal: Journal, jobs: int, progress: Progress) -> None:
    """Do what ``plan_rebuild`` planned: build everything beside the store, then swap it in.

    Raises:
        BadDataError: messages cannot be placed, and no survey predicted it.
    """
    request = _Request.of(reader, plan.options)
    built = None
    if request.queues or request.index:
        built = _build_into(reader, journal.workspace, journal.disk, request, jobs, progress)
        if request.queues and not request.survey:
            _refuse_untold(reader, request, built)
        if request.queues:
            _keep_expired(reader, journal, request, built)
            _swap_queues(reader, journal, request)
        if request.index and (built.index_names or reader.paths.index.exists()):
            if built.index_names:
                journal.move_in(journal.workspace / INDEX.name, reader.paths.index)
            else:
                journal.remove(reader.paths.index)
            _note_index(reader, journal, built.index_timestamp)
    if request.config:
        if built is None or not request.queues:
            built = _survey(reader, request, jobs, progress)
        reader = StoreReader(reader.root, reader.config)  # it sees the new queues
        rebuild_config.apply(reader, journal, built.batch_topics, built.queues)


def _refuse_untold(reader: StoreReader, request: _Request, built: Built) -> None:
    if built.unplaced:
        count = built.unplaced.total()
        raise BadDataError(f"{count:,} messages cannot be placed in a queue: look at the plan first, with --survey")
    gone = sum(loss.messages for loss in losses_of(reader, built, request.topics))
    if gone:
        raise BadDataError(
            f"queues refer to {gone:,} messages that are gone: `mqtool recover` keeps their places, --survey lists them"
        )


def _keep_expired(reader: StoreReader, journal: Journal, request: _Request, built: Built) -> None:
    """Keep the queues whose messages have all expired: a deleted queue would count from 0 again."""
    for key in _expired(reader, request, built):
        for kind, folder in (("consumequeue", reader.consume_queues[key].folders[0]), *_ext_folder(reader, key)):
            target = journal.workspace / kind / key[0] / str(key[1])
            make_folders(journal.disk, target.parent)
            journal.disk.copy(folder, target)


def _expired(reader: StoreReader, request: _Request, built: Built) -> Iterator[QueueKey]:
    """Yield the queues without messages in the log because all have expired."""
    for key, queue in reader.consume_queues.items():
        if key in built.queues or (request.topics is not None and key[0] not in request.topics):
            continue
        last = queue.units(queue.max_offset() - 1, queue.max_offset())
        if queue.max_offset() > queue.first_offset and last["physical_offset"][0] < reader.commit_log.min_offset:
            yield key


def _ext_folder(reader: StoreReader, key: QueueKey) -> list[tuple[str, Path]]:
    ext = reader.consume_queue_exts.get(key)
    return [("consumequeue_ext", ext.folders[0])] if ext else []


def _swap_queues(reader: StoreReader, journal: Journal, request: _Request) -> None:
    for kind in FOLDERS:
        new = journal.workspace / kind
        if not new.exists():
            if request.topics is None and (reader.root / kind).exists():
                journal.remove(reader.root / kind)
            continue
        if request.topics is None:
            journal.move_in(new, reader.root / kind)
            continue
        for topic in sorted(path.name for path in new.iterdir()):
            journal.move_in(new / topic, reader.root / kind / topic)


def _note_index(reader: StoreReader, journal: Journal, timestamp: int) -> None:
    """Note in the checkpoint how far the index is complete: after an unclean stop a broker drops newer files."""
    path = reader.paths.checkpoint
    if not path.exists():
        journal.create(path, checkpoint.CHECKPOINT_SIZE)
    journal.write(path, _INDEX_TIME_AT, timestamp.to_bytes(_INDEX_TIME_SIZE, "big", signed=True))
