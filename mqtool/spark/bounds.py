"""The part of a log that a query's filters select: ranges of time and of offsets, topics and queues.

Bounds may select more than the filters do, never less: Spark applies its filters again to what is read.
"""

import dataclasses

import numpy as np

from mqtool.formats.scan import MessageTable
from mqtool.formats.topics import is_possible


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Half-open ranges, None if unbounded, and sets, None if anything is allowed."""

    since: int | None = None  # store timestamp, ms
    until: int | None = None
    start: int | None = None  # physical offset
    stop: int | None = None
    first: int | None = None  # queue offset
    last: int | None = None
    topics: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None

    def may_have(self, topic: str, queue_id: int) -> bool:
        """Return whether something of a queue may be left."""
        return (self.topics is None or topic in self.topics) and (self.queue_ids is None or queue_id in self.queue_ids)

    def select(self, table: MessageTable, with_hidden: bool) -> MessageTable:
        """Return the messages that are left.

        Args:
            table: which messages there are.
            with_hidden: take also those so damaged that nobody knows whether they would be left.
        """
        ranges = (
            ("store_timestamp", self.since, self.until),
            ("position", self.start, self.stop),
            ("queue_offset", self.first, self.last),
        )
        mask = np.ones(len(table), np.bool_)
        for name, low, high in ranges:
            if low is not None:
                mask &= table.column(name) >= low
            if high is not None:
                mask &= table.column(name) < high
        if self.queue_ids is not None:
            mask &= np.isin(table.column("queue_id"), list(self.queue_ids))
        if with_hidden:
            mask |= table.faults != 0
        if not mask.all():
            table = table.where(mask)
        if self.topics is not None and len(table):
            ids, names = table.topics()
            chosen = [name.decode("utf-8", "replace") in self.topics for name in names]
            if with_hidden:
                chosen = [known or not is_possible(name) for known, name in zip(chosen, names, strict=True)]
            table = table.where(np.array(chosen, np.bool_)[ids] | (with_hidden & (table.faults != 0)))
        return table
