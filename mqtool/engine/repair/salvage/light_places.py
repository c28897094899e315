"""Places in light queues that several messages of a log have, as where a part of another log is in it.

A light queue's offsets are in properties of the messages, which keep them in a new store. Of two messages with one
place, or in the wrong order, that to which the queue's unit leads keeps it, else the first; the other one loses it.

Cost: linear in the places in light queues.
"""

import collections
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.consume_queue import ConsumeQueue, are_empty
from mqtool.engine.store.dispatch import QueueKey
from mqtool.formats.scan import Ints

_NO_END = (1 << 63) - 1

LightPlaces = dict[QueueKey, list[tuple[Ints, Ints]]]
"""Queue offsets and addresses of messages in the order of the log, in pieces, by light queue."""


def surplus(places: LightPlaces, queues: Mapping[QueueKey, ConsumeQueue]) -> dict[int, list[tuple[str, int]]]:
    """Return the places to be removed, by the address of the message.

    Args:
        places: of all messages.
        queues: of the store.
    """
    surplus_of: dict[int, list[tuple[str, int]]] = collections.defaultdict(list)
    for key, pieces in places.items():
        offsets, addresses = (np.concatenate(column) for column in zip(*pieces, strict=True))
        keeps = _rising(offsets, _has_unit(queues.get(key), offsets, addresses))
        for offset, address in zip(offsets[~keeps].tolist(), addresses[~keeps].tolist(), strict=True):
            surplus_of[address].append((key[0], offset))
    return surplus_of


def _rising(offsets: Ints, is_led_to: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which offsets stay so that they ascend: those to whose messages units lead, then the first ones.

    >>> _rising(np.array([4, 5, 5, 6, 6, 7]), np.array([0, 0, 0, 0, 1, 1], np.bool_)).tolist()
    [True, True, False, False, True, True]
    """
    fixed = is_led_to & (offsets > _most_before(offsets, is_led_to))
    following = np.minimum.accumulate(np.where(fixed, offsets, _NO_END)[::-1])[::-1]
    fits = fixed | (offsets < following)
    return fits & (offsets > _most_before(offsets, fits))


def _most_before(offsets: Ints, which: npt.NDArray[np.bool_]) -> Ints:
    """Return the greatest of some offsets before each one, -1 before the first."""
    most: Ints = np.maximum.accumulate(np.r_[-1, np.where(which, offsets, -1)[:-1]])
    return most


def _has_unit(queue: ConsumeQueue | None, offsets: Ints, addresses: Ints) -> npt.NDArray[np.bool_]:
    """Return which messages the units of their places lead to."""
    leads = np.zeros(len(offsets), np.bool_)
    if queue is None:
        return leads
    start, stop = max(queue.first_offset, int(offsets.min())), min(queue.max_offset(), int(offsets.max()) + 1)
    for low, units in queue.windows(start, stop):
        rows = np.flatnonzero((offsets >= low) & (offsets < low + len(units)))
        stated = units[offsets[rows] - low]
        leads[rows] = (stated["physical_offset"] == addresses[rows]) & ~are_empty(stated)
    return leads
