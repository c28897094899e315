"""Names of topics, queues and groups that mean something to a broker."""

# Topics

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where delayed messages wait, one queue a level."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where half messages end whose producers do not say what became of them."""
DEFAULT_TOPIC = "TBW102"
"""Whose settings a topic gets that is created by sending to it."""
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
"""Has no queues: under its name RocksDB keeps how far the log is dispatched."""

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Before the name of a cluster: the topic that keeps what pop consumers have taken."""
MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
"""Before the name of a broker."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""After the name of a cluster: the topic of answers to requests."""

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LIGHT_QUEUE_PREFIX = "%LMQ%"

SYSTEM_PREFIX = "rmq_sys_"
SYSTEM_PREFIXES = (
    "RMQ_SYS_",
    SYSTEM_PREFIX,
    LIGHT_QUEUE_PREFIX,
    SCHEDULE_TOPIC,
    DEFAULT_TOPIC,
    BENCHMARK_TOPIC,
    SELF_TEST_TOPIC,
    GIVEN_UP_TOPIC,
    OFFSET_MOVED_TOPIC,
    CHECKPOINT_TOPIC,
)

# Groups

TRANSACTION_GROUP = "CID_RMQ_SYS_TRANS"
"""Whose consumer offsets tell up to where half messages and op messages are done with."""
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"
"""Whose offsets say how far the revive log is done: the last finished check point, not the next one."""
SCHEDULE_GROUP = "SCHEDULE_CONSUMER"
"""Whose offsets say how far delayed messages are delivered; it reads no topic as clients do."""
TOOLS_GROUP = "TOOLS_CONSUMER"
"""In whose name tools read."""
FILTER_SERVER_GROUP = "FILTERSRV_CONSUMER"
SELF_TEST_GROUP = "SELF_TEST_C_GROUP"
ONS_GROUP_PREFIX = "CID_ONS"

SYSTEM_GROUPS = (
    TOOLS_GROUP,
    FILTER_SERVER_GROUP,
    SELF_TEST_GROUP,
    f"{ONS_GROUP_PREFIX}-HTTP-PROXY",
    f"{ONS_GROUP_PREFIX}API_PULL",
    f"{ONS_GROUP_PREFIX}API_PERMISSION",
    f"{ONS_GROUP_PREFIX}API_OWNER",
    TRANSACTION_GROUP,
)
"""Which every broker has."""
SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"
SYSTEM_GROUP_PREFIXES = (SYSTEM_GROUP_PREFIX, TOOLS_GROUP, SCHEDULE_GROUP)


def is_system_topic(topic: str) -> bool:
    """Return whether a broker creates this topic by itself."""
    return topic.startswith(SYSTEM_PREFIXES)


MAX_QUEUES = (1 << 31) - 1
"""A table counts the queues of a topic in 32 bits."""
_MAX_NAME = 255
_REPLACED = "\ufffd"  # what Java reads where bytes are not text


def is_possible(topic: bytes) -> bool:
    r"""Return whether a broker can have a topic, and keep its queues in a folder of its name; the empty one is in none.

    Brokers take letters, digits, ``%``, ``|``, ``_`` and ``-``, older ones any text; no client can ask for control
    characters, or for bytes that are not text. (Rules: store.md 2.12. RocketMQ: ``TopicValidator``.)

    >>> [is_possible(topic) for topic in (b"%RETRY%g", b"a.b", b"a\0b", b"a/b", b"\xff")]
    [True, True, False, False, False]
    """
    if topic in (b".", b"..") or not has_folder(topic) or any(byte < 0x20 or byte in (0x2F, 0x7F) for byte in topic):
        return False
    try:
        return topic.isascii() or _REPLACED not in topic.decode()
    except UnicodeDecodeError:
        return False


def has_folder(topic: bytes) -> bool:
    """Return whether a file system accepts a folder of this name, or of folders in it, for its queues."""
    return len(topic) <= _MAX_NAME and b"\0" not in topic
