"""``verify_store``: every check of a store, in one pass over the log.

The stretches of the log are checked in parallel, each on its own, and taken in order by checks of the whole log.
"""

import collections
import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, FindingBuffer, Rest
from mqtool.engine.repair.parts import PART, Part, PartReport, Progress, in_order, parts_below, parts_of, to_walk
from mqtool.engine.repair.row_findings import MAX_LISTED
from mqtool.engine.repair.verify import expired, index, queue_ext, queues, rocksdb, tables, timer
from mqtool.engine.repair.verify import log as log_checks
from mqtool.engine.repair.verify.access import leave_out_unread
from mqtool.engine.repair.verify.distributed import DistributedRun, with_entries
from mqtool.engine.repair.verify.index import IndexVerifier, block_of
from mqtool.engine.repair.verify.log import LogVerifier, Run, VerifyRules, check_part
from mqtool.engine.repair.verify.queues import QueueChecker
from mqtool.engine.repair.verify.tables import Tables
from mqtool.engine.store.commit_log import CommitLog
from mqtool.engine.store.index_file import IndexFile
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import UsageError
from mqtool.formats import scan
from mqtool.formats.commit_log import BLANK_SIZE


class Level(enum.StrEnum):
    """How much of a store is examined."""

    QUICK = "quick"
    """Everything but messages, units and entries; of the log only the last two segments."""
    FULL = "full"
    """Every significant byte."""


FILE_CHECKS: list[Callable[[StoreReader], Iterator[Finding]]] = [
    log_checks.check_files,
    queues.check_files,
    index.check_folder,
    tables.check_small_files,
    timer.check_files,
    expired.check_start,
]
"""Checks that need no messages."""


def verify_store(
    reader: StoreReader,
    level: Level = Level.FULL,
    jobs: int = 1,
    progress: Progress = lambda _: None,
    most: int | None = MAX_LISTED,
) -> Iterator[Finding]:
    """Run every check and yield findings; a sound store yields none.

    For a single segment only the log is checked. The same store yields the same findings in the same order, however
    many threads there are. Cost: linear in the bytes of the store.

    Args:
        reader: of the store; it may be in use.
        level: how much to check.
        jobs: number of threads.
        progress: called with the number of bytes of the log done so far.
        most: how many findings of one code to yield, None for all; the others are counted in a last one.

    Raises:
        UsageError: the reader is for a single file that is not a commit log segment.
    """
    yield from counted(_all_findings(reader, level, jobs, progress, most), most)


def counted(findings: Iterable[Finding | Rest], most: int | None) -> Iterator[Finding]:
    """Yield ``most`` findings of each code, None for all; then, if there are more, one that counts the others."""
    listed: collections.Counter[str] = collections.Counter()
    more: collections.Counter[str] = collections.Counter()
    files: dict[str, set[str | None]] = collections.defaultdict(set)
    for item in findings:
        if isinstance(item, Finding) and (most is None or listed[item.code] < most):
            listed[item.code] += 1
            yield item
        else:
            more[item.code] += item.count if isinstance(item, Rest) else 1
            files[item.code].add(item.file)
    for code, count in sorted(more.items()):
        yield finding(code, f"{count:,} more of these in {len(files[code]):,} files or folders")


def last_segments(log: CommitLog) -> list[MappedFile]:
    """Return the last two segments in use, and those after them: what the quick level checks."""
    used = [segment for segment in log.segments if any(log.read(segment.start_offset, BLANK_SIZE))]
    left = log.segments  # without what retention deleted in the meantime
    return left[max(0, left.index(used[-1]) - 1) :] if used else left


class Verification:
    """The checks of one store around a walk over its log: before it, of each stretch in order, after it.

    The ends of queues and index of a live store are read at creation.

    Raises:
        UsageError: the reader is for a single file that is not a commit log segment.
    """

    def __init__(self, reader: StoreReader, level: Level, live: bool, most: int | None = MAX_LISTED) -> None:
        self.reader = reader
        self.most = most
        self.level = level
        self.whole = not reader.paths.is_part
        if not self.whole and not reader.commit_log.segments:
            raise UsageError(
                f"{reader.paths.single} is not a segment of a commit log: give the store that it belongs to"
            )
        self.live = live
        self._unread = leave_out_unread(reader)
        if self.whole:
            reader.hold_index()
        self._tables = Tables.read(reader) if self.whole else Tables({}, [])
        self.queues = QueueChecker(reader, live)
        self.index = IndexVerifier(reader, live)
        self.index.skip_expired()
        self._log = LogVerifier(reader, live)
        self._block: list[Run] = []
        self._log_start = reader.commit_log.min_offset
        self._of_index = FindingBuffer(most)

    def before(self) -> Iterator[Finding]:
        """Run the checks that need no message."""
        yield from self._unread
        for check in FILE_CHECKS if self.whole else [log_checks.check_files]:
            yield from check(self.reader)

    def parts(self, size: int) -> list[Part]:
        """Return the stretches to check, of limited size."""
        log = self.reader.commit_log
        parts = list(parts_of(log, size))
        if self.level is Level.QUICK:
            looked_at = {id(segment) for segment in last_segments(log)}
            parts = [part for part in parts if id(part.segment) in looked_at]
        if self.live:
            end = self.queues.end_of_dispatch()
            kernels = scan.kernels_for(sum(part.stop - part.start for part in parts))
            if end is None or self.reader.config.in_use:  # in a copy queues may reach further than the log
                last = log_checks.last_start(log, kernels)
                end = last if end is None else min(last, end)
            parts = parts_below(parts, end)
        return parts

    def rules(self, kernels: Any) -> VerifyRules:
        """Return what is needed to check a stretch."""
        levels = self.reader.delay_levels
        return VerifyRules(self.reader, kernels, levels, self.index.has_tags(), self.queues.compare, self.most)

    def take(self, report: PartReport[Run], rules: VerifyRules) -> Iterator[Finding | Rest]:
        """Check the next stretch."""
        for event in self._log.take(report):
            if not isinstance(event, Run):
                yield event
            elif self.whole:
                self.queues.take(event.compared, self.most)
                if self.level is Level.FULL:
                    if self._block and block_of(self._block[0]) != block_of(event):
                        self._verify_index(rules)
                    self._block.append(event)

    def in_doubt(self) -> bool:
        """Return whether the next messages may not belong to the log, by what is before them."""
        return self._log.in_doubt

    def _verify_index(self, rules: VerifyRules) -> None:
        """Compare the messages of a block with the index."""
        block, self._block = self._block, []
        if not block:
            return
        if self._log_start < self.reader.commit_log.min_offset <= block[0].start_offset:
            self._log_start = self.reader.commit_log.min_offset  # the oldest segments were deleted in the meantime
            self.index.skip_expired()
        claims = [(run, run.claim) for run in block if isinstance(run, DistributedRun)]
        if len(claims) == len(block):
            self._of_index.add(self.index.take_claims(claims, functools.partial(with_entries, rules, block)))
        else:  # some were checked again, here
            self._of_index.add(self.index.take(with_entries(rules, block)))

    @property
    def chained(self) -> list[IndexFile]:
        """The index files whose chains are to be checked by ``index.check_chains``."""
        return self.reader.index_files if self.level is Level.FULL else []

    def index_files(self, chains: Iterable[list[Finding]]) -> Iterator[Finding]:
        """Check each index file on its own; ``chains``: the findings on those of ``chained``."""
        for file, chain_findings in itertools.zip_longest(self.reader.index_files, chains):
            yield from index.check_header(self.reader, file)
            yield from chain_findings or ()

    def after(self, rules: VerifyRules) -> Iterator[Finding | Rest]:
        """Run the checks that need all messages."""
        reader, log = self.reader, self._log
        yield from log.finish()
        if not self.whole:
            return
        if self.level is Level.FULL:
            yield from self.queues.finish(log)
            yield from queue_ext.check_walks(reader)
            yield from rocksdb.check_queues(rules, log)
            self._verify_index(rules)
            yield from self._of_index.all()
            yield from self.index.finish(log.end_offset)
            yield from timer.check_messages(reader, log.end_offset)
        else:
            yield from self.queues.check_ends(log)
            yield from rocksdb.check_opens(reader)
            yield from self.index.check_is_there(log)
        yield from tables.check_against_log(reader, log)
        yield from tables.check_config(reader, self._tables, log)


def _all_findings(
    reader: StoreReader, level: Level, jobs: int, progress: Progress, most: int | None
) -> Iterator[Finding | Rest]:
    checks = Verification(reader, level, reader.is_live, most)
    yield from checks.before()
    parts = to_walk(checks.parts(PART))
    kernels = scan.kernels_for(sum(part.stop - part.start for part in parts))
    rules = checks.rules(kernels)
    done = 0
    with ThreadPoolExecutor(jobs) as pool:
        chains = [pool.submit(index.check_chains, reader, file, kernels, checks.live) for file in checks.chained]
        for report in in_order(pool, functools.partial(check_part, rules), parts, jobs + 2):
            yield from checks.take(report, rules)
            report.part.leave()
            done += report.part.stop - report.part.start
            progress(done)
        yield from checks.index_files(future.result() for future in chains)
    yield from checks.after(rules)
