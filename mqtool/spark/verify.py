"""``verify`` as a Spark job: the findings of ``mqtool verify``, however large the stores are.

A task judges some stretches of one log by themselves, with units and index entries where they should lie, or one index
file. What it found goes to the one task of its store that joins all of them in the order of the log (``verify_far``):
some bytes for each queue in a stretch, and the findings. Nothing else is shuffled, and nothing is read twice but where
the log is damaged.
"""

import contextlib
import dataclasses
import functools
import itertools
import pickle
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from mqtool.engine.repair.findings import Finding, Rest, Severity
from mqtool.engine.repair.parts import PART, PartReport, joined
from mqtool.engine.repair.verify import Level, Verification, counted
from mqtool.engine.repair.verify_access import leave_out_unread
from mqtool.engine.repair.verify_far import Stretch, judge_far, report_of
from mqtool.engine.repair.verify_index import IndexJudge, check_chains
from mqtool.engine.repair.verify_log import MOST_LISTED, Rules, Run, check_part
from mqtool.engine.repair.verify_queues import QueueChecker
from mqtool.engine.store import remote
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, StoreChangedError
from mqtool.formats import scan
from mqtool.spark import run_as_program
from mqtool.spark.source import arrow_schema, spark_schema
from mqtool.spark.spread import Common, spread
from mqtool.spark.stores import Store
from mqtool.spark.tables import TABLES, finding_row

SCHEMA = spark_schema(TABLES["findings"].columns)
"""A finding as a row, as in the table ``findings``: what was expected and what is there are texts."""
_REPORTS = pa.schema([("store", pa.int32()), ("place", pa.int64()), ("report", pa.binary())])
_REPORTS_SCHEMA = "store int, place long, report binary"
_FIRST = -1  # place of what comes before all stretches
_BATCH = 1000
_NUMBER = re.compile(r"-?[0-9]+")


@dataclasses.dataclass(frozen=True)
class Scope(Common):
    """What of a store is judged, as it was when the job began."""

    job: str
    store: Store
    level: Level
    live: bool
    delay_levels: tuple[int, ...]
    tags_in_index: bool
    size: int  # bytes of log
    left_out: tuple[str, ...]  # what cannot be read

    def open(self) -> StoreReader:
        """Open the store, for work that needs few of its queues at a time."""
        reader = self.store.open()
        for path in self.left_out:
            reader.leave_out(remote.place(path))
        if not self.live:
            reader.open_queues_on_demand()
        return reader


class Item(NamedTuple):
    """What one task judges: a stretch of a log, or an index file, or nothing."""

    number: int  # of the store
    scope: Scope
    stretch: Stretch | None
    index_file: str | None


def findings(spark: Any, stores: Sequence[Store], level: Level, partition_size: int) -> Any:
    """Return the DataFrame of what is wrong with stores, columns ``SCHEMA``.

    Args:
        spark: the session.
        stores: which.
        level: how much to look at.
        partition_size: bytes of log for one task, rounded to whole stretches.
    """
    scopes, items = plan(stores, level, partition_size)
    reports = spread(spark, items, judge, _REPORTS_SCHEMA)
    ordered = reports.repartition(len(scopes), "store").sortWithinPartitions("store", "place")
    return ordered.mapInArrow(functools.partial(_join_all, scopes), SCHEMA)


def plan(stores: Sequence[Store], level: Level, partition_size: int) -> tuple[list[Scope], list[Item]]:
    """Return what of each store is to be judged, and by which tasks.

    Raises:
        UsageError: one is a single file that is no segment of a commit log.
    """
    job = uuid.uuid4().hex
    scopes: list[Scope] = []
    items: list[Item] = []
    for number, store in enumerate(stores):
        reader = store.open()
        leave_out_unread(reader)
        checks = Verification(reader, level, reader.is_live)
        parts = checks.parts(max(PART, partition_size // PART * PART))
        total = sum(part.stop - part.start for part in parts)
        rules = checks.rules(None)
        levels = tuple(rules.delay_levels)
        left_out = tuple(map(str, reader.left_out))
        scope = Scope(job, store, level, checks.live, levels, rules.tags_in_index, total, left_out)
        scopes.append(scope)
        items.append(Item(number, scope, None, None))  # or nobody would join a store of which there is nothing to judge
        items += [Item(number, scope, None, file.path.name) for file in (checks.chained if checks.whole else ())]
        items += [Item(number, scope, Stretch.of(part), None) for part in parts]
    return scopes, items


class _Judge:
    """What a process needs to judge stretches of a store; it is kept for the next ones."""

    def __init__(self, scope: Scope) -> None:
        self.reader = scope.open()
        self.kernels = scan.kernels_for(scope.size)
        queues = QueueChecker(self.reader, scope.live)
        self.index = IndexJudge(self.reader, live=False)
        levels = list(scope.delay_levels)
        self.rules = Rules(self.reader, self.kernels, levels, scope.tags_in_index, queues.compare)

    def chains(self, name: str, live: bool) -> list[Finding]:
        """Judge the chains of an index file."""
        file = next((file for file in self.reader.index_files if file.path.name == name), None)
        return check_chains(self.reader, file, self.kernels, live) if file else []


_judge_of = functools.lru_cache(maxsize=4)(_Judge)


def judge(item: Item) -> Iterator[pa.RecordBatch]:
    """Judge what one task is to judge; yields reports as ``_REPORTS`` has them."""
    scope = item.scope
    if item.stretch is None and item.index_file is None:
        yield _reports(item.number, _FIRST, pickle.dumps(None))
        return
    judge = _judge_of(scope)
    if item.index_file is not None:
        with contextlib.suppress(NotFoundError, StoreChangedError):  # it went by retention
            found = judge.chains(item.index_file, scope.live)
            yield _reports(item.number, _FIRST, pickle.dumps((item.index_file, found)))
    for stretch in item.stretch.cut(PART) if item.stretch else ():
        try:
            report = judge_far(judge.rules, judge.index, stretch)
        except (NotFoundError, StoreChangedError):
            continue
        yield _reports(item.number, stretch.segment + stretch.start, report)


def _reports(number: int, place: int, report: bytes) -> pa.RecordBatch:
    return pa.record_batch([[number], [place], [report]], schema=_REPORTS)


def _join_all(scopes: Sequence[Scope], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join the reports of stores, which come store by store, each in the order of its log."""
    rows = itertools.chain.from_iterable(
        zip(*(column.to_pylist() for column in batch.columns), strict=True) for batch in batches
    )
    for number, its_rows in itertools.groupby(rows, key=lambda row: row[0]):
        found = join(scopes[number], ((place, report) for _, place, report in its_rows))
        while chunk := list(itertools.islice(found, _BATCH)):
            yield findings_batch(scopes[number].store.path, chunk)


def join(scope: Scope, reports: Iterable[tuple[int, bytes]]) -> Iterator[Finding]:
    """Yield what is wrong with one store.

    Args:
        scope: what of it is judged.
        reports: what ``judge`` made of all items, by place.
    """
    reader = scope.open()
    checks = Verification(reader, scope.level, scope.live)
    rules = Rules(
        reader, scan.kernels_for(scope.size), list(scope.delay_levels), scope.tags_in_index, checks.queues.compare
    )
    yield from counted(_joined(checks, rules, iter(reports)), MOST_LISTED)


def _joined(checks: Verification, rules: Rules, reports: Iterator[tuple[int, bytes]]) -> Iterator[Finding | Rest]:
    yield from checks.before()
    chains: dict[str, list[Finding]] = {}
    stretches: Iterator[bytes] = iter(())
    for place, data in reports:
        if place != _FIRST:
            stretches = itertools.chain([data], (report for _, report in reports))
            break
        chain = pickle.loads(data)
        chains.update([chain] if chain else [])
    for report in joined(_reports_of(checks, stretches), functools.partial(check_part, rules)):
        yield from checks.take(report, rules)
    yield from checks.index_files(chains.get(file.path.name, []) for file in checks.chained)
    yield from checks.after(rules)


def _reports_of(checks: Verification, stretches: Iterable[bytes]) -> Iterator[PartReport[Run]]:
    for data in stretches:
        with contextlib.suppress(StoreChangedError):  # its segment went by retention meanwhile
            yield report_of(checks.reader.commit_log, data)


def findings_batch(store: str, found: Iterable[Finding]) -> pa.RecordBatch:
    """Return findings as rows of ``SCHEMA``."""
    return pa.RecordBatch.from_pylist([{**finding_row(one), "store": store} for one in found], arrow_schema(SCHEMA))


def finding_of(row: Mapping[str, Any]) -> Finding:
    """Return the finding that a row of the DataFrame is."""
    values = {field.name: row[field.name] for field in dataclasses.fields(Finding)}
    for name in ("expected", "found"):
        text = values[name]
        values[name] = int(text) if text is not None and _NUMBER.fullmatch(text) else text
    return Finding(**{**values, "severity": Severity(values["severity"])})


if __name__ == "__main__":
    run_as_program("verify")
