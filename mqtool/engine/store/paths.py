"""Where each file of a store lives, and the sizes that only a broker's configuration tells."""

import copy
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from mqtool.engine.store import file_kinds
from mqtool.engine.store.file_queue import is_segment_name
from mqtool.engine.store.mapping import read_named_file, reading
from mqtool.engine.store.packed import plain_name
from mqtool.errors import NotFoundError, UsageError
from mqtool.formats.settings import parse_settings

STORE_SETTINGS = frozenset(
    (
        *file_kinds.DEFAULT_SIZES,
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "deleteCommitLogFilesInterval",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "enableDLegerCommitLog",
        "enableLmq",
        "enableMultiDispatch",
        "enabledAppendPropCRC",
        "retentionWaitsForReaders",
        "fileReservedTime",
        "flushCommitLogLeastPages",
        "flushCommitLogThoroughInterval",
        "flushDiskType",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "maxMessageSize",
        "messageDelayLevel",
        "messageIndexEnable",
        "retentionWaitsForReaders",
        "readOnlyCommitLogStorePaths",
        "storePathCommitLog",
    )
)
"""Keys of a broker that its store goes by."""

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclasses.dataclass(frozen=True)
class StoreConfig:
    """Broker settings by RocketMQ's names; a missing one is inferred from the files or has RocketMQ's default.

    ``in_use`` has the ends of log, queues and index checked as of a store that a broker writes to, whatever its lock
    says. With ``unpacks`` archives and compressed segments are read as streams, else they are refused.
    """

    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)
    in_use: bool = False
    unpacks: bool = False

    @classmethod
    def load(cls, path: Path | None, overrides: Mapping[str, str]) -> "StoreConfig":
        """Read a ``broker.conf`` and lay ``overrides`` over it."""
        settings = parse_settings(read_named_file(path).decode("utf-8", "replace")) if path else {}
        return cls({**settings, **overrides})

    def size(self, key: str) -> int | None:
        """Return a size, None when it is not set.

        Raises:
            UsageError: it is not a positive number.
        """
        value = self.settings.get(key)
        if value is None and key == "mappedFileSizeCommitLog":
            value = self.settings.get("mapedFileSizeCommitLog")  # up to 4.5
        if value is None:
            return None
        if not re.fullmatch(r"0*[1-9][0-9]{0,17}", value):
            raise UsageError(f"{key}={value} is not a size: give a whole number of bytes")
        size = int(value)
        return -(-size // 20) * 20 if key == "mappedFileSizeConsumeQueue" else size

    def number(self, key: str, default: int, low: int = 0, high: int = 1 << 62) -> int:
        """Return a whole number, the nearest of those from ``low`` to ``high``.

        Raises:
            UsageError: it is none.
        """
        value = self.settings.get(key, str(default))
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise UsageError(f"{key}={value} is not a whole number")
        return min(max(int(value), low), high)

    def flag(self, key: str, default: bool = False) -> bool:
        """Return whether a setting is ``true``."""
        return self.settings.get(key, str(default)).lower() == "true"

    def delay_levels(self) -> list[int]:
        """Return the delay of each level in ms, level 1 first.

        Raises:
            UsageError: ``messageDelayLevel`` is not a list of times.
        """
        levels = []
        for text in self.settings.get("messageDelayLevel", DEFAULT_DELAY_LEVELS).split():
            if not re.fullmatch(r"\d+[smhd]", text):
                raise UsageError(f"messageDelayLevel: {text} is not a duration such as 30s, 5m, 2h or 1d")
            levels.append(int(text[:-1]) * _UNIT_MS[text[-1]])
        return levels


def _segment_folders(root: Path, prefix: str) -> list[Path]:
    return sorted(
        folder
        for folder in root.glob(f"{prefix}*")
        if folder.is_dir() and any(is_segment_name(plain_name(file.name)) for file in folder.iterdir())
    )


_QUEUES = frozenset(kind.name for kind in file_kinds.QUEUE_KINDS)


def is_log_folder(folder: Path) -> bool:
    """Return whether a folder is that of a log: it holds segments and nothing of a store, and is not a queue's."""
    if (
        folder.name == file_kinds.TIMER_LOG.name
        or folder.resolve().parent.parent.name in _QUEUES
        or not folder.is_dir()
    ):
        return False
    with reading(folder):
        names = {path.name for path in folder.iterdir()}
    return names.isdisjoint(file_kinds.STORE_NAMES) and any(is_segment_name(plain_name(name)) for name in names)


class StorePaths:
    """The folders and files of the store under ``root``, or of the one file that ``root`` is (``single``).

    ``root`` may be the folder of a log as well, which is then a log alone (``is_log``).

    Raises:
        NotFoundError: nothing there looks like a store.
    """

    def __init__(self, root: Path, config: StoreConfig) -> None:
        self.root = root
        self.single: Path | None = None
        self.remarks: list[str] = []
        self.dledger: Path | None = None
        self.is_log = False
        if root.is_file():
            self.single, self.root = root, root.parent
            root = root.parent
            self.commit_log = [root] if is_segment_name(plain_name(self.single.name)) else []
            if root.parent.name.startswith("dledger-"):
                self.dledger = root.parent
        elif is_log_folder(root):
            self.is_log = True
            self.commit_log = [root]
            self.dledger = root.parent if root.parent.name.startswith("dledger-") else None
            self.remarks.append(f"reading {root} as a commit log without its store (inferred)")
        elif root.is_dir():
            self.commit_log = self._commit_log(config)
        else:
            raise NotFoundError(f"{root} is not a directory: give a broker's store with -s")
        self._name_parts(root)
        if (
            not self.commit_log
            and not self.single
            and not any(
                path.exists() for path in (self.consume_queue, self.index, self.checkpoint, self.config / "topics.json")
            )
        ):
            raise NotFoundError(
                f"{root} is not a RocketMQ store (it contains no commitlog, consumequeue, index, checkpoint or "
                "config): give the directory that contains them with -s"
            )

    def _name_parts(self, base: Path) -> None:
        self._base = base
        self.consume_queue = self.place(file_kinds.CONSUME_QUEUE)
        self.consume_queue_rocksdb = self.place(file_kinds.CONSUME_QUEUE_ROCKSDB)
        self.consume_queue_ext = self.place(file_kinds.CONSUME_QUEUE_EXT)
        self.batch_consume_queue = self.place(file_kinds.BATCH_CONSUME_QUEUE)
        self.index = self.place(file_kinds.INDEX)
        self.checkpoint = self.place(file_kinds.CHECKPOINT)
        self.abort = self.place(file_kinds.ABORT)
        self.lock = self.place(file_kinds.LOCK)
        self.rocksdb_store = self.place(file_kinds.ROCKSDB_STORE)
        self.timer_wheel = self.place(file_kinds.TIMER_WHEEL)
        self.timer_log = self.place(file_kinds.TIMER_LOG)
        self.timer_check = self.place(file_kinds.TIMER_CHECK)
        self.config = self.place(file_kinds.CONFIG)
        self.compaction = self.place(file_kinds.COMPACTION)

    def place(self, kind: file_kinds.FileKind) -> Path:
        """Return where the file, or the folder, of a kind is."""
        return self._base / kind.parent / kind.name if kind.parent else self._base / kind.name

    def log_alone(self) -> Self:
        """Return the same as if nothing but the log were there."""
        other = copy.copy(self)
        other.is_log = True
        other._name_parts(self.commit_log[0])
        return other

    @property
    def is_part(self) -> bool:
        """Whether this is only a file, or only the log, of a store."""
        return self.single is not None or self.is_log

    def _commit_log(self, config: StoreConfig) -> list[Path]:
        setting = config.settings.get("storePathCommitLog")
        if setting:
            read_only = config.settings.get("readOnlyCommitLogStorePaths", "")
            names = [name for name in f"{setting},{read_only}".split(",") if name]
            folders = [self.root / name for name in names]
            for folder in folders:
                if not folder.is_dir():
                    raise NotFoundError(f"{folder} (storePathCommitLog) is not a directory")
            return folders
        if not config.flag("enableDLegerCommitLog") and (self.root / file_kinds.COMMIT_LOG.name).is_dir():
            return [self.root / file_kinds.COMMIT_LOG.name]
        dledger = [folder for folder in _segment_folders(self.root, "dledger-*/data") if folder.parent.is_dir()]
        if dledger:
            self.dledger = dledger[0].parent
            self.remarks.append(f"the commit log is a DLedger log in {self.dledger.name}/data")
            return dledger[:1]
        folders = _segment_folders(self.root, file_kinds.COMMIT_LOG.name)
        if folders:
            listed = ", ".join(folder.name for folder in folders)
            self.remarks.append(
                f"assuming that the commit log is in {listed} (inferred, storePathCommitLog is not given)"
            )
        return folders

    def relative(self, path: Path) -> str:
        """Return ``path`` as findings name it: relative to the store if it is inside."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return str(path)
