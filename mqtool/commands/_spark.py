"""What all jobs of ``mqtool spark`` share: options, the session, progress, and what happens to rows."""

import contextlib
import functools
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mqtool import errors
from mqtool.commands._options import (
    OFFSET,
    NewPath,
    default_store,
    live_option,
    load_config,
    tell_holes,
    tell_may_be_live,
)
from mqtool.commands._output import Output, progress
from mqtool.errors import MqtoolError, Status, StoreChangedError, UsageError

if TYPE_CHECKING:
    from mqtool.engine.store.holes import LogHole
    from mqtool.spark.stores import Store

FORMS = ("parquet", "jsonl")
_UNPACKING = ("stats", "verify")
"""Jobs that walk over the log and need nothing else, as `find --scan` does: they read compressed segments."""
_GOING_ON = ("rebuild",)
"""Jobs that take a folder which is empty, or which a run that was killed has left."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://+")
_NO_FILE_SYSTEM = re.compile(r'Class (\S+) not found|No FileSystem for scheme "?(\w+)')
_RAISED = re.compile(r"mqtool\.errors\.(\w+): (.+)")


class Into(NewPath):
    """Where executors write: a new folder that all of them see, or a URL that Spark's own libraries write to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or the URL as it was given."""
        if isinstance(value, str) and (scheme := _SCHEME.match(value)):
            return Path("/" + value[scheme.end() :]) if scheme[1].lower() == "file" else value
        return super().convert(value, param, ctx)


class SharedPath(NewPath):
    """Where executors put files: a new folder that all of them see, or a URL that stores are read from, too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a path, or the URL as it was given."""
        from mqtool.engine.store.remote import is_remote, place

        if not isinstance(value, str):
            return super().convert(value, param, ctx)
        path = place(value)
        return str(path) if is_remote(path) else super().convert(str(path), param, ctx)


class TaskFailedError(MqtoolError):
    """What a task raised on purpose, or a job that Spark gave up; the status is that of the error."""

    def __init__(self, sentence: str, status: Status) -> None:
        self.exit_code = status
        super().__init__(sentence)


class Finder:
    """Finds stores, each with settings of its own: ``--set`` over ``--config-of``, ``-c`` or ``broker.conf`` beside."""

    def __init__(
        self,
        config: Path | None,
        config_of: tuple[tuple[str, Path], ...],
        settings: tuple[str, ...],
        output: Output,
        is_live: bool = False,
        unpacks: bool = False,
    ) -> None:
        self._settings = load_config(None, settings).settings
        self._config = config
        self._config_of = config_of
        self._how = {"in_use": is_live, "unpacks": unpacks}
        self._output = output
        self._unmatched = [pattern for pattern, _ in config_of]
        for file in dict.fromkeys([*(file for _, file in config_of), *filter(None, [config])]):
            load_config(file, ())  # remarks what has no effect

    def find(self, paths: tuple[str, ...]) -> "list[Store]":
        """Return the stores that paths and patterns name; raises what ``find_stores`` does."""
        from mqtool.spark.stores import config_beside, find_stores, matches_of

        config_of = [*self._config_of, *([("*", self._config)] if self._config else [])]
        stores = find_stores(paths, self._settings, config_of=config_of, **self._how)
        self._unmatched = [pattern for pattern in self._unmatched if not matches_of(pattern, stores)]
        with_own = {store.path for pattern, _ in config_of for store in matches_of(pattern, stores)}
        for store in stores:
            file = config_beside(store.path)
            if file and store.path not in with_own:
                self._output.remark(f"{store.path}: using settings from {file}")
        return stores

    def check(self) -> None:
        """Raise ``UsageError`` where a pattern of ``--config-of`` matches none of the stores that were found."""
        if self._unmatched:
            raise UsageError(f"--config-of {self._unmatched[0]} matches none of the stores")


class Job:
    """A job on its way: which stores, which session, where its rows go."""

    def __init__(
        self,
        name: str,
        stores: "list[Store]",
        master: str | None,
        conf: dict[str, str],
        partition_size: int | None,
        output: Output,
        into: Path | str | None,
        form: str,
        finder: Finder,
    ) -> None:
        self.name = name
        self.stores = stores
        self._partition_size = partition_size
        self.output = output
        self.into = into
        self._master = master
        self._conf = conf
        self._form = form
        self.finder = finder
        self._started = 0.0
        self._segments = [segment for store in stores for segment in store.open().commit_log.segments]
        self.total = sum(segment.size for segment in self._segments)

    @contextlib.contextmanager
    def session(self) -> Iterator[Any]:
        """Yield the session; the bar shows how far it has come, and what Spark raises becomes a sentence."""
        from mqtool.spark.session import first_line, session, watched

        self.finder.check()
        with session(self._master, self._conf, f"mqtool spark {self.name}") as spark:
            self._started = time.monotonic()
            with progress(self.total, self.name) as advance:
                try:
                    with watched(spark, lambda part: advance(int(part * self.total))):
                        yield spark
                except (MqtoolError, OSError):
                    raise
                except Exception as error:
                    if not type(error).__module__.startswith(("pyspark", "py4j", "grpc")):
                        raise
                    raise _task_error(str(error), first_line(error)) from error

    @property
    def partition_size(self) -> int:
        """Bytes of log for a task that gives back messages."""
        from mqtool.spark.partitions import size_of

        return self._partition_size or size_of(self.total)

    def size_to_count(self, spark: Any) -> int:
        """Return how many bytes of log a task gets that gives back sums or findings."""
        from mqtool.spark.partitions import size_to_count
        from mqtool.spark.session import cores_of

        cores = cores_of(spark)
        return size_to_count(self.total, cores) if cores and not self._partition_size else self.partition_size

    def write(self, frame: Any) -> bool:
        """Write a DataFrame where ``--into`` says, if it does; say whether that is done."""
        if self.into is None:
            return False
        if self._form == "parquet":
            frame.write.option("compression", "zstd").parquet(str(self.into))
        else:
            frame.write.json(str(self.into), ignoreNullFields=False)
        return True

    def named(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a row, with its store only where there are several."""
        return row if len(self.stores) > 1 else {name: value for name, value in row.items() if name != "store"}

    def tell(self, summary: str) -> None:
        """Tell in the end what was done, and how fast.

        Raises:
            StoreChangedError: a segment became shorter, so that tasks left out what is in it now, and what was.
        """
        from mqtool.engine.store.remote import RemotePath, place

        seconds = time.monotonic() - self._started
        rate = self.total / max(seconds, 1e-9) / (1 << 20)
        stores = "" if len(self.stores) == 1 else f" of {len(self.stores):,} stores"
        self.output.remark(f"{summary}; {self.total:,} bytes of log{stores} in {seconds:,.1f} s ({rate:,.1f} MiB/s)")
        for path in map(place, (store.path for store in self.stores)):
            if isinstance(path, RemotePath):
                path.fresh()
        gone = [segment for segment in self._segments if not segment.path.exists()]
        if gone:
            segments = "a segment" if len(gone) == 1 else f"{len(gone):,} segments"
            self.output.remark(
                f"{segments} disappeared while the job ran, {gone[0].path} first: what had not been read is left out"
            )
        if self.into is not None:
            self.output.remark(f"written to {self.into}")
        for segment in self._segments:
            with contextlib.suppress(FileNotFoundError):  # it is gone
                if segment.path.stat().st_size < segment.size:
                    raise StoreChangedError(
                        f"{segment.path} was truncated while the job ran, so part of it may be left out: try again"
                    )

    def holes(
        self, since: int | None, until: int | None, start: int = 0, stop: int | None = None
    ) -> "list[tuple[Store, LogHole]]":
        """Return what is missing within the logs of the stores, in a range of times and of addresses."""
        from mqtool.engine.store.holes import holes_of

        holes = []
        for store in self.stores:
            reader = store.open()
            first, last = reader.range_of_time(since, until)
            bounds = max(first, start), last if stop is None else min(last, stop)
            holes += [(store, hole) for hole in holes_of(reader.commit_log, *bounds)]
        return holes

    def tell_holes(self, holes: "Iterable[tuple[Store, LogHole]]", sentence: "Callable[[LogHole], str]" = str) -> None:
        """Tell what is missing within logs, and of which store where there are several."""
        several = len(self.stores) > 1
        tell_holes((f"{store.path}: " * several + sentence(hole) for store, hole in holes), self.output)

    def tell_may_be_live(self, ahead: Container[str] = ()) -> None:
        """Do for each store what the function does; ``ahead`` are the paths of those whose queues or index are."""
        for store in self.stores:
            tell_may_be_live(store.open(), self.output, store.path in ahead)

    def tell_inferred(self) -> None:
        """Tell what had to be inferred of the stores."""
        for store in self.stores:
            reader = store.open()
            assert reader.commit_log is not None
            for remark in reader.remarks:
                self.output.remark(remark if len(self.stores) == 1 else f"{store.path}: {remark}")


def _task_error(text: str, first: str) -> TaskFailedError:
    raised = _RAISED.findall(text)
    if raised:
        kind = getattr(errors, raised[-1][0], MqtoolError)
        return TaskFailedError(raised[-1][1].strip(), kind.exit_code)
    if "PATH_ALREADY_EXISTS" in text:
        return TaskFailedError("the folder of --into is not empty: give another", Status.USAGE)
    missing = _NO_FILE_SYSTEM.search(text)
    if missing:
        return TaskFailedError(
            f"Spark has no library for this file system ({missing[1] or missing[2]} is missing): add it, for "
            "s3a:// with --conf spark.jars.packages=org.apache.hadoop:hadoop-aws:VERSION, where VERSION is "
            "that of its Hadoop",
            Status.UNAVAILABLE,
        )
    return TaskFailedError(f"Spark failed: {first}", Status.FAULT)


def _conf(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, setting = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{value}: give it as KEY=VALUE, where KEY is a Spark setting")
        pairs[key] = setting
    return pairs


def _config_of(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[tuple[str, Path], ...]:
    pairs = []
    for value in values:
        pattern, equals, file = value.rpartition("=")
        if not equals or not pattern or not file:
            raise click.BadParameter(f"{value}: give it as PATTERN=FILE, where PATTERN matches paths of stores")
        pairs.append((pattern, Path(file)))
    return tuple(pairs)


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``-s``, which repeats."""
    return click.option(
        "-s", "--store", "paths", multiple=True, metavar="DIR",
        help="A store's directory, or a pattern matching several; repeatable.",
    )(command)  # fmt: skip


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what every job takes; it receives a ``Job`` as ``job``."""
    options = (
        click.option(
            "-c", "--config", type=click.Path(path_type=Path, readable=False),
            help="The broker's configuration file. Default: broker.conf beside each store.",
        ),
        click.option(
            "--config-of", multiple=True, metavar="PATTERN=FILE", callback=_config_of,
            help="The configuration file of the stores whose path matches the pattern; repeatable.",
        ),
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A broker setting; repeatable."),
        live_option,
        click.option(
            "--master", metavar="URL",
            help="local[N], local-cluster[..], spark://.., yarn, k8s://.. or sc://.. Default: local[*].",
        ),
        click.option("--conf", multiple=True, metavar="KEY=VALUE", callback=_conf, help="A Spark setting; repeatable."),
        click.option(
            "--partition-size", type=OFFSET, metavar="SIZE",
            help="Bytes of log per task. Default: 128MiB, for stats and verify up to 4GiB; more for very large logs.",
        ),
        store_option,
    )  # fmt: skip

    @functools.wraps(command)
    def wrapped(
        *args: Any,
        paths: tuple[str, ...],
        config: Path | None,
        config_of: tuple[tuple[str, Path], ...],
        settings: tuple[str, ...],
        is_live: bool,
        master: str | None,
        conf: dict[str, str],
        partition_size: int | None,
        output: Output,
        into: Path | str | None = None,
        form: str = "parquet",
        **kwargs: Any,
    ) -> Any:
        from mqtool.spark.session import need_pyspark
        from mqtool.spark.stores import opened_once

        need_pyspark()
        with opened_once():
            name = click.get_current_context().info_name or ""
            unpacks = name in _UNPACKING or bool(kwargs.get("scan"))
            finder = Finder(config, config_of, settings, output, is_live, unpacks)
            stores = finder.find(paths or (str(default_store()),))
            if isinstance(into, Path) and into.exists() and name not in _GOING_ON:
                raise UsageError(f"{into} already exists: give another name")
            size = None if partition_size is None else max(1 << 20, partition_size)
            job = Job(name, stores, master, conf, size, output, into, form, finder)
            return command(*args, job=job, **kwargs)

    for option in reversed(options):
        wrapped = option(wrapped)
    return wrapped


def into_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--into`` and ``--form``: executors write rows there, however many."""
    command = click.option(
        "--form",
        type=click.Choice(FORMS),
        default="parquet",
        show_default=True,
        help="Format of the files that --into writes.",
    )(command)
    return click.option(
        "--into", type=Into(), metavar="DIR",
        help="Have the executors write the rows to this new folder, or URL that Spark can write to.",
    )(command)  # fmt: skip
