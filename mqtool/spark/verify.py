"""``verify`` as a Spark job: the findings of ``mqtool verify``, however large the stores are.

A task checks a part of a segment, or some segments, independently, with units and index entries where they should be,
or one index file. Other tasks merge the reports of some segments each, and then the merged reports, until few
groups are left: a tree (``verify/segment_groups.py``). One task for each store merges what is left
in the order of the log: the findings, and some bytes for each queue and group. Nothing else is shuffled, and nothing is
read twice except where the log is damaged.

Cost: linear in the bytes of the stores; a joining task takes some bytes per queue and group.
"""

import collections
import contextlib
import dataclasses
import functools
import gc
import itertools
import pickle
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from mqtool.engine.repair.findings import Finding, Rest, Severity
from mqtool.engine.repair.parts import PART
from mqtool.engine.repair.row_findings import MAX_LISTED
from mqtool.engine.repair.verify.access import leave_out_unread
from mqtool.engine.repair.verify.distributed import StretchBounds, verify_distributed
from mqtool.engine.repair.verify.index import IndexVerifier, check_chains
from mqtool.engine.repair.verify.log import VerifyRules
from mqtool.engine.repair.verify.queues import QueueChecker
from mqtool.engine.repair.verify.segment_groups import groups_of, reports_of
from mqtool.engine.repair.verify.store import Level, Verification, counted
from mqtool.engine.store import remote
from mqtool.engine.store.mapping import give_back_memory
from mqtool.engine.store.queues_on_demand import MAX_QUEUES
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, StoreChangedError
from mqtool.formats import scan
from mqtool.spark import run_as_program
from mqtool.spark.schemas import arrow_schema, spark_schema
from mqtool.spark.spread import Common, spread
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES, finding_row

SCHEMA = spark_schema(TABLES["findings"].columns)
"""A finding as a row, as in the table ``findings``: what was expected and what was found are text."""
_REPORTS = pa.schema(
    [
        ("store", pa.int32()),
        ("segment", pa.int64()),
        ("start", pa.int64()),
        ("number", pa.int64()),
        ("report", pa.binary()),
    ]
)
_REPORTS_SCHEMA = "store int, segment long, start long, number long, report binary"
_ORDER = ("store", "segment", "start")
_FIRST = -1  # segment of what comes before all stretches
FAN = 32
"""So many segments, or groups of the level below, are joined by one task."""
_BATCH = 1000
_FEW_QUEUES = 256
_NUMBER = re.compile(r"0|-?[1-9][0-9]*")


@dataclasses.dataclass(frozen=True)
class VerifyScope(Common):
    """What of a store is checked, as it was when the job started."""

    job: str
    store: Store
    level: Level
    live: bool
    delay_levels: tuple[int, ...]
    tags_in_index: bool
    size: int  # bytes of log
    segment_size: int
    segments: int  # how many
    left_out: tuple[str, ...]  # what cannot be read

    def open(self, most_queues: int = MAX_QUEUES) -> StoreReader:
        """Open the store, for work that needs few of its queues at a time, so many at most."""
        reader = _opened(self.store)
        for path in self.left_out:
            reader.leave_out(remote.place(path))
        if not self.live:
            reader.open_queues_on_demand(most_queues)
        return reader


class VerifyTask(NamedTuple):
    """What one task checks: a part of a segment, some whole segments, an index file, or nothing."""

    number: int  # of the store
    scope: VerifyScope
    stretches: list[StretchBounds]
    index_file: str | None
    are_segments: bool  # the stretches are all of their segments


def findings(spark: Any, stores: Sequence[Store], level: Level, partition_size: int) -> Any:
    """Return the DataFrame of what is wrong with stores, columns ``SCHEMA``.

    Args:
        spark: the session.
        stores: which.
        level: how much to check.
        partition_size: bytes of log for one task, rounded to whole chunks.
    """
    from pyspark.sql import functions

    scopes, items = plan(stores, level, partition_size)
    reports = spread(spark, items, verify_task, _REPORTS_SCHEMA)
    for size in levels(scopes):
        groups = sum(-(-scope.segments // size) for scope in scopes)
        in_groups = reports.repartition(groups, "store", functions.floor(functions.col("number") / size))
        work = functools.partial(gather, scopes, size)
        reports = in_groups.sortWithinPartitions(*_ORDER).mapInArrow(work, _REPORTS_SCHEMA)
    ordered = reports.repartition(len(scopes), "store").sortWithinPartitions(*_ORDER)
    return ordered.mapInArrow(functools.partial(_join_all, scopes), SCHEMA)


def levels(scopes: Sequence[VerifyScope]) -> list[int]:
    """Return how many segments a group of each level has; the last task takes at most ``FAN`` groups of a store."""
    most = max((scope.segments for scope in scopes), default=0)
    return list(itertools.takewhile(lambda size: most > size, (FAN**level for level in itertools.count(1))))


def plan(stores: Sequence[Store], level: Level, partition_size: int) -> tuple[list[VerifyScope], list[VerifyTask]]:
    """Return what of each store is to be checked, and by which tasks.

    Raises:
        UsageError: one is a single file that is not a segment of a commit log.
    """
    job = uuid.uuid4().hex
    scopes: list[VerifyScope] = []
    items: list[VerifyTask] = []
    for number, store in enumerate(stores):
        reader = _opened(store)
        leave_out_unread(reader)
        checks = Verification(reader, level, reader.is_live)
        size = max(PART, partition_size // PART * PART)
        parts = checks.parts(max(size, reader.commit_log.file_size) if reader.is_packed else size)
        total = sum(part.stop - part.start for part in parts)
        rules = checks.rules(None)
        levels = tuple(rules.delay_levels)
        left_out = tuple(map(str, reader.left_out))
        segments = len({part.segment.start_offset for part in parts})
        scope = VerifyScope(
            job, store, level, checks.live, levels, rules.tags_in_index, total,
            max(1, reader.commit_log.file_size), segments, left_out,
        )  # fmt: skip
        scopes.append(scope)
        # Or nobody would join a store of which there is nothing to verify.
        items.append(VerifyTask(number, scope, [], None, False))
        items += [
            VerifyTask(number, scope, [], file.path.name, False) for file in (checks.chained if checks.whole else ())
        ]
        stretches = _of_tasks([StretchBounds.of(part) for part in parts], scope.segment_size, partition_size)
        items += [VerifyTask(number, scope, bounds, None, are_segments) for bounds, are_segments in stretches]
    return scopes, items


def _opened(store: Store) -> StoreReader:
    """Open a store; of a compressed copy the log alone."""
    reader = store.open()
    return reader.log_alone() if reader.is_packed else reader


def _of_tasks(
    stretches: Sequence[StretchBounds], segment_size: int, partition_size: int
) -> Iterator[tuple[list[StretchBounds], bool]]:
    """Yield what each task checks, and whether these are whole segments; those belong to one group of the tree then."""
    most = min(FAN, 1 << max(1, partition_size // segment_size).bit_length() - 1)
    counts = collections.Counter(stretch.segment for stretch in stretches)

    def place_of(stretch: StretchBounds) -> tuple[int, StretchBounds | None]:
        return stretch.segment // segment_size // most, stretch if counts[stretch.segment] > 1 else None

    for (_, part), group in itertools.groupby(stretches, place_of):
        yield list(group), part is None


class _StoreVerifier:
    """What a process needs to check chunks of a store; it is kept for the next ones."""

    def __init__(self, scope: VerifyScope) -> None:
        self.reader = scope.open()
        self.kernels = scan.kernels_for(scope.size)
        queues = QueueChecker(self.reader, scope.live)
        self.index = IndexVerifier(self.reader, live=False)
        levels = list(scope.delay_levels)
        self.rules = VerifyRules(self.reader, self.kernels, levels, scope.tags_in_index, queues.compare)

    def chains(self, name: str, live: bool) -> list[Finding]:
        """Check the chains of an index file."""
        file = next((file for file in self.reader.index_files if file.path.name == name), None)
        return check_chains(self.reader, file, self.kernels, live) if file else []


_verifier_of = functools.lru_cache(maxsize=4)(_StoreVerifier)


def verify_task(item: VerifyTask) -> Iterator[pa.RecordBatch]:
    """Check what one task has to check; yields reports as ``_REPORTS`` defines them."""
    scope = item.scope
    if not item.stretches and item.index_file is None:
        yield _reports(scope, item.number, _FIRST, 0, pickle.dumps(None))
        return
    verifier = _verifier_of(scope)
    if item.index_file is not None:
        with contextlib.suppress(NotFoundError, StoreChangedError):  # it went by retention
            chain_findings = verifier.chains(item.index_file, scope.live)
            yield _reports(scope, item.number, _FIRST, 0, pickle.dumps((item.index_file, chain_findings)))
        return
    reports = _verified(verifier, item.stretches)
    if item.are_segments:
        yield from _groups(scope, item.number, (report for _, report in reports))
        return
    for stretch, report in reports:
        yield _reports(scope, item.number, stretch.segment, stretch.start, report)


def _verified(verifier: _StoreVerifier, stretches: Iterable[StretchBounds]) -> Iterator[tuple[StretchBounds, bytes]]:
    for address, group in itertools.groupby(stretches, key=lambda stretch: stretch.segment):
        for stretch in itertools.chain.from_iterable(bounds.cut(PART) for bounds in group):
            with contextlib.suppress(NotFoundError, StoreChangedError):  # it went by retention
                yield stretch, verify_distributed(verifier.rules, verifier.index, stretch)
        if segment := verifier.reader.commit_log.segment_at(address):
            segment.unmap()


def _groups(scope: VerifyScope, store: int, reports: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    verifier = _verifier_of(scope)
    for group in groups_of(verifier.rules, verifier.index.claim, reports):
        yield _reports(scope, store, group.first, 0, pickle.dumps(group))


def _reports(scope: VerifyScope, store: int, segment: int, start: int, report: bytes) -> pa.RecordBatch:
    number = segment // scope.segment_size
    return pa.record_batch([[store], [segment], [start], [number], [report]], schema=_REPORTS)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """Yield the rows of batches, one at a time: some hold megabytes."""
    for batch in batches:
        for place in range(len(batch)):
            yield batch.slice(place, 1).to_pylist()[0]


def gather(scopes: Sequence[VerifyScope], size: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Merge what tasks of the level below found in a number of segments each, which come group by group.

    Args:
        scopes: of all stores.
        size: segments of a group.
        batches: as ``_REPORTS`` has them.
    """
    by_group = itertools.groupby(_rows(batches), key=lambda row: (row["store"], row["number"] // size))
    for (store, group), rows in by_group:
        if group < 0:
            yield from (pa.RecordBatch.from_pylist([row], _REPORTS) for row in rows)
        else:
            yield from _groups(scopes[store], store, (row["report"] for row in rows))


def _join_all(scopes: Sequence[VerifyScope], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the reports of stores, which come store by store, each in the order of its log."""
    # What this process knows of the queues of a store is not needed beside what follows.
    _verifier_of.cache_clear()
    gc.unfreeze()  # a reader and its queues refer to each other
    gc.collect()
    give_back_memory()
    for number, rows in itertools.groupby(_rows(batches), key=lambda row: row["store"]):
        joined = join(scopes[number], ((row["segment"], row["report"]) for row in rows))
        while chunk := list(itertools.islice(joined, _BATCH)):
            yield findings_batch(scopes[number].store.path, chunk)


def join(scope: VerifyScope, reports: Iterable[tuple[int, bytes]]) -> Iterator[Finding]:
    """Yield what is wrong with one store.

    Args:
        scope: what of it is checked.
        reports: what ``verify_task`` made of all items, or ``gather`` of that, in the order of the log, and segments.
    """
    reader = scope.open(_FEW_QUEUES)  # it looks at each in turn
    checks = Verification(reader, scope.level, scope.live)
    rules = VerifyRules(
        reader, scan.kernels_for(scope.size), list(scope.delay_levels), scope.tags_in_index, checks.queues.compare
    )
    yield from counted(_joined(checks, rules, iter(reports)), MAX_LISTED)


def _joined(checks: Verification, rules: VerifyRules, reports: Iterator[tuple[int, bytes]]) -> Iterator[Finding | Rest]:
    yield from checks.before()
    chains: dict[str, list[Finding]] = {}
    stretches: Iterator[bytes] = iter(())
    for segment, data in reports:
        if segment != _FIRST:
            stretches = itertools.chain([data], (report for _, report in reports))
            break
        chain = pickle.loads(data)
        chains.update([chain] if chain else [])
    for report in reports_of(rules, stretches, checks.in_doubt):
        yield from checks.take(report, rules)
    yield from checks.index_files(chains.get(file.path.name, []) for file in checks.chained)
    yield from checks.after(rules)


def findings_batch(store: str, items: Iterable[Finding]) -> pa.RecordBatch:
    """Return findings as rows of ``SCHEMA``."""
    return pa.RecordBatch.from_pylist(
        [{**finding_row(finding), "store": store} for finding in items], arrow_schema(SCHEMA)
    )


def finding_of(row: Mapping[str, Any]) -> Finding:
    """Return the finding that a row of the DataFrame is."""
    values = {field.name: row[field.name] for field in dataclasses.fields(Finding)}
    for name in ("expected", "found"):
        text = values[name]
        values[name] = int(text) if text is not None and _NUMBER.fullmatch(text) else text
    return Finding(**{**values, "severity": Severity(values["severity"])})


if __name__ == "__main__":
    run_as_program("verify")
