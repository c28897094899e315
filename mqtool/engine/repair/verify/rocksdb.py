"""Checks of consume queues in RocksDB: each unit against its message, each message against its unit.

Cost: linear in the units of the database and the messages.
"""

from collections.abc import Iterator

import numpy as np

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.verify.log import LogVerifier, VerifyRules
from mqtool.engine.store import rocksdb
from mqtool.engine.store.dispatch import QueueKey, dispatch
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, MissingExtraError, MqtoolError
from mqtool.formats.scan import Ints

_CODES = {
    "size": ("QUEUE-LENGTH", "the size in the unit is not that of its message"),
    "tags_code": ("QUEUE-TAGS", "the tags code is not that of its message: a filter would miss it"),
    "store_timestamp": ("QUEUE-TIME", "the store time in the unit is not that of its message"),
}


def check_opens(reader: StoreReader) -> Iterator[Finding]:
    """Check only whether the database of the queues can be opened, if there is one."""
    folder = reader.rocksdb_queues
    if folder is not None:
        try:
            rocksdb.read_ends(folder)
        except MqtoolError as error:
            yield _unread(error, reader.paths.relative(folder))


def _unread(error: MqtoolError, file: str) -> Finding:
    if isinstance(error, MissingExtraError):
        return finding("QUEUE-ROCKSDB", f"the queues are not checked: {error}", file=file)
    if isinstance(error, BadDataError):
        return finding("QUEUE-ROCKSDB-DAMAGED", str(error), file=file)
    return finding("STORE-UNREAD", f"it was not checked: {error}", file=file)


def check_queues(rules: VerifyRules, verifier: LogVerifier) -> Iterator[Finding]:
    """Check the queues in RocksDB, if there are any and the extra is installed."""
    reader = rules.reader
    folder = reader.rocksdb_queues
    if folder is None:
        return
    file = reader.paths.relative(folder)
    try:
        ends = rocksdb.read_ends(folder).queues
        known: dict[QueueKey, int] = {}
        for topic, queue_id, units in rocksdb.read_units(folder):
            key = (topic, queue_id)
            inside = units["queue_offset"] < ends[key].max_offset if key in ends else np.ones(len(units), np.bool_)
            yield from _check_units(rules, verifier, file, key, units[inside])
            if inside.any():
                known[key] = int(units["queue_offset"][inside][-1]) + 1
    except MqtoolError as error:
        yield _unread(error, file)
        return
    for key, stop in verifier.next_offsets.items():
        if key in reader.consume_queues or verifier.live:
            continue
        start = max(known.get(key, 0), verifier.first_offsets[key])
        if start < stop:
            text = f"{stop - start:,} messages at the end of the queue have no unit"
            yield _unit("QUEUE-MISSING", text, file, key, start)


def _check_units(
    rules: VerifyRules, verifier: LogVerifier, file: str, key: QueueKey, units: np.ndarray
) -> Iterator[Finding]:
    """Check some units of a queue in queue order."""
    offsets = units["physical_offset"]
    messages: dict[int, dict[str, int]] = {}
    for table in rules.reader.commit_log.tables_at(offsets[offsets < verifier.end_offset], rules.kernels):
        wanted = dispatch(table, rules.delay_levels).units
        for stretch in wanted.stretches:
            if stretch.queue == key:
                for row in range(stretch.first, stretch.last):
                    messages[int(wanted.physical_offset[row])] = {
                        "queue_offset": int(wanted.queue_offset[row]),
                        **{name: int(getattr(wanted, name)[row]) for name in _CODES},
                    }
    for unit, gap in zip(units, _gaps(units["queue_offset"]), strict=True):
        offset, physical_offset = int(unit["queue_offset"]), int(unit["physical_offset"])
        if gap and offset - gap >= verifier.first_offsets.get(key, offset):
            yield _unit("QUEUE-MISSING", f"{gap:,} messages from here on have no unit", file, key, offset - gap)
        if physical_offset < rules.reader.commit_log.min_offset:
            continue
        if physical_offset >= verifier.end_offset:
            if not verifier.live:
                text = "the unit points beyond the end of the log: its message is lost"
                yield _unit("QUEUE-BEYOND", text, file, key, offset, physical_offset=physical_offset)
            continue
        message = messages.get(physical_offset)
        if message is None or message["queue_offset"] != offset:
            text = "no message of this queue starts where the unit points"
            yield _unit("QUEUE-DANGLING", text, file, key, offset, physical_offset=physical_offset)
            continue
        for name, (code, text) in _CODES.items():
            if message[name] != int(unit[name]):
                yield _unit(code, text, file, key, offset, message[name], int(unit[name]), physical_offset)


def _gaps(offsets: Ints) -> list[int]:
    """Return how many queue offsets are missing before each."""
    return [0, *(np.diff(offsets) - 1).tolist()] if len(offsets) else []


def _unit(
    code: str,
    text: str,
    file: str,
    key: QueueKey,
    offset: int,
    expected: int | None = None,
    actual: int | None = None,
    physical_offset: int | None = None,
) -> Finding:
    return finding(
        code,
        text,
        file=file,
        expected=expected,
        found=actual,
        topic=key[0],
        queue_id=key[1],
        queue_offset=offset,
        physical_offset=physical_offset,
    )
