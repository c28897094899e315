"""Checks of the small files: checkpoint, abort file, and the tables under ``config/`` against the store.

Cost: linear in the tables and in the number of queues.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.verify.log import LogVerifier
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.rocksdb import CONFIG_DATABASES
from mqtool.errors import BadDataError, FormatError, MissingExtraError, MqtoolError
from mqtool.formats import checkpoint as layout
from mqtool.formats import config_tables
from mqtool.formats.topics import SCHEDULE_TOPIC, SYSTEM_GROUP_PREFIXES, is_system_topic

_Parsed = TypeVar("_Parsed")

RECOVERY_MARGIN_MS = 3000
"""How long before the checkpoint's times recovery begins."""
_TIMESTAMPS = ("physical_timestamp", "logics_timestamp", "index_timestamp")
_OFFSETS = ("confirm_physical_offset", "logics_physical_offset")  # a slave keeps its master's offset: it may be ahead


def check_small_files(reader: StoreReader) -> Iterator[Finding]:
    """Check the checkpoint on its own, and report abort and lock file."""
    if reader.is_live:
        cause = "it is treated as a store in use" if reader.config.in_use else "a running broker holds the lock"
        yield finding("STORE-LIVE", f"{cause}: in-flight writes are not checked", file="lock")
    elif reader.has_abort_file:
        text = "the broker was not stopped cleanly: its next start recovers abnormally"
        yield finding("ABORT-FILE", text, file=reader.paths.relative(reader.paths.abort))
    yield from _check_checkpoint(reader)


def _check_checkpoint(reader: StoreReader) -> Iterator[Finding]:
    path = reader.paths.checkpoint
    file = reader.paths.relative(path)
    if reader.is_left_out(path):
        return
    if not path.exists():
        if reader.commit_log.segments:
            text = "there is no checkpoint: an abnormal recovery reads the whole log"
            yield finding("CHECKPOINT-MISSING", text, file=file)
        return
    if not path.is_file():
        yield finding("CHECKPOINT-SIZE", "the checkpoint is not a file", file=file)
        return
    size = path.stat().st_size
    if size != layout.CHECKPOINT_SIZE:
        text = f"a checkpoint of {size:,} bytes"
        yield finding("CHECKPOINT-SIZE", text, file=file, offset=size, expected=layout.CHECKPOINT_SIZE, found=size)
        if size < layout.CHECKPOINT_SIZE:
            return
    values = reader.checkpoint
    assert values is not None
    if not any(values[name] for name in _TIMESTAMPS):
        text = "nothing is recorded in the checkpoint yet: an abnormal recovery reads the whole log"
        yield finding("CHECKPOINT-ZERO", text, file=file, offset=0)
    if any(values.rest):
        at = layout.CHECKPOINT_SIZE - len(values.rest.lstrip(b"\0"))
        yield finding("CHECKPOINT-REST", "bytes that no known version writes", file=file, offset=at)


def check_against_log(reader: StoreReader, verifier: LogVerifier) -> Iterator[Finding]:
    """Check the checkpoint against the log, whose end is known now."""
    path = reader.paths.checkpoint
    if (
        verifier.live
        or not verifier.count
        or reader.is_left_out(path)
        or not path.is_file()
        or path.stat().st_size < layout.CHECKPOINT_SIZE
    ):
        return
    values = reader.checkpoint
    assert values is not None
    ends = dict.fromkeys(_TIMESTAMPS, verifier.last_timestamp + RECOVERY_MARGIN_MS) | dict.fromkeys(
        _OFFSETS, verifier.end_offset
    )
    for name, end in ends.items():
        if values[name] > end:
            text = f"its {name.replace('_', ' ')} is later than the last message: a recovery may start too late"
            offset = layout.CHECKPOINT.offset_of(name)
            file = reader.paths.relative(path)
            yield finding("CHECKPOINT-AHEAD", text, file=file, offset=offset, expected=end, found=values[name])


@dataclasses.dataclass
class Tables:
    """The readable tables under ``config/``, by file name, and the findings on them.

    On a live store they are read before the ends of queues, so that consumer offsets are below these.
    """

    content: dict[str, config_tables.Table]
    findings: list[Finding]
    complete: bool = True

    @classmethod
    def read(cls, reader: StoreReader) -> "Tables":
        """Read every table of a store, from its backup where the file cannot be read."""
        tables = cls({}, [])
        for name in config_tables.TABLES:
            folder = reader.paths.compaction if name == "position-checkpoint" else reader.paths.config
            path = folder / name
            if any(map(reader.is_left_out, (path, path.with_name(f"{name}.bak")))):
                tables.complete = False
                continue
            table = _read_table(reader, path, tables.findings)
            if table is not None:
                tables.content[name] = table
        if any(reader.is_left_out(reader.paths.config / name) for name in CONFIG_DATABASES):
            tables.complete = False
            return tables
        try:
            tables.content |= reader.rocksdb_tables
        except MissingExtraError as error:
            tables.complete = False
            tables.findings.append(finding("CONFIG-ROCKSDB", f"tables are not checked: {error}", file="config"))
        except BadDataError as error:
            tables.findings.append(finding("CONFIG-UNREADABLE", str(error), file="config"))
        return tables

    def parsed(self, name: str, parse: Callable[[config_tables.Table], _Parsed]) -> _Parsed | None:
        """Return the contents of a table, None if it does not exist or is meaningless."""
        if name not in self.content:
            return None
        try:
            return parse(self.content[name])
        except FormatError as error:
            self.findings.append(finding("CONFIG-UNREADABLE", str(error), file=f"config/{name}"))
            return None

    def offsets(self) -> dict[config_tables.OffsetKey, int] | None:
        """Return the consumer offsets, and find entries that name no topic and group: brokers skip these."""
        nameless: list[str] = []
        offsets = self.parsed("consumerOffset.json", lambda table: config_tables.consumer_offsets(table, nameless))
        for name in nameless:
            text = f"the offsets of {name!r:.100} name no topic and group: no broker reads them"
            self.findings.append(finding("CONFIG-NO-GROUP", text, file="config/consumerOffset.json"))
        return offsets


def check_config(reader: StoreReader, tables: Tables, verifier: LogVerifier) -> Iterator[Finding]:
    """Check whether each table can be read, and whether it agrees with the existing queues."""
    topics = tables.parsed("topics.json", config_tables.topics)
    groups = tables.parsed("subscriptionGroup.json", config_tables.subscription_groups)
    offsets = tables.offsets()
    delay_offsets = tables.parsed("delayOffset.json", config_tables.delay_offsets)
    yield from tables.findings
    if topics is not None:
        yield from _check_topics(reader, topics, verifier.next_offsets)
    elif tables.complete and "topics.json" not in tables.content:
        yield finding("CONFIG-MISSING", "there is no topic table", file="config/topics.json")
    if offsets is not None:
        yield from _check_offsets(reader, offsets, None if groups is None else set(groups), verifier)
    if delay_offsets is not None:
        yield from _check_delay_offsets(reader, delay_offsets, None)


def check_tables(reader: StoreReader, ends: Mapping[QueueKey, int] | None) -> Iterator[Finding]:
    """Check the tables against the resulting queues; consumer offsets are left to ``group_effects``.

    Args:
        reader: of the store.
        ends: one past the last queue offset of each queue; None if they stay as they are.
    """
    tables = Tables.read(reader)
    topics = tables.parsed("topics.json", config_tables.topics)
    tables.parsed("subscriptionGroup.json", config_tables.subscription_groups)
    tables.offsets()
    delay_offsets = tables.parsed("delayOffset.json", config_tables.delay_offsets)
    yield from tables.findings
    if topics is not None:
        yield from _check_topics(reader, topics, ends or {}, ends or {})
    if delay_offsets is not None:
        yield from _check_delay_offsets(reader, delay_offsets, ends)


def _read_table(reader: StoreReader, path: Path, findings: list[Finding]) -> config_tables.Table | None:
    backup = path.with_name(f"{path.name}.bak")
    problem = f"{path.name} does not exist"
    table = None
    for source in (path, backup):
        if not source.is_file():
            continue
        try:
            content = config_tables.read_table(path.name, read_file(source))
        except MqtoolError as error:
            if table is not None:
                text = f"the backup cannot be read: there is no second copy of this table ({error})"
                findings.append(finding("CONFIG-BACKUP", text, file=reader.paths.relative(source)))
            problem = str(error)
            continue
        if table is None and source == backup:
            text = f"{problem}; its backup can be read, and a broker uses that"
            findings.append(finding("CONFIG-FROM-BACKUP", text, file=reader.paths.relative(path)))
        table = content if table is None else table
    if table is None and (path.is_file() or backup.is_file()):
        text = f"{problem}, and no backup can be read"
        findings.append(finding("CONFIG-UNREADABLE", text, file=reader.paths.relative(path)))
    return table


def _check_topics(
    reader: StoreReader,
    topics: dict[str, config_tables.TopicConfig],
    in_log: Iterable[QueueKey],
    further: Iterable[QueueKey] = (),
) -> Iterator[Finding]:
    """Check the table of topics against the existing queues, and ``further`` ones."""
    file = reader.paths.relative(reader.paths.config / "topics.json")
    queues: dict[str, set[int]] = {}
    for topic, queue_id in [*reader.consume_queues, *reader.batch_consume_queues, *further]:
        queues.setdefault(topic, set()).add(queue_id)
    with_messages = {*in_log, *further}
    for topic, queue_ids in sorted(queues.items()):
        if is_system_topic(topic):
            continue
        if topic not in topics:
            text = f"there are queues of topic {topic}, but brokers do not know it"
            yield finding("CONFIG-NO-TOPIC", text, file=file, topic=topic)
            continue
        count = max(topics[topic].read_queue_count, topics[topic].write_queue_count)
        above = [(topic, queue_id) for queue_id in queue_ids if queue_id >= count]
        # A log that was cut leaves queues without messages.
        highest = max((key[1] for key in above if key in with_messages or _has_units(reader, key)), default=-1)
        if highest >= 0:
            text = f"topic {topic} has {count} queues by its table, but queue {highest} exists"
            yield finding(
                "CONFIG-QUEUE-COUNT", text, file=file, expected=count, found=highest + 1, topic=topic, queue_id=highest
            )
    unused = sorted(set(topics) - set(queues) - {topic for topic, _ in with_messages})
    unused = [topic for topic in unused if not is_system_topic(topic)]
    if unused:
        names = ", ".join(unused[:5]) + (", .." if len(unused) > 5 else "")
        text = "a topic has" if len(unused) == 1 else f"{len(unused):,} topics have"
        yield finding("CONFIG-NO-QUEUE", f"{text} neither a queue nor a message so far: {names}", file=file)


def _has_units(reader: StoreReader, key: QueueKey) -> bool:
    """Return whether a queue holds units; those of messages that are gone from the log count."""
    queue, batch_queue = reader.consume_queues.get(key), reader.batch_consume_queues.get(key)
    return bool(queue and queue.max_offset() > queue.first_offset) or bool(batch_queue and batch_queue.unit_count)


def _bounds(reader: StoreReader, verifier: LogVerifier) -> dict[QueueKey, tuple[int, int]]:
    bounds = {key: (queue.first_offset, queue.max_offset()) for key, queue in reader.consume_queues.items()}
    for key, batch_queue in reader.batch_consume_queues.items():
        if batch_queue.unit_count:
            bounds[key] = (batch_queue.first_offset, batch_queue.max_offset())
    for key, stop in verifier.next_offsets.items():
        low, high = bounds.get(key, (verifier.first_offsets[key], stop))
        bounds[key] = low, max(high, stop)
    return bounds


def _check_offsets(
    reader: StoreReader, offsets: dict[config_tables.OffsetKey, int], groups: set[str] | None, verifier: LogVerifier
) -> Iterator[Finding]:
    file = reader.paths.relative(reader.paths.config / "consumerOffset.json")
    bounds = _bounds(reader, verifier)
    unknown: set[str] = set()
    wrong: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for (topic, group, queue_id), offset in sorted(offsets.items()):
        low, high = bounds.get((topic, queue_id), (0, 0))
        if groups is not None and group not in groups and not group.startswith(SYSTEM_GROUP_PREFIXES):
            unknown.add(group)
        if queue_id < 0:
            continue  # no queue has such an id, so nobody reads it
        if reader.rocksdb_queues or low <= offset <= high or reader.lacks_queue((topic, queue_id)):
            continue
        code, expected = ("CONFIG-OFFSET", high) if offset > high else ("CONFIG-OFFSET-EXPIRED", low)
        facts = {"queue_id": queue_id, "queue_offset": offset, "expected": expected, "found": offset}
        wrong.setdefault((code, topic, group), []).append(facts)
    texts = {
        "CONFIG-OFFSET": "the group {} would continue beyond the end of {}",
        "CONFIG-OFFSET-EXPIRED": "the group {} has not yet read messages that are gone from {}",
    }
    for (code, topic, group), places in wrong.items():
        where = "the queue" if len(places) == 1 else f"{len(places):,} queues"
        yield finding(code, texts[code].format(group, where), file=file, topic=topic, **places[0])
    for group in sorted(unknown):
        yield finding("CONFIG-NO-GROUP", f"the group {group} has offsets, but no settings", file=file)


def _check_delay_offsets(
    reader: StoreReader, offsets: dict[int, int], ends: Mapping[QueueKey, int] | None
) -> Iterator[Finding]:
    """Check the progress of each delay level against the end of its queue: the actual one, or that of ``ends``."""
    file = reader.paths.relative(reader.paths.config / "delayOffset.json")
    for level, offset in sorted(offsets.items()):
        key = (SCHEDULE_TOPIC, level - 1)
        queue = reader.consume_queues.get(key)
        high = ends.get(key, 0) if ends is not None else queue.max_offset() if queue else 0
        if offset > high and not reader.rocksdb_queues and not reader.lacks_queue(key):
            text = f"delay level {level} would continue beyond the end of its queue"
            yield finding(
                "CONFIG-DELAY-OFFSET",
                text,
                file=file,
                expected=high,
                found=offset,
                topic=SCHEDULE_TOPIC,
                queue_id=level - 1,
                queue_offset=offset,
            )
