"""The queues of a store with very many of them, of which few are held at a time."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.file_queue import FileQueue
from mqtool.errors import NotFoundError

Queue = TypeVar("Queue", bound=FileQueue)
MAX_QUEUES = 16_384
_MAX_TOPICS = 4_096


class QueuesOnDemand(Mapping[QueueKey, Queue]):
    """A queue is opened when it is asked for, and again when it is asked for much later.

    Cost: a list of its topic's folder and one of its own, each time it is opened.
    """

    def __init__(
        self,
        keys: Callable[[], list[QueueKey]],
        folders_of: Callable[[str], dict[int, Path]],
        open_queue: Callable[[QueueKey, Path], Queue],
        most: int = MAX_QUEUES,
    ) -> None:
        """Take what lists all queues, what lists those of a topic, what opens one, and how many are held."""
        self._keys = functools.cache(keys)
        self._folders_of = functools.lru_cache(_MAX_TOPICS)(folders_of)
        self._open = functools.lru_cache(most)(open_queue)

    def __getitem__(self, key: QueueKey) -> Queue:
        """Return a queue; raises ``KeyError`` if there is none."""
        folder = self._folders_of(key[0])[key[1]]
        try:
            return self._open(key, folder)
        except NotFoundError:  # deleted just now
            raise KeyError(key) from None

    def __contains__(self, key: object) -> bool:
        """Return whether there is such a queue; none is opened."""
        return isinstance(key, tuple) and key[1] in self._folders_of(key[0])

    def __iter__(self) -> Iterator[QueueKey]:
        """Yield topic and queue id of all of them, in order."""
        return iter(self._keys())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._keys())
