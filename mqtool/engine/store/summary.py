"""What a store is, told from its files' names and ends: nothing is read whole, however large the store.

Each section stands by itself: where one cannot be told, ``problems`` says why, and the others are there all the same.

Cost: linear in the number of files.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mqtool.engine.store import file_kinds, rocksdb
from mqtool.engine.store.commit_log import ROWS, STEP
from mqtool.engine.store.file_kinds import BROKER_IDENTITY
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.queue_view import open_queue
from mqtool.engine.store.reader import QueueKey, StoreReader
from mqtool.engine.store.remote import scandir
from mqtool.engine.store.versions import conclude, find_evidence, ranges
from mqtool.errors import FormatError, MqtoolError
from mqtool.formats import config_tables, scan
from mqtool.formats import kernels as plain
from mqtool.formats.message import Message, message_at

Section = dict[str, Any]

_SAMPLED_SEGMENTS = 16
_SAMPLED_MESSAGES = 32
_FEW = 256  # messages for which no kernels are loaded
_SECRETS = ("password", "secret", "credential")
"""A setting whose name holds one of these words is not shown."""


def describe(store: StoreReader) -> Section:
    """Return what a store is, as plain values; a section that cannot be told is None."""
    return _Describer(store).describe()


class _Describer:
    """Tells one store, section by section."""

    def __init__(self, store: StoreReader) -> None:
        self.store = store
        self.problems: list[str] = []
        self.last_offsets: list[int] = []  # the newest message of each queue
        self.first: list[Message] = []
        self.last: list[Message] = []

    def describe(self) -> Section:
        # Queues first: their ends lead to the end of the log, and on a live store are below it.
        sections: dict[str, Callable[[], Any]] = {
            "topics": self.topics,
            "commit_log": self.commit_log,
            "index": self.index,
            "state": self.state,
            "checkpoint": self.checkpoint,
            "timer": self.timer,
            "config": self.config,
            "disk": self.disk,
            "versions": self.versions,
        }
        description: Section = {"store": str(self.store.paths.single or self.store.root)}
        description |= {name: self._tell(name, tell) for name, tell in sections.items()}
        return description | {"inferred": list(self.store.remarks), "problems": self.problems}

    def _tell(self, section_name: str, tell: Callable[[], Any]) -> Any:
        try:
            return tell()
        except MqtoolError as error:
            self.problems.append(f"{section_name}: {error}")
        except OSError as error:
            self.problems.append(f"{section_name}: {error.filename or 'a file'}: {error.strerror or error}")
        return None

    # Queues

    def topics(self) -> list[Section]:
        """Return the queues of each topic, and how many messages they hold."""
        topics: dict[str, Section] = {}
        for (topic, queue_id), low, high in self._queues():
            section = topics.setdefault(topic, {"topic": topic, "queue_count": 0, "message_count": 0, "queues": []})
            section["queue_count"] += 1
            section["message_count"] += high - low
            section["queues"].append({"queue_id": queue_id, "min_offset": low, "max_offset": high})
        return sorted(topics.values(), key=lambda section: (-section["message_count"], section["topic"]))

    def _queues(self) -> Iterator[tuple[QueueKey, int, int]]:
        """Yield each queue with its ends."""
        store = self.store
        in_files = self._tell("queues", lambda: sorted({*store.consume_queues, *store.batch_consume_queues})) or []
        for key in in_files:
            ends = self._tell(f"queue {key[0]} {key[1]}", lambda key=key: self._ends(key))  # type: ignore[misc]
            if ends:
                yield key, *ends
        if store.rocksdb_queues:
            folder = store.rocksdb_queues
            queues = self._tell("queues in RocksDB", lambda: rocksdb.read_ends(folder).queues) or {}
            for key, ends in sorted(queues.items()):
                if key not in in_files:
                    yield key, *ends

    def _ends(self, key: QueueKey) -> tuple[int, int] | None:
        view = open_queue(self.store, *key)
        if view is None:
            return None
        newest = view.newest()
        if newest is not None:
            self.last_offsets.append(newest)
        return view.min_offset, view.max_offset

    # The log

    def commit_log(self) -> Section:
        """Return the segments, and where the messages start and end."""
        log, paths = self.store.commit_log, self.store.paths
        end_offset, last = self._find_end()
        self._sample()
        used = [segment for segment in log.segments if segment.start_offset < (end_offset or 0)]
        first = self.first[0] if self.first else None
        return {
            "folders": [paths.relative(folder) for folder in log.folders],
            "is_dledger": paths.dledger is not None,
            "segment_count": len(log.segments),
            "unused_segment_count": len(log.segments) - len(used),
            "segment_size": log.file_size,
            "total_size": log.total_size,
            "missing_size": sum(
                max(0, after.start_offset - before.start_offset - max(before.size, log.file_size))
                for before, after in itertools.pairwise(log.segments)
            ),
            "min_offset": log.min_offset,
            "max_offset": end_offset,
            "end_of_segments": log.end_offset,
            "stray_count": len(log.strays),
            "first_store_timestamp": first.store_timestamp if first else None,
            "last_store_timestamp": last.store_timestamp if last else None,
        }

    def _find_end(self) -> tuple[int | None, Message | None]:
        """Return one past the last message, and that message.

        The walk starts at the newest message that a queue knows, or at the last segment that starts with one.
        """
        log = self.store.commit_log
        starts = []
        for segment in reversed(log.segments):
            if self._readable(segment.start_offset + log.envelope.size):
                starts.append(segment.start_offset)
                break
        for offset in sorted(set(self.last_offsets), reverse=True)[:_SAMPLED_SEGMENTS]:
            if self._readable(offset):
                starts.append(offset - log.envelope.size)
                break
        if not starts:
            if log.segments:
                self.problems.append("commit_log: no segment starts with a readable message")
            return None, None
        return self._walk(max(starts))

    def _readable(self, offset: int) -> Message | None:
        with contextlib.suppress(MqtoolError):
            message = self.store.message_at(offset)
            return message if message.physical_offset == offset else None
        return None

    def _walk(self, start: int) -> tuple[int, Message | None]:
        log = self.store.commit_log
        segments: list[MappedFile] = [segment for segment in log.segments if segment.end_offset > start]
        end, at = start, start - segments[0].start_offset
        table = None
        for segment in segments:
            stop = scan.Stop.PART
            kernels: Any = plain
            limit = _FEW
            while stop is scan.Stop.PART and at < segment.size:
                _, result = log.scanned(segment, at, min(at + STEP, segment.size), kernels, limit)
                sound = result.table.where(result.table.faults == 0)
                if len(sound):
                    table, end = sound, segment.start_offset + int(sound.starts[-1]) + int(sound.column("size")[-1])
                at, stop = result.end, result.stop
                kernels, limit = scan.kernels_for(segment.size - at), ROWS
            if stop not in (scan.Stop.PART, scan.Stop.END, scan.Stop.BLANK):
                break
            at = 0
        if table is None:
            return end, None
        rows = range(max(0, len(table) - _SAMPLED_MESSAGES), len(table))
        self.last = [message_at(table, row) for row in rows]
        return end, self.last[-1]

    def _sample(self) -> None:
        """Read the first message of some segments, the first segment's first."""
        log = self.store.commit_log
        step = max(1, len(log.segments) // _SAMPLED_SEGMENTS)
        for segment in log.segments[::step]:
            message = self._readable(segment.start_offset + log.envelope.size)
            if message:
                self.first.append(message)
            elif segment is log.segments[0]:
                self.problems.append(f"commit_log: no readable message at the start, offset {log.min_offset:,}")

    # The rest

    def index(self) -> Section:
        """Return how much the index files hold."""
        files = self.store.hold_index()
        used = [file for file in files if file.header.entry_count > 1]
        shape = files[0].shape if files else None
        return {
            "file_count": len(files),
            "entry_count": sum(file.header.entry_count - 1 for file in used),
            "slots": shape.slots if shape else None,
            "entries": shape.entries if shape else None,
            "begin_physical_offset": min((file.header.begin_physical_offset for file in used), default=None),
            "end_physical_offset": max((file.header.end_physical_offset for file in used), default=None),
            "begin_timestamp": min((file.header.begin_timestamp for file in used), default=None),
            "end_timestamp": max((file.header.end_timestamp for file in used), default=None),
        }

    def state(self) -> Section | None:
        """Return how the last broker stopped, and whether one is running; a single file does not show it."""
        store = self.store
        if store.paths.is_part:
            return None
        abort = None
        if store.has_abort_file:
            abort = read_file(store.paths.abort, 1 << 16)[:64].decode("utf-8", "replace")
        return {
            "abort": store.has_abort_file,
            "abort_content": abort,
            "lock": store.paths.lock.exists(),
            "in_use": store.is_live,
        }

    def checkpoint(self) -> Section | None:
        """Return the fields of the checkpoint."""
        checkpoint = self.store.checkpoint
        if checkpoint is None:
            return None
        return {name: value for name, value in checkpoint.items() if isinstance(value, int)}

    def timer(self) -> Section | None:
        """Return the files of timer messages, None if there are none."""
        paths, log = self.store.paths, self.store.timer_log
        wheels = sorted(path.name for path in self.store.root.glob(f"{file_kinds.TIMER_WHEEL.name}*") if path.is_file())
        if not wheels and log is None:
            return None
        check = self.store.timer_check
        return {
            "wheels": wheels,
            "log_segment_count": len(log.segments) if log else 0,
            "log_segment_size": log.file_size if log else None,
            "log_end": log.end_offset if log else None,
            "check": None
            if check is None
            else {name: value for name, value in check.items() if isinstance(value, int)},
            "metrics": (paths.config / "timermetrics").is_file(),
        }

    def config(self) -> Section:
        """Return which tables are there, how much they hold, and whether they can be read."""
        store = self.store
        names = [name for name in config_tables.TABLES if name != "position-checkpoint"]
        tables = [self._table(name) for name in names]
        all_settings = store.config.settings.items()
        settings = {name: value for name, value in all_settings if not any(word in name.lower() for word in _SECRETS)}
        return {
            "tables": [table for table in tables if table],
            "rocksdb": [name for name in rocksdb.CONFIG_DATABASES if rocksdb.is_rocksdb(store.paths.config / name)],
            "broker_identity": self._identity(),
            "settings": settings,
        }

    def _table(self, name: str) -> Section | None:
        paths = [self.store.paths.config / name, self.store.paths.config / f"{name}.bak"]
        states = [self._tell_table(path, name) for path in paths]
        if not any(states):
            return None
        main, backup = states
        best = next((state for state in states if state and state["readable"]), None)
        if not (main and main["readable"]):
            self.problems.append(
                f"config/{name} is {'unreadable' if main else 'missing'}{', its .bak is good' * bool(best)}"
            )
        return {
            "table": name,
            "file": bool(main),
            "readable": bool(main and main["readable"]),
            "backup": bool(backup),
            "backup_readable": bool(backup and backup["readable"]),
            "count": best["count"] if best else None,
        }

    @staticmethod
    def _tell_table(path: Path, name: str) -> Section | None:
        if not path.is_file():
            return None
        try:
            table = config_tables.read_table(name, read_file(path))
        except FormatError:
            return {"readable": False, "count": None}
        member = table.get(config_tables.TABLES[name].member)
        return {"readable": True, "count": len(member) if isinstance(member, dict | list) else 0}

    def _identity(self) -> str | None:
        path = self.store.root / BROKER_IDENTITY.name
        return read_file(path, 1 << 16).decode("utf-8", "replace").strip() if path.is_file() else None

    def disk(self) -> list[Section]:
        """Return how many bytes each kind of file has, and takes up."""
        by_kind: dict[str, Section] = {}
        logs = [folder for folder in self.store.paths.commit_log if not folder.is_relative_to(self.store.root)]
        for folder in (self.store.root, *logs):
            for path, status in _files_below(folder):
                if self.store.paths.single not in (None, path):
                    continue
                kind = "commit log" if folder in logs else self._kind(path)
                section = by_kind.setdefault(kind, {"kind": kind, "file_count": 0, "size": 0, "allocated_size": 0})
                section["file_count"] += 1
                section["size"] += status.st_size
                section["allocated_size"] += status.st_blocks * 512
        return sorted(by_kind.values(), key=lambda section: -section["size"])

    def _kind(self, path: Path) -> str:
        paths = self.store.paths
        if any(path.is_relative_to(folder) for folder in paths.commit_log):
            return "commit log"
        if paths.dledger and path.is_relative_to(paths.dledger):
            return "DLedger"
        top = path.relative_to(self.store.root).parts[0]
        kind = file_kinds.BY_NAME.get(top.partition(".")[0])  # the timer wheel has snapshots with a number
        if path.parent == self.store.root and kind is not file_kinds.TIMER_WHEEL:
            return file_kinds.SMALL
        return (
            kind.label
            if kind and kind.label not in (file_kinds.SMALL, file_kinds.COMMIT_LOG.label)
            else f"other ({top})"
        )

    def versions(self) -> Section:
        """Return which versions of RocketMQ were used, and what shows it."""
        evidence = find_evidence(self.store, self.first, self.last)
        return {
            "written_by": ranges(conclude(evidence)) if evidence else None,
            "evidence": [
                {"evidence": item.text, "written_by": item.meaning, "certain": item.certain} for item in evidence
            ],
        }


def _files_below(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files below a folder; what is gone in the meantime, or may not be looked into, is left out."""
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), scandir(folder := waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(folder / entry.name)
                    else:
                        yield folder / entry.name, status
