"""``rebuild`` as a Spark job: consume queues and index of one store, byte for byte what ``mqtool rebuild`` writes.

Tasks walk chunks of the log and keep the resulting units and index entries on the disks of the executors. One task
takes their reports in the order of the log and decides which belong to it (``rebuild/distributed.py``). Then units
are grouped by queue and entries by index file (20 bytes each), and every queue and every file is written by one
task, and moved into place when it is complete (``target``).

Cost: linear in the log; 20 bytes per unit and entry are shuffled.
"""

import contextlib
import dataclasses
import functools
import itertools
import pickle
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from mqtool.engine.repair.parts import PART, part_size
from mqtool.engine.repair.rebuild import plan as rebuild
from mqtool.engine.repair.rebuild.distributed import Verdict, decide, walk_distributed
from mqtool.engine.repair.rebuild.index import IndexBuilder, name_number, shape_of
from mqtool.engine.repair.rebuild.plan import Built, Derived, RebuildRules
from mqtool.engine.repair.rebuild.queues import FOLDERS, QueueBuilder, Sizes, UnitBlock
from mqtool.engine.repair.verify.distributed import StretchBounds
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.dispatch import IndexEntries
from mqtool.engine.store.index_file import Shape, index_name
from mqtool.formats import batch_consume_queue, consume_queue, scan
from mqtool.spark import run_as_program
from mqtool.spark.session import setting
from mqtool.spark.spread import Common, spread
from mqtool.spark.stores import Store, reader_of
from mqtool.spark.target import Folder, Storage, target_of

Target = Folder | Storage
_REPORT, _UNITS, _ENTRIES, _VERDICT = range(4)
_ROWS = pa.schema(
    [
        ("kind", pa.int32()),
        ("topic", pa.string()),
        ("queue_id", pa.int64()),  # of entries: the number of their file
        ("stretch", pa.int64()),  # address where it begins
        ("run", pa.int64()),  # address of its first message
        ("number", pa.int32()),  # in the run
        ("load", pa.binary()),
    ]
)
_ROWS_SCHEMA = "kind int, topic string, queue_id long, stretch long, run long, number int, load binary"
_MAX_ROWS = 500
"""Rows of one Arrow batch: some hold tens of kilobytes."""
_MAX_WRITERS = 1_000
"""Tasks that write queues: each takes something of every task that walks over the log, so their numbers multiply."""


@dataclasses.dataclass(frozen=True)
class RebuildScope(Common):
    """What to rebuild from which store, as the store was when the job started."""

    job: str
    store: Store
    queues: bool
    index: bool
    topics: frozenset[str] | None
    batch_topics: frozenset[str]
    with_times: bool
    with_tags: bool
    delay_levels: tuple[int, ...]

    def rules(self) -> RebuildRules:
        """Return the rules for a walk, with a reader that is kept in this process."""
        reader = reader_of(self.job, self.store)
        kernels = scan.kernels_for(reader.commit_log.total_size)
        levels = list(self.delay_levels)
        return RebuildRules(
            reader, kernels, levels, self.queues, self.index, self.topics, self.batch_topics, self.with_times,
            self.with_tags,
        )  # fmt: skip


class RebuildTask(NamedTuple):
    """What one task walks over."""

    scope: RebuildScope
    stretch: StretchBounds


def run(
    spark: Any,
    store: Store,
    into: Path | str,
    *,
    queues: bool,
    index: bool,
    topics: Sequence[str] | None,
    version: str | None,
    partition_size: int,
) -> Built:
    """Make queues, index or both of a store again below ``into``.

    Args:
        spark: the session.
        store: which.
        into: a folder that all executors see, empty or not existing; or a URL in object storage or HDFS.
        queues: whether to build the queues.
        index: whether to make the index.
        topics: queues of these only, None for all.
        version: whose broker will use the index, as for ``mqtool rebuild``.
        partition_size: bytes of log for one task.

    Raises:
        UsageError: it is not empty, or is inside the store.
    """
    scope, items, sizes, shape = plan(store, queues, index, topics, version, partition_size)
    target = target_of(into, store.path)
    with target.making((*FOLDERS, "index")):
        return _made(spark, scope, items, sizes, shape, target)


def plan(
    store: Store,
    queues: bool,
    index: bool,
    topics: Sequence[str] | None,
    version: str | None,
    partition_size: int,
) -> tuple[RebuildScope, list[RebuildTask], Sizes, Shape | None]:
    """Return what is made, what each task walks over, and sizes of the new files."""
    reader = store.open()
    rules = rebuild.rules_of(reader, queues, index, frozenset(topics) if topics is not None else None, version)
    scope = RebuildScope(
        uuid.uuid4().hex,
        store,
        queues,
        index,
        frozenset(topics) if topics is not None else None,
        frozenset(rules.batch_topics),
        rules.with_times,
        rules.with_tags,
        tuple(rules.delay_levels),
    )
    part = part_size(PART, 1)
    parts = rebuild.parts_to_walk(reader, rules.kernels, max(part, partition_size // part * part))
    items = [RebuildTask(scope, StretchBounds.of(part)) for part in parts]
    return scope, items, Sizes.of(reader), shape_of(reader) if index else None


def _made(
    spark: Any, scope: RebuildScope, items: list[RebuildTask], sizes: Sizes, shape: Shape | None, into: Target
) -> Built:
    with contextlib.ExitStack() as at_end:
        at_end.enter_context(setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", str(_MAX_ROWS)))
        walked = spread(spark, items, walk, _ROWS_SCHEMA).persist(_disk_only())
        at_end.callback(walked.unpersist)
        decided = walked.where(f"kind = {_REPORT}").repartition(1).sortWithinPartitions("stretch")
        decided = decided.mapInArrow(functools.partial(_decided, scope, shape), _ROWS_SCHEMA).persist(_disk_only())
        at_end.callback(decided.unpersist)
        verdict: Verdict = pickle.loads(decided.where(f"kind = {_VERDICT}").first()["load"])
        built = Built(messages=verdict.messages, end_offset=verdict.end_offset, holes=len(verdict.holes))
        late = verdict.inner_batches - scope.batch_topics
        late = late if scope.topics is None else late & scope.topics
        rows = walked.unionAll(decided)
        if scope.queues:
            writing = _Writing(scope, sizes, verdict, frozenset(late), into)
            writers = max(1, min(len(items), _MAX_WRITERS))
            units = rows.where(f"kind = {_UNITS}").repartition(writers, "topic", "queue_id")
            units = units.sortWithinPartitions("run", "number")
            for row in units.mapInArrow(writing.write, _BUILT_SCHEMA).collect():
                built.add(pickle.loads(row["built"]))
        if shape and scope.index:
            _make_index(spark, rows, scope, shape, verdict, into, built)
    if late and scope.queues:
        # Only the log shows that these topics hold inner batches, and it was noticed too late.
        known = scope.batch_topics | late
        again = dataclasses.replace(scope, index=False, topics=frozenset(late), batch_topics=known)
        built.add(_made(spark, again, [RebuildTask(again, task.stretch) for task in items], sizes, None, into))
    return built


def _disk_only() -> Any:
    from pyspark import StorageLevel

    return StorageLevel.DISK_ONLY


# Walking


def walk(item: RebuildTask) -> Iterator[pa.RecordBatch]:
    """Walk over a chunk; yields reports, units and entries as ``_ROWS`` defines them."""
    rules = item.scope.rules()
    reports: dict[int, bytes] = {}
    for stretch in item.stretch.cut(part_size(PART, 1)):
        walked = walk_distributed(rules, stretch)
        reports[stretch.address] = walked.report
        if walked.runs:  # of a sparse segment most reports are empty: they go together
            yield _reports(reports)
            reports.clear()
        for derived in walked.runs:
            yield from _load_of(derived, stretch.address)
    yield _reports(reports)
    if segment := rules.reader.commit_log.segment_at(item.stretch.segment):
        segment.unmap()


def _reports(reports: Mapping[int, bytes]) -> pa.RecordBatch:
    nothing = [None] * len(reports)
    columns = [[_REPORT] * len(reports), nothing, nothing, list(reports), nothing, nothing, list(reports.values())]
    return pa.record_batch(columns, schema=_ROWS)


def _load_of(derived: Derived, stretch: int) -> Iterator[pa.RecordBatch]:
    """Yield what a run leads to as rows; ``stretch`` is where its chunk starts, -1 if it must not be left out."""
    run = derived.start_offset
    for start in range(0, len(derived.pieces), _MAX_ROWS):
        pieces = derived.pieces[start : start + _MAX_ROWS]
        count = len(pieces)
        columns = [
            [_UNITS] * count,
            [piece.queue[0] for piece in pieces],
            [piece.queue[1] for piece in pieces],
            [stretch] * count,
            [run] * count,
            list(range(start, start + count)),
            [pickle.dumps(_packed(piece)) for piece in pieces],
        ]
        yield pa.record_batch(columns, schema=_ROWS)
    if len(derived.entries.rows):
        load = pickle.dumps(_columns(derived.entries))
        yield pa.record_batch([[_ENTRIES], [None], [None], [stretch], [run], [0], [load]], schema=_ROWS)


def _packed(piece: UnitBlock) -> tuple[int, int, str, bytes, bytes | None]:
    times = None if piece.store_timestamps is None else piece.store_timestamps.tobytes()
    dtype = "batch" if piece.units.dtype == batch_consume_queue.UNIT.dtype else "plain"
    return piece.offset, piece.stop, dtype, piece.units.tobytes(), times


def _piece(topic: str, queue_id: int, load: bytes) -> UnitBlock:
    offset, stop, dtype, units, times = pickle.loads(load)
    layout = batch_consume_queue.UNIT.dtype if dtype == "batch" else consume_queue.UNIT.dtype
    timestamps = None if times is None else np.frombuffer(times, np.int64)
    return UnitBlock((topic, queue_id), offset, stop, np.frombuffer(units, layout), timestamps)


def _columns(entries: IndexEntries) -> tuple[bytes, bytes, bytes]:
    return (
        np.ascontiguousarray(entries.key_hash, np.int32).tobytes(),
        np.ascontiguousarray(entries.physical_offset, np.int64).tobytes(),
        np.ascontiguousarray(entries.store_timestamp, np.int64).tobytes(),
    )


def _entries(hashes: bytes, offsets: bytes, timestamps: bytes) -> IndexEntries:
    key_hash = np.frombuffer(hashes, np.int32)
    none = np.zeros(len(key_hash), np.int64)
    times = np.frombuffer(timestamps, np.int64)
    return IndexEntries(none, key_hash, np.frombuffer(offsets, np.int64), times, none.astype(np.bool_))


# Judging


def _decided(scope: RebuildScope, shape: Shape | None, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Take all reports in order; yields the verdict, and what runs that had to be walked again lead to."""
    surplus: list[Derived] = []
    reports = (row["load"] for batch in batches for row in batch.to_pylist())
    verdict = decide(scope.rules(), shape, reports, surplus.append)
    for derived in surplus:
        yield from _load_of(derived, -1)
    yield pa.record_batch([[_VERDICT], [None], [None], [-1], [None], [None], [pickle.dumps(verdict)]], schema=_ROWS)


def _accepted(verdict: Verdict, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the rows of runs that belong to the log."""
    for batch in batches:
        for row in batch.to_pylist():
            if (row["stretch"], row["run"]) not in verdict.left_out:
                yield row


# Queues

_BUILT = pa.schema([("built", pa.binary())])
_BUILT_SCHEMA = "built binary"


class _Writing(NamedTuple):
    """Writes some queues, whose units come in the order of the log."""

    scope: RebuildScope
    sizes: Sizes
    verdict: Verdict
    left_out: frozenset[str]
    into: Target

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = (row for row in _accepted(self.verdict, batches) if row["topic"] not in self.left_out)
        with self.into.attempt() as attempt:
            queues = QueueBuilder(self.scope.rules().reader, attempt, Disk(), self.sizes, self.scope.batch_topics)
            holes = 0
            for run, its_rows in itertools.groupby(rows, key=lambda row: int(row["run"])):
                for _ in range(self.verdict.holes_before(run) - holes):
                    queues.shake()
                    holes += 1
                pieces = [_piece(row["topic"], row["queue_id"], row["load"]) for row in its_rows]
                queues.add(pieces, run in self.verdict.torn, run not in self.verdict.elsewhere)
            queues.finish()
            folders = (f"{kind}/{topic}/{number}" for topic, number in queues.queues for kind in FOLDERS)
            self.into.take(attempt, [name for name in folders if (attempt / name).exists()])
        yield pa.record_batch([[pickle.dumps(Built.of(queues))]], schema=_BUILT)


# Index


def _make_index(
    spark: Any, rows: Any, scope: RebuildScope, shape: Shape, verdict: Verdict, into: Target, built: Built
) -> None:
    count = len(verdict.files)
    if not count:
        return
    # A file may have no entry: its task must begin all the same.
    begun = spread(spark, range(count), _begun, _ROWS_SCHEMA)
    entries = rows.where(f"kind = {_ENTRIES}").mapInArrow(functools.partial(_by_file, verdict), _ROWS_SCHEMA)
    files = begun.unionAll(entries).repartition(count, "queue_id").sortWithinPartitions("queue_id", "run", "number")
    write = functools.partial(_write_files, scope, shape, verdict, into)
    index_rows = sorted(files.mapInArrow(write, _FILES_SCHEMA).collect(), key=lambda row: row["number"])
    name = -1
    for row in index_rows:
        name = name_number(name, row["timestamp"])
        into.name(row["kept"], f"index/{index_name(name)}")
        built.index_names.append(index_name(name))
        built.index_timestamp = row["end"]
    built.entries = verdict.entries


def _begun(number: int) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([[_ENTRIES], [None], [number], [-1], [-1], [-1], [None]], schema=_ROWS)


def _by_file(verdict: Verdict, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut the entries of runs where one index file ends and the next starts."""
    for row in _accepted(verdict, batches):
        entries = _entries(*pickle.loads(row["load"]))
        for place, (number, chosen, before) in enumerate(verdict.slices(row["run"], entries)):
            part = IndexEntries(*(getattr(entries, field.name)[chosen] for field in dataclasses.fields(entries)))
            load = pickle.dumps((before, _columns(part)))
            yield pa.record_batch([[_ENTRIES], [None], [number], [-1], [row["run"]], [place], [load]], schema=_ROWS)


_FILES = pa.schema([("number", pa.int64()), ("timestamp", pa.int64()), ("end", pa.int64()), ("kept", pa.string())])
_FILES_SCHEMA = "number long, timestamp long, end long, kept string"


def _write_files(
    scope: RebuildScope, shape: Shape, verdict: Verdict, into: Target, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write index files whose entries come file by file, in the order of the log."""
    rows = (row for batch in batches for row in batch.to_pylist())
    for number, its_rows in itertools.groupby(rows, key=lambda row: row["queue_id"]):
        start = verdict.files[number]
        with into.attempt() as folder:
            path = folder / str(number)
            builder = IndexBuilder(folder, Disk(), shape, scope.rules().kernels)
            timestamp = start.timestamp
            is_open = False
            for row in its_rows:
                if row["load"] is None:
                    continue
                before, columns = pickle.loads(row["load"])
                entries = _entries(*columns)
                if not is_open:
                    builder.open_file(path, before)
                    is_open = True
                timestamp = int(entries.store_timestamp[0]) if timestamp is None else timestamp
                builder.add(entries, 0, False)
            if not is_open:
                builder.open_file(path, start.before)
            builder.finish()
            kept = into.keep(path)
        assert timestamp is not None
        values = (number, timestamp, builder.end_timestamp, kept)
        yield pa.record_batch([[value] for value in values], schema=_FILES)


if __name__ == "__main__":
    run_as_program("rebuild")
