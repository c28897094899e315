"""Deduplication: the highest sequence id of each producer of a queue, so that resent messages are not stored twice.

Each queue of a topic that deduplicates has a file below ``config/pulsarProducers`` with these ids up to an offset. When
a broker starts, it reads the later ones from the messages themselves, so a kill loses nothing.
(Rules: pulsar.md 7.2. Pulsar: ``MessageDeduplication``.)
"""

import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.broker.config_files import save_data
from mqtool.engine.broker.saves import Saves
from mqtool.engine.pulsar.cursor_files import file_name, remove_table
from mqtool.engine.pulsar.entries import sender_of
from mqtool.engine.pulsar.queue_log import QueueLog
from mqtool.errors import WriteError

log = logging.getLogger(__name__)

MAX_PRODUCERS = 10_000
"""Of a queue; beyond that, the producers that have been inactive longest are forgotten."""
_MAX_TO_REPLAY = 1000
"""Messages that RocketMQ producers may send before the state is saved again."""


class Deduplication:
    """The highest sequence ids of the producers of a queue."""

    def __init__(self, entries: QueueLog, offset: int, sequence_ids: Iterable[tuple[str, int]] = ()) -> None:
        """Make one.

        Args:
            entries: of the queue.
            offset: of the first message that ``sequence_ids`` does not include.
            sequence_ids: the highest of each producer, in the order of their last messages.
        """
        self._entries = entries
        self._offset = offset
        self._highest = dict(sequence_ids)
        self._is_changed = False

    @property
    def is_to_be_saved(self) -> bool:
        """Whether the saved state is too old."""
        return self._is_changed or self._entries.end - self._offset >= _MAX_TO_REPLAY

    def highest_of(self, producer: str) -> int:
        """Return the highest sequence id of a producer, -1 if there is none."""
        return self._highest.get(producer, -1)

    def is_repeated(self, producer: str, sequence_id: int) -> bool:
        """Tell whether a producer has already sent this sequence id or a higher one."""
        return producer in self._highest and sequence_id <= self._highest[producer]

    def stored(self, producer: str, sequence_id: int) -> None:
        """Record a message that has been stored, or the last one of a batch."""
        self._highest[producer] = max(self._highest.pop(producer, sequence_id), sequence_id)
        if len(self._highest) > MAX_PRODUCERS:
            del self._highest[next(iter(self._highest))]
        self._is_changed = True

    def replay(self) -> None:
        """Record the messages that were not recorded yet. Cost: linear in these."""
        entries = self._entries
        if self._offset > entries.end:  # a power loss has destroyed messages that it knows: they may be sent again
            self._highest.clear()
            self._offset = 0
        at = max(self._offset, entries.start)
        while at < entries.end:
            entry = entries.entry(at)
            at = entry.end if entry is not None else entries.next_readable(at)
            if entry is not None and (sender := sender_of(entry)) is not None:
                self.stored(*sender)
        self._is_changed = True

    def snapshot(self) -> tuple[int, list[tuple[str, int]]]:
        """Return the state to save: up to which offset, and the highest sequence ids."""
        self._offset, self._is_changed = self._entries.end, False
        return self._offset, [*self._highest.items()]


class ProducersKey(NamedTuple):
    """A topic by its RocketMQ name, and a queue."""

    topic: str
    queue_id: int


class ProducerFiles:
    """The files with the state of producers below the folder ``config`` of a store."""

    def __init__(self, folder: Path, saves: Saves) -> None:
        self._folder = folder / "pulsarProducers"
        self._saves = saves

    def load(self, key: ProducersKey, generation: int, entries: QueueLog) -> Deduplication:
        """Return the state of the producers of a queue: from its messages if no file exists."""
        path = self._path(key)
        known = Deduplication(entries, 0)
        for file in (path, path.with_name(f"{path.name}.bak")):
            try:
                row = json.loads(file.read_bytes())
                producers = [(str(name), int(sequence_id)) for name, sequence_id in row["producers"]]
                if int(row["generation"]) == generation:
                    known = Deduplication(entries, int(row["offset"]), producers)
                break
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("%s cannot be read (%s): the messages of the queue are read instead", file, error)
        known.replay()
        return known

    def save(self, key: ProducersKey, generation: int, known: Deduplication) -> None:
        """Queue the state of the producers of a queue to be written soon."""

        def pieces() -> list[bytes]:
            offset, producers = known.snapshot()
            row: dict[str, Any] = {
                "topic": key.topic,
                "queueId": key.queue_id,
                "generation": generation,
                "offset": offset,
                "producers": producers,
            }
            return [json.dumps(row, separators=(",", ":")).encode()]

        self._want(self._path(key), pieces, save_data)

    def delete(self, key: ProducersKey) -> None:
        """Queue the file of a queue to be removed soon."""
        self._want(self._path(key), list, lambda path, _: remove_table(path))

    def _want(self, path: Path, pieces: Callable[[], list[bytes]], write: Callable[[Path, bytes], None]) -> None:
        try:
            self._saves.want(path, pieces, write, in_any_order=True)
        except WriteError as error:
            log.warning("%s", error)

    def _path(self, key: ProducersKey) -> Path:
        return self._folder / f"{file_name(key.topic)}@{key.queue_id}.json"
