"""How far a stream has come, and what becomes of it where something that it was to read is lost."""

import logging
from collections.abc import Sequence
from typing import Any

from mqtool.errors import NotFoundError, StoreChangedError
from mqtool.spark.ends import LogEnd, Mark, thinned

_log = logging.getLogger("mqtool.spark")

Place = dict[str, Any]
"""How far one store or queue was read: ``offset``, the address or queue offset behind it, and ``marks``, messages
before it, the newest first. ``start`` is there where the messages since the place before do not begin at its
``offset``."""
Offsets = dict[str, Place]
"""By the name of the store."""

_GO_ON = "set failOnDataLoss=false to go on"


def place_behind(end: LogEnd, marks: Sequence[Sequence[Any]]) -> Place:
    """Return a place behind an end, with the marks of it and of a place before it."""
    every = [Mark(*mark) for mark in marks]
    if end.last and end.last not in every[:1]:
        every.insert(0, end.last)
    return {"offset": end.offset, "marks": [list(mark) for mark in thinned(every)]}


class Losses:
    """Tells of each loss once, or ends the query, with ``fails``."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self._told: set[str] = set()

    def tell(self, error: NotFoundError | StoreChangedError, how: str) -> None:
        """Tell of a loss, and how the stream goes on.

        Raises:
            MqtoolError: it is to end the query.
        """
        if self.fails:
            raise type(error)(f"{error}; {_GO_ON} {how}, or begin with a new checkpointLocation")
        if str(error) not in self._told:
            self._told.add(str(error))
            _log.warning("%s; the stream goes on %s", error, how)
