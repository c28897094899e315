"""Damage everywhere: which changed bytes of a store ``verify`` does not see.

Every golden store is cut into named fields, bytes of each field are changed one after another, and ``verify`` must
find something new each time, or the field is one of those that nothing can be held against (``SILENT``, ``PARTLY``).
Files are cut and extended too. The tests run a few of these; this is the long form::

    python -m tests.campaigns.damage                      all stores, 25 changes a field
    python -m tests.campaigns.damage --store txn-533-kill --each 1000000 --only flip    every byte of one store

It prints, for each kind of damage and field, how often it was tried and missed, and the misses that no table excuses.
Ends with status 1 when there are any.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import collections
import dataclasses
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats import (
    batch_consume_queue,
    checkpoint,
    commit_log,
    consume_queue,
    consume_queue_ext,
    dledger,
    index_file,
    kernels,
    record_schemas,
    timer,
)
from tests.golden import GOLDEN_NAMES, copy_of

SILENT: dict[str, str] = {
    # Records. A CRC property (``crc_record``) covers all of these.
    "record.flag": "the application's own, outside the body's CRC",
    "record.born_timestamp": "the producer's clock; nothing else holds it",
    "record.born_address": "nothing else holds it",
    "record.born_port": "nothing else holds it",
    "record.store_address": "nothing else holds it; it differs from record to record where brokers moved",
    "record.store_port": "nothing else holds it",
    "record.reconsume_times": "nothing else holds it",
    "record.prepared_transaction_offset": "nothing else holds it",
    "record.other_property": "properties lie outside the body's CRC; this one is in no queue and in no index",
    "record.other_property_name": "as its value",
    "blank.filler": "undefined",
    # Units and entries.
    "batch.compacted_offset": "no reader uses it in ordinary batch queues",
    "batch.reserved": "no reader uses it",
    "batch.unused": "a broker overwrites it; a size above 0 would be found",
    "ext.bit_map": "bits of a filter of SQL consumers; nothing else holds them",
    "ext.unused": "a broker overwrites it",
    "entry.number_0": "never used",
    "entry.unused": "a broker overwrites it",
    # DLedger: 4.9.7 writes no CRCs, channels and terms are 0.
    "dledger.body_crc": "not computed by the broker",
    "dledger.chain_crc": "not computed by the broker",
    "dledger.channel": "no reader uses it",
    "dledger.term": "may grow at any entry",
    # Small files.
    "checkpoint.master_flushed_offset": "a slave notes its master's, which may be anything",
    "lock": "only the lock on it counts",
    "abort": "only that it is there counts",
    "timercheck.last_read_timestamp": "nothing else holds it",
    "timercheck.state_version": "nothing else holds it",
    "timercheck.data_version_timestamp": "nothing else holds it",
    "timercheck.data_version_counter": "nothing else holds it",
    "timercheck.rest": "unused",
    "timerlog.reserved": "no reader uses it",
    "wheel.empty": "a slot without a time is not used; a time would be found",
    "config/timermetrics": "counts that nothing depends on",
    "config/transactionMetrics": "counts that nothing depends on",
}
"""Fields of which no change, or hardly one, can be found, for nothing in a store can be held against them."""

PARTLY: dict[str, str] = {
    "record.store_timestamp": "only steps back by ten minutes, and what differs by seconds from the index, are found",
    "record.sys_flag": "some bits change nothing that anything else tells (MULTI_TAGS, the kind of compression)",
    "record.queue_id": "a prepared or rolled back record lies in no queue",
    "record.queue_offset": "0 stays 0 in part of it when eight bytes are zeroed",
    "record.topic": "of a rolled back record: in no queue, in no index",
    "record.physical_offset": "eight bytes zeroed from its last on hit what stands behind it",
    "record.TAGS_property": "of delayed and rolled back messages it is nowhere else; broken UTF-8 hashes alike",
    "record.TAGS_property_name": "as its value",
    "record.KEYS_property": "broken UTF-8 hashes alike",
    "record.KEYS_property_name": "two names in one record: the last counts",
    "record.UNIQ_KEY_property": "two names in one record: the last counts",
    "record.UNIQ_KEY_property_name": "two names in one record: the last counts",
    "record.property_separator": "found only where a key, tag or batch number becomes another",
    "record.property_end": "found only where a key, tag or batch number becomes another",
    "crc_record.property_separator": "as the property that it belongs to",
    "crc_record.property_end": "the first and the last record of a walk have one neighbour only",
    "crc_record.__CRC32#_property": "the first and the last record of a walk have one neighbour only",
    "crc_record.__CRC32#_property_name": "the first and the last record of a walk have one neighbour only",
    "crc_record.other_property": "zeros up to the record's end, in the first or last record of a walk",
    "crc_record.other_property_name": "zeros up to the record's end, in the first or last record of a walk",
    "blank.size": "DLedger's blank may be shorter than the head of an entry",
    "blank.magic_code": "DLedger's blank may be shorter than the head of an entry",
    "queue.unused": "a unit of size 0 is none, whatever its tags code",
    "queue.tags_code": "an address in the extension that becomes 0 where the message has no tag",
    "first_entry.seconds_since_begin": "of the first file: it counts from the end of one that is gone",
    "checkpoint.physical_timestamp": "smaller is ordinary lagging; up to three seconds later is allowed for",
    "checkpoint.logics_timestamp": "as physical_timestamp",
    "checkpoint.index_timestamp": "as physical_timestamp",
    "checkpoint.confirm_physical_offset": "smaller is ordinary lagging",
    "checkpoint.logics_physical_offset": "smaller is ordinary lagging",
    "timercheck.last_timer_log_flushed_position": "smaller is ordinary lagging",
    "timercheck.last_timer_queue_offset": "smaller is ordinary lagging",
    "timercheck.master_timer_queue_offset": "smaller is ordinary lagging",
    "timerlog.previous_position": "of a unit that has run out only its shape is judged",
    "timerlog.delay_ms": "by less than the second of its slot",
    "timerlog.enqueue_timestamp": "by less than the second of its slot",
    "timerlog.end": "its previous position is not used",
    "timerlog.unused": "behind the mark of the end",
    "wheel_past.time": "a slot whose time has come is judged by its place only",
    "wheel_past.first_position": "as time",
    "wheel_past.last_position": "as time",
    "wheel_past.count": "as time",
    "wheel_past.magic_code": "as time",
    "wheel_of_killed.first_position": "after a kill the wheel may be older than the log",
    "wheel_of_killed.time": "a slot without a time is not used; after a kill the wheel may be older than the log",
    "wheel_of_killed.count": "after a kill the wheel may be older than the log",
    "wheel_of_killed.last_position": "after a kill the wheel may be older than the log",
    # Sizes of a single file.
    "commitlog": "the size of a lone segment is taken for the right one",
    "consumequeue": "the size of the only queue file is taken for the right one",
    "index": "the size of a lone index file is taken for the right one",
}
"""Fields of which some changes cannot be found."""


def is_excused(field: str) -> bool:
    """Tell whether a change to this field may go unseen: values of tables mostly mean what they say."""
    return field in SILENT or field in PARTLY or field.startswith("config/")


@dataclasses.dataclass(frozen=True)
class Place:
    """Bytes of one file that are one field."""

    file: str
    at: int
    size: int
    field: str


# Where each field lies


def places_of(root: Path) -> list[Place]:
    """Return the fields of a store that ``verify`` reads."""
    reader = StoreReader(root)
    found = [
        *_log(reader),
        *_queues(reader),
        *_index(reader),
        *_pages(reader),
        *_timer(reader),
        *_config(root),
    ]
    return [place for place in found if place.size > 0]


def _struct(reader: StoreReader, path: Path, at: int, dtype: Any, kind: str) -> Iterator[Place]:
    file = reader.paths.relative(path)
    for name, (kind_of, offset, *_) in dtype.fields.items():
        yield Place(file, at + offset, kind_of.itemsize, f"{kind}.{name}")


def _log(reader: StoreReader) -> Iterator[Place]:
    log = reader.commit_log
    head = log.envelope.size
    for segment in log.segments:
        file = reader.paths.relative(segment.path)
        end = 0
        for table in log.walk(segment, 0, segment.size, kernels):
            assert not isinstance(table, Gap) or not segment.bytes[table.start : table.end].any()
            if isinstance(table, Gap):
                continue
            crcs = table.properties(["__CRC32#"])[1][0] > 0
            for row, start in enumerate(table.starts.tolist()):
                if head:
                    yield from _struct(reader, segment.path, start - head, dledger.ENTRY_HEAD.dtype, "dledger")
                yield from _record(reader, segment.path, start, table.record(row), bool(crcs[row]))
                end = start + int(table.column("size")[row])
        if end < segment.size and segment.bytes[end : end + 8].any():
            yield Place(file, end, 4, "blank.size")
            yield Place(file, end + 4, 4, "blank.magic_code")
            yield Place(file, end + 8, segment.size - end - 8, "blank.filler")
        else:
            yield Place(file, end, segment.size - end, "log.unused")


def _record(reader: StoreReader, path: Path, start: int, record: bytes, has_crc: bool) -> Iterator[Place]:
    file = reader.paths.relative(path)
    kind = "crc_record" if has_crc else "record"
    parsed = record_schemas.parse_message(record)
    dtype = commit_log.HEADS[commit_log.head_form(parsed.sys_flag)].dtype
    yield from _struct(reader, path, start, dtype, kind)
    at = start + dtype.itemsize
    topic_width = 2 if parsed.magic_code == commit_log.MAGIC_V2 else 1
    for name, size in (
        ("body", parsed.body_size),
        ("topic_size", topic_width),
        ("topic", parsed.topic_size),
        ("properties_size", 2),
    ):
        yield Place(file, at, size, f"{kind}.{name}")
        at += size
    known = {b"UNIQ_KEY", b"KEYS", b"TAGS", b"INNER_NUM", b"INNER_BASE"}
    known |= {b"INNER_MULTI_DISPATCH", b"INNER_MULTI_QUEUE_OFFSET", b"__CRC32#"}
    for chunk in parsed.properties.split(b"\2"):
        name, separator, value = chunk.partition(b"\1")
        label = name.decode() if name in known else "other"
        yield Place(file, at, len(name), f"{kind}.{label}_property_name")
        yield Place(file, at + len(name), len(separator), f"{kind}.property_separator")
        yield Place(file, at + len(name) + len(separator), len(value), f"{kind}.{label}_property")
        at += len(chunk) + 1
        if at <= start + len(record):
            yield Place(file, at - 1, 1, f"{kind}.property_end")


def _queues(reader: StoreReader) -> Iterator[Place]:
    for queue in reader.consume_queues.values():
        for segment in queue.segments:
            file = reader.paths.relative(segment.path)
            for at in range(0, segment.size, consume_queue.UNIT_SIZE):
                offset = (segment.start_offset + at) // consume_queue.UNIT_SIZE
                size = kernels.int32(memoryview(segment.bytes), at + 8)
                if offset >= queue.max_offset():
                    yield Place(file, at, consume_queue.UNIT_SIZE, "queue.unused")
                elif size == consume_queue.PRE_BLANK_SIZE:
                    yield from _struct(reader, segment.path, at, consume_queue.UNIT.dtype, "pre_blank")
                else:
                    yield from _struct(reader, segment.path, at, consume_queue.UNIT.dtype, "queue")
    for batch in reader.batch_consume_queues.values():
        left = batch.unit_count
        for segment in batch.segments:
            file = reader.paths.relative(segment.path)
            for at in range(0, segment.size, batch_consume_queue.UNIT_SIZE):
                if left > 0:
                    yield from _struct(reader, segment.path, at, batch_consume_queue.UNIT.dtype, "batch")
                else:
                    yield Place(file, at, batch_consume_queue.UNIT_SIZE, "batch.unused")
                left -= 1
    for ext in reader.consume_queue_exts.values():
        for segment in ext.segments:
            file, at = reader.paths.relative(segment.path), 0
            while (size := kernels.int16(memoryview(segment.bytes), at)) > 0:
                yield from _struct(reader, segment.path, at, consume_queue_ext.HEAD.dtype, "ext")
                head = consume_queue_ext.MIN_SIZE
                yield Place(file, at + head, size - head, "ext.bit_map")
                at += size
            if size == consume_queue_ext.END:
                yield Place(file, at, 2, "ext.end")
                at += 2
            yield Place(file, at, segment.size - at, "ext.unused")


def _index(reader: StoreReader) -> Iterator[Place]:
    for file in reader.index_files:
        name = reader.paths.relative(file.path)
        yield from _struct(reader, file.path, 0, index_file.HEADER.dtype, "index")
        assert file.shape
        for slot, number in enumerate(file.slots().tolist()):
            at = index_file.HEADER_SIZE + slot * index_file.SLOT_SIZE
            yield Place(name, at, index_file.SLOT_SIZE, "slot" if number else "slot.empty")
        yield Place(name, file.entries_at, index_file.ENTRY_SIZE, "entry.number_0")
        for number in range(1, file.entry_stop):
            at = file.entries_at + number * index_file.ENTRY_SIZE
            kind = "first_entry" if number == 1 else "entry"
            yield from _struct(reader, file.path, at, index_file.ENTRY.dtype, kind)
        end = file.entries_at + file.entry_stop * index_file.ENTRY_SIZE
        yield Place(name, end, file.size - end, "entry.unused")


def _pages(reader: StoreReader) -> Iterator[Place]:
    if reader.paths.checkpoint.exists():
        yield from _struct(reader, reader.paths.checkpoint, 0, checkpoint.CHECKPOINT.dtype, "checkpoint")
    if reader.paths.timer_check.exists():
        yield from _struct(reader, reader.paths.timer_check, 0, timer.TIMER_CHECK.dtype, "timercheck")
    for name in ("abort", "lock"):
        path = reader.root / name
        if path.exists():
            yield Place(name, 0, path.stat().st_size, name)


def _timer(reader: StoreReader) -> Iterator[Place]:
    for segment in reader.timer_log.segments if reader.timer_log else ():
        file, at = reader.paths.relative(segment.path), 0
        while at + 4 <= segment.size and kernels.int32(memoryview(segment.bytes), at) == timer.LOG_UNIT_SIZE:
            yield from _struct(reader, segment.path, at, timer.LOG_UNIT.dtype, "timerlog")
            at += timer.LOG_UNIT_SIZE
        if segment.bytes[at : at + 4].any():
            yield Place(file, at, timer.LOG_END_SIZE, "timerlog.end")
            at += timer.LOG_END_SIZE
        yield Place(file, at, segment.size - at, "timerlog.unused")
    wheel = reader.paths.timer_wheel
    if wheel.exists():
        slots = np.fromfile(wheel, timer.SLOT.dtype)
        check = reader.timer_check
        now = check.last_read_timestamp // 1000 if check else 0
        due = "wheel_of_killed" if reader.has_abort_file else "wheel"
        for number in np.flatnonzero(slots["time"] != 0).tolist():
            kind = due if slots["time"][number] > now else "wheel_past"
            yield from _struct(reader, wheel, number * timer.SLOT_SIZE, timer.SLOT.dtype, kind)
        number = int(np.flatnonzero(slots["time"] == 0)[0])
        yield Place("timerwheel", number * timer.SLOT_SIZE, timer.SLOT_SIZE, "wheel.empty")


def _config(root: Path) -> Iterator[Place]:
    for path in sorted((root / "config").glob("*")):
        if path.is_file() and path.name != "timercheck":
            yield Place(f"config/{path.name}", 0, path.stat().st_size, f"config/{path.name}")


# Damage


@dataclasses.dataclass
class DamageTally:
    """What became of the changes to one field."""

    tried: int = 0
    missed: int = 0
    only_note: int = 0
    elsewhere: int = 0  # found, but no finding names the file that was changed, nor the address
    examples: list[str] = dataclasses.field(default_factory=list)


Tallies = dict[tuple[str, str], DamageTally]


class TimeIsUpError(Exception):
    """Verify took too long."""


def findings_of(root: Path, level: Level = Level.FULL) -> set[Finding]:
    """Return all findings of a store; a store that is refused with a sentence counts as one finding."""
    try:
        return set(verify_store(StoreReader(root), level))
    except MqtoolError as error:
        return {Finding("REFUSED", "error", str(error))}  # type: ignore[arg-type]


class Victim:
    """A store to be damaged again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.before = findings_of(root)
        self.places = places_of(root)
        self.tallies: Tallies = collections.defaultdict(DamageTally)

    def change(self, file: str, at: int, data: bytes) -> set[Finding] | None:
        """Return what is found anew with bytes of a file replaced, None where this changes nothing."""
        with (self.root / file).open("r+b") as stream:
            was = os.pread(stream.fileno(), len(data), at)
            if was == data[: len(was)]:
                return None
            os.pwrite(stream.fileno(), data[: len(was)], at)
            try:
                return self._new_findings()
            finally:
                os.pwrite(stream.fileno(), was, at)

    def resize(self, file: str, size: int, filler: bytes = b"") -> set[Finding]:
        """Return what is found anew with a file cut, or made longer with ``filler``."""
        path = self.root / file
        whole = path.stat().st_size
        with path.open("r+b") as stream:
            rest = os.pread(stream.fileno(), whole, size) if size < whole else b""
            os.ftruncate(stream.fileno(), size)
            if filler:
                os.pwrite(stream.fileno(), filler, whole)
            try:
                return self._new_findings()
            finally:
                os.ftruncate(stream.fileno(), whole)
                os.pwrite(stream.fileno(), rest, size)

    def _new_findings(self) -> set[Finding]:
        signal.alarm(60)
        try:
            return findings_of(self.root) - self.before
        finally:
            signal.alarm(0)

    def note(self, operation: str, field: str, file: str, at: int, what: str, new: set[Finding]) -> None:
        """Keep what came out of one change."""
        tally = self.tallies[operation, field]
        tally.tried += 1
        if not new:
            tally.missed += 1
            if len(tally.examples) < 20:
                tally.examples.append(f"{self.root.name} {file}@{at} {what}")
        elif all(found.severity == "note" for found in new):
            tally.only_note += 1
        elif not any(found.file and Path(found.file).is_relative_to(Path(file).parts[0]) for found in new):
            tally.elsewhere += 1


def campaign(name: str, each: int, seed: int, only: str = "") -> tuple[Tallies, list[str]]:
    """Damage a golden store in every field, ``each`` times; returns the tallies, and each crash."""
    chance = random.Random(f"{seed} {name}")
    crashes: list[str] = []
    signal.signal(signal.SIGALRM, _time_is_up)
    with tempfile.TemporaryDirectory() as folder:
        victim = Victim(copy_of(name, Path(folder)))
        by_field: dict[str, list[Place]] = collections.defaultdict(list)
        for place in victim.places:
            by_field[place.field].append(place)
        for field, places in sorted(by_field.items()):
            for operation in ("flip", "zero"):
                if only in ("", operation):
                    for place, at in _positions(chance, places, each if operation == "flip" else -(-each // 3)):
                        _one(victim, chance, operation, field, place, at, crashes)
        files = sorted({place.file for place in victim.places})
        for file in files:
            for operation in ("cut", "extend"):
                if only in ("", operation):
                    for _ in range(-(-each // 8)):
                        _resize(victim, chance, operation, file, crashes)
        return dict(victim.tallies), crashes


def _positions(chance: random.Random, places: list[Place], count: int) -> Iterable[tuple[Place, int]]:
    total = sum(place.size for place in places)
    if total <= count:
        return [(place, place.at + i) for place in places for i in range(place.size)]
    chosen = []
    for _ in range(count):
        place = chance.choice(places) if len(places) > 1 else places[0]
        chosen.append((place, place.at + chance.randrange(place.size)))
    return chosen


def _one(
    victim: Victim, chance: random.Random, operation: str, field: str, place: Place, at: int, crashes: list[str]
) -> None:
    with (victim.root / place.file).open("rb") as stream:
        value = os.pread(stream.fileno(), 1, at)[0]
    data = bytes([value ^ 1 << chance.randrange(8)]) if operation == "flip" else bytes(8)
    what = f"{value:02x} -> {data.hex()}"
    try:
        new = victim.change(place.file, at, data)
    except Exception:
        crashes.append(f"{victim.root.name} {place.file}@{at} {what}\n{traceback.format_exc()}")
        return
    if new is not None:
        victim.note(operation, field, place.file, at, what, new)


def _resize(victim: Victim, chance: random.Random, operation: str, file: str, crashes: list[str]) -> None:
    whole = (victim.root / file).stat().st_size
    if operation == "cut":
        size, filler = (chance.randrange(whole) if whole else 0), b""
    else:
        size = whole + chance.choice([1, 8, 20, 46, 52, 400, 4096])
        filler = chance.choice([b"", bytes([chance.randrange(1, 256)]) * (size - whole)])
    what = f"{whole} -> {size} {filler[:1].hex()}"
    try:
        new = victim.resize(file, size, filler)
    except Exception:
        crashes.append(f"{victim.root.name} {file} {what}\n{traceback.format_exc()}")
        return
    kind = file if file.startswith("config") or "/" not in file else file.split("/")[0]
    victim.note(operation, kind, file, size, what, new)


def _time_is_up(_number: int, _frame: object) -> None:
    raise TimeIsUpError


# The long form


def _add(all_tallies: Tallies, tallies: Tallies) -> None:
    for key, tally in tallies.items():
        into = all_tallies[key]
        into.tried += tally.tried
        into.missed += tally.missed
        into.only_note += tally.only_note
        into.elsewhere += tally.elsewhere
        into.examples += tally.examples


def _run(job: tuple[str, int, int, str]) -> tuple[str, float, Tallies, list[str]]:
    start = time.monotonic()
    tallies, crashes = campaign(*job)
    return job[0], time.monotonic() - start, tallies, crashes


def main() -> int:
    """Run the campaign and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="append", help="a golden store; all by default")
    parser.add_argument("--each", type=int, default=25, help="changes a field and store")
    parser.add_argument("--only", default="", choices=["", "flip", "zero", "cut", "extend"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()

    tallies: Tallies = collections.defaultdict(DamageTally)
    crashes: list[str] = []
    jobs = [(name, options.each, options.seed, options.only) for name in options.store or GOLDEN_NAMES]
    with multiprocessing.Pool(options.jobs) as pool:
        for name, seconds, some, crashed in pool.imap_unordered(_run, jobs):
            print(f"{name}: {sum(tally.tried for tally in some.values()):,} changes, {seconds:.0f} s", file=sys.stderr)
            _add(tallies, some)
            crashes += crashed
    print(f"{'damage':8} {'field':44} {'tried':>7} {'missed':>7} {'note':>6} {'elsewhere':>9}")
    for (operation, field), tally in sorted(tallies.items()):
        print(f"{operation:8} {field:44} {tally.tried:7} {tally.missed:7} {tally.only_note:6} {tally.elsewhere:9}")
    unexcused = {key: tally for key, tally in sorted(tallies.items()) if tally.missed and not is_excused(key[1])}
    for (operation, field), tally in unexcused.items():
        print(f"\n{operation} {field}: {tally.missed} of {tally.tried} missed")
        print("\n".join(f"    {example}" for example in tally.examples[:12]))
    for crash in crashes:
        print(f"\nCRASH {crash}")
    return 1 if unexcused or crashes else 0


if __name__ == "__main__":
    sys.exit(main())
