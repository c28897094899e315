"""Names of topics and queues that mean something to a broker."""

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
"""Where delayed messages wait, one queue a level."""
TIMER_TOPIC = "rmq_sys_wheel_timer"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"

REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"
"""Before the name of a cluster: the topic that keeps what pop consumers have taken."""

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
LIGHT_QUEUE_PREFIX = "%LMQ%"

SYSTEM_PREFIXES = (
    "RMQ_SYS_",
    "rmq_sys_",
    LIGHT_QUEUE_PREFIX,
    SCHEDULE_TOPIC,
    "TBW102",
    "BenchmarkTest",
    "SELF_TEST_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
)
SYSTEM_GROUP_PREFIXES = ("CID_RMQ_SYS_", "TOOLS_CONSUMER", "SCHEDULE_CONSUMER")


def is_system_topic(topic: str) -> bool:
    """Return whether a broker creates this topic by itself."""
    return topic.startswith(SYSTEM_PREFIXES)


_MAX_NAME = 255
_REPLACED = "\ufffd"  # what Java reads where bytes are no text


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
