"""The queues of an open store: which there are, which have units to be written, and which are on their way out."""

from collections.abc import Callable, Collection
from pathlib import Path

from mqtool.engine.store.live_checkpoint import Reached
from mqtool.engine.store.live_queue import LiveBatchQueue, LiveQueue, QueueKey
from mqtool.engine.store.queue_files import QueueFiles

_MAX_NEW = 2000
"""New queues that may wait to be written: a message for one more is refused for now."""


class QueueTable:
    """All queues, by topic and queue id."""

    def __init__(self, root: Path, files: QueueFiles, batch_topics: Collection[str]) -> None:
        """Make a table without queues.

        Args:
            root: folder of the store.
            files: of all queues.
            batch_topics: topics whose queues keep several messages in a unit; examined when a queue is new.
        """
        self.batch_topics = batch_topics
        self.files = files
        self.by_key: dict[QueueKey, LiveQueue] = {}
        self._of_topics: dict[str, dict[QueueKey, None]] = {}
        self.waiting: dict[LiveQueue, None] = {}
        """With units to be written."""
        self.leaving: dict[str, Callable[[], None]] = {}
        """Topics whose queues must be removed, and what does that."""
        self.is_behind = False
        """Whether some queues are new and were left for later."""
        self._root = root
        self._new: dict[LiveQueue, Reached] = {}
        """Queues without files, and the last message before their first."""

    def make(self, topic: str, queue_id: int, reached: Reached) -> LiveQueue:
        """Return a new queue, whose first message comes after what is ``reached``."""
        is_batch = topic in self.batch_topics
        kind = LiveBatchQueue if is_batch else LiveQueue
        folder = self._root / ("batchconsumequeue" if is_batch else "consumequeue") / topic / str(queue_id)
        queue = kind((topic, queue_id), folder, self.files)
        self.add(queue)
        self._new[queue] = reached
        return queue

    def add(self, queue: LiveQueue) -> None:
        """Add a queue that has files."""
        self.by_key[queue.key] = queue
        self._of_topics.setdefault(queue.key[0], {})[queue.key] = None

    def of_topic(self, topic: str) -> list[QueueKey]:
        """Return topic and id of the queues of a topic."""
        return list(self._of_topics.get(topic, ()))

    def has_no_room_for(self, topic: str) -> bool:
        """Return whether a new queue of a topic has to wait: for other new ones, or until the one before is gone."""
        return len(self._new) >= _MAX_NEW or topic in self.leaving

    @property
    def before_new(self) -> Reached | None:
        """How far all messages are in queues that have files, None if there are no others."""
        return next(iter(self._new.values()), None)

    def write(self, most_new: int | None) -> bool:
        """Write the units that wait, but of no more than so many queues that are new; None for all of them, at once.

        Returns:
            Whether all those of queues that are not new are written: a file may have to be made aside first.

        Raises:
            WriteError: the disk is full, or fails; unwritten units keep waiting.
        """
        self.is_behind, at_once, count = False, most_new is None, 0
        for queue in list(self._new):
            if count == most_new:
                self.is_behind = True
                break
            if queue.write(at_once=at_once):
                self.waiting.pop(queue, None)
                del self._new[queue]
                count += 1
        is_all = True
        for queue in list(self.waiting):
            if queue not in self._new:
                if queue.write(at_once=at_once):
                    del self.waiting[queue]
                else:
                    is_all = False
        return is_all

    def let_go(self, topic: str) -> list[LiveQueue]:
        """Take the queues of a topic out, and return them; what waits for them to be written is dropped.

        Cost: linear in the queues of the topic.
        """
        queues = [self.by_key.pop(key) for key in self._of_topics.pop(topic, ())]
        for queue in queues:
            self.waiting.pop(queue, None)
            self._new.pop(queue, None)
        return queues
