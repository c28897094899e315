"""What Pulsar knows of topics and RocketMQ does not: ``config/pulsarTopics.json``.

Of each topic whether it is plain or has partitions, its generation, which rises when it is deleted and made anew, and
the name of one that is too long for RocketMQ.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.saves import Saves
from mqtool.errors import FormatError
from mqtool.formats.config_tables import Table, build_table_in_pieces

_MEMBER = "topics"


class Known(NamedTuple):
    """What is known of a topic."""

    generation: int = 1
    is_plain: bool = False
    name: str = ""
    """In full, where RocketMQ's name does not tell it."""


class Catalogue:
    """What is known of topics, by their names in RocketMQ."""

    def __init__(self, folder: Path, saves: Saves) -> None:
        """Read the table below the folder ``config`` of a store.

        Raises:
            FormatError: it cannot be read.
        """
        self._path = folder / "pulsarTopics.json"
        self._saves = saves
        _, self._topics = load_table(self._path, _parse)

    def get(self, topic: str) -> Known:
        """Return what is known of a topic."""
        return self._topics.get(topic, Known())

    def put(self, topic: str, known: Known) -> None:
        """Take note of something; it is among the saves when this returns."""
        if self._topics.get(topic) != known:
            self._topics[topic] = known
            self._saves.want(self._path, self._pieces)

    def delete_topic(self, topic: str, now: int) -> None:  # noqa: ARG002
        """Have a topic of this name be another one from now on."""
        self.put(topic, Known(self.get(topic).generation + 1))

    def _pieces(self) -> Iterator[bytes]:
        rows = (
            (topic, {"generation": known.generation, "plain": known.is_plain, "name": known.name})
            for topic, known in list(self._topics.items())
        )
        return build_table_in_pieces({}, _MEMBER, rows)


def _parse(table: Table) -> dict[str, Known]:
    topics: Any = table.get(_MEMBER, {})
    found = {}
    try:
        for topic, row in topics.items():
            found[str(topic)] = Known(int(row["generation"]), bool(row["plain"]), str(row["name"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"no catalogue of topics ({error})", 0) from error
    return found
