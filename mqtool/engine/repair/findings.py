"""What is wrong with a store, as values."""

import dataclasses
import enum


class Severity(enum.StrEnum):
    """How much a finding matters; the order is that of the members."""

    NOTE = "note"
    """Worth knowing."""
    WARNING = "warning"
    """A broker would do something unexpected, or something is lost that can be made again."""
    ERROR = "error"
    """Data is lost or at risk."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One thing that is wrong: which check found it, where, what was expected and what is there.

    ``file`` is relative to the store, ``offset`` a byte in that file. What does not apply is None.
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
