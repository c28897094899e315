"""What a broker of a given version would do to a store at startup: predicted, and carried out.

``start`` and ``with_losses`` predict it and write nothing; ``plan_as_broker`` and ``apply_as_broker`` do to the store
what the broker would have done by the time it has started and was stopped cleanly. What a broker truncates keeps its
bytes: only positions in its memory move, so that the next start may find old records again.

Cost: linear in what the broker would read, and in the log where lost messages are counted.
"""

import collections
import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mqtool.engine.repair.group_effects import group_effects, offsets_of
from mqtool.engine.repair.java_recovery.files import DraftFile, EndlessError, StartRefusedError
from mqtool.engine.repair.java_recovery.log import Outcome, Times
from mqtool.engine.repair.java_recovery.queues import BrokerBatchQueue, BrokerQueue
from mqtool.engine.repair.java_recovery.start import BrokerStart, BrokerView
from mqtool.engine.repair.journal import Journal
from mqtool.engine.repair.losses import LossCollector
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.plan import Change, GroupEffect, Loss, Plan
from mqtool.engine.repair.rehearsal import rehearsed
from mqtool.engine.repair.verify.log import stretches
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.consume_queue import BatchConsumeQueue, ConsumeQueue
from mqtool.engine.store.dispatch import QueueKey, Units, dispatch
from mqtool.engine.store.index_file import NAME_WIDTH
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import BadDataError
from mqtool.formats import checkpoint, consume_queue
from mqtool.formats import kernels as plain
from mqtool.formats.scan import Ints, MessageTable
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX

BEHIND = "beyond the end of the log"
UNREACHABLE = "in the log, but in no queue"
GONE = "already gone from the log, and the queue no longer refers to them"
_SHOWN = 3

MEETS = {
    Outcome.RECORD: "another record",
    Outcome.BLANK: "a blank record without a following segment",
    Outcome.MISMATCH: "a record whose lengths do not add up",
    Outcome.NOTHING: "nothing that it accepts as a record",
    Outcome.BAD_CRC: "a record that does not match its checksum",
    Outcome.OVERFLOW: "a record of 2 GiB",
}


@dataclasses.dataclass(frozen=True)
class BrokerVerdict:
    """What a broker of one version would do.

    ``refusal`` says why it would not start (``is_ext_refused``: by a queue's extension), ``endless`` why it would
    never finish; the other fields hold what is known by then. ``after_stop`` is the checkpoint once it was
    stopped cleanly. Files are relative to the store.
    """

    version: str
    last_exit_ok: bool
    refusal: str | None = None
    is_ext_refused: bool = False
    endless: str | None = None
    start_offset: int | None = None
    start_reason: str = ""
    end_offset: int | None = None
    end_reason: Outcome | None = None
    removed_segments: tuple[str, ...] = ()
    removed_queue_files: tuple[str, ...] = ()
    removed_index_files: tuple[str, ...] = ()
    after_load: BrokerView | None = None
    after_start: BrokerView | None = None
    after_stop: Times | None = None
    losses: tuple[Loss, ...] = ()
    groups: tuple[GroupEffect, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def starts(self) -> bool:
        """Whether the broker would finally run."""
        return self.refusal is None and self.endless is None

    def sentences(self) -> list[str]:
        """Return the verdict in words, in the order of events."""
        broker = f"a {self.version} broker"
        if self.refusal:
            return [f"{broker} refuses to start: {self.refusal}"]
        clean = "normally, as after a clean stop" if self.last_exit_ok else "after a crash, as the abort file shows"
        lines = [f"{broker} recovers {clean}"]
        if self.start_offset is not None:
            lines.append(f"it starts with the segment at {self.start_offset:,}, {self.start_reason}")
        if self.end_offset is not None and self.end_reason:
            lines.append(f"it ends the log at {self.end_offset:,}: there is {MEETS[self.end_reason]}")
        for names, reason in (
            (self.removed_segments, "of the log"),
            (self.removed_queue_files, "of queues"),
            (self.removed_index_files, "of the index"),
        ):
            if names:
                more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
                files = "file" if len(names) == 1 else "files"
                lines.append(f"it deletes {len(names):,} {files} {reason}: {', '.join(names[:_SHOWN])}{more}")
        counts: collections.Counter[tuple[str | None, str]] = collections.Counter()
        for loss in self.losses:
            counts[loss.topic, loss.reason] += loss.messages
        lines += [f"messages lost from topic {topic}: {n:,}, {reason}" for (topic, reason), n in counts.most_common()]
        if self.endless:
            lines.append(self.endless)
        return [*lines, *self.remarks]


def start(broker: BrokerStart, digests: bool = False) -> BrokerVerdict:
    """Let a broker load, start and stop, without determining losses."""
    verdict = BrokerVerdict(broker.rules.name, broker.last_exit_ok)
    try:
        broker.load()
        verdict = dataclasses.replace(verdict, after_load=broker.view(digests))
        broker.start()
        verdict = dataclasses.replace(verdict, after_start=broker.view(digests))
    except StartRefusedError as error:
        return dataclasses.replace(verdict, refusal=str(error), is_ext_refused=error.is_of_ext)
    except EndlessError as error:
        verdict = dataclasses.replace(verdict, endless=str(error))
    relative = broker.reader.paths.relative
    queue_files = [path for path, _ in _removed_of_queues(broker)]
    return dataclasses.replace(
        verdict,
        start_offset=broker.start_offset,
        start_reason=broker.start_reason,
        end_offset=broker.walk.end_offset if broker.walk else None,
        end_reason=broker.walk.why if broker.walk else None,
        removed_segments=tuple(map(relative, broker.removed)),
        removed_queue_files=tuple(map(relative, queue_files)),
        removed_index_files=tuple(map(relative, broker.index.removed)),
        after_stop=broker.stop(),
        remarks=tuple(broker.remarks),
    )


# What is lost


def with_losses(
    brokers: Sequence[BrokerStart],
    verdicts: Sequence[BrokerVerdict],
    since: int = 0,
    progress: Progress = lambda _: None,
) -> list[BrokerVerdict]:
    """Return the verdicts of brokers on one store, with the messages that consumers could no longer read.

    The log is read once from an address on, damage skipped: what is beyond the end of a broker's log, and what
    no unit of its queue leads to. Units that a broker drops are counted, too, if their message is already gone.

    Args:
        brokers: that have started.
        verdicts: theirs; those that do not start lose nothing.
        since: the address; messages before it are not examined.
        progress: called with the number of bytes done so far.
    """
    reader = brokers[0].reader
    starting = [(broker, LossCollector()) for broker, verdict in zip(brokers, verdicts, strict=True) if verdict.starts]
    for table in reader.tables(since) if starting else ():
        if isinstance(table, Gap):
            continue
        sound = table.where(_is_sound(table))
        units = dispatch(sound, reader.delay_levels).units
        for broker, losses in starting:
            _note_units(losses, broker, units)
            _note_without_unit(losses, broker, sound, units)
        if len(table):
            progress(int(table.column("position")[-1]) - since)
    offsets, remarks = offsets_of(reader)
    by_version = {}
    for broker, losses in starting:
        rows = losses.rows()
        rows += tuple(_forgotten(broker, rows))
        ends = {key: queue.max_offset for key, queue in broker.queues.items()}
        moved = {key: queue.moved for key, queue in broker.queues.items() if queue.moved}
        by_version[broker.rules.name] = rows, group_effects(offsets, rows, ends, moved), tuple(remarks)
    return [
        dataclasses.replace(verdict, losses=rows, groups=groups, remarks=verdict.remarks + more)
        for verdict in verdicts
        for rows, groups, more in [by_version.get(verdict.version, ((), (), ()))]
    ]


def _note_units(losses: LossCollector, broker: BrokerStart, units: Units) -> None:
    """Note the units of sound messages that a broker does not have."""
    for key, first, last in units.stretches:
        offsets, positions = units.queue_offset[first:last], units.physical_offset[first:last]
        stops = offsets + units.batch_size[first:last]
        sizes = np.zeros(last - first, np.int64) if key[0].startswith(LIGHT_QUEUE_PREFIX) else units.size[first:last]
        behind = positions >= broker.max_physical_offset
        unreachable = ~behind
        if unreachable.any():
            unreachable &= ~_is_reachable(broker.queues.get(key), offsets, positions)
        for mask, reason in ((behind, BEHIND), (unreachable, UNREACHABLE)):
            if mask.all():
                losses.add(key, int(offsets[0]), int(stops[-1]), int(sizes.sum()), reason)
            elif mask.any():
                losses.add_many(key, offsets[mask], stops[mask], sizes[mask], reason)


def _note_without_unit(losses: LossCollector, broker: BrokerStart, table: MessageTable, units: Units) -> None:
    """Note messages beyond the end that are in no queue: prepared and rolled back ones."""
    behind = table.column("position") >= broker.max_physical_offset
    if not behind.any():
        return
    behind[units.rows] = False
    ids, topics = table.topics()
    for number in np.unique(ids[behind]).tolist():
        rows = behind & (ids == number)
        size = int(table.column("size")[rows].sum())
        losses.add_elsewhere(topics[number].decode("utf-8", "replace"), int(rows.sum()), size, BEHIND)


def _forgotten(broker: BrokerStart, losses: Iterable[Loss]) -> Iterator[Loss]:
    """Yield the units that a broker drops although no sound message was found for them: it is no longer in the log.

    Nor does the queue have their messages at other queue offsets.
    """
    reader = broker.reader
    known: dict[QueueKey, list[tuple[int, int]]] = collections.defaultdict(list)
    for loss in losses:
        if loss.topic is not None and loss.queue_id is not None:
            known[loss.topic, loss.queue_id].append((loss.queue_offset or 0, loss.end_queue_offset or 0))
    for files in (reader.consume_queues, reader.batch_consume_queues):
        for key, before in files.items():
            queue = broker.queues.get(key)
            if queue is None:
                continue
            at, end = max(before.first_offset, queue.max_offset), before.max_offset()
            elsewhere = [(move.belongs, move.belongs + move.messages) for move in queue.moved]
            for start, stop in [*sorted([*known[key], *elsewhere]), (end, end)]:
                for first, last in _units_of_messages(before, at, min(start, end)):
                    yield Loss(key[0], last - first, 0, GONE, key[1], first, last)
                at = max(at, stop)


def _units_of_messages(queue: ConsumeQueue | BatchConsumeQueue, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of queue offsets whose units may have had messages."""
    if isinstance(queue, BatchConsumeQueue):  # only such units determine its bounds
        yield from [(start, stop)] if start < stop else []
        return
    for at, units in queue.windows(start, stop):
        sizes = units["size"]
        can_be = (units["physical_offset"] >= 0) & (sizes > 0) & (sizes != consume_queue.PRE_BLANK_SIZE)
        yield from ((at + first, at + last) for first, last in stretches(can_be))


def _is_sound(table: MessageTable) -> Any:
    sound = (table.faults == plain.SOUND) & (table.column("physical_offset") == table.column("position"))
    return sound & ((table.sizes(plain.BODY) == 0) | (table.body_crcs() == table.column("body_crc")))


def _is_reachable(queue: BrokerQueue | None, offsets: Ints, positions: Ints) -> Any:
    """Return which units of consecutive messages of a queue a broker has."""
    if queue is None:
        return np.zeros(len(offsets), np.bool_)
    if isinstance(queue, BrokerBatchQueue):
        led_to = queue.addresses
        at = np.minimum(np.searchsorted(led_to, positions), max(0, len(led_to) - 1))
        is_led_to = led_to[at] == positions if len(led_to) else np.zeros(len(positions), np.bool_)
        return (queue.min_offset <= offsets) & (offsets < queue.max_offset) & is_led_to
    reachable = queue.physical_offsets(offsets) == positions
    for move in queue.moved:
        low, high = np.searchsorted(offsets, (move.belongs, move.belongs + move.messages))
        if low < high:
            lies = offsets[low:high] - move.belongs + move.lies
            reachable[low:high] |= queue.physical_offsets(lies) == positions[low:high]
    return reachable


# Plan and apply


def plan_as_broker(reader: StoreReader, options: Mapping[str, Any], jobs: int, progress: Progress) -> Plan:  # noqa: ARG001
    """Return what ``apply_as_broker`` would do; no changes where the broker would not start.

    Args:
        reader: the store.
        options: ``version``: "4.9", "5.3" or "5.5"; ``mode``: "normal" or "abnormal", None to go by the abort file.
        jobs: not used: a broker recovers in one thread, and so does this.
        progress: called with the number of bytes of the log done so far.

    Raises:
        UsageError: no such version, or a kind of store that is not covered.
    """
    broker = _broker_of(reader, options, progress)
    try:
        (verdict,) = with_losses([broker], [start(broker)])
        plan = Plan(
            "recover-as-broker",
            dict(options),
            (),
            verdict.losses,
            (*verdict.sentences(), *reader.remarks),
            read_size=reader.commit_log.total_size,
            refusal=None if verdict.starts else f"a {verdict.version} broker does not start on this store",
            groups=verdict.groups,
        )
        times = verdict.after_stop
        if verdict.starts and times:
            plan = dataclasses.replace(plan, changes=tuple(_changes(broker, times)))
            plan = rehearsed(reader, plan, lambda journal: _carry_out(broker, times, journal))
        return plan
    finally:
        broker.close()


def _broker_of(reader: StoreReader, options: Mapping[str, Any], progress: Progress) -> BrokerStart:
    return BrokerStart(reader, options["version"], True, progress, options.get("mode"))


def apply_as_broker(reader: StoreReader, plan: Plan, journal: Journal, jobs: int, progress: Progress) -> None:  # noqa: ARG001
    """Do to the store what the broker would have done by the time it was stopped again.

    Raises:
        BadDataError: the broker would not start.
    """
    broker = _broker_of(reader, plan.options, progress)
    try:
        verdict = start(broker)
        if not verdict.starts:
            raise BadDataError(f"{verdict.refusal or verdict.endless}: cannot repair the store as that broker would")
        assert verdict.after_stop
        _carry_out(broker, verdict.after_stop, journal)
    finally:
        broker.close()


def _carry_out(broker: BrokerStart, after_stop: Times, journal: Journal) -> None:
    with journal.together():
        for path, _ in _removed(broker):
            journal.remove(path)
        for draft, path in _named_drafts(broker):
            _write_draft(journal, draft, path)
        _write_checkpoint(journal, broker.reader.paths.checkpoint, after_stop)


def _changes(broker: BrokerStart, after_stop: Times) -> list[Change]:
    relative, paths = broker.reader.paths.relative, broker.reader.paths
    changes = [Change("remove", relative(path), reason) for path, reason in _removed(broker)]
    for draft, path in _named_drafts(broker):
        content = "index entries" if path.parent == paths.index else "queue units"
        if draft.is_new:
            changes.append(Change("create", relative(path), f"{content} of dispatched messages", size=draft.size))
            continue
        if draft.base and draft.base.size < draft.size:
            reason = "extended to its full length"
            changes.append(Change("write", relative(path), reason, draft.base.size, draft.size - draft.base.size))
        written = [(at, len(data)) for at, data in draft.changes()]
        if written:
            changes.append(Change("write", relative(path), content, written[0][0], sum(size for _, size in written)))
    page = _page(after_stop, paths.checkpoint)
    if not paths.checkpoint.exists():
        changes.append(Change("create", "checkpoint", "there is none", size=len(page)))
    elif read_file(paths.checkpoint) != page:
        changes.append(Change("write", "checkpoint", "what the broker records", 0, len(page)))
    return changes


def _removed(broker: BrokerStart) -> Iterator[tuple[Path, str]]:
    for path in broker.removed:
        yield path, BEHIND if path.stat().st_size else "empty"
    yield from _removed_of_queues(broker)
    for path in broker.index.removed:
        yield path, "it ends after the time of the checkpoint"
    if broker.reader.has_abort_file:
        yield broker.reader.paths.abort, "the broker is stopped cleanly again"


def _removed_of_queues(broker: BrokerStart) -> Iterator[tuple[Path, str]]:
    for queue in broker.queues.values():
        drafts = queue.removed + (queue.ext.removed if queue.ext else [])
        for draft in drafts:
            if not draft.is_new:
                yield draft.path, "its units are of messages that are gone, or come after an invalid unit"


def _named_drafts(broker: BrokerStart) -> Iterator[tuple[DraftFile, Path]]:
    """Yield the files that a broker keeps or creates, and their paths."""
    for queue in broker.queues.values():
        for segment in queue.segments + (queue.ext.segments if queue.ext else []):
            yield segment, segment.path
    files = broker.index.files
    number = int(datetime.datetime.now().strftime("%Y%m%d%H%M%S%f")[:NAME_WIDTH])  # the broker's clock is local
    names_in_use = [int(file.head.name) for file in files if file.head.name]
    number = max([number, *(name + 1 for name in names_in_use)])
    for file in files:
        if file.head.name:
            yield file.draft, file.draft.path
        else:
            yield file.draft, broker.reader.paths.index / f"{number:0{NAME_WIDTH}}"
            number += 1


def _write_draft(journal: Journal, draft: DraftFile, path: Path) -> None:
    if draft.is_new:
        journal.create(path, draft.size)
        for at, data in draft.changes():
            journal.fill(path, at, data)
        return
    if draft.base and draft.base.size < draft.size:
        journal.truncate(path, draft.size)
    for at, data in draft.changes():
        journal.write(path, at, data)


def _write_checkpoint(journal: Journal, path: Path, times: Times) -> None:
    page = _page(times, path)
    if not path.exists():
        journal.create(path, len(page))
        journal.fill(path, 0, page)
    elif read_file(path) != page:
        journal.write(path, 0, page)


def _page(times: Times, path: Path) -> bytes:
    """Return the contents of the checkpoint; unknown bytes stay."""
    old = read_file(path) if path.exists() else b""
    head = np.zeros(1, checkpoint.CHECKPOINT.dtype)
    for name, value in times._asdict().items():
        head[name] = value
    size = len(times) * 8
    return head.tobytes()[:size] + old.ljust(checkpoint.CHECKPOINT_SIZE, b"\0")[size:]
