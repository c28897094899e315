"""What is asked of a dump, and what came up while it was answered."""

import collections
import dataclasses
import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mqtool.commands._options import matching
from mqtool.commands._output import Output, Row, iso_time
from mqtool.engine.store.file_queue import is_segment_name
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.mapping import reading
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError
from mqtool.formats.layout import Layout

T = TypeVar("T")

_CHUNK = 4096
_LEAST_LITERAL = 4
_MAX_SAID = 10


@dataclasses.dataclass
class DumpRequest:
    """A store, what to choose from it, and where remarks go."""

    kind: str
    store: StoreReader
    output: Output
    file: str | None = None
    topics: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    start: int | None = None
    stop: int | None = None
    since: int | None = None
    until: int | None = None
    limit: int | None = None
    body: str = "auto"
    follow: bool = False
    advance: Callable[[int], None] = lambda _: None
    reached: str | None = None
    """What to say when the user ends it: how far it came."""
    is_damaged: bool = False
    _said: int = 0
    _counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def remark(self, text: str) -> None:
        """Say something beside the rows."""
        self.output.remark(text)

    def damage(self, text: str, sort: str | None = None) -> None:
        """Say what is damaged: the status will tell too. Of one sort only the first are said, the rest is counted."""
        self.is_damaged = True
        if sort is not None:
            self._counts[sort] += 1
        if sort is None or self._counts[sort] <= _MAX_SAID:
            self.output.remark(text)

    def finish(self) -> None:
        """Say what is left to say when all rows are out."""
        for sort, count in self._counts.items():
            if count > _MAX_SAID:
                self.output.remark(f"{count - _MAX_SAID:,} more {sort}; `mqtool verify` lists what is wrong")
        self.remark_inferred()

    def remark_inferred(self) -> None:
        """Say what the store had to infer, each thing once."""
        for text in self.store.remarks[self._said :]:
            self.output.remark(text)
        self._said = len(self.store.remarks)

    def place(self, path: Path, at: int | None = None) -> str:
        """Name a byte of a file as findings do."""
        name = self.store.paths.relative(path)
        return name if at is None else f"{name}@{at}"

    def path(self, usual: Path) -> Path:
        """Return the one file that was given as the store, else the usual place.

        Raises:
            NotFoundError: nothing is there.
        """
        path = self.store.paths.single or usual
        if not path.exists():
            raise NotFoundError(f"{self.store.root} has no {self.store.paths.relative(path)}")
        return path

    def has(self, offset: int) -> bool:
        """Tell whether an offset is in the range that is asked for."""
        return (self.start is None or offset >= self.start) and (self.stop is None or offset < self.stop)

    def in_range(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which offsets are in the range that is asked for."""
        return between(values, self.start, self.stop)

    def in_time(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return which times are in the span that is asked for."""
        return between(values, self.since, self.until)


def between(values: npt.NDArray[Any], start: int | None, stop: int | None) -> npt.NDArray[np.bool_]:
    """Return which values are in a half-open range; None is not a bound."""
    mask = np.ones(len(values), np.bool_)
    if start is not None:
        mask &= values >= start
    if stop is not None:
        mask &= values < stop
    return mask


class Patterns:
    """Glob patterns for one kind of name, and what they met: names are learned on the way."""

    _MAX_NAMES = 10_000  # names kept to list near ones

    def __init__(self, patterns: Iterable[str], noun: str) -> None:
        self._patterns = tuple(patterns)
        self._what = noun
        self._expressions = [
            re.compile(rf"{re.escape(pattern)}\Z|{fnmatch.translate(pattern)}") for pattern in self._patterns
        ]
        self._any = re.compile("|".join(f"(?:{expression.pattern})" for expression in self._expressions)).match
        self._hits = [False] * len(self._patterns)
        self._seen: set[str] = set()
        self._verdicts: dict[Any, bool] = {}

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def match(self, name: str) -> bool:
        """Tell whether a pattern selects this name."""
        if self.is_learning:
            self._seen.add(name)
        if not self._any(name):
            return False
        for number, expression in enumerate(self._expressions):
            self._hits[number] |= bool(expression.match(name))
        return True

    def match_any(self, names: list[str]) -> bool:
        """Tell whether a pattern selects one of these names; each of them is met."""
        return any([self.match(name) for name in names])  # noqa: C419

    @property
    def is_learning(self) -> bool:
        """Whether more names are wanted, to list near ones."""
        return len(self._seen) < self._MAX_NAMES

    def literals(self) -> list[bytes] | None:
        """Return for each pattern a piece of text that any name it selects contains, None where one has none."""
        pieces = [max(re.split(r"[*?]|\[.*", pattern), key=len).encode() for pattern in self._patterns]
        return pieces if all(len(piece) >= _LEAST_LITERAL for piece in pieces) else None

    def match_known(self, key: T, name: Callable[[T], str]) -> bool:
        """Tell the same about a name that comes again and again in a cheaper form."""
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self.match(name(key))
            if len(self._verdicts) < self._MAX_NAMES:
                self._verdicts[key] = verdict
        return verdict

    def complain(self) -> None:
        """Raise ``NotFoundError`` when a pattern selected none of the names that were met."""
        if self._seen:
            lost = [pattern for pattern, hit in zip(self._patterns, self._hits, strict=True) if not hit]
            matching(lost, self._seen, self._what)


def page(ask: DumpRequest, fields: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the one record of a file: for people a line for each field, else one row."""
    if not ask.output.is_table:
        yield fields
        return
    ask.output.columns = ("field", "value", "time")
    for name, value in fields.items():
        time = iso_time(value) if name.endswith("_timestamp") and isinstance(value, int) and value > 0 else None
        yield {"field": name, "value": value, "time": time}


def fields_of(record: Any, layout: Layout) -> dict[str, Any]:
    """Return the fields of a parsed record by the names of its layout, without filler."""
    return {name: record[name] for name in layout.names if name != "rest"}


def records(
    array: npt.NDArray[np.void], mask: npt.NDArray[np.bool_] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and fields of the records of a big array that ``mask`` selects."""
    names = array.dtype.names or ()
    for first in range(0, len(array), _CHUNK):
        chunk = array[first : first + _CHUNK]
        rows = np.arange(len(chunk)) if mask is None else np.flatnonzero(mask[first : first + _CHUNK])
        for row, values in zip(rows.tolist(), chunk[rows].tolist(), strict=True):
            yield first + row, dict(zip(names, values, strict=True))


def single_segment(path: Path) -> MappedFile:
    """Return a file that was given by itself; its name tells its address, where it is one."""
    with reading(path):
        size = path.stat().st_size
    return MappedFile(path, int(path.name) if is_segment_name(path.name) else 0, size)


def runs(mask: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each stretch in which ``mask`` is true."""
    edges = np.flatnonzero(np.diff(np.r_[False, mask, False].astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
