"""Findings: problems of a store, as values."""

import collections
import dataclasses
import enum
from collections.abc import Iterable


class Severity(enum.StrEnum):
    """How serious a finding is, in the order of the members."""

    NOTE = "note"
    """Worth knowing."""
    WARNING = "warning"
    """A broker would behave unexpectedly, or something that can be rebuilt is lost."""
    ERROR = "error"
    """Data is lost or at risk."""


@dataclasses.dataclass(frozen=True)
class Rest:
    """The number of findings of one code in one file that are not listed, as enough of the code precede them."""

    code: str
    file: str | None
    count: int


@dataclasses.dataclass(frozen=True)
class Finding:
    """One problem: which check found it, where, what was expected and what was found.

    ``file`` is relative to the store, ``offset`` a byte in that file. Fields that do not apply are None.
    """

    code: str
    severity: Severity
    message: str
    file: str | None = None
    offset: int | None = None
    expected: int | str | None = None
    found: int | str | None = None
    topic: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None
    physical_offset: int | None = None


class FindingBuffer:
    """Findings kept for later, in order: a limited number of each code, None for all; the others are counted."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._kept: list[Finding] = []
        self._listed: collections.Counter[str] = collections.Counter()
        self._rest: collections.Counter[tuple[str, str | None]] = collections.Counter()

    def add(self, findings: Iterable[Finding | Rest]) -> None:
        """Keep or count findings."""
        for entry in findings:
            if isinstance(entry, Rest):
                self._rest[entry.code, entry.file] += entry.count
            elif self._most is not None and self._listed[entry.code] >= self._most:
                self._rest[entry.code, entry.file] += 1
            else:
                self._listed[entry.code] += 1
                self._kept.append(entry)

    def all(self) -> "list[Finding | Rest]":
        """Return what was kept, and what was counted."""
        return [*self._kept, *(Rest(code, file, count) for (code, file), count in self._rest.items())]
