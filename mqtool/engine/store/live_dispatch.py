"""What a broker derives from a message on append: the counterpart of ``dispatch``, which takes whole tables.

Tests compare the two. (Rules: store.md 2.9, 8.3. RocketMQ: ``CommitLogDispatcherBuildConsumeQueue``,
``MultiDispatch``.)
"""

import functools
import re
from collections.abc import Mapping, Sequence

from mqtool.formats import kernels as plain
from mqtool.formats.batch_consume_queue import MAX_BATCH_SIZE
from mqtool.formats.property_names import (
    DELAY,
    INNER_MULTI_DISPATCH,
    INNER_NUM,
    TAGS,
)
from mqtool.formats.topics import LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX

_TAGS, _DELAY = TAGS.encode(), DELAY.encode()
_NUMBER = re.compile(rb"[+-]?[0-9]{1,18}")

Pairs = Mapping[bytes, bytes]
"""Properties by name."""
BATCH_COUNT = INNER_NUM.encode()
"""The property with the number of messages of an inner batch."""
LIGHT_QUEUES = INNER_MULTI_DISPATCH.encode()
"""The property that names the light queues of a message."""
_WITHOUT_LIGHT_QUEUES = (RETRY_PREFIX, SYSTEM_PREFIX, SCHEDULE_TOPIC)


def tags_code(topic: str, pairs: Pairs, store_timestamp: int, delay_levels: Sequence[int]) -> int:
    """Return the tags code of a message's unit: the hash of its tag, or the delivery time (ms) of a delayed message."""
    if topic == SCHEDULE_TOPIC:
        level = _number(pairs, _DELAY)
        if level > 0:
            return store_timestamp + delay_levels[min(level, len(delay_levels)) - 1]
    tags = pairs.get(_TAGS)
    return _hash(tags) if tags else 0


def ends_the_log(topic: str, pairs: Pairs) -> bool:
    """Return whether a broker ends its log at such a message: its delay level is not a number."""
    if topic != SCHEDULE_TOPIC:
        return False
    level = pairs.get(_DELAY)
    return level is not None and not (_NUMBER.fullmatch(level) and -(1 << 31) <= int(level) < 1 << 31)


def batch_count(pairs: Pairs) -> int:
    """Return the number of messages that an inner batch states, 0 if it states none, or more than a unit can hold."""
    count = _number(pairs, BATCH_COUNT)
    return count if abs(count) <= MAX_BATCH_SIZE else 0


def light_queues(topic: str, pairs: Pairs) -> list[str]:
    """Return the names of light queues in a message, in order; empty for names that are not light queues."""
    names = pairs.get(LIGHT_QUEUES)
    if not names or topic.startswith(_WITHOUT_LIGHT_QUEUES):
        return []
    listed = names.decode("utf-8", "replace").split(",")
    return [name if name.startswith(LIGHT_QUEUE_PREFIX) and is_folder_name(name, 255) else "" for name in listed]


def is_folder_name(name: str, most: int) -> bool:
    """Return whether a queue of this name can have a folder, and the name has at most ``most`` bytes."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < size <= most and "/" not in name and "\0" not in name and name not in (".", "..")


def _number(pairs: Pairs, name: bytes) -> int:
    value = pairs.get(name)
    return int(value) if value and _NUMBER.fullmatch(value) else 0


@functools.lru_cache(4096)
def _hash(text: bytes) -> int:
    value = plain.java_hash(text, 0, len(text), 0)
    return value - ((value & 0x80000000) << 1)
