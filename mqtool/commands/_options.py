"""Arguments and options that several commands share, and the values they take."""

import contextlib
import dataclasses
import datetime
import fnmatch
import functools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from mqtool.commands._completion import GROUP_NAME, TOPIC_NAME
from mqtool.commands._output import Format, Output, Row, counted, to_json, with_times
from mqtool.engine.store.file_kinds import COMMIT_LOG, CONSUME_QUEUE
from mqtool.errors import NotFoundError, Status, UsageError, WriteError

if TYPE_CHECKING:
    from mqtool.commands._template import Template
    from mqtool.engine.store.paths import StoreConfig
    from mqtool.engine.store.reader import StoreReader

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

_LISTED_HOLES = 10
_SPAN = re.compile(r"(\d+)(ms|s|m|h|d)")
_SPAN_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|GiB|TiB|B)?", re.IGNORECASE)
_SIZE_BYTES = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}


class Time(click.ParamType):  # type: ignore[type-arg]
    """A moment: ISO 8601 (UTC unless it says otherwise), milliseconds since 1970, or a span back from now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds since 1970."""
        if isinstance(value, int):
            return value
        if span := _SPAN.fullmatch(value):
            return int(time.time() * 1000) - int(span[1]) * _SPAN_MS[span[2]]
        if value.lstrip("-").isdigit():
            return int(value)
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            self.fail(
                f"{value} is not a time: give ISO 8601 (2026-11-21T03:00:00Z), milliseconds, or a duration like 2h",
                param,
                ctx,
            )
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        return round(moment.timestamp() * 1000)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A span of time, like ``500ms``, ``5s`` or ``2h``."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if isinstance(value, int):
            return value
        span = _SPAN.fullmatch(value)
        if span is None:
            self.fail(f"{value} is not a duration: give one like 500ms, 5s or 2h", param, ctx)
        return int(span[1]) * _SPAN_MS[span[2]]


class Where(click.ParamType):  # type: ignore[type-arg]
    """``first``, ``last``, or a time."""

    name = "where"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return one of the words, or milliseconds since 1970."""
        return value if value in ("first", "last") else TIME.convert(value, param, ctx)


class Offset(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes or of units, decimal, hexadecimal with ``0x``, or with ``KiB``, ``MiB``, ``GiB``."""

    name = "offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        if isinstance(value, int):
            return value
        if re.fullmatch(r"0x[0-9a-fA-F]+", value):
            return int(value, 16)
        if size := _SIZE.fullmatch(value.replace(",", "")):
            return int(size[1]) * _SIZE_BYTES[(size[2] or "b").lower()]
        self.fail(f"{value} is not a number of bytes: give 4096, 0x1000 or 4KiB", param, ctx)
        return None


class BrokerLine(click.ParamType):  # type: ignore[type-arg]
    """A line of brokers whose start is known here: ``5.3``, or any release of it, like ``5.3.3``.

    One release of each line was started to learn what it does; of another one it is said that it is taken for that.
    """

    name = "version"
    tried: ClassVar = {"4.9": "4.9.7", "5.3": "5.3.3", "5.5": "5.5.0"}

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:  # noqa: ARG002
        """Return what help shows."""
        return f"[{'|'.join(self.tried)}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the line."""
        line = re.fullmatch(r"(\d+\.\d+)(?:\.\d+)*", value)
        if line is None or line[1] not in self.tried:
            *earlier, last = self.tried
            known = f"{', '.join(earlier)} and {last}"
            self.fail(
                f"the behaviour of broker {value} is unknown: give one of {known}, or a release of one of these",
                param,
                ctx,
            )
        release = self.tried[line[1]]
        if value not in (line[1], release):
            Output("jsonl").remark(f"treating {value} as {release}, the release of {line[1]} whose startup was tested")
        return line[1]


class StorePath(click.Path):
    """A store, or one file of it: a path, or the URL of one in object storage or HDFS."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path."""
        from mqtool.engine.store.remote import place

        path = super().convert(value, param, ctx)
        return place(value) if isinstance(value, str) else path


class NewPath(click.Path):
    """A file or folder of this machine that must be written."""

    def __init__(self, **checks: bool) -> None:
        super().__init__(path_type=Path, readable=False, **checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path."""
        from mqtool.engine.store.remote import is_remote

        if isinstance(value, str) and is_remote(value):
            self.fail(f"{value}: files are written to this machine only: give a path", param, ctx)
        return super().convert(value, param, ctx)


TIME = Time()
SPAN = Duration()
WHERE = Where()
OFFSET = Offset()
BROKER_LINE = BrokerLine()
STORE = StorePath()


def packed_store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what ``store_options`` adds; the store may be a compressed copy."""
    return store_options(command, unpacks=True)


def store_options(command: Callable[..., Any], unpacks: bool = False) -> Callable[..., Any]:
    """Add ``-s``, ``-c`` and ``--set``; the command receives the opened store as ``store``."""

    @store_names
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        store: Path | None,
        config: Path | None,
        settings: tuple[str, ...],
        is_live: bool = False,
        **kwargs: Any,
    ) -> Any:
        return command(*args, store=open_store(store, config, settings, is_live, unpacks), **kwargs)

    return wrapped


def store_names(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-s``, ``-c`` and ``--set``; the command receives them as ``store``, ``config`` and ``settings``."""
    options = (
        click.option(
            "-s",
            "--store",
            type=STORE,
            help="The store's directory, or one of its files; also s3://, gs://, abfs:// and hdfs://.",
        ),
        click.option(
            "-c", "--config", type=click.Path(path_type=Path, readable=False), help="The broker's configuration file."
        ),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A broker setting; repeatable."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def live_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--live``, above ``store_options`` or ``source_options``."""
    return click.option(
        "--live", "is_live", is_flag=True,
        help="A broker is writing to the store, or was when it was copied: in-flight writes are not damage.",
    )(command)  # fmt: skip


def tell_holes(sentences: Iterable[str], output: Output) -> None:
    """Say what is missing within a log; of many holes the first."""
    told = list(sentences)
    for sentence in told[:_LISTED_HOLES]:
        output.remark(sentence)
    if len(told) > _LISTED_HOLES:
        output.remark(f"{len(told) - _LISTED_HOLES:,} more such holes")


def tell_may_be_live(store: "StoreReader", output: Output, is_ahead: bool = False) -> None:
    """Say so where damage at the end of the log may be what a broker is writing, and nobody can tell.

    With ``is_ahead`` queues or index reach further than the log, as they do in a copy of a store in use.
    """
    from mqtool.engine.store.commit_log import is_torn

    if store.may_be_live and (is_ahead or is_torn(store.commit_log)):
        output.remark(
            f"{store.root} ends like a store in use, and no lock would reveal a broker here: if one is "
            "running, or was when this was copied, give --live"
        )


def open_store(
    store: Path | None, config: Path | None, settings: tuple[str, ...], is_live: bool = False, unpacks: bool = False
) -> "StoreReader":
    """Open the store that the options, the environment or the working directory name."""
    from mqtool.engine.store.reader import StoreReader

    loaded = dataclasses.replace(load_config(config, settings), in_use=is_live, unpacks=unpacks)
    return StoreReader(store or default_store(), loaded)


def load_config(file: Path | None, settings: Iterable[str]) -> "StoreConfig":
    """Return what ``-c`` and ``--set`` say; remark which names in the file no release of RocketMQ knows.

    Such a file may hold settings of plugins and of later releases, so those are not errors.

    Raises:
        UsageError: ``--set`` is not of the form KEY=VALUE, or RocketMQ knows no such key.
    """
    from mqtool.engine.store.paths import StoreConfig
    from mqtool.formats.setting_names import is_known, nearest

    overrides = parse_settings(settings)
    for key in overrides:
        if not is_known(key):
            near = nearest(key)
            hint = f"did you mean {near}?" if near else "use its name in broker.conf"
            raise UsageError(f"--set {key}: RocketMQ has no setting with this name: {hint}")
    config = StoreConfig.load(file, overrides)
    strange = [key for key in config.settings if not is_known(key)]
    meant = {key: near for key in strange if (near := nearest(key))}
    for key, near in meant.items():
        if key.startswith("\ufeff"):
            text = (
                f"the byte order mark at its start makes {near} a setting that RocketMQ does not know: save it without"
            )
            click.echo(f"mqtool: {file}: {text}", err=True)
            continue
        click.echo(f"mqtool: {file}: {key} has no effect, RocketMQ has no such setting: did you mean {near}?", err=True)
    if unknown := [key for key in strange if key not in meant]:
        listed = ", ".join(unknown)
        click.echo(f"mqtool: {file}: settings unknown to RocketMQ up to 5.5.0, without effect here: {listed}", err=True)
    return config


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Return what ``--set`` gave.

    Raises:
        UsageError: one is not of the form KEY=VALUE.
    """
    overrides = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {setting}: give it as KEY=VALUE, where KEY is a broker setting")
        overrides[key] = value
    return overrides


def default_store() -> Path:
    """Return the store that the environment or the working directory names.

    Raises:
        NotFoundError: neither does.
    """
    named = os.environ.get("MQTOOL_STORE")
    if named:
        from mqtool.engine.store.remote import place

        return place(named)
    candidate = Path("store")
    if (candidate / COMMIT_LOG.name).is_dir() or (candidate / CONSUME_QUEUE.name).is_dir():
        return candidate
    with contextlib.suppress(RuntimeError):  # where nothing tells the home of this user
        home = Path.home() / "store"
        if home.is_dir():
            return home
    raise NotFoundError("no store given: use -s DIR or set MQTOOL_STORE (neither ./store nor ~/store is a store)")


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-o``; the command receives an ``Output`` as ``output``, closed when it is done."""

    @click.option(
        "-o",
        "--output",
        type=click.Choice([output_format.value for output_format in Format]),
        help="Default: a table on a terminal, JSON lines in a pipe.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, output: str | None, template: "Template | None" = None, **kwargs: Any) -> Any:
        out = Output(output)
        if template or kwargs.get("body") == _RAW:
            from mqtool.commands._template import Template

            if kwargs.get("as_hex"):
                raise UsageError("--hex cannot be combined with --format or --body raw")
            if output:
                raise UsageError("-o cannot be combined with --format or --body raw")
            out.template, kwargs["body"] = template or Template("%b"), _RAW
        try:
            return command(*args, output=out, **kwargs)
        finally:
            out.close()

    return wrapped


def jobs_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-j``."""
    return click.option(
        "-j",
        "--jobs",
        metavar="N",
        type=click.IntRange(1),
        default=lambda: len(os.sched_getaffinity(0)),
        help="Number of parallel workers. Default: all cores.",
    )(command)


def limit_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--limit``."""
    return click.option("--limit", metavar="N", type=click.IntRange(0), help="Stop after this many.")(command)


_BODIES = ("auto", "text", "json", "hex", "base64", "none")
_RAW = "raw"


def body_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--body``."""
    return _body(_BODIES)(command)


def message_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--body``, which may be raw, and ``--format``; ``output_option`` sees to both, where it is beneath."""
    from mqtool.commands._template import read_template

    template = click.option(
        "--format",
        "template",
        metavar="TEMPLATE",
        callback=read_template,
        help="Output template: '%t %k %b\\n' prints topic, keys, body and a line end.",
    )
    return _body((*_BODIES, _RAW))(template(command))


def _body(modes: tuple[str, ...]) -> Decorator:
    return click.option(
        "--body", type=click.Choice(modes), default="auto", show_default=True, help="How to show bodies."
    )


def _filter(name: str, text: str, kind: Any = None) -> Decorator:
    """Return what adds a filter that repeats and takes patterns; the command receives a tuple, as ``topics``."""
    return click.option(
        f"--{name}", f"{name}s", multiple=True, type=kind, metavar="GLOB", help=f"{text}; repeatable, matches any."
    )


topic_filter = _filter("topic", "Only these topics", TOPIC_NAME)
queue_filter = _filter("queue", "Only queues with this id")
tag_filter = _filter("tag", "Only messages with a matching tag")
key_filter = _filter("key", "Only messages with a matching key or unique key")
group_filter = _filter("group", "Only these consumer groups", GROUP_NAME)


def range_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--from`` and ``--to``: offsets, the second excluded; the command receives ``start`` and ``stop``."""
    command = click.option("--to", "stop", type=OFFSET, help="Only what is before this offset.")(command)
    return click.option("--from", "start", type=OFFSET, help="Only what is at this offset or later.")(command)


def time_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--since`` and ``--until``: store times, the second excluded."""
    command = click.option("--until", type=TIME, help="Only what was stored before this time.")(command)
    return click.option("--since", type=TIME, help="Only what was stored at this time or later.")(command)


def tell_left_over(into: Path, output: Output) -> None:
    """Say so where a new store takes the place of what one that was killed while it was made has left."""
    from mqtool.engine.repair.salvage.new_store import is_unfinished

    if is_unfinished(into):
        output.remark(f"{into} holds leftovers of a killed run, which are removed first")


def write_new(into: Path, lines: Iterable[bytes]) -> None:
    """Write a new file, whole or not at all.

    Raises:
        UsageError: there is a file of that name.
        WriteError: the disk is full, or fails.
    """
    part = into.with_name(f"{into.name}.part")
    try:
        if into.exists():
            raise UsageError(f"{into} already exists: give another name")
        with part.open("wb") as file:
            file.writelines(lines)
        part.rename(into)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise WriteError(f"{into} cannot be written: {error.strerror}") from error


def export_rows(into: Path, rows: Collection[Row], noun: str, output: Output) -> int:
    """Write rows of something to a new file, as JSON lines, and say so; raises what ``write_new`` does."""
    write_new(into, (to_json(with_times(row)) + b"\n" for row in rows))
    output.remark(f"{counted(len(rows), noun)} written to {into}")
    return Status.OK


def check_has_log(store: "StoreReader") -> None:
    """Refuse a single file that is not a part of a commit log, where one is needed.

    Raises:
        NotFoundError: the store is such a file.
    """
    from mqtool.engine.repair import missing_log

    missing_log.check_has_log(store)


def require_log(store: "StoreReader") -> None:
    """Refuse a store that held messages and whose log is gone, or is elsewhere, where messages are asked for.

    Raises:
        NotFoundError: it is such a store, or a single file that is not a part of a log.
    """
    from mqtool.engine.repair.missing_log import require_messages

    require_messages(store)


def require_a_log(stores: "Sequence[StoreReader]") -> None:
    """Refuse stores none of which has a log, if one of them held messages: they are not the same because of that.

    Raises:
        NotFoundError: they are such stores.
    """
    if not any(store.commit_log.total_size for store in stores):
        for store in stores:
            require_log(store)


def matching(patterns: Iterable[str], names: Iterable[str], noun: str) -> set[str]:
    """Return the names that glob patterns select.

    Raises:
        NotFoundError: a pattern selects none; the sentence lists near names.
    """
    known = sorted(set(names))
    chosen: set[str] = set()
    for pattern in patterns:
        # RocketMQ's names hold no brackets, but %RETRY% and the like are to be taken as they are.
        matches = [name for name in known if name == pattern or fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            import difflib

            from mqtool.formats.topics import is_system_topic

            own = [name for name in known if not is_system_topic(name) and not name.startswith("%")]
            near = difflib.get_close_matches(pattern, known, 5, 0.4) or (own or known)[:5]
            hint = f"; similar: {', '.join(near)}" if near else ""
            raise NotFoundError(f"no {noun} matches {pattern}{hint}")
        chosen.update(matches)
    return chosen
