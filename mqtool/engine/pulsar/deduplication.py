"""Deduplication: of each producer of a queue the highest sequence id, so that what it sends again is not stored twice.

A file for each queue of a topic that deduplicates, below ``config/pulsarProducers``, has this up to an offset; what
follows is taken from the messages themselves when a broker starts, so a kill forgets nothing.
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
"""Of a queue; of more, those are forgotten that have not sent for longest."""
_MAX_TO_REPLAY = 1000
"""Messages that RocketMQ producers may have sent since something was written down."""


class Deduplication:
    """The highest sequence ids of the producers of a queue."""

    def __init__(self, entries: QueueLog, offset: int, sequence_ids: Iterable[tuple[str, int]] = ()) -> None:
        """Make one.

        Args:
            entries: of the queue.
            offset: of the first message that ``sequence_ids`` does not tell of.
            sequence_ids: the highest of each producer, in the order in which they have sent last.
        """
        self._entries = entries
        self._offset = offset
        self._highest = dict(sequence_ids)
        self._is_changed = False

    @property
    def is_to_be_saved(self) -> bool:
        """Whether what was written down is too old."""
        return self._is_changed or self._entries.end - self._offset >= _MAX_TO_REPLAY

    def highest_of(self, producer: str) -> int:
        """Return the highest sequence id of a producer, -1 where there is none."""
        return self._highest.get(producer, -1)

    def is_repeated(self, producer: str, sequence_id: int) -> bool:
        """Tell whether a producer has sent a message of this sequence id, or a later one."""
        return producer in self._highest and sequence_id <= self._highest[producer]

    def stored(self, producer: str, sequence_id: int) -> None:
        """Take note of a message that is stored now, or of the last one of a batch."""
        self._highest[producer] = max(self._highest.pop(producer, sequence_id), sequence_id)
        if len(self._highest) > MAX_PRODUCERS:
            del self._highest[next(iter(self._highest))]
        self._is_changed = True

    def replay(self) -> None:
        """Take note of the messages that it has not been told of. Cost: linear in these."""
        entries = self._entries
        if self._offset > entries.end:  # a loss of power has taken messages that it knows of: they may be sent again
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
        """Return what is to be written down now: up to which offset, and the highest sequence ids."""
        self._offset, self._is_changed = self._entries.end, False
        return self._offset, [*self._highest.items()]


class ProducersKey(NamedTuple):
    """Topic by RocketMQ's name, and a queue."""

    topic: str
    queue_id: int


class ProducerFiles:
    """The files of what is known of producers below the folder ``config`` of a store."""

    def __init__(self, folder: Path, saves: Saves) -> None:
        self._folder = folder / "pulsarProducers"
        self._saves = saves

    def load(self, key: ProducersKey, generation: int, entries: QueueLog) -> Deduplication:
        """Return what is known of the producers of a queue: what its messages tell, where nothing is kept."""
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
                log.warning("%s cannot be read (%s): the messages of the queue are", file, error)
        known.replay()
        return known

    def save(self, key: ProducersKey, generation: int, known: Deduplication) -> None:
        """Have what is known of the producers of a queue written soon."""

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
        """Have the file of a queue removed soon."""
        self._want(self._path(key), list, lambda path, _: remove_table(path))

    def _want(self, path: Path, pieces: Callable[[], list[bytes]], write: Callable[[Path, bytes], None]) -> None:
        try:
            self._saves.want(path, pieces, write)
        except WriteError as error:
            log.warning("%s", error)

    def _path(self, key: ProducersKey) -> Path:
        return self._folder / f"{file_name(key.topic)}@{key.queue_id}.json"
