"""Why a broker does not start on the existing log or queues, or truncates them.

Cost: linear in the number of files and in the findings.
"""

import dataclasses
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from mqtool.engine.repair.doctor.case import FIVE, Case, Effect, Sign, sizes_of
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.java_recovery.files import refused_timer_files
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.disk import LOST_AND_FOUND
from mqtool.engine.store.file_kinds import BATCH_CONSUME_QUEUE, BY_NAME
from mqtool.engine.store.file_queue import is_segment_name, segment_name
from mqtool.engine.store.reader import CLOCK_STEP_MS
from mqtool.errors import MqtoolError
from mqtool.formats.commit_log import BLANK_SIZE, MAGIC_V1, MAGIC_V2
from mqtool.formats.record_head import read_start
from mqtool.formats.topics import TIMER_TOPIC

Probe = Callable[[Case], Iterator[Sign]]
_HUGE = 1 << 30
_LONGEST_V1_TOPIC = 127
_LOOKED_AT = 200
_RECOVERED_SEGMENTS = 10
_QUEUES = "mqtool rebuild queues {of_topic}{at}"
_RECOVER_ALL = "mqtool recover --abnormal {at}"
TIMER = f"mqtool pull --topic {TIMER_TOPIC} --queue 0 {{at}}"
_BATCH_TYPE = "BatchCQ"


def of_findings(*codes: str, **facts: object) -> Probe:
    """Return the probe that passes on findings of ``verify``."""

    def probe(case: Case) -> Iterator[Sign]:
        for finding in case.found(*codes):
            yield Sign.of(finding, **facts)

    return probe


# Files


def log_strays(case: Case) -> Iterator[Sign]:
    """Yield files among the segments that are not segments."""
    log = case.reader.commit_log
    for finding in case.found("LOG-STRAY"):
        path = case.root / (finding.file or "")
        if path.is_symlink() and not path.exists():
            yield Sign.of(finding, commands=("mqtool explain LOG-STRAY",) if is_segment_name(path.name) else None)
        elif path.is_dir():
            text = "a folder among the segments: 4.9 takes it for a segment"
            if path.name == LOST_AND_FOUND:
                text += "; a file system check creates it again: mount the disk one folder higher"
            yield Sign.of(finding, versions=("4.9",), message=text)
        elif path.name.isdigit() and path.stat().st_size == log.file_size:
            text = "a segment whose name is not padded to 20 digits: it is read out of order"
            yield _unpadded(case, finding, path, text, Effect.LOSES)
        elif path.is_file() and not path.stat().st_size and path == max(path.parent.iterdir()):
            yield Sign.of(finding, versions=("4.9",))  # 5.x deletes an empty last file, whatever its name
        else:
            yield Sign.of(finding)


def _unpadded(case: Case, finding: Finding, path: Path, text: str, effect: Effect) -> Sign:
    """Return the sign that a broker accepts a file whose name is a number without the leading zeros."""
    target = path.with_name(segment_name(int(path.name)))
    command = case.fill("mv -n -- {path} ", Sign.of(finding)) + shlex.quote(str(target))
    return Sign.of(finding, message=text, expected=target.name, found=path.name, effect=effect, commands=(command,))


def empty_files(case: Case) -> Iterator[Sign]:
    """Yield empty files at the end of log and queues: brokers before 5.1.3 do not accept them."""
    for finding in case.found("LOG-EMPTY-FILE"):
        yield Sign.of(finding)
    for finding in case.found("QUEUE-FILE-SIZE"):
        if finding.found == 0:
            yield Sign.of(finding)


def queue_file_sizes(case: Case) -> Iterator[Sign]:
    """Yield files of queues with a wrong length."""
    for finding in case.found("QUEUE-FILE-SIZE"):
        if finding.found != 0:
            yield Sign.of(finding)


def queue_strays(case: Case) -> Iterator[Sign]:
    """Yield files among those of a queue that do not belong there."""
    for finding in case.found("QUEUE-STRAY"):
        path = case.root / (finding.file or "")
        kind = BY_NAME[(finding.file or "").partition("/")[0]]
        knowing = FIVE if kind is BATCH_CONSUME_QUEUE else None  # those that know such queues
        if path.is_dir():
            yield Sign.of(finding, versions=knowing or ("4.9",), effect=Effect.NOTHING if knowing else None)
        elif path.is_file() and path.name.isdigit() and path.stat().st_size in sizes_of(case.reader)[kind.size_setting]:
            text = "a queue file whose name is not padded to 20 digits: it is read out of order"
            yield dataclasses.replace(_unpadded(case, finding, path, text, Effect.HIDES), versions=knowing)
        else:
            yield Sign.of(finding, versions=knowing)


def index_folders(case: Case) -> Iterator[Sign]:
    """Yield folders among the index files that 5.x mistakes for index files."""
    folder = case.reader.paths.index
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and path.name.isdigit():
            yield Sign("a folder among the index files", file=case.reader.paths.relative(path), versions=FIVE)


def log_missing(case: Case) -> Iterator[Sign]:
    """Yield a log without segments although there are queues: a broker deletes these."""
    setting = case.elsewhere.setting if case.elsewhere else ""
    commands = (case.change_setting("storePathCommitLog", setting),) if setting else None
    yield from of_findings("LOG-MISSING", commands=commands)(case)
    reader = case.reader
    queues = [*reader.consume_queues.values(), *reader.batch_consume_queues.values()]
    is_gone = not reader.commit_log.segments or (case.elsewhere is not None and case.elsewhere.is_all)
    if reader.paths.commit_log and is_gone and any(queue.segments for queue in queues):
        folder = reader.paths.relative(reader.paths.commit_log[0])
        text = f"no segment, but {len(queues):,} queues: a broker that starts deletes them"
        yield Sign(text, file=folder, commands=commands)


def misnamed(case: Case) -> Iterator[Sign]:
    """Yield segments with wrong names; a log without any segment is LOG-MISSING."""
    is_gone = case.elsewhere is not None and case.elsewhere.is_all
    yield from of_findings("LOG-NAME", commands=() if is_gone else None)(case)


def file_size(case: Case) -> Iterator[Sign]:
    """Yield segments of a wrong length; a short one is padded with zeros."""
    for finding in case.found("LOG-FILE-SIZE"):
        is_short = (
            isinstance(finding.found, int) and isinstance(finding.expected, int) and finding.found < finding.expected
        )
        grow = case.fill("truncate -s {expected} -- {path}", Sign.of(finding))
        recover = case.fill("mqtool recover{whole} {at}", Sign.of(finding))
        yield Sign.of(finding, commands=(grow, recover) if is_short else (recover,))


# Records


def cuts(*codes: str) -> Probe:
    """Return the probe for places where a recovery ends the log; the first says how many messages follow."""

    def probe(case: Case) -> Iterator[Sign]:
        for number, finding in enumerate(case.found(*codes)):
            if number or finding.physical_offset is None:
                yield Sign.of(finding)
                continue
            behind = _messages_behind(case, finding.physical_offset)
            lost = f"a recovery that reaches this cuts the log here, and with it {behind:,} sound records after it"
            yield Sign.of(finding, message=f"{finding.message}; {lost if behind else 'no record follows it'}")

    return probe


def _messages_behind(case: Case, offset: int) -> int:
    tables = case.reader.tables(offset + 1)
    return sum(int((table.faults == 0).sum()) for table in tables if not isinstance(table, Gap))


def queue_order(case: Case) -> Iterator[Sign]:
    """Yield messages whose queue offsets are not consecutive: messages are lost, or two share one place."""
    for finding in case.found("LOG-QUEUE-ORDER"):
        if case.needs_new_store:
            text = f"{finding.message}; `mqtool recover` leaves it unchanged, in a new store every message has a place"
            yield Sign.of(finding, message=text, effect=Effect.HIDES)
        else:
            yield Sign.of(finding)


def left_by_recover(*codes: str) -> Probe:
    """Return the probe for files of queues that ``rebuild`` rebuilds after ``recover`` has kept the places it can."""

    def probe(case: Case) -> Iterator[Sign]:
        for finding in case.found(*codes):
            yield Sign.of(finding, commands=(remade(case, Sign.of(finding)),))

    return probe


def remade(case: Case, sign: Sign) -> str:
    """Return the commands that rebuild queues: ``rebuild`` alone loses the places of lost messages."""
    return case.fill(_RECOVER_ALL if case.has_recover_work else _QUEUES, sign)


def out_of_memory(case: Case) -> Iterator[Sign]:
    """Yield records so large that 4.9 cannot even allocate them: it ends with an OutOfMemoryError."""
    for finding in case.found("LOG-SIZES", "LOG-TORN", "LOG-MAGIC"):
        if finding.physical_offset is None:
            continue
        size, magic = read_start(case.reader.commit_log.read(finding.physical_offset, BLANK_SIZE))
        if size >= _HUGE and magic == MAGIC_V1:
            text = f"a record that claims to have {size:,} bytes: 4.9 allocates them before it checks anything else"
            yield Sign.of(finding, message=text, found=size)


def second_kind(case: Case) -> Iterator[Sign]:
    """Yield v2 records, which 4.9 treats as damage: those of topics with long names."""
    long = {key: queue for key, queue in case.reader.consume_queues.items() if len(key[0]) > _LONGEST_V1_TOPIC}
    for (topic, queue_id), queue in list(long.items())[:_LOOKED_AT]:
        stop = queue.max_offset()
        for unit in queue.units(queue.first_offset, stop)[:1]:
            try:
                message = case.reader.message_at(int(unit["physical_offset"]))
            except MqtoolError:
                continue
            if message.magic_code == MAGIC_V2:
                text = "v2 records (5.1 and later): 4.9 cuts the log at the first of them"
                segment = case.reader.commit_log.segment_at(message.position)
                yield Sign(
                    text,
                    file=case.reader.paths.relative(segment.path) if segment else None,
                    topic=topic,
                    queue_id=queue_id,
                    physical_offset=message.position,
                )


def batch_queues(case: Case) -> Iterator[Sign]:
    """Yield queues of inner batches, which 4.9 does not know."""
    for topic, queue_id in case.reader.batch_consume_queues:
        text = "a queue of inner batches (5.x): 4.9 does not read this folder"
        file = case.reader.paths.relative(case.reader.paths.batch_consume_queue / topic / str(queue_id))
        yield Sign(text, file=file, topic=topic, queue_id=queue_id)


def queue_type(case: Case) -> Iterator[Sign]:
    """Yield queues of another type than their topic is set to be."""
    declared = _batch_topics(case)
    paths = case.reader.paths
    batch = {topic for topic, _ in case.reader.batch_consume_queues}
    plain = {topic for topic, _ in case.reader.consume_queues}
    for topic in sorted(batch - declared):
        text = "the type of the topic is not BatchCQ: a broker refuses to load this"
        file = paths.relative(paths.batch_consume_queue / topic)
        sign = Sign(text, file=file, expected=_BATCH_TYPE, found="SimpleCQ", topic=topic)
        if topic in plain:  # the log shows which of its queues are right
            sign = dataclasses.replace(sign, commands=(case.fill("mqtool rebuild queues {at}", sign),))
        yield sign
    for topic in sorted(plain & declared):
        text = "the type of the topic is BatchCQ: a broker refuses to load this"
        file = paths.relative(paths.consume_queue / topic)
        sign = Sign(text, file=file, expected="SimpleCQ", found=_BATCH_TYPE, topic=topic)
        aside = "mkdir -p {aside} && mv --backup=numbered -- {path} {aside}/"
        yield dataclasses.replace(sign, commands=(case.fill(aside, sign), case.fill(_QUEUES, sign)))


def _batch_topics(case: Case) -> set[str]:
    return {name for name, topic in (case.topics or {}).items() if topic.attributes.get("queue.type") == _BATCH_TYPE}


def clock(case: Case) -> Iterator[Sign]:
    """Yield messages stored in the future: the clock ran ahead, or was set back since."""
    first, last = case.samples
    latest = max(first + last, key=lambda message: message.store_timestamp, default=None)
    if latest and latest.store_timestamp > case.around.now + CLOCK_STEP_MS:
        hours = (latest.store_timestamp - case.around.now) / 3_600_000
        segment = case.reader.commit_log.segment_at(latest.position)
        yield Sign(
            f"a message has a store time {hours:,.1f} hours in the future: delivery times, search and retention are "
            "wrong",
            file=case.reader.paths.relative(segment.path) if segment else None,
            expected=case.around.now,
            found=latest.store_timestamp,
            topic=latest.topic,
            queue_id=latest.queue_id,
            queue_offset=latest.queue_offset,
            physical_offset=latest.position,
            commands=("timedatectl status",),
        )


# Queues


def queues_lost(case: Case) -> Iterator[Sign]:
    """Yield queues whose folder is missing although the log has messages of them."""
    for finding in case.found("QUEUE-MISSING"):
        if finding.file and not _is_there(case, finding):
            yield _lost(case, finding, finding.message)


def _lost(case: Case, finding: Finding, text: str) -> Sign:
    count = len(case.reader.commit_log.segments)
    all_queues = finding.file == case.reader.paths.relative(case.reader.paths.consume_queue)
    if all_queues:
        if count > _RECOVERED_SEGMENTS:
            text += f"; 5.5 rebuilds only those of the last {_RECOVERED_SEGMENTS} of {count} segments"
    else:
        text += "; no broker rebuilds a single queue: it restarts at queue offset 0"
    return Sign(text, finding.file, topic=finding.topic, queue_id=finding.queue_id)


def queue_ends(case: Case) -> Iterator[Sign]:
    """Yield existing queues that lack messages of the log."""
    for finding in case.found("QUEUE-MISSING"):
        if finding.file and _is_there(case, finding):
            yield Sign.of(finding)


def _is_there(case: Case, finding: Finding) -> bool:
    return os.path.exists(case.root / (finding.file or ""))  # noqa: PTH110  a damaged name may be too long for any file


def timer_files(case: Case) -> Iterator[Sign]:
    """Yield files of the timer with a wrong length or name; only some of them stop a broker."""
    refused = {case.reader.paths.relative(path): reason for path, reason in refused_timer_files(case.reader)}
    findings = {finding.file: finding for finding in case.found("TIMER-FILE-SIZE") if finding.file not in refused}
    for file, reason in refused.items():
        yield Sign(reason, file=file)
    for finding in findings.values():  # a broker accepts it, and forgets what it held
        sign = Sign.of(finding, effect=Effect.HIDES)
        is_of_log = (finding.file or "").startswith("timerlog/") and finding.found != 0
        yield dataclasses.replace(sign, commands=(case.fill(TIMER, sign),)) if is_of_log else sign
