"""Findings about rows of a table of messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from mqtool.engine.repair.checks import finding
from mqtool.engine.repair.findings import Finding, Rest
from mqtool.formats.scan import Ints, MessageTable

Found = list[tuple[int, Finding | Rest]]
"""Findings, each with the address of the message that it is about."""
MAX_LISTED = 100
"""So many findings of one code are listed; a last one counts the others."""


class FindingsOfRows:
    """Collects findings about rows of a table; they go ``into`` a list that others may fill too."""

    def __init__(self, table: MessageTable, file: str, most: int | None, into: Found | None = None) -> None:
        self.table = table
        self.file = file
        self.all: Found = [] if into is None else into
        self._most = most

    def finding(
        self, code: str, row: int, message: str, expected: int | None = None, found_in: int | None = None
    ) -> Finding:
        """Return a finding about one row."""
        return finding(
            code,
            message,
            file=self.file,
            offset=int(self.table.starts[row]),
            expected=expected,
            found=found_in,
            topic=self.table.bytes_of(1, row).decode("utf-8", "replace"),
            queue_id=int(self.table.column("queue_id")[row]),
            queue_offset=int(self.table.column("queue_offset")[row]),
            physical_offset=self._position(row),
        )

    def _position(self, row: int) -> int:
        return int(self.table.column("position")[row])

    def rows(
        self, code: str, wrong: Any, message: str, expected: Ints | Any = None, found_in: Ints | Any = None
    ) -> None:
        """Add a finding for each row that is ``wrong``; of many, those that nobody will list are counted."""
        if not wrong.any():
            return
        rows = np.flatnonzero(wrong)
        for row in rows[: self._most].tolist():
            expected_here = None if expected is None else int(expected[row])
            found_here = None if found_in is None else int(found_in[row])
            self.all.append((self._position(row), self.finding(code, row, message, expected_here, found_here)))
        if self._most is not None and len(rows) > self._most:
            rest = Rest(code, self.file, len(rows) - self._most)
            self.all.append((self._position(int(rows[self._most])), rest))
