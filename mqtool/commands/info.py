"""``mqtool info``."""

import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from mqtool.commands._options import check_has_log, output_option, packed_store_options
from mqtool.commands._output import Output, iso_time, printable, with_times
from mqtool.commands._rows import topic_kind

if TYPE_CHECKING:
    from mqtool.engine.store.reader import StoreReader

_MAX_TOPICS = 20
_INDENT = "  "
_NAME_WIDTH = 26
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@click.command(short_help="Describe a store.")
@packed_store_options
@output_option
def command(store: "StoreReader", output: Output) -> int:
    """Describe a store: its log, topics, index and state, which versions of RocketMQ wrote it, its size.

    Only names, ends and headers of files are read, so this is fast on any store. Message counts come from the
    queues. What cannot be determined in a damaged store is listed at the end. In a pipe the output is one JSON object.
    """
    from mqtool.engine.store.summary import describe

    check_has_log(store)
    description = describe(store)
    for topic in description["topics"] or ():
        topic["kind"] = topic_kind(topic["topic"])
    if output.is_table:
        _Page(output, description).write()
    else:
        output.row(_with_all_times(description))
    return 0


def _with_all_times(value: Any) -> Any:
    """Put beside each time in milliseconds the same moment as text, however deep it lies."""
    if isinstance(value, Mapping):
        return {name: _with_all_times(item) for name, item in with_times(value).items()}
    return [_with_all_times(item) for item in value] if isinstance(value, list) else value


class _Page:
    """The page that a person reads."""

    def __init__(self, output: Output, description: Mapping[str, Any]) -> None:
        self.output = output
        self.description = description

    def write(self) -> None:
        """Write all sections that could be determined."""
        self.output.text(click.style(printable(self.description["store"]), bold=True))
        versions = self.description["versions"]
        if versions and versions["written_by"]:
            self._line("last written by", f"RocketMQ {versions['written_by']} (evidence below)")
        for name in ("state", "commit_log", "topics", "index", "disk", "checkpoint", "timer", "config", "versions"):
            if self.description[name] is not None:
                getattr(self, f"_{name}")(self.description[name])
        self._list("Inferred", self.description["inferred"])
        self._list("Could not be determined", self.description["problems"])

    def _section(self, title: str) -> None:
        self.output.text()
        self.output.text(click.style(title, fg="cyan", bold=True))

    def _line(self, name: str, text: str) -> None:
        width = max(self.output.width, 40)
        first = f"{_INDENT}{name:<{_NAME_WIDTH}}"
        self.output.text(
            "\n".join(
                textwrap.wrap(
                    printable(text),
                    width,
                    initial_indent=first,
                    subsequent_indent=" " * len(first),
                    break_on_hyphens=False,
                )
            )
        )

    def _list(self, title: str, texts: Iterable[str]) -> None:
        texts = list(texts)
        if texts:
            self._section(title)
        for text in texts:
            width = max(self.output.width, 40)
            lines = textwrap.wrap(printable(text), width, initial_indent=_INDENT, subsequent_indent=_INDENT * 2)
            self.output.text("\n".join(lines))

    def _state(self, state: Mapping[str, Any]) -> None:
        if state["in_use"]:
            use = "a running broker holds its lock"
        else:
            use = "no running broker holds its lock" if state["lock"] else "not in use: there is no lock file"
        self._line("use", use)
        stop = "there is no abort file, as after a clean stop"
        if state["abort"]:
            content = f" ({state['abort_content']})" if state["abort_content"] else ""
            stop = f"the abort file{content} exists: " + (
                "as it must be while a broker runs" if state["in_use"] else "the last broker did not stop cleanly"
            )
        self._line("last stop", stop)

    def _commit_log(self, log: Mapping[str, Any]) -> None:
        self._section("Commit log")
        if log["is_dledger"]:
            self._line("kind", "a DLedger log: each record is in an entry")
        self._line("folders", ", ".join(log["folders"]) or "none")
        if not log["segment_count"]:
            self._line("segments", "none")
            return
        unused = f", {log['unused_segment_count']:,} of them not yet used" if log["unused_segment_count"] else ""
        self._line("segments", f"{_count(log['segment_count'], 'file')} of {_size(log['segment_size'])}{unused}")
        if log["max_offset"] is not None:
            self._line("offsets", f"{log['min_offset']:,} to {log['max_offset']:,}, the end of the last message")
            left = log["end_of_segments"] - log["max_offset"]
            self._line("room left", _size(left) if left else "none")
        else:
            self._line("offsets", f"from {log['min_offset']:,}; no message was found")
        if log["missing_size"]:
            self._line("missing", f"{_size(log['missing_size'])} between segments")
        if log["stray_count"]:
            self._line("strays", f"{_count(log['stray_count'], 'entry', 'entries')} that are not segments")
        self._times(log["first_store_timestamp"], log["last_store_timestamp"])

    def _times(self, first: int | None, last: int | None) -> None:
        if first is not None:
            self._line("first stored", _moment(first))
        if last is not None:
            self._line("last stored", _moment(last))
        if first is not None and last is not None:
            self._line("time span", _span(last - first))

    def _topics(self, topics: list[dict[str, Any]]) -> None:
        queues = sum(topic["queue_count"] for topic in topics)
        messages = sum(topic["message_count"] for topic in topics)
        self._section(
            f"{_count(len(topics), 'topic')}, {_count(queues, 'queue')}, {_count(messages, 'message')} in the queues"
        )
        self.output.new_table(("message_count", "queue_count", "kind", "topic"))
        for topic in topics[:_MAX_TOPICS]:
            self.output.row(topic)
        if len(topics) > _MAX_TOPICS:
            rest = topics[_MAX_TOPICS:]
            left = sum(topic["message_count"] for topic in rest)
            self.output.text(f"{_INDENT}and {_count(len(rest), 'more topic')} with {_count(left, 'message')} in total")

    def _index(self, index: Mapping[str, Any]) -> None:
        self._section("Index")
        if not index["file_count"]:
            self._line("files", "none")
            return
        shape = f" of {index['slots']:,} slots and {index['entries']:,} entries" if index["slots"] else ""
        self._line("files", f"{index['file_count']:,}{shape}")
        self._line("entries", f"{index['entry_count']:,}")
        if index["entry_count"]:
            self._line("covers", f"{index['begin_physical_offset']:,} to {index['end_physical_offset']:,}")
            self._line("stored", f"{_moment(index['begin_timestamp'])} to {_moment(index['end_timestamp'])}")

    def _disk(self, disk: list[dict[str, Any]]) -> None:
        size = sum(kind["size"] for kind in disk)
        allocated = sum(kind["allocated_size"] for kind in disk)
        self._section(f"Disk: {_short(size)} in files, which occupy {_short(allocated)}")
        self.output.new_table(("size", "allocated_size", "file_count", "kind"))
        for kind in disk:
            self.output.row(kind)

    def _checkpoint(self, checkpoint: Mapping[str, Any]) -> None:
        self._section("Checkpoint")
        for name, value in checkpoint.items():
            shown = f"{value:,}" if name.endswith("_offset") else _moment(value) if value else "not set"
            self._line(name.removesuffix("_timestamp").replace("_", " "), shown)

    def _timer(self, timer: Mapping[str, Any]) -> None:
        self._section("Timer")
        self._line("wheel", ", ".join(timer["wheels"]) or "none")
        if timer["log_segment_count"]:
            self._line("log", f"{_count(timer['log_segment_count'], 'file')} of {_size(timer['log_segment_size'])}")
        check = timer["check"]
        if check:
            self._line(
                "read up to",
                f"{_moment(check['last_read_timestamp'])}, queue offset {check['last_timer_queue_offset']:,}",
            )

    def _config(self, config: Mapping[str, Any]) -> None:
        self._section("Config")
        for table in config["tables"]:
            state = _count(table["count"], "entry", "entries") if table["count"] is not None else "no entries known"
            if not table["readable"]:
                state += " in its .bak" if table["backup_readable"] else ""
                state += "; the file cannot be read" if table["file"] else "; the file is missing"
            self._line(table["table"].removesuffix(".json"), state)
        if config["rocksdb"]:
            self._line("in RocksDB", ", ".join(config["rocksdb"]))
        if config["broker_identity"]:
            self._line("broker", config["broker_identity"])
        if config["settings"]:
            self._line("given", ", ".join(f"{name}={value}" for name, value in config["settings"].items()))
        if not any(config.values()):
            self._line("tables", "none")

    def _versions(self, versions: Mapping[str, Any]) -> None:
        hint = ", unless something else contradicts it"
        self._list(
            "Evidence of versions",
            (
                f"{item['evidence']}: {item['written_by']}{hint * (not item['certain'])}"
                for item in versions["evidence"]
            ),
        )


def _count(number: int, noun: str, several: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


def _short(size: int) -> str:
    """Return bytes, roundly, in a unit of their size."""
    return next((f"{size / unit:,.1f} {name}" for unit, name in _UNITS if size >= unit), f"{size:,} bytes")


def _size(size: int) -> str:
    """Return bytes, and roundly in a larger unit."""
    return f"{size:,} bytes" + (f" ({_short(size)})" if size >= _UNITS[-1][0] else "")


def _moment(timestamp: int) -> str:
    return iso_time(timestamp) or f"{timestamp:,} ms"


def _span(span_ms: int) -> str:
    if span_ms < 0:
        return "none: the last message was stored before the first"
    if span_ms < 60_000:
        return f"{span_ms / 1000:.1f} s"
    minutes, hours, days = span_ms // 60_000 % 60, span_ms // 3_600_000 % 24, span_ms // 86_400_000
    return f"{_count(days, 'day')} {hours} h {minutes} min" if days else f"{hours} h {minutes} min"
