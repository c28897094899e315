"""What ``recover`` leaves unchanged although ``verify`` reports it: tables, timer files, folders, records.

Cost: the tables under ``config/``, and the units of the timer log and of extensions.
"""

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, Severity
from mqtool.engine.repair.verify import queue_ext, tables, timer
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.reader import StoreReader


def remarks(
    reader: StoreReader,
    renamed: StoreReader,
    ends: Mapping[QueueKey, int] | None,
    log_end: int,
    in_log: Iterable[Finding],
    bridged: Sequence[tuple[int, int]],
) -> Iterator[str]:
    """Yield a sentence for each code with findings that remain.

    Args:
        reader: of the store, as it is before the repair.
        renamed: the same, with segments under the names that they get: addresses lead to messages there.
        ends: one past the last queue offset of each queue, as it becomes; None if queues are not repaired.
        log_end: of the log, as it becomes.
        in_log: findings in its records that remain.
        bridged: where placeholders will stand, from and to, in order.
    """
    by_code: dict[str, list[Finding]] = collections.defaultdict(list)
    for item in itertools.chain(in_log, _findings(reader, renamed, ends, log_end, bridged)):
        if item.severity is not Severity.NOTE:
            by_code[item.code].append(item)
    for code, findings in by_code.items():
        more = f", and {len(findings) - 1:,} more" if len(findings) > 1 else ""
        yield f"left unchanged ({code}): {findings[0].file}: {findings[0].message}{more}; see `mqtool explain {code}`"


def _findings(
    reader: StoreReader,
    renamed: StoreReader,
    ends: Mapping[QueueKey, int] | None,
    log_end: int,
    bridged: Sequence[tuple[int, int]],
) -> Iterator[Finding]:
    for stray in reader.commit_log.strays:
        if stray.is_folder:
            text = "a folder among the segments: 4.9 does not start until it is moved away, 5.3 skips it"
            yield finding("LOG-STRAY", text, file=reader.paths.relative(stray.path))
    yield from tables.check_tables(reader, ends)
    yield from queue_ext.check_walks(reader)
    yield from timer.check_files(reader)
    yield from timer.check_messages(renamed, log_end, ends, bridged)
