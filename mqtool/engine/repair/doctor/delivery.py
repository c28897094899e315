"""Why a running broker does not deliver: topics, groups, offsets, delays, timers, transactions.

Cost: linear in the tables, and in half messages and op messages.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from mqtool.engine.repair.doctor.case import FIVE, Case, Effect, Sign
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.java_recovery.files import TABLES, TABLES_OF_FIVE
from mqtool.engine.repair.verify import timer as verify_timer
from mqtool.engine.store import rocksdb
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.queue_view import QueueView, open_queue
from mqtool.errors import MqtoolError
from mqtool.formats.config_tables import read_table
from mqtool.formats.message import Message
from mqtool.formats.property_names import PGROUP
from mqtool.formats.topics import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_GROUP,
    is_system_topic,
)

_TOPICS = "config/topics.json"
_READ, _WRITE, _INHERIT = 4, 2, 1
_STUCK_MS = 3_600_000
"""Half messages are checked back within minutes; one this much older than the newest message is stuck."""
_UNITS_AT_ONCE = 1024
_MAX_UNITS = 65_536
_MAX_TIMER_BYTES = 8 << 20


# Tables


def unreadable_tables(case: Case) -> Iterator[Sign]:
    """Yield tables that cannot be read; if the backup cannot be read either, a broker does not start."""
    for finding in case.found("CONFIG-UNREADABLE"):
        path = case.root / (finding.file or "")
        backup = path.with_name(f"{path.name}.bak")
        is_loaded = path.name in TABLES + TABLES_OF_FIVE
        stops = is_loaded and backup.is_file() and backup.stat().st_size > 0 and not _is_readable(backup)
        end = "a broker does not start" if stops else "a broker starts without it, and 5.5 deletes it"
        existing = [name for name, candidate in (("{path}", path), ("{path}.bak", backup)) if candidate.exists()]
        move = f"mkdir -p {{aside}} && mv --backup=numbered -- {' '.join(existing)} {{aside}}/"
        sign = Sign.of(
            finding,
            message=f"{finding.message}: {end}",
            effect=Effect.STOPS if stops else Effect.LOSES,
            commands=tuple(case.fill(command, Sign.of(finding)) for command in (move, "mqtool rebuild config {at}")),
        )
        if path.name == "delayOffset.json" and not stops:  # which 4.9 must be able to read
            text = f"{finding.message}: 4.9 does not start"
            yield dataclasses.replace(sign, message=text, effect=Effect.STOPS, versions=("4.9",))
            sign = dataclasses.replace(sign, versions=FIVE)
        elif stops and path.name in TABLES_OF_FIVE and path.name != "delayOffset.json":
            sign = dataclasses.replace(sign, versions=FIVE)
        yield sign


def _is_readable(backup: Path) -> bool:
    try:
        read_table(backup.name.removesuffix(".bak"), read_file(backup))
    except MqtoolError:
        return False
    return True


def tables_from_backup(case: Case) -> Iterator[Sign]:
    """Yield tables of which only the backup is left."""
    for finding in case.found("CONFIG-FROM-BACKUP"):
        keep = ["mkdir -p {aside} && mv --backup=numbered -- {path} {aside}/"] * (
            case.root / str(finding.file)
        ).exists()
        copy = "cp -p -- {path}.bak {path}"
        yield Sign.of(finding, commands=tuple(case.fill(command, Sign.of(finding)) for command in [*keep, copy]))


def offsets_lost(case: Case) -> Iterator[Sign]:
    """Yield a lost table of consumer offsets, if there are groups that should have some."""
    name = "consumerOffset.json"
    path = case.reader.paths.config / name
    if path.exists() or path.with_name(f"{name}.bak").exists() or case.consumer_offsets is not None:
        return
    groups = {topic.removeprefix(RETRY_PREFIX) for topic in case.topics or {} if topic.startswith(RETRY_PREFIX)}
    if groups:
        names = ", ".join(sorted(groups)[:3])
        text = f"there is none, although {_count(len(groups), 'group')} consumed ({names}): they start anew"
        yield Sign(text, file=case.reader.paths.relative(path))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' if number != 1 else ''}"


# Topics and groups


def topic_permissions(case: Case) -> Iterator[Sign]:
    """Yield topics that may not be read from, or not be written to."""
    for name, topic in sorted((case.topics or {}).items()):
        if is_system_topic(name) or topic.perm == _INHERIT:  # brokers create such topics for themselves
            continue
        lacks = [] if topic.perm & _READ or name.startswith(DEAD_LETTER_PREFIX) else ["read from"]
        lacks += [] if topic.perm & _WRITE else ["written to"]
        if lacks:
            text = f"topic {name} may not be {' or '.join(lacks)}"
            yield Sign(text, file=_TOPICS, expected=6, found=topic.perm, topic=name)


def topic_queues(case: Case) -> Iterator[Sign]:
    """Yield topics with no queue to read from or to write to, or with fewer to read from than to write to."""
    for name, topic in sorted((case.topics or {}).items()):
        reads, writes = topic.read_queue_count, topic.write_queue_count
        if is_system_topic(name) or 0 < writes <= reads:
            continue
        text = f"topic {name} is written to {_count(writes, 'queue')} and read from {_count(reads, 'queue')}"
        yield Sign(text, file=_TOPICS, expected=max(reads, writes, 1), found=min(reads, writes), topic=name)


def disabled_groups(case: Case) -> Iterator[Sign]:
    """Yield groups that may not consume."""
    for name, group in sorted((case.groups or {}).items()):
        if not group.consume_enabled:
            text = f"consumption is disabled for the group {name} (consumeEnable)"
            yield Sign(text, file="config/subscriptionGroup.json", expected="true", found="false", group=name)


def offsets_ahead(case: Case) -> Iterator[Sign]:
    """Yield groups whose offset is beyond the end of a queue, or in a queue that does not exist."""
    for finding, group, queue_id, offset in _offsets_in(case, "CONFIG-OFFSET"):
        topic = str(finding.topic)
        queue = open_queue(case.reader, topic, queue_id)
        end = queue.max_offset if queue else 0
        if offset > end:
            text = (
                "would continue beyond the end of the queue" if queue else "has read from a queue that does not exist"
            )
            yield _offset_sign(case, finding, f"the group {group} {text}", group, queue_id, offset, end)


def offsets_expired(case: Case) -> Iterator[Sign]:
    """Yield groups that have not yet read messages which retention deleted."""
    for finding, group, queue_id, offset in _offsets_in(case, "CONFIG-OFFSET-EXPIRED"):
        queue = open_queue(case.reader, str(finding.topic), queue_id)
        if queue and offset < queue.min_offset:
            text = f"the group {group} has not yet read messages that are gone from the queue"
            yield _offset_sign(case, finding, text, group, queue_id, offset, queue.min_offset)


def _offsets_in(case: Case, code: str) -> Iterator[tuple[Finding, str, int, int]]:
    """Yield group, queue and offset for findings, which name only the first queue of each topic and group."""
    for finding in case.found(code):
        for (topic, group, queue_id), offset in sorted((case.consumer_offsets or {}).items()):
            # no queue has a negative id: nobody reads it, and its offset cannot be set
            if topic == finding.topic and queue_id >= 0 and f"the group {group} " in finding.message:
                yield finding, group, queue_id, offset


def _offset_sign(case: Case, finding: Finding, text: str, group: str, queue_id: int, offset: int, right: int) -> Sign:
    sign = Sign.of(
        finding, message=text, expected=right, found=offset, queue_id=queue_id, queue_offset=offset, group=group
    )
    if any(rocksdb.is_rocksdb(case.reader.paths.config / name) for name in rocksdb.CONFIG_DATABASES):
        since = "now" if offset > right else "0"
        command = f"mqadmin resetOffsetByTime {{admin}} -g {{group}} -t {{topic}} -s {since}"
    else:
        command = f"mqtool offset set --group {{group}} --topic {{topic}} --queue {queue_id} --offset {right} {{at}}"
    return dataclasses.replace(sign, commands=(case.fill(command, sign),))


# Delays, timers, transactions


def delay_offsets_lost(case: Case) -> Iterator[Sign]:
    """Yield the lost table of delay levels, if messages were delayed."""
    name = "delayOffset.json"
    path = case.reader.paths.config / name
    queues = [queue for (topic, _), queue in case.reader.consume_queues.items() if topic == SCHEDULE_TOPIC]
    count = sum(queue.max_offset() - queue.first_offset for queue in queues)
    if count and not path.exists() and not path.with_name(f"{name}.bak").exists():
        text = f"there is none: a broker delivers the {count:,} delayed messages that are retained once more"
        yield Sign(text, file=case.reader.paths.relative(path), topic=SCHEDULE_TOPIC)


def timer_damage(case: Case) -> Iterator[Sign]:
    """Yield damage in wheel and log of the timer; a large timer log is left to ``verify``."""
    log = case.reader.timer_log
    if log is None or not log.segments:
        return
    if sum(segment.path.stat().st_blocks * 512 for segment in log.segments) > _MAX_TIMER_BYTES:
        case.reader.remarks.append("the timer log is large and was not checked: `mqtool verify` checks it")
        return
    for finding in verify_timer.check_messages(case.reader, case.reader.commit_log.end_offset):
        yield Sign.of(finding, message=f"{finding.code}: {finding.message}")


def stuck_half_messages(case: Case) -> Iterator[Sign]:
    """Yield transactions that are neither decided nor checked back any more."""
    offsets = case.consumer_offsets or {}
    halves = open_queue(case.reader, HALF_TOPIC, 0)
    if halves is None or halves.max_offset == halves.min_offset:
        return
    start = offsets.get((HALF_TOPIC, TRANSACTION_GROUP, 0), halves.min_offset)
    decided = _decided(case, offsets.get((OP_TOPIC, TRANSACTION_GROUP, 0), 0))
    _, last = case.samples
    newest = max((message.store_timestamp for message in last), default=0)
    stuck = [
        message
        for message in _messages(case, halves, start)
        if message.queue_offset not in decided and message.store_timestamp < newest - _STUCK_MS
    ]
    if stuck:
        first = stuck[0]
        hours = (newest - first.store_timestamp) / _STUCK_MS
        yield Sign(
            f"{_count(len(stuck), 'half message')} waited for {hours:,.1f} hours, undecided, when the broker stopped",
            file=case.reader.paths.relative(case.reader.paths.consume_queue / HALF_TOPIC / "0"),
            topic=HALF_TOPIC,
            queue_id=0,
            queue_offset=first.queue_offset,
            physical_offset=first.position,
            group=first.properties.get(PGROUP),
        )


def _decided(case: Case, start: int) -> set[int]:
    """Return the queue offsets of the half messages that op messages decide."""
    ops = open_queue(case.reader, OP_TOPIC, 0)
    texts = [message.body for message in _messages(case, ops, start)] if ops else []
    return {int(number) for text in texts for number in text.split(b",") if number.isdigit()}


def _messages(case: Case, queue: QueueView, start: int) -> Iterator[Message]:
    """Yield the messages of a queue from an offset on, up to a number that takes no more than seconds."""
    at = max(start, queue.min_offset)
    stop = min(queue.max_offset, at + _MAX_UNITS)
    while at < stop:
        units = queue.units(at, min(_UNITS_AT_ONCE, stop - at))
        if not len(units):
            return
        for offset in units.physical_offset.tolist():
            try:
                yield case.reader.message_at(offset)
            except MqtoolError:
                continue
        at = int(units.next_offset[-1])
