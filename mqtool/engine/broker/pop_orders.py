"""Orderly pops: the messages of each queue last delivered to a group, in ``config/consumerOrderInfo.json``.

While one of them is neither acknowledged nor visible again, the queue delivers nothing more to that group.
(Rules: remoting.md 3.4; store.md 10.7. RocketMQ: ``ConsumerOrderInfoManager``.)
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.saves import Saves
from mqtool.engine.intervals import is_time
from mqtool.errors import FormatError, WriteError
from mqtool.formats.config_tables import Table, build_table_in_pieces

log = logging.getLogger(__name__)

KEEP_INTERVAL_MS = 5000

Key = tuple[str, str, int]
"""Topic, group and queue id."""


@dataclass(slots=True)
class OrderInfo:
    """Messages of one queue that were delivered to a group in order."""

    offsets: list[int]
    pop_time: int  # ms
    invisible_ms: int
    attempt_id: str | None = None
    given_at: int = 0  # ms
    done: set[int] = field(default_factory=set)  # offsets
    visible_at: dict[int, int] = field(default_factory=dict)  # by offset: at another time (ms) than the rest
    counts: dict[int, int] = field(default_factory=dict)  # by offset: how often it was delivered before

    def free_at(self) -> int:
        """Return when (ms) the queue may deliver messages again."""
        end = self.pop_time + self.invisible_ms
        return max((self.visible_at.get(offset, end) for offset in self.offsets if offset not in self.done), default=0)


class PopOrders:
    """A ticker that saves this state every 5 s if it has changed."""

    def __init__(self, folder: Path, now: int, saves: Saves) -> None:
        """Load the table below the folder ``config``.

        Raises:
            FormatError: it cannot be read.
        """
        self._path = folder / "consumerOrderInfo.json"
        self._saves = saves
        _, self._held = load_table(self._path, _parse)
        self._is_changed = False
        self._next_keep = now + KEEP_INTERVAL_MS

    def blocked_until(self, key: Key, attempt_id: str | None, now: int) -> int | None:
        """Return when a queue is free again (ms), None if it is free, as it is for a repeated attempt."""
        held = self._held.get(key)
        if held is None or (attempt_id is not None and held.attempt_id == attempt_id):
            return None
        free_at = held.free_at()
        return free_at if now < free_at else None

    def hold(self, key: Key, held: OrderInfo) -> OrderInfo:
        """Note what was delivered to a group; return it with the counts of earlier deliveries."""
        before = self._held.get(key)
        if before is not None:
            is_again = held.attempt_id is not None and held.attempt_id == before.attempt_id
            counts = {offset: before.counts.get(offset, 0) + (not is_again) for offset in before.offsets}
            held.counts = {offset: counts[offset] for offset in held.offsets if counts.get(offset)}
        self._held[key] = held
        self._is_changed = True
        return held

    def acknowledge(self, key: Key, offset: int, pop_time: int) -> int | None:
        """Note that a message was acknowledged.

        Returns:
            What the group reads next, None if the message is not from the latest pop.

        Raises:
            KeyError: that pop did not deliver this message.
        """
        held = self._held.get(key)
        if held is None or held.pop_time != pop_time:
            return None
        if offset not in held.offsets:
            raise KeyError(offset)
        held.done.add(offset)
        self._is_changed = True
        for held_offset in held.offsets:
            if held_offset not in held.done:
                return held_offset
        del self._held[key]
        return held.offsets[-1] + 1

    def hide(self, key: Key, offset: int, pop_time: int, until: int) -> None:
        """Let a delivered message become visible again at another time (ms)."""
        held = self._held.get(key)
        if held is not None and held.pop_time == pop_time and offset in held.offsets:
            held.visible_at[offset] = until
            self._is_changed = True

    def forget(self, key: Key) -> None:
        """Release a queue, whatever was delivered from it."""
        if self._held.pop(key, None):
            self._is_changed = True

    def delete_topics(self, topics: Collection[str], now: int) -> None:
        """Forget what was delivered from topics; this is queued for saving when this returns."""
        self._delete([key for key in self._held if key[0] in topics], now)

    def delete_groups(self, groups: Collection[str], now: int) -> None:
        """Forget what was delivered to groups; this is queued for saving when this returns."""
        self._delete([key for key in self._held if key[1] in groups], now)

    def _delete(self, keys: Iterable[Key], now: int) -> None:
        for key in keys:  # a late acknowledgement would skip messages of a new topic or group of this name
            self.forget(key)
        self.keep(now)

    # Saving

    def keep(self, now: int) -> None:  # noqa: ARG002
        """Queue changes to be written.

        Raises:
            WriteError: the disk is full, or fails.
        """
        if self._is_changed:
            self._saves.want(self._path, self._pieces)
            self._is_changed = False

    def _pieces(self) -> Iterator[bytes]:
        queues: dict[tuple[str, str], list[int]] = {}
        for topic, group, queue_id in self._held:
            queues.setdefault((topic, group), []).append(queue_id)
        rows = (
            (
                f"{topic}@{group}",
                {
                    queue_id: _members(held)
                    for queue_id in queue_ids
                    if (held := self._held.get((topic, group, queue_id)))
                },
            )
            for (topic, group), queue_ids in queues.items()
        )
        return build_table_in_pieces({}, "table", rows)

    def tick(self, now: int) -> None:
        """Save changes every 5 s."""
        if is_time(self._next_keep, KEEP_INTERVAL_MS, now):
            self._next_keep = now + KEEP_INTERVAL_MS
            try:
                self.keep(now)
            except WriteError as error:  # tried again
                log.warning("cannot save the state of orderly pops: %s", error)

    def next_tick(self, now: int) -> int | None:  # noqa: ARG002
        """Return when to save changes, None while nothing has changed."""
        return self._next_keep if self._is_changed else None


def _members(held: OrderInfo) -> Table:
    first, *rest = held.offsets
    table: Table = {} if held.attempt_id is None else {"a": held.attempt_id}
    table["cm"] = sum(1 << place for place, offset in enumerate(held.offsets) if offset in held.done)
    table |= {"i": held.invisible_ms, "l": held.given_at, "o": [first, *(offset - first for offset in rest)]}
    if held.counts:
        table["oc"] = held.counts
    if held.visible_at:
        table["ot"] = held.visible_at
    return {**table, "popTime": held.pop_time}


def _parse(table: Table) -> dict[Key, OrderInfo]:
    orders: dict[Key, OrderInfo] = {}
    try:
        for name, queues in (table.get("table") or {}).items():
            topic, _, group = name.partition("@")
            for queue_id, members in queues.items():
                first, *rest = members["o"]
                offsets = [first, *(first + distance for distance in rest)]
                bits = members.get("cm") or 0
                held = OrderInfo(
                    offsets, members["popTime"], members.get("i") or 0, members.get("a"), members.get("l") or 0
                )
                held.done = {offset for place, offset in enumerate(offsets) if bits >> place & 1}
                held.visible_at = {int(offset): time for offset, time in (members.get("ot") or {}).items()}
                held.counts = {int(offset): count for offset, count in (members.get("oc") or {}).items()}
                if len(held.done) < len(offsets):
                    orders[topic, group, int(queue_id)] = held
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError("a table of orderly pops has unexpected members", offset=0) from error
    return orders
