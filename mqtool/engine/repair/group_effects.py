"""Which consumer groups miss, repeat or skip messages: their offsets compared with the resulting queues.

Groups are those of ``consumerOffset.json``: broadcasting consumers keep their offsets elsewhere.
A broker sends a consumer that asks beyond the end of a queue back to its end, so that nothing is skipped but what came
before it asked; one that asks before the first message continues there. (Rules: remoting.md 5.2.)
"""

import collections
import shlex
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from mqtool.engine.repair.plan import GroupEffect, Loss
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats import config_tables
from mqtool.formats.config_tables import OffsetKey


class Moved(NamedTuple):
    """Consecutive messages of a queue at other queue offsets than they state."""

    belongs: int
    lies: int
    messages: int


def offsets_of(reader: StoreReader) -> tuple[dict[OffsetKey, int], list[str]]:
    """Return the next offset of each group, and sentences on why it is not known."""
    try:
        table = reader.config_table("consumerOffset.json")
        return ({} if table is None else config_tables.consumer_offsets(table, [])), []
    except MqtoolError as error:
        return {}, [f"cannot tell which groups miss or repeat messages: {error}"]


def group_effects(
    offsets: Mapping[OffsetKey, int],
    losses: Iterable[Loss],
    ends: Mapping[QueueKey, int] | None,
    moved: Mapping[QueueKey, list[Moved]] | None = None,
) -> tuple[GroupEffect, ...]:
    """Return the affected groups, in each queue.

    Cost: n log n in groups and losses.

    Args:
        offsets: what each group reads next.
        losses: messages that are no longer delivered, at their previous queue offsets.
        ends: one past the last queue offset of each resulting queue; deleted queues may be left out. None
            if they are not known: then skipped messages are not determined.
        moved: messages that get another queue offset; these are not losses.
    """
    moved = moved or {}
    lost: dict[QueueKey, list[tuple[int, int]]] = collections.defaultdict(list)
    for loss in losses:
        if loss.topic is not None and loss.queue_id is not None:
            lost[loss.topic, loss.queue_id].append((loss.queue_offset or 0, loss.end_queue_offset or 0))
    counted = {key: _OffsetRanges(ranges) for key, ranges in lost.items()}
    effects = []
    for (topic, group, queue_id), offset in sorted(offsets.items()):
        if queue_id < 0:
            continue  # no queue has such an id, so nobody reads it
        key = topic, queue_id
        end = offset if ends is None else ends.get(key, 0)
        shifts = [_shifted(move, offset) for move in moved.get(key, ())]
        effect = GroupEffect(
            group,
            topic,
            queue_id,
            offset,
            end,
            missed=(counted[key].count_from(offset) if key in counted else 0) + sum(count for count, _ in shifts),
            repeated=sum(count for _, count in shifts),
            skipped=max(0, offset - end),
        )
        if effect.missed or effect.repeated or effect.skipped:
            effects.append(effect)
    return tuple(sorted(effects, key=lambda effect: (effect.group, effect.topic, effect.queue_id)))


class _OffsetRanges:
    """Ranges of queue offsets that do not overlap, to be counted from any offset on."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        bounds = np.array(sorted(ranges), np.int64).T
        self._starts, self._stops = bounds
        self._counts = np.r_[np.cumsum((self._stops - self._starts)[::-1])[::-1], 0]  # from each range on

    def count_from(self, offset: int) -> int:
        """Return how many offsets there are from a given one on."""
        first = int(np.searchsorted(self._stops, offset, "right"))
        inside = max(0, offset - int(self._starts[first])) if first < len(self._starts) else 0
        return int(self._counts[first]) - inside


def _shifted(moved: Moved, offset: int) -> tuple[int, int]:
    """Return how many of some messages a group that continues at an offset misses, and how many it gets again."""
    consumed = min(max(0, offset - moved.belongs), moved.messages)
    passed = min(max(0, offset - moved.lies), moved.messages)
    return max(0, passed - consumed), max(0, consumed - passed)


def advice(effect: GroupEffect, at: str) -> str | None:
    """Return the command that keeps a group from skipping messages in the resulting queue.

    Args:
        effect: the effect on the group.
        at: options that name the store.
    """
    if not effect.skipped:
        return None
    words = ["--group", effect.group, "--topic", effect.topic, "--queue", str(effect.queue_id)]
    return f"mqtool offset set {shlex.join(words)} --offset {effect.end_queue_offset} {at}"
