"""The kinds of files in a store, a row each: whoever lists them reads this table.

``StorePaths`` takes their places from it, ``info`` how their bytes are counted and what they show about versions,
``verify`` what may be unreadable, ``doctor`` what a broker opens and default sizes, and readers of remote
and packed stores which of them are not of the log. (Rules: store.md 1.1.)
"""

from typing import NamedTuple

QUEUE_LEVELS = 3
SMALL = "small files"


class FileKind(NamedTuple):
    """A file or folder of a store."""

    name: str
    label: str = SMALL
    """What ``info`` counts its bytes as."""
    levels: int = 0
    """0: a file; 1: a folder of files; ``QUEUE_LEVELS``: a folder of topics, queue ids and files."""
    parent: str = ""
    """The folder of the store that it is in, "" for the store's own."""
    has_addresses: bool = False
    """Whether its files are named by addresses, as segments of the log are."""
    shows_store: bool = False
    """Whether a folder with it is taken for a store."""
    is_opened: bool = True
    """Whether brokers open it whenever they start."""
    sizes: tuple[tuple[str, int], ...] = ()
    """The settings of a broker for the sizes of its files, with their defaults."""
    since: str = ""
    """The first release that makes it; "" if all do, or if its existence alone does not say."""

    @property
    def size_setting(self) -> str:
        """The setting of a broker for the length of its files."""
        return self.sizes[0][0]


COMMIT_LOG = FileKind(
    "commitlog", "commit log", 1, has_addresses=True, shows_store=True, sizes=(("mappedFileSizeCommitLog", 1 << 30),)
)
CONSUME_QUEUE = FileKind(
    "consumequeue", "consume queues", QUEUE_LEVELS, has_addresses=True, shows_store=True,
    sizes=(("mappedFileSizeConsumeQueue", 6_000_000),),
)  # fmt: skip
BATCH_CONSUME_QUEUE = FileKind(
    "batchconsumequeue", "consume queues", QUEUE_LEVELS, has_addresses=True,
    sizes=(("mapperFileSizeBatchConsumeQueue", 13_800_000),),
)  # fmt: skip
CONSUME_QUEUE_EXT = FileKind(
    "consumequeue_ext", "consume queues", QUEUE_LEVELS, has_addresses=True,
    sizes=(("mappedFileSizeConsumeQueueExt", 50_331_648),), since="4.1.0",
)  # fmt: skip
CONSUME_QUEUE_ROCKSDB = FileKind("consumequeue_rocksdb", "consume queues", 1, shows_store=True)
INDEX = FileKind(
    "index", "index", 1, shows_store=True, sizes=(("maxHashSlotNum", 5_000_000), ("maxIndexNum", 20_000_000))
)
CHECKPOINT = FileKind("checkpoint", shows_store=True)
ABORT = FileKind("abort")
LOCK = FileKind("lock")
CONFIG = FileKind("config", "config", 1, shows_store=True)
ROCKSDB_STORE = FileKind("rocksdbstore", "rocksdbstore", 1, since="5.4.0")
COMPACTION = FileKind("compaction", "compaction", 1, since="5.1.0")
ABORT_BACKUP = FileKind("abort.bak", is_opened=False, since="5.0.0")
BROKER_IDENTITY = FileKind("brokerIdentity", is_opened=False, since="5.1.1")
EPOCHS = FileKind("epochFileCheckpoint", is_opened=False, since="5.0.0")
TIMER_WHEEL = FileKind("timerwheel", "timer", since="5.0.0")
TIMER_LOG = FileKind(
    "timerlog", "timer", 1, has_addresses=True, sizes=(("mappedFileSizeTimerLog", 104_857_600),), since="5.0.0"
)
TIMER_CHECK = FileKind("timercheck", "config", parent="config", since="5.0.0")

KINDS = (
    COMMIT_LOG, CONSUME_QUEUE, BATCH_CONSUME_QUEUE, CONSUME_QUEUE_ROCKSDB, INDEX, CHECKPOINT, ABORT, LOCK, CONFIG,
    ROCKSDB_STORE, COMPACTION, ABORT_BACKUP, BROKER_IDENTITY, EPOCHS, TIMER_WHEEL, TIMER_LOG, TIMER_CHECK,
    CONSUME_QUEUE_EXT,
)  # fmt: skip
"""All kinds; what ``info`` says about versions is in this order."""
OF_STORE = tuple(kind for kind in KINDS if not kind.parent)
"""Those in the store's own folder."""
BY_NAME = {kind.name: kind for kind in OF_STORE}
QUEUE_KINDS = tuple(kind for kind in KINDS if kind.levels == QUEUE_LEVELS)
STORE_NAMES = frozenset(kind.name for kind in KINDS if kind.shows_store)
DEFAULT_SIZES = {key: size for kind in KINDS for key, size in kind.sizes}
"""The settings of a broker whose values are sizes of files, with their defaults."""
