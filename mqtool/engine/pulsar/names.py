"""Maps Pulsar names to RocketMQ names: the RocketMQ topic T is ``persistent://public/default/T``.

Others are ``tenant|namespace|topic``; characters that RocketMQ does not allow in names are written as ``%XX``. Names
that would be too long are replaced by a digest, and the catalogue has the full name. (Rules: pulsar.md 8.1.)
"""

import hashlib
import re
from typing import NamedTuple

from mqtool.errors import MqtoolError

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_UNCHANGED = re.compile(r"[-a-zA-Z0-9_]*")
"""What escaping leaves as it is: most names."""
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,8})")
_SPACE_NAME = re.compile(r"[-=:.\w]+")
DEFAULT = ("public", "default")
_MAX_NAME = 127
_MAX_FULL_NAME = 2000
_DIGEST = "h|"


class TopicNameError(MqtoolError):
    """A name that no topic can have; ``is_non_persistent`` if it is valid but not supported."""

    def __init__(self, text: str, *, is_non_persistent: bool = False) -> None:
        self.is_non_persistent = is_non_persistent
        super().__init__(text)


class PulsarTopicName(NamedTuple):
    """The name of a topic."""

    tenant: str
    namespace: str
    local: str

    @property
    def full(self) -> str:
        """The full name, as clients write it."""
        return f"persistent://{self.tenant}/{self.namespace}/{self.local}"

    @property
    def space(self) -> tuple[str, str]:
        """Tenant and namespace."""
        return self.tenant, self.namespace

    def partition_of(self) -> "tuple[PulsarTopicName, int] | None":
        """Return the topic and the partition number if this is the name of a partition."""
        if "-partition-" in self.local and (match := _PARTITION.fullmatch(self.local)):
            return self._replace(local=match[1]), int(match[2])
        return None


def parse_topic(text: str) -> PulsarTopicName:
    """Parse the name of a topic; ``t`` is ``persistent://public/default/t``.

    Raises:
        TopicNameError: no topic can have it.
    """
    if len(text) > _MAX_FULL_NAME:
        raise TopicNameError(f"The name of a topic has at most {_MAX_FULL_NAME:,} characters")
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text if text.count("/") == 2 else f"public/default/{text}"
    if domain == "non-persistent":
        raise TopicNameError("Non-persistent topics are not served", is_non_persistent=True)
    parts = rest.split("/", 2)
    if domain != "persistent" or len(parts) != 3 or not all(parts):
        raise TopicNameError(f"Invalid topic name: {text}")
    tenant, namespace, local = parts
    if not (_SPACE_NAME.fullmatch(tenant) and _SPACE_NAME.fullmatch(namespace)) or re.search(r"[\s\0]", local):
        raise TopicNameError(f"Invalid topic name: {text}")
    return PulsarTopicName(tenant, namespace, local)


def escape(text: str) -> str:
    """Return a text in characters that RocketMQ allows in names; different texts stay different.

    >>> escape("a.b"), escape("orders")
    ('a%2Eb', 'orders')
    """
    if _UNCHANGED.fullmatch(text):
        return text
    return "".join(
        [chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode("utf-8", "surrogateescape")]
    )


def unescape(text: str) -> str | None:
    """Return the unescaped text, None if ``escape`` cannot have produced this text."""
    if _UNCHANGED.fullmatch(text):
        return text
    raw = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text).encode("latin-1", "replace")
    unescaped = raw.decode("utf-8", "surrogateescape")
    return unescaped if escape(unescaped) == text else None


def rocketmq_topic(name: PulsarTopicName) -> str:
    """Return the RocketMQ topic of a Pulsar topic."""
    parts = [name.local] if name.space == DEFAULT else [*name]
    topic = "|".join(map(escape, parts))
    return topic if len(topic) <= _MAX_NAME else _DIGEST + hashlib.sha1(name.full.encode()).hexdigest()


def pulsar_topic(topic: str) -> PulsarTopicName | None:
    """Return the Pulsar name of a RocketMQ topic, None if it has none, or if only its digest is known."""
    if topic.startswith(_DIGEST):
        return None
    parts = [unescape(part) for part in topic.split("|")]
    if None in parts or len(parts) not in (1, 3):
        return None
    nonempty = [part for part in parts if part]
    name = (
        PulsarTopicName(*DEFAULT, nonempty[0])
        if len(nonempty) == 1
        else PulsarTopicName(*nonempty)
        if len(nonempty) == 3
        else None
    )
    return name if name is not None and rocketmq_topic(name) == topic else None
