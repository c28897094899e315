"""``verify_store``: every check of a store, in one pass over the log.

The stretches of the log are judged side by side, each by itself, and taken in order by those who judge the whole.
"""

import collections
import enum
import functools
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mqtool.engine.repair import (
    verify_expired,
    verify_ext,
    verify_index,
    verify_log,
    verify_queues,
    verify_rocksdb,
    verify_tables,
    verify_timer,
)
from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.parts import PART, Progress, in_order, part_size, parts_below, parts_of
from mqtool.engine.repair.verify_index import IndexJudge
from mqtool.engine.repair.verify_log import MOST_LISTED, LogJudge, Rules, Run, check_part
from mqtool.engine.repair.verify_queues import QueueChecker
from mqtool.engine.repair.verify_tables import Tables
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from mqtool.formats import scan


class Level(enum.StrEnum):
    """How much of a store is looked at."""

    QUICK = "quick"
    """All but the messages, units and entries inside; of the log the last two segments."""
    FULL = "full"
    """Every byte that says something."""


FILE_CHECKS: list[Callable[[StoreReader], Iterator[Finding]]] = [
    verify_log.check_files,
    verify_queues.check_files,
    verify_index.check_folder,
    verify_tables.check_small_files,
    verify_timer.check_files,
    verify_expired.check_start,
]
"""Checks that need no message."""


def verify_store(
    reader: StoreReader,
    level: Level = Level.FULL,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    most: int | None = MOST_LISTED,
) -> Iterator[Finding]:
    """Run every check and yield what is wrong; an empty result is a sound store.

    Of a single segment only the log is checked.

    Args:
        reader: of the store; it may be in use.
        level: how much to look at.
        jobs: how many threads share the work.
        progress: is told how many bytes of the log are done.
        most: how many findings of one code to yield, None for all; the others are counted in a last one.

    Raises:
        UsageError: the reader is of a single file that is no segment of a commit log.
    """
    listed: collections.Counter[str] = collections.Counter()
    files: dict[str, set[str | None]] = collections.defaultdict(set)
    for one in _all_findings(reader, level, jobs, progress):
        listed[one.code] += 1
        if most is None or listed[one.code] <= most:
            yield one
        else:
            files[one.code].add(one.file)
    for code, places in files.items():
        assert most is not None
        yield finding(code, f"{listed[code] - most:,} more of these in {len(places):,} files or folders")


def _all_findings(reader: StoreReader, level: Level, jobs: int, progress: Progress) -> Iterator[Finding]:
    whole = reader.paths.single is None
    if not whole and not reader.commit_log.segments:
        raise UsageError(f"{reader.paths.single} is no segment of a commit log: give the store that it belongs to")
    live = reader.is_live
    tables = Tables.read(reader) if whole else Tables({}, [])
    queues = QueueChecker(reader, live)
    index = IndexJudge(reader, live)
    log = LogJudge(reader, live)
    for check in FILE_CHECKS if whole else [verify_log.check_files]:
        yield from check(reader)

    parts = list(parts_of(reader.commit_log, part_size(PART, jobs)))
    if level is Level.QUICK:
        last = {id(segment) for segment in reader.commit_log.segments[-2:]}
        parts = [part for part in parts if id(part.segment) in last]
    total = sum(part.stop - part.start for part in parts)
    kernels = scan.kernels_for(total)
    if live:
        end = queues.end_of_dispatch()
        parts = parts_below(parts, verify_log.last_start(reader.commit_log, kernels) if end is None else end)
    rules = Rules(reader, kernels, reader.delay_levels, index.has_tags(), queues.compare)
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        chains = []
        if level is Level.FULL:
            chains = [
                pool.submit(verify_index.check_chains, reader, file, kernels, live) for file in reader.index_files
            ]
        for report in in_order(pool, functools.partial(check_part, rules), parts, jobs + 2):
            for event in log.take(report):
                if not isinstance(event, Run):
                    yield event
                elif level is Level.FULL and whole:
                    yield from index.take(event)
            done += report.part.stop - report.part.start
            progress(done)
        for file, found in itertools.zip_longest(reader.index_files, chains):
            yield from verify_index.check_header(reader, file)
            yield from found.result() if found else ()
    yield from log.finish()
    if not whole:
        return
    if level is Level.FULL:
        yield from queues.finish(log)
        yield from verify_ext.check_walks(reader)
        yield from verify_rocksdb.check_queues(rules, log)
        yield from index.finish(log.end_offset)
        yield from verify_timer.check_messages(reader, log.end_offset)
    else:
        yield from queues.check_ends(log)
        yield from index.check_is_there(log)
    yield from verify_tables.check_against_log(reader, log)
    yield from verify_tables.check_config(reader, tables, log)
