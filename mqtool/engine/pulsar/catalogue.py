"""Facts about topics that Pulsar needs and RocketMQ does not have: ``config/pulsarTopics.json``.

For each topic: whether it is plain or has partitions; its generation, which rises when it is deleted and created again;
its name if that is too long for RocketMQ; its schemas; whether it deduplicates; whether it is terminated; and the topic
epoch of each queue that had exclusive producers.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.saves import Saves
from mqtool.engine.pulsar.limits import MAX_OF_SCHEMAS
from mqtool.engine.pulsar.schemas import Schema
from mqtool.errors import FormatError, LimitError
from mqtool.formats.config_tables import Table

_MEMBER = "topics"
_SCHEMA_BYTES = 256
"""Overhead of a schema, beside its content."""
_PARTS_OF_PIECE = 200
"""Each takes some microseconds: other work has its turn between pieces."""


class KnownTopic(NamedTuple):
    """What is known of a topic."""

    generation: int = 1
    is_plain: bool = False
    name: str = ""
    """The full name, if it cannot be derived from RocketMQ's name."""
    schemas: tuple[Schema, ...] = ()
    """In the order of their versions."""
    deduplicates: bool = False
    is_terminated: bool = False
    epochs: tuple[tuple[int, int], ...] = ()
    """Queues that had exclusive producers, and the topic epoch of the last one."""


class Catalogue:
    """The facts about topics, by their RocketMQ names."""

    def __init__(self, folder: Path, saves: Saves) -> None:
        """Read the table below the folder ``config`` of a store.

        Raises:
            FormatError: it cannot be read.
        """
        self._path = folder / "pulsarTopics.json"
        self._saves = saves
        _, self._topics = load_table(self._path, _parse)
        self._schema_bytes = {topic: sum(map(_size_of, known.schemas)) for topic, known in self._topics.items()}

    def get(self, topic: str) -> KnownTopic:
        """Return what is known of a topic."""
        return self._topics.get(topic, KnownTopic())

    def topics(self) -> list[str]:
        """Return the topics of which anything is known, even if they do not exist any more."""
        return [*self._topics]

    def deduplicating(self) -> list[str]:
        """Return the topics that deduplicate."""
        return [topic for topic, known in self._topics.items() if known.deduplicates]

    def terminated(self) -> list[str]:
        """Return the topics that are terminated."""
        return [topic for topic, known in self._topics.items() if known.is_terminated]

    def put(self, topic: str, known: KnownTopic) -> None:
        """Store the facts about a topic; they are queued for saving when this returns."""
        before = self._topics.get(topic)
        if before != known:
            if not known.schemas:
                self._schema_bytes.pop(topic, None)
            self._topics[topic] = known
            self._saves.want(self._path, self._pieces)

    def add_schema(self, topic: str, schema: Schema) -> int:
        """Add a schema to a topic and return its version.

        Raises:
            LimitError: there is no room for it.
        """
        size = _size_of(schema)
        if sum(self._schema_bytes.values()) + size > MAX_OF_SCHEMAS:
            raise LimitError(f"the schemas of all topics have more than {MAX_OF_SCHEMAS:,} bytes")
        self._schema_bytes[topic] = self._schema_bytes.get(topic, 0) + size
        known = self.get(topic)
        self.put(topic, known._replace(schemas=(*known.schemas, schema)))
        return len(known.schemas)

    def keep_epoch(self, topic: str, queue_id: int, epoch: int) -> None:
        """Store the topic epoch of the last exclusive producer of a queue."""
        known = self.get(topic)
        self.put(topic, known._replace(epochs=tuple(sorted((dict(known.epochs) | {queue_id: epoch}).items()))))

    def restart(self, topic: str) -> int:
        """Start and return a new generation of a topic that still exists: its queues begin anew."""
        known = self.get(topic)
        self.put(topic, known._replace(generation=known.generation + 1))
        return known.generation + 1

    def delete_topic(self, topic: str, now: int) -> None:  # noqa: ARG002
        """Start a new generation of the topic of this name."""
        self.put(topic, KnownTopic(self.get(topic).generation + 1))

    def _pieces(self) -> Iterator[bytes]:
        piece, separator = [f'{{"{_MEMBER}":{{'], ""
        for topic, known in [*self._topics.items()]:
            piece.append(f"{separator}\n{json.dumps(topic)}:{json.dumps(_row(known))[:-1]}")
            separator = ","
            for number, schema in enumerate(known.schemas):
                piece += "," if number else ',"schemas":[', json.dumps(_row_of_schema(schema))
                yield "".join(piece).encode()
                piece = []
            piece.append("]}" if known.schemas else "}")
            if len(piece) > _PARTS_OF_PIECE:
                yield "".join(piece).encode()
                piece = []
        yield "".join([*piece, "\n}}"]).encode()


def _parse(table: Table) -> dict[str, KnownTopic]:
    topics: Any = table.get(_MEMBER, {})
    known_topics = {}
    try:
        for topic, row in topics.items():
            schemas = tuple(
                Schema(
                    int(schema["type"]),
                    base64.b64decode(schema["data"], validate=True),
                    tuple((_bytes(name), _bytes(value)) for name, value in schema["properties"]),
                )
                for schema in row.get("schemas", ())
            )
            known_topics[str(topic)] = KnownTopic(
                int(row["generation"]),
                bool(row["plain"]),
                str(row["name"]),
                schemas,
                bool(row.get("deduplication", False)),
                bool(row.get("terminated", False)),
                tuple((int(queue_id), int(epoch)) for queue_id, epoch in row.get("epochs", ())),
            )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"it is not a catalogue of topics ({error})", 0) from error
    return known_topics


def _row(known: KnownTopic) -> dict[str, Any]:
    """Return the row that is written for a topic, except for its schemas."""
    row: dict[str, Any] = {"generation": known.generation, "plain": known.is_plain, "name": known.name}
    if known.deduplicates:
        row["deduplication"] = True
    if known.is_terminated:
        row["terminated"] = True
    if known.epochs:
        row["epochs"] = known.epochs
    return row


def _row_of_schema(schema: Schema) -> dict[str, Any]:
    return {
        "type": schema.type,
        "data": base64.b64encode(schema.data).decode(),
        "properties": [[_text(name), _text(value)] for name, value in schema.properties],
    }


def _size_of(schema: Schema) -> int:
    return len(json.dumps(_row_of_schema(schema))) + _SCHEMA_BYTES


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


def _bytes(text: Any) -> bytes:
    return str(text).encode()
