"""Rows to standard output: a table for people, JSON lines or CSV for programs; remarks to standard error."""

import contextlib
import dataclasses
import datetime
import enum
import functools
import io
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import orjson

if TYPE_CHECKING:
    from mqtool.commands._template import Template

Row = Mapping[str, Any]
_BLOCK = 200
_LEAST = 20
_WHOLE = frozenset(("unique_key", "message_id", "copy_message_id", "of_message_id"))  # cut off they are of no use
_DEEPEST = 1024  # orjson reads nothing deeper


class Format(enum.StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSONL = "jsonl"
    CSV = "csv"


@functools.lru_cache(1024)
def iso_time(timestamp: int) -> str | None:
    """Return milliseconds since 1970 as ISO 8601 in UTC, None for what no calendar holds."""
    try:
        moment = datetime.datetime.fromtimestamp(timestamp / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_times(row: Row) -> dict[str, Any]:
    """Put beside each ``.._timestamp`` the same moment as ``.._time``."""
    if not _has_times(tuple(row)):
        return dict(row)
    out: dict[str, Any] = {}
    for name, value in row.items():
        out[name] = value
        if name.endswith("_timestamp") and isinstance(value, int):
            out[f"{name.removesuffix('_timestamp')}_time"] = iso_time(value)
    return out


@functools.lru_cache(1024)
def _has_times(names: tuple[str, ...]) -> bool:
    return any(name.endswith("_timestamp") for name in names)


def printable(text: str) -> str:
    r"""Return ``text`` without anything that would move a terminal's cursor.

    >>> printable("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def to_json(value: Any, indent: bool = False) -> bytes:
    r"""Return a value as JSON, on one line unless it shall be indented.

    >>> to_json({0: -(1 << 64), "name": "\udcff"})
    b'{"0":-18446744073709551616,"name":"\\udcff"}'
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0))
    except TypeError:  # an integer of more than 64 bits, a name that is not a text, or very deep
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 8 * _DEEPEST))
        return json.dumps(value, indent=2 if indent else None, separators=(",", ": " if indent else ":")).encode()


def _text(value: Any) -> str:
    """Return a plain value as all outputs write it."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return printable(" ".join(f"{name}={_text(item)}" for name, item in value.items()))
    if isinstance(value, list | tuple):
        return printable(" ".join(map(_text, value)))
    return printable(_text(value))


def counted(number: int, noun: str) -> str:
    """Return how many of something there are, in words.

    >>> counted(1, "message"), counted(2000, "message")
    ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Output:
    """Where a command writes its rows.

    Give ``columns`` before the first row: those a table shows, the most important first; a narrow terminal leaves out
    the last, but none of ``always``. Where rows are shown as they come (``comes_later``) those get 20 columns each, and
    the first of them what no other needs, whatever the first rows have. JSON lines and CSV have every field of a row,
    and beside each ``.._timestamp`` a ``.._time``. Where rows of several kinds come, ``csv_columns`` are the fields of
    all of them. With a ``template`` rows of messages are written by that, and by nothing else.
    """

    def __init__(self, chosen: str | None) -> None:
        self.format = Format(chosen) if chosen else Format.TABLE if sys.stdout.isatty() else Format.JSONL
        self.columns: Sequence[str] = ()
        self.always: Sequence[str] = ()
        self.comes_later = False
        self.template: Template | None = None
        self.csv_columns: Sequence[str] = ()
        self.count = 0
        self._block: list[dict[str, Any]] = []
        self._widths: dict[str, int] = {}
        self._csv: Any = None

    @property
    def is_table(self) -> bool:
        """Whether a person reads this."""
        return self.format is Format.TABLE and self.template is None

    @property
    def width(self) -> int:
        """Columns of the terminal."""
        return _columns(200) if sys.stdout.isatty() else 200

    def row(self, row: Row) -> None:
        """Write one row."""
        self.count += 1
        _make_room()
        values = with_times(row)
        if self.template:
            sys.stdout.buffer.write(self.template.render(row))
        elif self.format is Format.JSONL:
            sys.stdout.buffer.write(to_json(values) + b"\n")
        elif self.format is Format.CSV:
            self._write_csv(values)
        else:
            self._block.append(values)
            if len(self._block) == _BLOCK:
                self._write_block()

    def csv_of(self, *kinds: type) -> None:
        """Have CSV hold the fields of rows of several dataclasses, told apart by a first column ``kind``."""
        fields = (field.name for kind in kinds for field in dataclasses.fields(kind))
        self.csv_columns = list(dict.fromkeys(("kind", *fields)))

    def line(self, row: Row, text: str, style: str | None = None) -> None:
        """Write one row that a person reads as a sentence of its own."""
        if self.is_table:
            self.count += 1
            _make_room()
            click.echo(click.style(printable(text), fg=style) if style else printable(text))
        else:
            self.row(row)

    def text(self, text: str = "") -> None:
        """Write a line that is not a row: for people only."""
        if self.is_table:
            self.close()
            _make_room()
            click.echo(text)

    def new_table(self, columns: Sequence[str]) -> None:
        """Begin another table, with columns and widths of its own."""
        self.close()
        self.columns, self._widths = columns, {}

    def remark(self, text: str) -> None:
        """Say something beside the results, after the rows before it; where those cannot be written it raises then."""
        try:
            self.close()
            sys.stdout.flush()
        finally:
            _make_room()
            click.echo(click.style(f"mqtool: {printable(text)}", dim=True), err=True)

    def tell_compiling(self, byte_count: int) -> None:
        """Say so when work on so many bytes begins with compiling kernels, as only the first run should."""
        from mqtool.formats.scan import COMPILE_FROM, compiles_first_time, why_compiled_again

        if byte_count < COMPILE_FROM or not compiles_first_time():
            return
        if why := why_compiled_again():
            self.remark(f"compiling kernels first, which takes 10 to 15 seconds in every run, because {why}")
        else:
            self.remark("compiling kernels first, which takes a few seconds")

    def close(self) -> None:
        """Write what is still held back."""
        if self._block:
            self._write_block()

    def flush(self) -> None:
        """Show everything now: somebody is waiting for the next row."""
        self.close()
        sys.stdout.flush()

    def _write_csv(self, values: dict[str, Any]) -> None:
        import csv

        flat = {
            name: to_json(value).decode() if isinstance(value, dict | list | tuple) else _text(value)
            for name, value in values.items()
        }
        if self._csv is None:
            if isinstance(sys.stdout, io.TextIOWrapper):
                sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
            self._csv = csv.DictWriter(sys.stdout, self.csv_columns or flat, extrasaction="ignore", lineterminator="\n")
            self._csv.writeheader()
        self._csv.writerow(flat)

    def _write_block(self) -> None:
        """Write rows in columns as wide as the first block needs, as many columns as the terminal has room for."""
        block, self._block = self._block, []
        _make_room()
        numbers = {name for name in block[0] if all(isinstance(row.get(name), int | float | None) for row in block)}
        cells = [{name: _cell(row.get(name)) for name in self.columns or block[0]} for row in block]
        first = not self._widths
        if first:
            self._widths = self._fit(cells)
            self._echo({name: name for name in self._widths}, numbers, fg="cyan")
        for row in cells:
            self._echo(row, numbers)

    def _fit(self, cells: list[dict[str, str]]) -> dict[str, int]:
        from rich.cells import cell_len

        room = self.width
        # A long name must not take the room of all columns behind it; what is left over it gets back.
        most = max(2 * _LEAST, room // 3)
        needed = {name: max(cell_len(row[name]) for row in [{name: name}, *cells]) for name in cells[0]}
        kept = [name for name in self.always if name in cells[0]]
        for name in kept if self.comes_later else ():
            needed[name] = max(needed[name], _LEAST)
        least = {
            name: width if name in _WHOLE else min(width, max(len(name), _LEAST)) for name, width in needed.items()
        }
        room -= sum(least[name] + 2 for name in kept)
        widths: dict[str, int] = {}
        is_full = False
        for name in cells[0]:
            if name in kept:
                room += least[name] + 2
            elif is_full or room < least[name]:
                lack = least[name] - room
                widest = max(widths, key=lambda column: widths[column], default=name)
                is_full = is_full or name not in _WHOLE or widths.get(widest, 0) - lack < 2 * _LEAST
                if is_full:
                    continue
                widths[widest] -= lack
                room += lack
            widths[name] = max(0, min(needed[name], room, most))
            room -= widths[name] + 2
        for name, width in widths.items():
            widths[name] = width + max(0, min(needed[name] - width, room + 2))
            room -= widths[name] - width
        if kept and self.comes_later:
            widths[kept[0]] += max(0, room + 2)
        return widths

    def _echo(self, row: dict[str, str], numbers: set[str], fg: str | None = None) -> None:
        line = "  ".join(_pad(row[name], width, name in numbers) for name, width in self._widths.items()).rstrip()
        click.echo(click.style(line, fg=fg, bold=True) if fg else line)


def _pad(text: str, width: int, right: bool) -> str:
    from rich.cells import cell_len, set_cell_size

    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…"
    gap = " " * (width - size)
    return gap + text if right else text + gap


class _Line:
    """One line on a terminal that is written again and again. It goes before anything else is written."""

    def __init__(self) -> None:
        self._is_shown = False

    def show(self, text: str) -> None:
        """Write it anew."""
        sys.stdout.flush()
        with contextlib.suppress(OSError):
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
        self._is_shown = True

    def clear(self) -> None:
        """Take it away, until it is shown again."""
        if self._is_shown:
            self._is_shown = False
            with contextlib.suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


class _Bar(_Line):
    """What is done, the rate, the time left."""

    def __init__(self, total: int, label: str) -> None:
        super().__init__()
        self._total = total
        self._what = label
        self._started = self._drawn = time.monotonic()

    def advance(self, done: int) -> None:
        """Draw it again, ten times a second at most, from the end of the first second on."""
        now = time.monotonic()
        if now - self._started < 1 or now - self._drawn < _BAR_STEP or not done < self._total:
            return
        self._drawn = now
        self.show(self.text(done, now - self._started))

    def text(self, done: int, seconds: float) -> str:
        """Return the line, no longer than the terminal is wide."""
        room = _columns(80) - 1
        rate = done / seconds
        left = datetime.timedelta(seconds=round((self._total - done) / rate)) if rate else "-:--:--"
        facts = f"  {in_units(done)} of {in_units(self._total)}  {in_units(rate)}/s  {left} left"
        width = min(40, room - len(self._what) - len(facts) - 1)
        full = max(0, width) * done // self._total
        bar = f" {'━' * full}{' ' * (width - full)}" if width > 4 else ""
        return f"{self._what}{bar}{facts}"[:room]


def _columns(default: int) -> int:
    """Return how wide the terminal is."""
    import shutil  # loads decompressors, which ``serve`` has no use for

    return shutil.get_terminal_size((default, 24)).columns


_BAR_STEP = 0.1
_lines: list[_Line] = []


def _make_room() -> None:
    """Take such a line away before something is written."""
    for line in _lines:
        line.clear()


def in_units(size: float) -> str:
    """Return a number of bytes in the largest of binary units that leaves a whole.

    >>> in_units(3 << 29)
    '1.5 GiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@contextlib.contextmanager
def progress(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error for work that takes over a second: done, rate, time left.

    Yields a function that is told how many bytes are done in all.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    bar = _Bar(total, label)
    with _shown(bar):
        yield bar.advance


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Show a line on standard error, if that is a terminal, while something goes on.

    Yields a function that is told what the line says; what does not fit is cut off.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    line = _Line()
    with _shown(line):
        yield lambda text: line.show(printable(text)[: _columns(80) - 1])


@contextlib.contextmanager
def _shown(line: _Line) -> Iterator[None]:
    _lines.append(line)
    try:
        yield
    finally:
        _lines.remove(line)
        line.clear()
