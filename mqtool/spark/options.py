"""The options of the source: a table of names, each read once; unknown ones are refused with similar names."""

import dataclasses
import datetime
import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from mqtool.engine.store.paths import STORE_SETTINGS, StoreConfig
from mqtool.errors import UsageError
from mqtool.spark.bounds import Bounds
from mqtool.spark.names import name_stores
from mqtool.spark.partitions import MAX_PARTITION
from mqtool.spark.stores import Store, find_stores, matches_of, path_options

OPTIONS_OF_STORES = (
    "path", "paths", "table", "columns", "mode", "maxPartitionBytes", "includeBody", "decompressBody", "config",
    "configOf", "topic", "subscribe", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "maxBytesPerTrigger", "maxFilesPerTrigger", "failOnDataLoss", "storeNames", "renumber", "live", "set.KEY",
)  # fmt: skip
"""Of stores; the last is for settings of the broker."""
OPTIONS_OF_BROKERS = (
    "namesrv", "nameServer", "topic", "subscribe", "group", "columns", "mode", "includeBody", "decompressBody",
    "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger",
    "failOnDataLoss", "accessKey", "secretKey", "tls", "authorities", "namespace", "checkpointLocation",
)  # fmt: skip
"""Of running brokers; Spark hands the last one to sinks."""

FLAGS = ("includeBody", "decompressBody", "failOnDataLoss", "renumber", "live", "tls")
SIZES = ("maxPartitionBytes", "maxBytesPerTrigger")
OF_MESSAGES = ("topic", "subscribe", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp")
MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
EARLIEST, LATEST = "earliest", "latest"

SETTINGS = (*STORE_SETTINGS, "mapedFileSizeCommitLog", "brokerName")
"""What a source takes of a broker's settings."""
_SET = "set."
_SETTINGS = {name.lower(): name for name in SETTINGS}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of a source, by names in lower case: Spark does not distinguish upper and lower case in them."""

    values: Mapping[str, str]

    @classmethod
    def read(cls, options: Mapping[str, str], names: Sequence[str] = OPTIONS_OF_STORES) -> "Options":
        """Take the options of a source, which are called so.

        Raises:
            UsageError: one is unknown.
        """
        known = {name.lower() for name in names}
        for name in options:
            if name.lower().startswith(_SET) and "set.key" in known:
                choose("setting", name[len(_SET) :], _SETTINGS.values())
            elif name.lower() not in known:
                choose("option", name, names)
        return cls({name.lower(): value for name, value in options.items()})

    def text(self, name: str, default: str, choices: Iterable[str]) -> str:
        """Return one of several words.

        Raises:
            UsageError: it is none of them.
        """
        return choose(name, self.values.get(name.lower(), default), choices)

    def flag(self, name: str, default: bool) -> bool:
        """Return ``true`` or ``false``; raises like ``text``."""
        return self.text(name, str(default).lower(), ("true", "false")) == "true"

    def size(self, name: str, default: int | None) -> int | None:
        """Return a number of bytes: ``134217728``, ``128m``, ``128MiB``.

        Raises:
            UsageError: it is none, or 0.
        """
        text = self.values.get(name.lower())
        if text is None:
            return default
        match = re.fullmatch(r"([1-9][0-9]{0,15})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
        if not match:
            raise UsageError(f"{name}={text} is not a size: give a whole number of bytes, or a size such as 128m")
        return int(match[1]) * _UNITS[match[2]]

    def count(self, name: str) -> int | None:
        """Return a whole number of at least 1, None if it is not given.

        Raises:
            UsageError: it is none.
        """
        text = self.values.get(name.lower())
        if text is not None and not re.fullmatch(r"[1-9][0-9]{0,15}", text.strip()):
            raise UsageError(f"{name}={text} is not a whole number of at least 1")
        return None if text is None else int(text)

    def table_of(self, name: str) -> dict[str, Any]:
        """Return a JSON object, an empty one if it is not given.

        Raises:
            UsageError: it is none.
        """
        try:
            value = orjson.loads(self.values.get(name.lower()) or "{}")
        except orjson.JSONDecodeError as error:
            raise UsageError(f"{name} is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise UsageError(f"{name} is not a JSON object such as {{...}}")
        return value

    @property
    def table(self) -> str:
        """The name of the table, by default ``messages``."""
        return self.values.get("table", "messages")

    @property
    def columns(self) -> str | None:
        """A layout or a list of columns."""
        return self.values.get("columns")

    @property
    def mode(self) -> str:
        """What becomes of what is damaged."""
        return self.text("mode", MODES[0], MODES)

    @property
    def max_partition(self) -> int:
        """Bytes of a partition."""
        return self.size("maxPartitionBytes", None) or MAX_PARTITION

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the broker, from its file and beside it.

        Raises:
            MqtoolError: the file cannot be read.
        """
        return dict(StoreConfig.load(self._config, self._overrides).settings)

    @property
    def _config(self) -> Path | None:
        config = self.values.get("config")
        return Path(config) if config else None

    @property
    def _overrides(self) -> dict[str, str]:
        return {_SETTINGS[name[len(_SET) :]]: value for name, value in self.values.items() if name.startswith(_SET)}

    @property
    def paths(self) -> list[str]:
        """The paths and patterns of stores; raises what ``path_options`` does."""
        return path_options(self.values)

    def stores(self, is_gone_fine: bool = False, unpacks: bool = False) -> list[Store]:
        """Return the stores that are asked for; takes and raises what ``find_stores`` does.

        Raises:
            UsageError: a pattern of ``configOf`` matches none of them, while none may be missing.
        """
        own = [(pattern, Path(str(file))) for pattern, file in self.table_of("configOf").items()]
        config_of = [*own, *([("*", self._config)] if self._config else [])]
        is_live = self.flag("live", False)
        stores = find_stores(self.paths, self._overrides, is_gone_fine, config_of, is_live, unpacks)
        for pattern, _ in own:
            if not is_gone_fine and not matches_of(pattern, stores):
                raise UsageError(f"configOf: {pattern} matches none of the stores")
        return stores

    def names(self, stores: Iterable[Store]) -> dict[str, Store]:
        """Return stores by names that stay when their paths change: see ``name_stores``.

        Raises:
            UsageError: two have one name.
        """
        return name_stores(stores, self.store_names)

    @property
    def store_names(self) -> dict[str, str]:
        """Names by path or pattern of paths.

        Raises:
            UsageError: there is no such table.
        """
        names = self.table_of("storeNames")
        if any(not isinstance(name, str) or not name for name in names.values()):
            raise UsageError('storeNames maps paths or patterns to names, for example {"/brokers/a/store": "broker-a"}')
        return names

    @property
    def bounds(self) -> Bounds:
        """The topics and times that are asked for.

        Raises:
            UsageError: one is none, topics are given twice, or the end is before the start.
        """
        text = self.either("topic", "subscribe")
        topics = None if text is None else frozenset(name.strip() for name in text.split(",") if name.strip())
        if topics == frozenset():
            raise UsageError("no topic given: set topic or subscribe to a name, or to several separated by commas")
        since, until = self._moment("startingTimestamp"), self._moment("endingTimestamp")
        if since is not None and until is not None and until < since:
            raise UsageError("endingTimestamp is before startingTimestamp")
        return Bounds(since=since, until=until, topics=topics)

    def either(self, name: str, other: str) -> str | None:
        """Return an option that has two names.

        Raises:
            UsageError: both are given.
        """
        if name.lower() in self.values and other.lower() in self.values:
            raise UsageError(f"{name} and {other} mean the same: give only one of them")
        return self.values.get(name.lower(), self.values.get(other.lower()))

    def _moment(self, name: str) -> int | None:
        """Return a time in milliseconds since 1970, given so or in ISO 8601."""
        text = self.values.get(name.lower())
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,15}", text.strip()):
            return int(text)
        try:
            moment = datetime.datetime.fromisoformat(text.strip())
        except ValueError as error:
            raise UsageError(
                f"{name}={text} is not a time: give milliseconds since 1970, or a time such as 2026-11-21T01:00:00Z"
            ) from error
        return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp() * 1000)

    def places(self, name: str) -> dict[str, str | int] | str | None:
        """Return the addresses that ``startingOffsets`` or ``endingOffsets`` gives, by the name of the store.

        In place of an address, or of all, there may be ``earliest`` or ``latest``.

        Raises:
            UsageError: it gives something else.
        """
        text = self.values.get(name.lower())
        if text is None or not text.strip().startswith("{"):
            return None if text is None else choose(name, text.strip(), (EARLIEST, LATEST, "{STORE: ADDRESS}"))
        places = self.table_of(name)
        for store, place in places.items():
            if place not in (EARLIEST, LATEST) and (type(place) is not int or place < 0):
                raise UsageError(
                    f"{name}: {place} is not a valid address for {store}: give a number, {EARLIEST} or {LATEST}"
                )
        return places


def check_endless(options: Options) -> None:
    """Make sure that options of a stream give it no end.

    Raises:
        UsageError: one does.
    """
    for name in ("endingOffsets", "endingTimestamp"):
        if name.lower() in options.values:
            raise UsageError(
                f"{name} is only for spark.read: a stream has no end; stop the query where you want it to end"
            )


def choose(noun: str, word: str, choices: Iterable[str]) -> str:
    """Return the choice that a word means; upper and lower case are the same.

    Raises:
        UsageError: it means none; the sentence names those near to it.
    """
    by_lower = {choice.lower(): choice for choice in choices}
    if word.lower() in by_lower:
        return by_lower[word.lower()]
    near = difflib.get_close_matches(word.lower(), by_lower, 3, 0.6)
    names = " or ".join(by_lower[name] for name in near)
    hint = f"did you mean {names}?" if near else f"available: {', '.join(by_lower.values())}"
    raise UsageError(f"unknown {noun} {word}: {hint}")
