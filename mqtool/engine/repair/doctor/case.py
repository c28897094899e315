"""A store that a broker has trouble with: what ``doctor`` knows about it, and what its rules find."""

import collections
import contextlib
import dataclasses
import enum
import functools
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from mqtool.engine.repair.doctor.surroundings import Surroundings
from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.missing_log import Elsewhere, log_elsewhere
from mqtool.engine.repair.parts import Progress
from mqtool.engine.repair.rebuild import config as rebuild_config
from mqtool.engine.repair.rebuild.plan import batch_topics_of
from mqtool.engine.repair.recover.plan import has_work
from mqtool.engine.repair.verify.store import Level, verify_store
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.file_kinds import DEFAULT_SIZES
from mqtool.engine.store.file_queue import is_segment_name
from mqtool.engine.store.mapping import give_back_memory
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.queue_view import queue_keys
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.versions import RELEASES, conclude, find_evidence
from mqtool.errors import BadDataError, FormatError, MqtoolError, NotFoundError, NotPermittedError, UsageError
from mqtool.formats import config_tables
from mqtool.formats.message import Message

_Parsed = TypeVar("_Parsed")

VERSIONS = {"4.9": "4.9.3", "5.3": "5.2.0", "5.5": "5.5.0"}
"""The brokers that are checked, and the release of ``RELEASES`` that stands for each."""
ALL = tuple(VERSIONS)
FIVE = ("5.3", "5.5")

REPAIRED_SEGMENTS = 3
"""How many of the last segments ``mqtool recover`` reads after a clean stop."""
_OF_TWO_IN_ONE_PLACE = {"LOG-QUEUE-ORDER", "QUEUE-POSITION"}
_SAMPLED_SEGMENTS = 16
_SAMPLED_QUEUES = 64


class Effect(enum.StrEnum):
    """What a cause does to a broker; members are in order, the worst first."""

    STOPS = "does not start"
    LOSES = "loses data"
    HIDES = "does not deliver"
    HINDERS = "misbehaves"
    UNSEEN = "may be affected"
    NOTHING = "is not affected"

    @property
    def rank(self) -> int:
        """Position in the order."""
        return list(Effect).index(self)


@dataclasses.dataclass(frozen=True)
class Sign:
    """One observation that points to a cause.

    ``file`` is relative to the store; fields that do not apply are None. The last three override those of the cause.
    """

    message: str
    file: str | None = None
    offset: int | None = None
    expected: int | str | None = None
    found: int | str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None
    group: str | None = None
    commands: tuple[str, ...] | None = None
    versions: tuple[str, ...] | None = None
    effect: Effect | None = None

    @classmethod
    def of(cls, finding: Finding, /, **facts: Any) -> "Sign":
        """Return the sign for a finding of ``verify``."""
        fields = {field.name: getattr(finding, field.name) for field in dataclasses.fields(finding)}
        del fields["code"], fields["severity"]
        return cls(**{**fields, **facts})


@dataclasses.dataclass
class Case:
    """A store, the broker's settings, and the machine.

    ``reader`` infers the settings that are wrong, so that the rest can be examined; ``settings`` are as given.
    """

    root: Path
    settings: Mapping[str, str]
    settings_file: Path | None
    around: Surroundings
    reader: StoreReader
    wanted: str | None = None  # the version of the broker that is to start, if it is known
    jobs: int = 1
    progress: Progress = lambda _: None
    problems: list[str] = dataclasses.field(default_factory=list)

    @property
    def are_settings_known(self) -> bool:
        """Whether settings that are not given have a broker's defaults."""
        return self.settings_file is not None

    @functools.cached_property
    def versions(self) -> tuple[str, ...]:
        """The relevant versions: the requested one, else those not older than the broker that wrote the store."""
        if self.wanted:
            return (self.wanted,)
        try:
            first, last = self.samples
            oldest = min(map(RELEASES.index, conclude(find_evidence(self.reader, first, last))))
        except (MqtoolError, OSError):  # files that may not be read do not show who wrote them
            return ALL
        return tuple(name for name, release in VERSIONS.items() if RELEASES.index(release) >= oldest) or ("5.5",)

    @functools.cached_property
    def samples(self) -> tuple[list[Message], list[Message]]:
        """The first message of some segments, and the newest of some queues in the order of the log."""
        reader = self.reader
        segments = reader.commit_log.segments
        step = max(1, len(segments) // _SAMPLED_SEGMENTS)
        head = reader.commit_log.envelope.size
        starts = [segment.start_offset + head for segment in segments[::step]]
        ends: list[int] = []
        for queue in reader.consume_queues.values():
            stop = queue.max_offset()
            ends += [int(at) for at in queue.units(max(queue.first_offset, stop - 1), stop)["physical_offset"]]
        return self._messages(starts), self._messages(sorted(set(ends))[-_SAMPLED_QUEUES:])

    def _messages(self, offsets: list[int]) -> list[Message]:
        messages = []
        for offset in offsets:
            with contextlib.suppress(FormatError, NotFoundError, NotPermittedError):
                message = self.reader.message_at(offset)
                if message.physical_offset == offset:
                    messages.append(message)
        return messages

    @functools.cached_property
    def findings(self) -> dict[str, list[Finding]]:
        """The findings of the quick checks of ``verify``, by code."""
        by_code: dict[str, list[Finding]] = collections.defaultdict(list)
        try:
            for finding in verify_store(self.reader, Level.QUICK, self.jobs, self.progress, most=None):
                by_code[finding.code].append(finding)
        except MqtoolError as error:
            self.problems.append(str(error))
        return dict(by_code)

    @functools.cached_property
    def elsewhere(self) -> Elsewhere | None:
        """The part of the log that is in folders that no setting names."""
        return log_elsewhere(self.reader)

    @functools.cached_property
    def has_recover_work(self) -> bool:
        """Whether ``recover --abnormal`` changes anything. Cost: it reads the whole log.

        Used only if something is found that it may leave unchanged.
        """
        try:
            return has_work(self.reader, self.jobs, self.progress)
        except BadDataError:  # a hole that cannot be bridged
            return False
        except MqtoolError:
            return True
        finally:
            give_back_memory()

    @functools.cached_property
    def rebuilt_tables(self) -> set[str]:
        """The names of the tables that ``rebuild config`` changes."""
        return {table.name for table in rebuild_config.tables(self.reader, batch_topics_of(self.reader))}

    def is_rebuilt(self, sign: Sign) -> bool:
        """Return whether ``rebuild config`` changes the table that a sign is about; of other files, whether any."""
        name = Path(sign.file or "").name
        return name in self.rebuilt_tables if name in config_tables.TABLES else bool(self.rebuilt_tables)

    @property
    def needs_new_store(self) -> bool:
        """Whether two messages have the same place in a queue, and ``recover`` leaves them there."""
        return not _OF_TWO_IN_ONE_PLACE.isdisjoint(self.findings) and not self.has_recover_work

    def found(self, *codes: str) -> Iterator[Finding]:
        """Yield the findings of some checks."""
        for code in codes:
            yield from self.findings.get(code, ())

    def table(self, name: str, parse: Callable[[config_tables.Table], _Parsed]) -> _Parsed | None:
        """Return the contents of a table under ``config/``, None if it does not exist or cannot be read."""
        with contextlib.suppress(MqtoolError):
            table = self.reader.config_table(name)
            return None if table is None else parse(table)
        return None

    @functools.cached_property
    def topics(self) -> dict[str, config_tables.TopicConfig] | None:
        """The topics that a broker would know."""
        return self.table("topics.json", config_tables.topics)

    @functools.cached_property
    def groups(self) -> dict[str, config_tables.SubscriptionGroup] | None:
        """The consumer groups that a broker would know."""
        return self.table("subscriptionGroup.json", config_tables.subscription_groups)

    @functools.cached_property
    def consumer_offsets(self) -> dict[config_tables.OffsetKey, int] | None:
        """The offset that each group reads next."""
        return self.table("consumerOffset.json", lambda table: config_tables.consumer_offsets(table, []))

    @property
    def queues(self) -> set[QueueKey]:
        """The existing queues."""
        return queue_keys(self.reader)

    # Settings

    def is_malformed(self, key: str) -> bool:
        """Return whether a size is set to something other than a number."""
        return _is_malformed(self.settings, key)

    def size(self, key: str) -> int | None:
        """Return a configured size, None if it is not set; raises ``UsageError`` for a malformed one."""
        return StoreConfig(self.settings).size(key)

    def flag(self, key: str) -> bool:
        """Return whether a setting is ``true``."""
        return StoreConfig(self.settings).flag(key)

    # Commands that can be pasted

    @property
    def at(self) -> str:
        """The options with which another command of mqtool opens this store, without wrong settings."""
        words = ["-s", str(self.root)]
        if self.settings_file:
            words += ["-c", str(self.settings_file)]
        return shlex.join(words)

    def fill(self, template: str, sign: Sign) -> str:
        """Fill the facts of a sign into a command."""
        path = self.root / (sign.file or ".")
        return template.format(
            at=self.at,
            whole=" --abnormal" if self._is_far(sign) else "",
            store=shlex.quote(str(self.root)),
            path=shlex.quote(str(path)),
            aside=shlex.quote(f"{self.root}.aside"),
            new=shlex.quote(f"{self.root}.new"),
            topic=shlex.quote(sign.topic or ""),
            of_topic=f"--topic {shlex.quote(sign.topic)} " if sign.topic else "",
            group=shlex.quote(sign.group or ""),
            expected=sign.expected,
            admin=f"-n {shlex.quote(self.settings.get('namesrvAddr') or 'localhost:9876')}",
            cluster=shlex.quote(self.settings.get("brokerClusterName", "DefaultCluster")),
        )

    def _is_far(self, sign: Sign) -> bool:
        """Return whether something is before the segments that a repair reads after a clean stop."""
        reader = self.reader
        name = Path(sign.file or "").name
        address = int(name) if sign.physical_offset is None and is_segment_name(name) else sign.physical_offset
        first = reader.commit_log.segments[-REPAIRED_SEGMENTS:][:1]
        return address is not None and bool(first) and address < first[0].start_offset and not reader.has_abort_file

    def wrong_setting(self, message: str, key: str, right: object, **facts: Any) -> Sign:
        """Return the sign that a setting is wrong, with the command that corrects it."""
        defaults = {
            "file": str(self.settings_file) if self.settings_file else None,
            "expected": f"{key}={right}",
            "found": f"{key}={self.settings[key]}" if key in self.settings else f"no {key}",
            "commands": (self.change_setting(key, right),),
        }
        return Sign(message, **{**defaults, **facts})

    def change_setting(self, key: str, value: object) -> str:
        """Return the command that sets ``key`` in the broker's configuration."""
        line = f"{key}={value}"
        if self.settings_file is None:
            return f"mqtool doctor {self.at} --set {shlex.quote(line)}"
        file = shlex.quote(str(self.settings_file))
        if key not in self.settings:
            return f"printf '\\n%s\\n' {shlex.quote(line)} >> {file}"
        script = f"s|^[[:space:]]*{key}[[:space:]]*[=:].*|{line}|"
        return f"sed -i {shlex.quote(script)} {file}"


def open_store(root: Path, config: StoreConfig) -> StoreReader:
    """Open a store for reading, with the settings that fit it and without those that do not.

    Raises:
        NotFoundError: there is none.
        NotPermittedError: this user may not read it.
    """
    settings = dict(config.settings)
    folders = log_folders(root, settings)
    if not all(folder.is_dir() for folder in folders) or not any(map(_holds_segments, folders)):
        settings.pop("storePathCommitLog", None)
        settings.pop("readOnlyCommitLogStorePaths", None)
    malformed = {key for key in DEFAULT_SIZES if _is_malformed(settings, key)}
    settings = dict(_without(settings, malformed).settings)
    config = StoreConfig(settings)
    inferring = StoreReader(root, _without(settings, DEFAULT_SIZES))
    wrong = {key for key, lengths in sizes_of(inferring).items() if contradicts(lengths, config.size(key))}
    return StoreReader(root, _without(settings, wrong))


def _holds_segments(folder: Path) -> bool:
    return any(is_segment_name(path.name) for path in folder.iterdir())


def log_folders(root: Path, settings: Mapping[str, str]) -> list[Path]:
    """Return the folders of the log according to the settings, none if they do not say."""
    names = ",".join(settings.get(key, "") for key in ("storePathCommitLog", "readOnlyCommitLogStorePaths"))
    return [root / name for name in names.split(",") if name] if settings.get("storePathCommitLog") else []


def sizes_of(reader: StoreReader) -> dict[str, collections.Counter[int]]:
    """Return how many files have which size, by the broker's setting."""
    kinds: dict[str, list[Any]] = {
        "mappedFileSizeCommitLog": [reader.commit_log],
        "mappedFileSizeConsumeQueue": list(reader.consume_queues.values()),
        "mappedFileSizeConsumeQueueExt": list(reader.consume_queue_exts.values()),
        "mapperFileSizeBatchConsumeQueue": list(reader.batch_consume_queues.values()),
        "mappedFileSizeTimerLog": [reader.timer_log] if reader.timer_log else [],
    }
    sizes = {
        key: collections.Counter(segment.size for queue in queues for segment in queue.segments if segment.size)
        for key, queues in kinds.items()
    }
    if reader.index_files and (shape := reader.index_files[0].shape):
        count = len(reader.index_files)
        sizes["maxHashSlotNum"] = collections.Counter({shape.slots: count})
        sizes["maxIndexNum"] = collections.Counter({shape.entries: count})
    return sizes


def contradicts(lengths: collections.Counter[int], size: int | None) -> bool:
    """Return whether files show that a size is wrong; a single shorter file may just have been cut."""
    if size is None or not lengths or size in lengths:
        return False
    return lengths.total() > 1 or max(lengths) > size


def _is_malformed(settings: Mapping[str, str], key: str) -> bool:
    try:
        StoreConfig(settings).size(key)
    except UsageError:
        return True
    return False


def _without(settings: Mapping[str, str], keys: Collection[str]) -> StoreConfig:
    dropped = {*keys, "mapedFileSizeCommitLog"} if "mappedFileSizeCommitLog" in keys else keys  # as up to 4.5
    return StoreConfig({key: value for key, value in settings.items() if key not in dropped})
