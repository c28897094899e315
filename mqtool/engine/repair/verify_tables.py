"""Checks of the small files: checkpoint, abort file, and the tables under ``config/`` against the store."""

from collections.abc import Generator, Iterator

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.verify_log import LogJudge
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.mapped_file import read_file
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError, FormatError, MissingExtraError, MqtoolError
from mqtool.formats import checkpoint as layout
from mqtool.formats import config_tables
from mqtool.formats.topics import SCHEDULE_TOPIC, SYSTEM_GROUP_PREFIXES, is_system_topic

RECOVERY_MARGIN_MS = 3000
"""Recovery begins so much before the checkpoint's times."""
_TIMESTAMPS = ("physical_timestamp", "logics_timestamp", "index_timestamp")
_OFFSETS = ("master_flushed_offset", "confirm_physical_offset", "logics_physical_offset")


def check_small_files(reader: StoreReader) -> Iterator[Finding]:
    """Judge the checkpoint by itself, and tell of abort and lock file."""
    if reader.is_live:
        yield finding("STORE-LIVE", "a running broker holds the lock: what it is just writing is not judged", file="lock")
    elif reader.has_abort_file:
        text = "the broker was not stopped cleanly: its next start recovers abnormally"
        yield finding("ABORT-FILE", text, file=reader.paths.relative(reader.paths.abort))
    yield from _check_checkpoint(reader)


def _check_checkpoint(reader: StoreReader) -> Iterator[Finding]:
    path = reader.paths.checkpoint
    file = reader.paths.relative(path)
    if not path.exists():
        if reader.commit_log.segments:
            text = "there is no checkpoint: an abnormal recovery reads the whole log"
            yield finding("CHECKPOINT-MISSING", text, file=file)
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
        text = "nothing is noted in the checkpoint yet: an abnormal recovery reads the whole log"
        yield finding("CHECKPOINT-ZERO", text, file=file, offset=0)
    if any(values.rest):
        at = layout.CHECKPOINT_SIZE - len(values.rest.lstrip(b"\0"))
        yield finding("CHECKPOINT-REST", "bytes that no known version writes", file=file, offset=at)


def check_against_log(reader: StoreReader, judge: LogJudge) -> Iterator[Finding]:
    """Judge what the checkpoint says of the log, now that its end is known."""
    path = reader.paths.checkpoint
    if judge.live or not judge.count or not path.exists() or path.stat().st_size < layout.CHECKPOINT_SIZE:
        return
    values = reader.checkpoint
    assert values is not None
    ends = dict.fromkeys(_TIMESTAMPS, judge.last_timestamp + RECOVERY_MARGIN_MS) | dict.fromkeys(_OFFSETS, judge.end_offset)
    for name, end in ends.items():
        if values[name] > end:
            text = f"its {name.replace('_', ' ')} lies behind the last message: recovery may begin too late"
            offset = int(layout.CHECKPOINT_DTYPE.fields[name][1])  # type: ignore[index]
            file = reader.paths.relative(path)
            yield finding("CHECKPOINT-AHEAD", text, file=file, offset=offset, expected=end, found=values[name])


def check_config(reader: StoreReader) -> Iterator[Finding]:
    """Judge whether each table can be read, and whether it agrees with the queues that are there."""
    tables: dict[str, config_tables.Table] = {}
    for name in config_tables.TABLES:
        table = yield from _read_table(reader, name)
        if table is not None:
            tables[name] = table
    try:
        tables |= reader.rocksdb_tables
    except MissingExtraError as error:
        yield finding("CONFIG-ROCKSDB", f"tables are not checked: {error}", file="config")
        return
    except BadDataError as error:
        yield finding("CONFIG-UNREADABLE", str(error), file="config")
    try:
        if "topics.json" in tables:
            yield from _check_topics(reader, config_tables.topics(tables["topics.json"]))
        else:
            yield finding("CONFIG-MISSING", "there is no table of topics", file="config/topics.json")
        if "consumerOffset.json" in tables:
            groups = None
            if "subscriptionGroup.json" in tables:
                groups = set(config_tables.subscription_groups(tables["subscriptionGroup.json"]))
            yield from _check_offsets(reader, config_tables.consumer_offsets(tables["consumerOffset.json"]), groups)
        if "delayOffset.json" in tables:
            yield from _check_delay_offsets(reader, config_tables.delay_offsets(tables["delayOffset.json"]))
    except FormatError as error:
        yield finding("CONFIG-UNREADABLE", str(error), file="config")


def _read_table(reader: StoreReader, name: str) -> Generator[Finding, None, config_tables.Table | None]:
    path = reader.paths.config / name
    backup = path.with_name(f"{name}.bak")
    file = reader.paths.relative(path)
    problem = f"{name} is not there"
    for source in (path, backup):
        if not source.is_file():
            continue
        try:
            table = config_tables.parse_table(read_file(source))
        except FormatError as error:
            problem = str(error)
            continue
        except MqtoolError as error:
            problem = str(error)
            continue
        if source == backup:
            text = f"{problem}; its backup can be read: a broker takes that"
            yield finding("CONFIG-FROM-BACKUP", text, file=file)
        return table
    if path.is_file() or backup.is_file():
        yield finding("CONFIG-UNREADABLE", f"{problem}, and no backup can be read", file=file)
    return None


def _check_topics(reader: StoreReader, topics: dict[str, config_tables.TopicConfig]) -> Iterator[Finding]:
    file = reader.paths.relative(reader.paths.config / "topics.json")
    queues: dict[str, int] = {}
    for topic, queue_id in [*reader.consume_queues, *reader.batch_consume_queues]:
        queues[topic] = max(queues.get(topic, 0), queue_id)
    for topic, highest in sorted(queues.items()):
        if is_system_topic(topic):
            continue
        if topic not in topics:
            text = f"there are queues of the topic {topic}, but brokers do not know it"
            yield finding("CONFIG-NO-TOPIC", text, file=file, topic=topic)
            continue
        count = max(topics[topic].read_queue_count, topics[topic].write_queue_count)
        if highest >= count:
            text = f"the topic {topic} has {count} queues by its table, but a queue {highest} exists"
            yield finding(
                "CONFIG-QUEUE-COUNT", text, file=file, expected=count, found=highest + 1, topic=topic, queue_id=highest
            )
    for topic in sorted(set(topics) - set(queues)):
        if not is_system_topic(topic):
            yield finding("CONFIG-NO-QUEUE", f"nothing was ever sent to the topic {topic}", file=file, topic=topic)


def _bounds(reader: StoreReader) -> dict[QueueKey, tuple[int, int]]:
    bounds = {key: (queue.first_offset, queue.max_offset()) for key, queue in reader.consume_queues.items()}
    for key, batch_queue in reader.batch_consume_queues.items():
        units = batch_queue.units()
        if len(units):
            end = int(units["queue_offset"][-1]) + int(units["batch_size"][-1])
            bounds[key] = (int(units["queue_offset"][0]), end)
    return bounds


def _check_offsets(
    reader: StoreReader, offsets: dict[config_tables.OffsetKey, int], groups: set[str] | None
) -> Iterator[Finding]:
    file = reader.paths.relative(reader.paths.config / "consumerOffset.json")
    bounds = _bounds(reader)
    known = groups or set()
    unknown = set()
    for (topic, group, queue_id), offset in sorted(offsets.items()):
        low, high = bounds.get((topic, queue_id), (0, 0))
        if groups is not None and group not in known and not group.startswith(SYSTEM_GROUP_PREFIXES):
            unknown.add(group)
        if reader.rocksdb_queues:
            continue
        place = {"file": file, "topic": topic, "queue_id": queue_id, "queue_offset": offset}
        if offset > high:
            text = f"the group {group} would read on behind the end of the queue"
            yield finding("CONFIG-OFFSET", text, expected=high, found=offset, **place)
        elif offset < low:
            text = f"the group {group} has yet to read messages that are gone"
            yield finding("CONFIG-OFFSET-EXPIRED", text, expected=low, found=offset, **place)
    for group in sorted(unknown):
        yield finding("CONFIG-NO-GROUP", f"the group {group} has offsets, but no settings of its own", file=file)


def _check_delay_offsets(reader: StoreReader, offsets: dict[int, int]) -> Iterator[Finding]:
    file = reader.paths.relative(reader.paths.config / "delayOffset.json")
    for level, offset in sorted(offsets.items()):
        queue = reader.consume_queues.get((SCHEDULE_TOPIC, level - 1))
        high = queue.max_offset() if queue else 0
        if offset > high and not reader.rocksdb_queues:
            text = f"the delay level {level} would go on behind the end of its queue"
            yield finding(
                "CONFIG-DELAY-OFFSET", text, file=file, expected=high, found=offset, topic=SCHEDULE_TOPIC,
                queue_id=level - 1, queue_offset=offset,
            )
