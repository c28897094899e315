"""The progress of a stream, and how it continues if something that it has not read yet is lost.

What streams of stores and of running brokers have in common: a store has an address, a queue of a broker an offset.
"""

import itertools
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from mqtool.errors import NotFoundError, StoreChangedError, UsageError
from mqtool.spark.ends import LogEnd, Mark, thinned

_log = logging.getLogger("mqtool.spark")

Place = dict[str, Any]
"""How far one store or queue was read: ``offset``, the address or queue offset after it, and ``marks``, messages
before it, the newest first. ``start`` is there where the messages since the place before do not begin at its
``offset``."""
Offsets = dict[str, Place]
"""By the name of the store."""

Source = TypeVar("Source", bound=Hashable)
"""What has a place: a store by its name, or a queue."""

_GO_ON = "set failOnDataLoss=false to continue"


def check_places(places: Iterable[object]) -> None:
    """Make sure that what a checkpoint has are places.

    Raises:
        UsageError: another release has written it.
    """
    if any(not isinstance(place, dict) or not {"offset", "marks"} <= place.keys() for place in places):
        raise UsageError(
            "this checkpoint was written by another release of mqtool: start with a new checkpointLocation"
        )


def place_behind(end: LogEnd, marks: Sequence[Sequence[Any]]) -> Place:
    """Return a place after an end, with the marks of it and of a place before it."""
    every = [Mark(*mark) for mark in marks]
    if end.last and end.last not in every[:1]:
        every.insert(0, end.last)
    return {"offset": end.offset, "marks": [list(mark) for mark in thinned(every)]}


def resumed(place: Place | None, first: int, end: int, holds: Callable[[Mark], bool | None]) -> tuple[Place, bool]:
    """Return the place from which to continue reading, and whether messages that were read are known to be gone.

    It is ``place`` itself if nothing changed; otherwise it is after the newest message that was read and is still
    there, or at the first.

    Args:
        place: up to which was read, None if nothing was.
        first: the first existing offset.
        end: the one after the last.
        holds: returns whether a message is still where it was, None if it has been deleted.
    """
    if place is None:
        return {"offset": first, "marks": []}, False
    marks = [Mark(*mark_fields) for mark_fields in place["marks"]]
    if end >= place["offset"] and (not marks or holds(marks[0]) is not False):
        return place, False
    left = list(itertools.dropwhile(lambda mark: not holds(mark), marks))
    return {"offset": left[0].stop if left else first, "marks": left}, left != marks or not marks


def moved(
    before: Mapping[Source, Place],
    begins: Mapping[Source, Place],
    lows: Mapping[Source, int],
    ends: Mapping[Source, LogEnd],
) -> dict[Source, Place]:
    """Return the places after a micro-batch.

    Args:
        before: the places after the last one, which are kept where nothing is new.
        begins: the places from which to continue, as ``resumed`` returned them.
        lows: the first offsets that are read, after what retention has deleted.
        ends: where the micro-batch ends.
    """
    places = dict(before)
    for source, end in ends.items():
        place, is_new = begins[source], end.offset > lows[source]
        is_kept = place is before.get(source)
        if is_new or not is_kept:
            places[source] = place_behind(end if is_new else LogEnd(lows[source], None), place["marks"])
        if not is_kept:
            places[source]["start"] = place["offset"]
    return places


def shares(left: Mapping[Source, int], most: int | None) -> dict[Source, int]:
    """Return how much of what is left of each a micro-batch takes, ``most`` of all, but something of each."""
    total = sum(left.values())
    if not most or total <= most:
        return dict(left)
    return {source: min(count, max(1, most * count // total)) for source, count in left.items()}


class LossReporter:
    """Reports each loss once, or, with ``fails``, ends the query."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self._told: set[str] = set()

    def tell(self, error: NotFoundError | StoreChangedError, how: str) -> None:
        """Report a loss, and how the stream continues.

        Raises:
            MqtoolError: it is to end the query.
        """
        if self.fails:
            raise type(error)(f"{error}; {_GO_ON} {how}, or start with a new checkpointLocation")
        if str(error) not in self._told:
            self._told.add(str(error))
            _log.warning("%s; the stream continues %s", error, how)
