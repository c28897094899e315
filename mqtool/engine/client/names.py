"""Valid names of topics and groups, and how a namespace prefixes them.

(Rules: remoting.md 4.1. RocketMQ: ``Validators``, ``TopicValidator``, ``NamespaceUtil``.)
"""

import functools
import re

from mqtool.errors import UsageError
from mqtool.formats.topics import (
    DEAD_LETTER_PREFIX,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
)

MAX_TOPIC = 127
MAX_GROUP = 255
DEFAULT_PRODUCER = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER = "DEFAULT_CONSUMER"
"""Group names that are reserved for the broker's own clients."""

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_SEPARATOR = "%"
_NOT_SENT_TO = frozenset((SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, GIVEN_UP_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_TOPIC))
_PREFIXES = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


def check_topic(topic: str) -> None:
    """Raise UsageError if this is not a valid topic name."""
    _check("topic", topic, MAX_TOPIC)


@functools.lru_cache(1024)  # called for every message, and topics are few
def check_topic_to_send(topic: str) -> None:
    """Raise UsageError if producers may not send to a topic of this name."""
    check_topic(topic)
    if topic in _NOT_SENT_TO:
        raise UsageError(f"the topic {topic} belongs to the brokers: clients cannot send to it")


def check_group(group: str, reserved: str) -> None:
    """Raise UsageError if this is not a valid group name; ``reserved`` is not."""
    _check("group", group, MAX_GROUP)
    if group == reserved:
        raise UsageError(f"{reserved} cannot be used as the name of a group: choose one that identifies its owner")


def _check(noun: str, name: str, most: int) -> None:
    if not isinstance(name, str | None):
        raise UsageError(f"the name of the {noun} must be a string, not {name!r}")
    if not name:
        raise UsageError(f"the {noun} has no name")
    if len(name) > most:
        raise UsageError(f"the name of the {noun} has {len(name):,} characters; the maximum is {most}")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the {noun} {name!r} contains illegal characters: only letters, digits and % | _ - are allowed"
        )


def with_namespace(name: str, namespace: str) -> str:
    """Return the name that brokers know: prefixed by the namespace, after the prefix of a retry or dead letter topic.

    >>> with_namespace("%RETRY%group", "shop")
    '%RETRY%shop%group'
    """
    if not namespace:
        return name
    prefix, bare = _split(name)
    if bare.startswith(namespace + _SEPARATOR):
        return name
    return f"{prefix}{namespace}{_SEPARATOR}{bare}"


def without_namespace(name: str, namespace: str) -> str:
    """Return the name that users know.

    >>> without_namespace("shop%Orders", "shop")
    'Orders'
    """
    if not namespace:
        return name
    prefix, bare = _split(name)
    return prefix + bare.removeprefix(namespace + _SEPARATOR)


def _split(name: str) -> tuple[str, str]:
    prefix = next((candidate for candidate in _PREFIXES if name.startswith(candidate)), "")
    return prefix, name.removeprefix(prefix)
