"""Which versions of RocketMQ wrote a store: what is there, what it shows, and what follows from all of it.

Nothing in a store names its broker. What a version introduced shows that a broker at least that new was used; what
only older ones write shows who wrote that one thing, and counts as long as it does not contradict the rest.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence

from mqtool.engine.store import file_kinds, rocksdb
from mqtool.engine.store.mapping import read_file
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats import commit_log, config_tables
from mqtool.formats.hashing import key_hash
from mqtool.formats.message import Message
from mqtool.formats.properties import PAIR_SEPARATOR
from mqtool.formats.property_names import CRC32
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX

RELEASES = (
    "4.0.0", "4.1.0", "4.5.0", "4.6.0", "4.9.1", "4.9.2", "4.9.3", "5.0.0", "5.1.0", "5.1.1", "5.2.0", "5.3.4", "5.4.0",
    "5.5.0",
)  # fmt: skip
"""Releases that changed what a store shows; each stands for those up to the next one, the last for all that follow."""

_MAX_JSON = 4 << 20
_MAX_ENTRIES = 1000


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Something that is there, and the releases that can have put it there."""

    text: str
    releases: frozenset[str]
    certain: bool = True

    @property
    def meaning(self) -> str:
        """Those releases in words."""
        return ranges(self.releases)


def since(release: str) -> frozenset[str]:
    """Return a release and those after it."""
    return frozenset(RELEASES[RELEASES.index(release) :])


def before(release: str) -> frozenset[str]:
    """Return the releases in front of one."""
    return frozenset(RELEASES) - since(release)


def ranges(releases: frozenset[str]) -> str:
    """Return releases in words.

    >>> ranges(since("5.1.0") & before("5.4.0"))
    '5.1.0 or later, before 5.4.0'
    """
    runs: list[list[int]] = []
    for number, release in enumerate(RELEASES):
        if release in releases:
            if runs and runs[-1][1] == number:
                runs[-1][1] = number + 1
            else:
                runs.append([number, number + 1])
    return "; or ".join(_range(first, stop) for first, stop in runs)


def _range(first: int, stop: int) -> str:
    low = f"{RELEASES[first]} or later" if first else ""
    high = f"before {RELEASES[stop]}" if stop < len(RELEASES) else ""
    return ", ".join(filter(None, (low, high))) or "any"


def conclude(evidence: Sequence[Evidence]) -> frozenset[str]:
    """Return the releases that may have written to the store last."""
    left = frozenset(RELEASES)
    for item in sorted(evidence, key=lambda item: not item.certain):
        left = left & item.releases or left
    return left


def find_evidence(store: StoreReader, first: Sequence[Message], last: Sequence[Message]) -> list[Evidence]:
    """Return what tells of versions.

    Args:
        store: to look at.
        first: some messages from anywhere in the log.
        last: the newest messages.
    """
    all_evidence: list[Evidence] = []
    for look in (_files, _abort, _checkpoint, _config):
        with contextlib.suppress(MqtoolError, OSError):
            all_evidence += look(store)
    all_evidence += _messages([*first, *last])
    all_evidence += _separators(last)
    with contextlib.suppress(MqtoolError, OSError):
        all_evidence += _index(store, last)
    return all_evidence


def _files(store: StoreReader) -> Iterator[Evidence]:
    root, paths = store.root, store.paths
    for kind in file_kinds.KINDS:
        path = paths.place(kind)
        if kind.since and path.exists():
            yield Evidence(f"{paths.relative(path)} exists", since(kind.since))
    if any(root.glob(f"{file_kinds.TIMER_WHEEL.name}.*")):
        yield Evidence("there are snapshots of the timer wheel", since("5.3.4"))
    if store.batch_consume_queues:
        yield Evidence("there are queues of inner batches", since("5.0.0"))
    if any(topic.startswith(LIGHT_QUEUE_PREFIX) for topic, _ in store.consume_queues):
        yield Evidence("there are light queues", since("4.9.3"))
    folder = store.rocksdb_queues
    if folder:
        release = "5.5.0" if folder == paths.consume_queue_rocksdb else "5.2.0"
        yield Evidence(f"{paths.relative(folder)} keeps queues in RocksDB", since(release))
    for name in rocksdb.CONFIG_DATABASES:
        if rocksdb.is_rocksdb(paths.config / name):
            release = "5.3.4" if name == "metadata" else "5.2.0"
            yield Evidence(f"config/{name} keeps tables in RocksDB", since(release))
    if store.paths.dledger:
        yield Evidence("the log is a DLedger log", since("4.5.0"))
    if len(paths.commit_log) > 1:
        yield Evidence("the log is spread over several folders", since("4.9.2"))
    if all(path.exists() for path in (paths.lock, paths.checkpoint, paths.config)) and not paths.rocksdb_store.exists():
        yield Evidence("there is no rocksdbstore", before("5.4.0"), certain=False)


def _abort(store: StoreReader) -> Iterator[Evidence]:
    if store.has_abort_file:
        content = read_file(store.paths.abort, 1 << 10)
        if not content:
            yield Evidence("abort is empty", before("5.0.0"), certain=False)
        elif content.strip().isdigit():
            yield Evidence("abort contains a process id", since("5.0.0"))


def _checkpoint(store: StoreReader) -> Iterator[Evidence]:
    checkpoint = store.checkpoint
    if checkpoint is not None:
        for name, release in (
            ("master_flushed_offset", "5.0.0"),
            ("confirm_physical_offset", "5.1.1"),
            ("logics_physical_offset", "5.5.0"),
        ):
            if checkpoint[name]:
                yield Evidence(f"the checkpoint has {name}", since(release))


def _config(store: StoreReader) -> Iterator[Evidence]:
    dialects: dict[config_tables.Dialect, list[str]] = {}
    states: dict[bool, list[str]] = {}
    for name in config_tables.TABLES:
        path = store.paths.config / name
        if not path.is_file() or path.stat().st_size > _MAX_JSON:
            continue
        with contextlib.suppress(MqtoolError):
            data = read_file(path)
            table = config_tables.parse_table(data)
            fits = [
                dialect
                for dialect in (config_tables.Dialect.FASTJSON_1, config_tables.Dialect.FASTJSON_2)
                if config_tables.build_table(table, dialect) == data
            ]
            if len(fits) == 1:
                dialects.setdefault(fits[0], []).append(name)
            version = table.get("dataVersion")
            if isinstance(version, dict) and version:
                states.setdefault("stateVersion" in version, []).append(name)
            if "pullOffsetTable" in table:
                yield Evidence(f"{name} has a pullOffsetTable", since("5.5.0"))
    for dialect, names in dialects.items():
        old = dialect is config_tables.Dialect.FASTJSON_1
        text = f"{', '.join(names)}: formatted by fastjson{'' if old else ' 2'}"
        yield Evidence(text, before("5.4.0") if old else since("5.4.0"), certain=not old)
    for has_state, names in states.items():
        text = f"{', '.join(names)}: the data version has {'a' if has_state else 'no'} stateVersion"
        yield Evidence(text, since("5.0.0") if has_state else before("5.0.0"), certain=has_state)


def _messages(messages: Sequence[Message]) -> Iterator[Evidence]:
    tests: tuple[tuple[str, str, Callable[[Message], bool]], ...] = (
        ("message {} is a v2 record", "5.1.0", lambda message: message.magic_code == commit_log.MAGIC_V2),
        ("message {} ends in a CRC property", "5.2.0", lambda message: CRC32 in message.properties),
        ("message {} is an inner batch", "5.0.0", lambda message: bool(message.sys_flag & commit_log.INNER_BATCH)),
        (
            "message {} has an IPv6 host",
            "4.6.0",
            lambda message: bool(message.sys_flag & (commit_log.BORN_HOST_V6 | commit_log.STORE_HOST_V6)),
        ),
    )
    for text, release, test in tests:
        match = next((message for message in messages if test(message)), None)
        if match:
            yield Evidence(text.format(f"at {match.position:,}"), since(release))


def _separators(last: Sequence[Message]) -> Iterator[Evidence]:
    ended = {message.raw_properties.endswith(PAIR_SEPARATOR.encode()) for message in last if message.raw_properties}
    if ended == {False}:
        text = "the properties of the newest messages do not end with a separator"
        yield Evidence(text, since("4.9.1") & before("5.2.0"), certain=False)
    elif ended == {True}:
        text = "the properties of the newest messages end with a separator"
        yield Evidence(text, before("4.9.1") | since("5.2.0"), certain=False)


def _index(store: StoreReader, last: Sequence[Message]) -> Iterator[Evidence]:
    tagged = [message for message in reversed(last) if message.tags][:3]
    for file in reversed(store.hold_index()[-2:]):
        for message in tagged:
            wanted = key_hash(message.topic, f"T#{message.tags}")
            for _, offset in zip(range(_MAX_ENTRIES), file.find(wanted), strict=False):
                if offset == message.position:
                    yield Evidence(f"the index has an entry for the tag of message at {offset:,}", since("5.4.0"))
                    return
